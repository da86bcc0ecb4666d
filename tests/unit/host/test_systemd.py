# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What systemctl prints, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import (
    SystemdError,
    parse_show,
    runner,
    show,
    unit_name,
)

SHOWN = """LoadState=loaded
ActiveState=activating
SubState=auto-restart
Result=signal
InvocationID=6bb1d5ab2f5e4e0d9f6a8a4b1e0c3d57
ControlGroup=/system.slice/sglang-kimi.service
MainPID=0
ExecMainCode=2
ExecMainStatus=9
NRestarts=3
Job=12
"""


def test_one_call_tells_all() -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> tuple[int, str, str]:
        commands.append(command)
        return 0, SHOWN, ""

    unit = show("sglang-kimi.service", run)
    assert len(commands) == 1
    assert (unit.restarts, unit.job, unit.exec_code, unit.exec_status) == (3, 12, "killed", 9)
    assert unit.is_failing
    assert unit.exit_text == "signal 9"


@pytest.mark.parametrize(
    ("lines", "failing"),
    [
        ("ActiveState=active\nSubState=running\nResult=success", False),
        ("ActiveState=deactivating\nSubState=stop-sigterm\nResult=success", False),
        ("ActiveState=deactivating\nSubState=final-sigkill\nResult=exit-code", True),
        ("ActiveState=failed\nSubState=failed\nResult=exit-code", True),
        ("ActiveState=failed\nSubState=failed\nResult=exit-code\nJob=7", False),
        ("ActiveState=activating\nSubState=auto-restart\nResult=success", True),
        ("ActiveState=activating\nSubState=start-pre\nResult=success", False),
        ("", False),
    ],
)
def test_which_states_are_failures(lines: str, failing: bool) -> None:
    assert parse_show("x.service", lines).is_failing is failing


def times(began: int, left_active: int, ended: int) -> str:
    """Microseconds since the host was booted, as systemctl tells them of a start."""
    return (
        f"InactiveExitTimestampMonotonic={began}\nActiveExitTimestampMonotonic={left_active}\n"
        f"ExecMainExitTimestampMonotonic={ended}"
    )


@pytest.mark.parametrize(
    ("lines", "asked"),
    [
        (f"ActiveState=failed\nResult=signal\n{times(10, 20, 30)}", True),
        (f"ActiveState=failed\nResult=timeout\n{times(10, 20, 30)}", True),
        (f"ActiveState=failed\nResult=exit-code\n{times(10, 20, 30)}", True),
        (f"ActiveState=deactivating\nResult=signal\n{times(10, 20, 30)}", True),
        (f"ActiveState=deactivating\nResult=timeout\n{times(10, 20, 0)}", True),  # being killed
        (f"ActiveState=failed\nResult=signal\n{times(10, 31, 30)}", False),  # it ended, and so the unit did
        (f"ActiveState=failed\nResult=exit-code\n{times(25, 20, 30)}", False),  # a later start was never active
        (f"ActiveState=failed\nResult=exit-code\n{times(10, 0, 30)}", False),
        (f"ActiveState=failed\nResult=oom-kill\n{times(10, 20, 30)}", False),  # systemd stops what the kernel spoiled
        (f"ActiveState=failed\nResult=watchdog\n{times(10, 20, 30)}", False),
        (f"ActiveState=active\nResult=success\n{times(40, 20, 30)}", False),
        ("ActiveState=failed\nResult=signal", False),
    ],
)
def test_a_stop_that_ended_badly_is_no_failure_of_the_server(lines: str, asked: bool) -> None:
    """Releases up to 0.5.18 kill themselves at the end of an ordered stop; others are killed since they are slow."""
    unit = parse_show("x.service", lines)
    assert unit.was_asked_to_stop is asked
    assert unit.is_failing is (unit.active_state == "failed" and not asked)


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("ExecMainCode=1\nExecMainStatus=203", "exit status 203/EXEC"),
        ("ExecMainCode=1\nExecMainStatus=1", "exit status 1"),
        ("ExecMainCode=3\nExecMainStatus=6", "signal 6"),
        ("ExecMainCode=0\nResult=exit-code", "result exit-code"),
        ("ExecMainStatus=many\nNRestarts=-1\nResult=x", "result x"),
    ],
)
def test_how_a_process_ended_in_words(lines: str, text: str) -> None:
    assert parse_show("x.service", lines).exit_text == text


@pytest.mark.parametrize(("state", "calls"), [("active", 1), ("activating", 1), ("inactive", 2), ("deactivating", 2)])
def test_a_host_that_goes_down_is_asked_for_where_the_unit_does_not_run(state: str, calls: int) -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> tuple[int, str, str]:
        commands.append(command)
        return 0, "stopping\n" if "is-system-running" in command else f"ActiveState={state}\n", ""

    assert show("x.service", run).host_is_stopping is (calls == 2)
    assert len(commands) == calls


def test_a_host_without_systemd() -> None:
    with pytest.raises(SystemdError, match="not there"):
        show("x.service", lambda _command: (127, "", "systemctl is not there"))


@pytest.mark.parametrize(
    ("name", "unit"), [("kimi", "sglang-kimi.service"), ("my.service", "my.service"), ("a@b", "sglang-a@b.service")]
)
def test_names_of_units(name: str, unit: str) -> None:
    assert unit_name(name) == unit


@pytest.mark.parametrize("name", ["a b", "a/b", "a;b", "../a.service", "a\n", "ä"])
def test_what_is_no_name_of_a_unit(name: str) -> None:
    with pytest.raises(SystemdError, match="cannot be the name"):
        unit_name(name)


class Module:
    """As much of an AnsibleModule as runs commands."""

    def __init__(self, result: tuple[int, str, str] | OSError) -> None:
        self.result = result
        self.asked: dict[str, Any] = {}

    def run_command(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        self.asked = {"command": command, **options}
        if isinstance(self.result, OSError):
            raise self.result
        return self.result


def test_commands_are_bounded_and_speak_english() -> None:
    module = Module((0, "out", ""))
    assert runner(module)(["systemctl", "show"]) == (0, "out", "")
    assert module.asked["command"] == ["timeout", "10", "systemctl", "show"]
    assert module.asked["environ_update"]["LC_ALL"] == "C.UTF-8"
    assert runner(Module(OSError("nothing here")))(["x"]) == (127, "", "nothing here")
