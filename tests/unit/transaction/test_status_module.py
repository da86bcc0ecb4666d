# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module server_status as Ansible runs it, with a systemctl of the test's own."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpufleet.sglang.plugins.modules import server_status
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import run_module
from ansible_collections.gpufleet.sglang.tests.unit.transaction.samples import SERVER

UNITS = "sglang-t-one.service loaded inactive dead One\nsglang-t-two.service loaded inactive dead Two\n"
STOPPED = "LoadState=loaded\nActiveState=inactive\nResult=success\nExecStart={ path=/opt/none/bin/python ; argv[]=x }\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of commands in front of the real ones; a file with the name of a subcommand is its output."""
    path = tmp_path / "systemctl"
    path.write_text(f"#!/bin/sh\ncat {tmp_path}/$1\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    for name, text in {"list-units": UNITS, "list-unit-files": "", "show": STOPPED}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_all_servers_of_a_host(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_module(server_status, capsys, {})
    assert result["changed"] is False
    assert [server["name"] for server in result["servers"]] == ["t-one", "t-two"]
    assert {server["phase"] for server in result["servers"]} == {"stopped"}


def test_one_server(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_module(server_status, capsys, {"name": "t-two"}, _ansible_check_mode=True)
    assert [server["unit"] for server in result["servers"]] == ["sglang-t-two.service"]


def test_a_host_without_servers(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (commands / "list-units").write_text("")
    assert run_module(server_status, capsys, {})["servers"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [({"name": "a b"}, "cannot be the name of a systemd unit"), ({"name": "a", "table": {}}, "mutually exclusive")],
)
def test_bad_options(commands: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str) -> None:
    assert message in run_module(server_status, capsys, options)["msg"]


def test_a_host_without_systemd(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (commands / "list-units").unlink()
    assert "systemctl list-units failed" in run_module(server_status, capsys, {})["msg"]


def test_without_requests_it_goes_on_in_the_python_of_a_server(
    commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    probed: list[list[str]] = []

    def probe(pythons: list[str], library: str) -> str:
        probed.append(pythons)
        return pythons[0]

    def respawn(python: str) -> None:
        began.append(python)
        raise SystemExit(0)

    monkeypatch.setattr(server_status, "HAS_REQUESTS", False)
    monkeypatch.setattr(server_status, "probe_interpreters_for_module", probe)
    monkeypatch.setattr(server_status, "respawn_module", respawn)
    with pytest.raises(ValueError, match="Expecting value"):  # the new one would print
        run_module(server_status, capsys, {})
    assert (began, probed) == (["/opt/none/bin/python"], [["/opt/none/bin/python"] * 2])


def test_without_requests_anywhere_it_says_so(
    commands: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_status, "HAS_REQUESTS", False)
    assert "(requests)" in run_module(server_status, capsys, {})["msg"]


def test_every_key_is_documented(commands: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documented = yaml.safe_load(server_status.RETURN)["servers"]["contains"]
    (server, _other) = run_module(server_status, capsys, {})["servers"]
    assert set(documented) == set(server) == set(SERVER)
