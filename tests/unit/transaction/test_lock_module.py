# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module server_lock as Ansible runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.lock import Locks
from ansible_collections.gpufleet.sglang.plugins.modules import server_lock
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import run_module


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locks:
    locks = Locks(tmp_path / "locks")
    monkeypatch.setattr(server_lock, "Locks", lambda: locks)
    return locks


def test_a_server_has_one_lock_under_its_name_and_that_of_its_unit(
    locks: Locks, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_module(server_lock, capsys, {"name": "kimi", "run": "a", "run_text": "alice"})
    assert (first["held"], first["changed"], first["holder"]["text"]) == (True, False, "alice")
    assert 355 < first["holder"]["remaining"] <= 360
    second = run_module(server_lock, capsys, {"name": "sglang-kimi.service", "run": "b"})
    assert (second["held"], second["holder"]["run"]) == (False, "a")
    assert run_module(server_lock, capsys, {"name": "kimi", "run": "a", "state": "released"})["holder"] is None
    assert not locks.directory.exists()


def test_check_mode_takes_nothing(locks: Locks, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_module(server_lock, capsys, {"name": "kimi", "run": "a", "_ansible_check_mode": True})
    assert (result["held"], result["holder"]) == (False, None)
    assert not locks.directory.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "a/b"}, "'a/b' cannot be the name"),
        ({"name": "kimi", "lease": 0}, "lease: expected more than 0, found 0"),
        ({"name": "kimi", "run": ""}, "run: expected the run"),
    ],
)
def test_bad_input_is_one_line(
    locks: Locks, capsys: pytest.CaptureFixture[str], options: dict[str, Any], said: str
) -> None:
    result = run_module(server_lock, capsys, {"run": "a", **options})
    assert result["failed"]
    assert said in result["msg"]
    assert not locks.directory.exists()
