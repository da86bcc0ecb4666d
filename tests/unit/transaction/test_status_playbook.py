# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook gpufleet.sglang.status: one table, whatever the hosts are like, and nothing that fails."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
FAILED = """LoadState=loaded
ActiveState=failed
Result=exit-code
InvocationID=abc
ExecMainCode=1
ExecMainStatus=1
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """A host that has systemd, in a way; one that has none; one that nobody reaches."""
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(f"#!/bin/sh\ncase $1 in show) echo '{FAILED}';; *) echo sglang-t-none.service;; esac\n")
    systemctl.chmod(systemctl.stat().st_mode | stat.S_IEXEC)
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    hosts = {
        "here": {**local, "ansible_remote_tmp": str(tmp_path / "remote")},
        "broken": {**local, "ansible_python_interpreter": "/bin/false"},
        "away": {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False},
    }
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps({"sglang": {"hosts": hosts}}))
    return path


def play(inventory: Path, *more: str) -> subprocess.CompletedProcess[str]:
    directory = inventory.parent
    return subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "gpufleet.sglang.status", "-i", str(inventory), *more],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(CHECKOUT / ".collections"),
            "ANSIBLE_HOME": str(directory / "home"),
            "COLUMNS": "80",
            "LC_ALL": "C.UTF-8",
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "PWD": str(directory),
        },
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_host_is_a_line_and_none_is_a_failure(inventory: Path) -> None:
    done = play(inventory, "-e", "status_json=seen.json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.split("TASK [Show them]")[1].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("SGLang · "))
    assert lines[start].startswith("SGLang · 3 hosts · 0 of 1 server ready · 2 not seen ")
    found = {line.split()[1]: line.split()[:5] for line in lines[start + 3 : start + 6]}
    assert found["here"] == ["?", "here", "t-none", "failed", "-"]
    assert found["broken"][:4] == ["?", "broken", "cannot", "be"]
    assert found["away"][:3] == ["?", "away", "unreachable"]
    assert any("Connection refused" in line for line in lines)
    seen = json.loads((inventory.parent / "seen.json").read_text())
    assert seen["here"]["servers"][0]["unit"] == "sglang-t-none.service"
    assert seen["away"]["unreachable"] is True


def test_when_nobody_can_be_reached_there_still_is_a_table(inventory: Path) -> None:
    done = play(inventory, "-e", "target=away")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SGLang · 1 host · 0 of 0 servers ready · 1 not seen" in done.stdout


def test_one_server_by_its_name(inventory: Path) -> None:
    done = play(inventory, "-e", "target=here", "-e", "status_name=other", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "? here  other " in done.stdout
