# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module start_gate as Ansible runs it, with a systemctl and an nvidia-smi of the test's own."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.sglang.plugins.modules import start_gate
from ansible_collections.gpufleet.sglang.tests.unit.host.smi import Card, print_xml
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import run_module

STOPPED = """LoadState=loaded
ActiveState=inactive
Result=success
ExecMainCode=1
ExecMainExitTimestampMonotonic=6000000
"""


class Machine:
    """A directory of commands in front of the real ones, and a server.yaml."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self.capsys = directory, capsys
        self.config = directory / "server.yaml"
        self.config.write_text('model-path: "/m"\nport: 1\npp-size: 2\n')
        self.command("systemctl", STOPPED)
        self.command("nvidia-smi", print_xml([Card(), Card()]))

    def command(self, name: str, output: str, status: int = 0) -> None:
        """Have a command print something."""
        printed = self.directory / f"{name}.out"
        printed.write_text(output)
        path = self.directory / name
        path.write_text(f"#!/bin/sh\ncat {printed}\nexit {status}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)

    def run(self, **options: Any) -> dict[str, Any]:
        arguments = {"name": "kimi", "config": str(self.config), "timeout": 0, **options}
        return run_module(start_gate, self.capsys, arguments)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Machine(tmp_path, capsys)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that this very process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_free_way(machine: Machine) -> None:
    result = machine.run()
    assert result["changed"] is False
    assert (result["blockers"], result["clean_stop"], result["gpus"], result["ports"]) == ([], True, [0, 1], [1])
    assert result["last_stop"] == {"how": "clean", "result": "success", "exit": "exit status 0"}


def test_what_is_in_the_way_fails_it_in_one_line(machine: Machine, taken: int) -> None:
    machine.config.write_text(f"port: {taken}\n")
    result = machine.run()
    assert result["failed"] is True
    assert result["msg"].startswith("sglang-kimi.service cannot be started, ")
    assert f"port {taken} is taken by process " in result["msg"]
    assert "\n" not in result["msg"]
    assert [blocker["kind"] for blocker in result["blockers"]] == ["port"]


def test_check_mode_says_the_same_and_does_not_fail(machine: Machine, taken: int) -> None:
    machine.config.write_text(f"port: {taken}\n")
    machine.command("systemctl", STOPPED.replace("inactive", "active"))
    result = machine.run(timeout=60, _ansible_check_mode=True)
    assert [blocker["port"] for blocker in result["blockers"]] == [taken]
    assert "failed" not in result


def test_the_environment_beside_the_configuration_tells_the_gpus(machine: Machine) -> None:
    machine.command("nvidia-smi", print_xml([Card("90000 MiB"), Card(), Card()]))
    assert machine.run()["blockers"][0]["gpu"] == 0
    (machine.directory / "environment").write_text('CUDA_VISIBLE_DEVICES="2,1"\n')
    assert machine.run()["gpus"] == [2, 1]


def test_a_driver_that_fails_is_a_warning(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    # In a process that has loaded the controller's parts, a warning is displayed, not returned.
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: warned.append(text))
    machine.command("nvidia-smi", "Unable to determine the device handle\n", 15)
    assert machine.run()["gpus"] == []
    assert len(warned) == 1
    assert warned[0].endswith("nvidia-smi -q -x failed (15): Unable to determine the device handle")


def test_a_host_without_gpus(machine: Machine) -> None:
    (machine.directory / "nvidia-smi").unlink()
    assert machine.run()["gpus"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": -1}, "timeout: expected 0 or more, found -1"),
        ({"poll_interval": 0}, "poll_interval: expected more than 0, found 0"),
        ({"max_used_mib": -1}, "max_used_mib: expected 0 or more, found -1"),
        ({"name": "a b"}, "cannot be the name of a systemd unit"),
        ({"config": "/nowhere/server.yaml"}, "config cannot be read"),
    ],
)
def test_bad_options_are_one_line(machine: Machine, options: dict[str, Any], message: str) -> None:
    result = machine.run(**options)
    assert message in result["msg"]
    assert "\n" not in result["msg"]


def test_a_running_server_is_refused(machine: Machine) -> None:
    machine.command("systemctl", STOPPED.replace("inactive", "active"))
    assert "it is active; stop it first" in machine.run()["msg"]


def test_no_systemd_is_said(machine: Machine) -> None:
    machine.command("systemctl", "", 1)
    assert "systemctl show sglang-kimi.service failed (1)" in machine.run()["msg"]
