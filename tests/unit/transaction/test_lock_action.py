# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugin: waiting for another run, and not for a dead one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.sglang.plugins.action import server_lock
from ansible_collections.gpufleet.sglang.plugins.action.server_lock import ActionModule
from ansible_collections.gpufleet.sglang.plugins.plugin_utils._run import Run

OTHER = {"run": "o", "text": "bob@ci, process 7", "taken": "2026-11-30T03:04:05+00:00", "remaining": 200.0}
TAKEN = {"held": False, "holder": OTHER, "changed": False}
HELD = {"held": True, "holder": {**OTHER, "run": "me"}, "changed": False}


class Task:
    """The plugin with a host that gives one result after another, and a clock that only waiting moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, results: list[Any], gone: set[str], **options: Any) -> None:
        self.results, self.asked, self.lines, self.now = list(results), [], [], 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_time)
        monkeypatch.setattr(server_lock, "time", clock)
        monkeypatch.setattr(server_lock, "display", SimpleNamespace(display=self.lines.append))
        monkeypatch.setattr(server_lock, "current_run", lambda: Run("me", "alice@ops, process 1"))
        monkeypatch.setattr(server_lock, "is_gone", gone.__contains__)
        monkeypatch.setattr(ActionBase, "run", lambda *_args: {})
        self.plugin = ActionModule.__new__(ActionModule)
        check_mode = options.pop("check_mode", False)
        self.plugin._task = SimpleNamespace(args={"name": "kimi", **options}, check_mode=check_mode)
        monkeypatch.setattr(self.plugin, "_execute_module", self.execute)

    asked: list[dict[str, Any]]
    lines: list[str]
    plugin: Any

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def execute(self, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert task_vars["inventory_hostname"] == "gpu-a"
        self.asked.append(dict(module_args))
        return dict(self.results.pop(0) if len(self.results) > 1 else self.results[0])

    def __call__(self) -> dict[str, Any]:
        return dict(self.plugin.run(task_vars={"inventory_hostname": "gpu-a"}))


def test_a_free_lock_is_taken_at_once_in_the_name_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(monkeypatch, [HELD], set())
    assert task() == HELD
    assert task.asked == [{"name": "kimi", "run": "me", "run_text": "alice@ops, process 1"}]
    assert task.lines == []


def test_another_run_is_waited_for_and_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(monkeypatch, [TAKEN, TAKEN, TAKEN, HELD], set())
    assert task() == {**HELD, "waited": 6.0}
    assert task.lines == ["gpu-a | kimi | waits for another run: bob@ci, process 7"]


def test_a_run_that_does_not_end_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(monkeypatch, [TAKEN], set(), timeout=5)
    result = task()
    assert result["failed"]
    assert "bob@ci, process 7, since 2026-11-30T03:04:05+00:00" in result["msg"]
    assert "within 5 s" in result["msg"]
    assert "comes free within 200 s" in result["msg"]
    assert task.now == 6


def test_a_dead_run_of_this_controller_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(monkeypatch, [TAKEN, HELD], {"o"})
    assert task() == HELD
    assert [asked.get("gone") for asked in task.asked] == [None, "o"]
    assert task.now == 0


@pytest.mark.parametrize("options", [{"check_mode": True}, {"state": "released"}])
def test_nobody_waits_who_takes_nothing(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    assert Task(monkeypatch, [TAKEN], set(), **options)() == TAKEN


def test_what_the_module_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"failed": True, "msg": "timeout: expected a number"}
    assert Task(monkeypatch, [refused], set(), timeout="soon")() == refused
