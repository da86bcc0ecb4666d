# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which run this is, and which runs have ended."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.plugin_utils._run import current_run, is_gone


def test_a_run_is_told_by_its_process() -> None:
    run = current_run(os.getpid())
    assert run.text.endswith(f"process {os.getpid()}")
    assert run == current_run(os.getpid())
    assert run.id != current_run(os.getppid()).id
    assert current_run().id == current_run(os.getppid()).id


def test_a_run_that_lives_is_not_gone() -> None:
    assert not is_gone(current_run(os.getpid()).id)


def test_a_run_that_was_killed_is_gone_before_and_after_it_is_buried() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        run = current_run(process.pid).id
        assert not is_gone(run)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(run)
    assert is_gone(run)


def test_another_process_with_the_same_number_is_another_run() -> None:
    run = current_run(os.getpid()).id
    assert is_gone(run.rpartition("/")[0] + "/1")


@pytest.mark.parametrize("run", ["", "a", "a/b/c/d", "x/1/99999999/5", "////", "b/c/-1/0"])
def test_of_a_run_elsewhere_nobody_knows_whether_it_is_gone(run: str) -> None:
    assert not is_gone(run)


def test_a_controller_without_proc_tells_by_the_number_alone(tmp_path: Path) -> None:
    run = current_run(os.getpid(), tmp_path).id
    assert not is_gone(run, tmp_path)
    with subprocess.Popen(["true"]) as process:
        pass
    assert is_gone(current_run(process.pid, tmp_path).id, tmp_path)
