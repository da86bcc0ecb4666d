# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugin: slices, lines of progress, lost connections and hosts that go down."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.gpufleet.sglang.plugins.action import server_ready
from ansible_collections.gpufleet.sglang.plugins.action.server_ready import ActionModule

WAITING = {"phase": "loading", "detail": "2 of 4 shards", "resume": {"phase": "loading"}, "ready": False}
READY = {"phase": "ready", "detail": "", "resume": {"phase": "ready"}, "ready": True, "timeline": {"loading": 74.0}}
FAILED = {"phase": "loading", "detail": "", "resume": {"phase": "loading"}, "ready": False, "failed": True, "msg": "x"}
KILLED = {"failed": True, "module_stdout": "", "module_stderr": "Terminated", "rc": 143, "msg": "MODULE FAILURE"}
BROKEN = {
    "failed": True,
    "module_stdout": "",
    "module_stderr": "no such interpreter",
    "rc": 127,
    "msg": "MODULE FAILURE",
}
LOST = AnsibleConnectionFailure("Failed to connect to the host via ssh: Connection refused")


class Run:
    """The plugin with a target that gives one result after another, and a clock that goes on with each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *results: Any, **args: Any) -> None:
        self.results, self.slices, self.lines, self.now, self.reconnected = list(results), [], [], 0.0, 0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_time)
        monkeypatch.setattr(server_ready, "time", clock)
        monkeypatch.setattr(server_ready, "display", SimpleNamespace(display=self.show))
        monkeypatch.setattr(ActionBase, "run", lambda *_args: {})
        self.plugin = ActionModule.__new__(ActionModule)
        self.plugin._task = SimpleNamespace(args={"name": "kimi", **args}, check_mode=False, async_val=0)
        self.plugin._connection = SimpleNamespace(reset=self.reconnect)
        monkeypatch.setattr(self.plugin, "_execute_module", self.execute)

    slices: list[dict[str, Any]]
    lines: list[str]
    plugin: Any

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def reconnect(self) -> None:
        self.reconnected += 1

    def show(self, line: str, _color: str | None = None) -> None:
        self.lines.append(line)

    def execute(self, **options: Any) -> dict[str, Any]:
        self.slices.append(options.get("module_args", options))
        self.now += 15
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return dict(result)

    def __call__(self) -> dict[str, Any]:
        return dict(self.plugin.run(task_vars={"inventory_hostname": "gpu-a"}))


Runs = Callable[..., Run]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return lambda *results, **args: Run(monkeypatch, *results, **args)


def test_slices_hand_on_what_they_know(running: Runs) -> None:
    run = running(WAITING, WAITING, READY)
    result = run()
    assert result["ready"]
    assert "resume" not in result
    assert [slice_["resume"] for slice_ in run.slices] == [
        {"elapsed": 0.0}, {"phase": "loading", "elapsed": 15.0}, {"phase": "loading", "elapsed": 30.0},
    ]  # fmt: skip
    assert run.lines == [
        "gpu-a | kimi |    15 s | loading: 2 of 4 shards",
        "gpu-a | kimi |    30 s | loading: 2 of 4 shards",
        "gpu-a | kimi |    45 s | READY (loading 74.0)",
    ]


def test_a_failure_ends_it(running: Runs) -> None:
    run = running(WAITING, FAILED)
    assert run()["failed"]


@pytest.mark.parametrize("trouble", [LOST, KILLED])
def test_a_lost_connection_costs_a_slice(running: Runs, trouble: Any) -> None:
    run = running(WAITING, trouble, trouble, READY)
    result = run()
    assert result["ready"]
    assert result["connections_lost"] == 2
    assert run.reconnected == 2
    assert run.slices[-1]["resume"]["phase"] == "loading"
    assert sum("connection lost, trying again" in line for line in run.lines) == 2


def test_a_connection_that_stays_lost_fails_at_the_timeout(running: Runs) -> None:
    run = running(*[LOST] * 10, timeout=60)
    with pytest.raises(AnsibleConnectionFailure):
        run()
    assert 60 < run.now < 90


def test_a_module_that_cannot_run_is_not_tried_again(running: Runs) -> None:
    run = running(BROKEN)
    assert run()["rc"] == 127


@pytest.mark.parametrize("quiet", [False, "no", "False"])
def test_without_progress_nothing_is_shown_and_slices_are_longer(running: Runs, quiet: Any) -> None:
    run = running(WAITING, LOST, READY, progress=quiet)
    assert run()["ready"]
    assert run.lines == []
    assert run.slices[0]["slice"] == 60.0


@pytest.mark.parametrize(("setting", "value"), [("check_mode", True), ("async_val", 600)])
def test_check_mode_and_async_are_one_run_of_the_module(running: Runs, setting: str, value: Any) -> None:
    run = running(WAITING)
    setattr(run.plugin._task, setting, value)
    run()
    assert run.slices[0]["wrap_async"] is (setting == "async_val")
    assert "slice" not in run.slices[0]


def test_what_is_no_number_is_left_to_the_module(running: Runs) -> None:
    run = running(FAILED, timeout="soon")
    run()
    assert run.slices[0]["timeout"] == "soon"
