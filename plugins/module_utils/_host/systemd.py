# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What systemd tells about a unit. Readers only; nothing is changed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable

Runner = Callable[[list[str]], "tuple[int, str, str]"]
"""Runs a command that answers soon, returns its exit status, output and error output. Raises nothing: see `runner`."""

EXIT_NAMES = {  # systemd.exec(5), "Process exit codes": what failed before the program began
    200: "CHDIR", 202: "FDS", 203: "EXEC", 204: "MEMORY", 205: "LIMITS", 206: "OOM_ADJUST", 207: "SIGNAL_MASK",
    208: "STDIN", 209: "STDOUT", 210: "CHROOT", 213: "IOPRIO", 214: "SETSCHEDULER", 216: "GROUP", 217: "USER",
    218: "CAPABILITIES", 219: "CGROUP", 224: "PAM", 225: "NETWORK", 226: "NAMESPACE", 227: "NO_NEW_PRIVILEGES",
    228: "SECCOMP", 233: "RUNTIME_DIRECTORY", 238: "STATE_DIRECTORY", 239: "CACHE_DIRECTORY", 240: "LOGS_DIRECTORY",
    241: "CONFIGURATION_DIRECTORY", 242: "NUMA_POLICY", 243: "CREDENTIALS",
}  # fmt: skip

_BAD_STOPS = ("signal", "core-dump", "exit-code", "timeout")  # others are systemd's own reasons to stop a unit
_CHARACTER = re.compile(r"[A-Za-z0-9:_.@\\-]+\Z")


class SystemdError(RuntimeError):
    """systemd could not be asked."""


@dataclass(frozen=True)
class Unit:
    """A unit as ``systemctl show`` tells it; texts are systemd's own words.

    ``began`` is when the last start began, ``left_active`` when a start was last told to end or found ended, ``ended``
    when its main process ended: microseconds since the host was booted, 0 for never.
    """

    name: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    invocation_id: str
    control_group: str
    main_pid: int
    exec_code: str
    exec_status: int
    restarts: int
    job: int = 0
    began: int = 0
    left_active: int = 0
    ended: int = 0
    host_is_stopping: bool = False

    @property
    def was_asked_to_stop(self) -> bool:
        """Whether this start was ended by a stop, although it ended badly then: systemd calls that failed, too."""
        stopped_first = self.began < self.left_active and not 0 < self.ended <= self.left_active
        return stopped_first and self.result in _BAD_STOPS

    @property
    def is_failing(self) -> bool:
        """Whether this start has ended in a failure, also where what is left of it is still being killed."""
        if self.was_asked_to_stop:
            return False
        ended = self.active_state == "deactivating" and self.result not in ("success", "")
        failed = self.active_state == "failed" and not self.job  # else somebody has just asked for another start
        return ended or failed or self.sub_state.startswith("auto-restart")

    @property
    def exit_text(self) -> str:
        """How the main process ended, as ``systemctl status`` says it."""
        if self.exec_code == "exited":
            name = EXIT_NAMES.get(self.exec_status)
            return f"exit status {self.exec_status}" + (f"/{name}" if name else "")
        if self.exec_code in ("killed", "dumped"):
            return f"signal {self.exec_status}"
        return f"result {self.result}"


_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "Result", "InvocationID", "ControlGroup", "MainPID",
    "ExecMainCode", "ExecMainStatus", "NRestarts", "Job",
    "InactiveExitTimestampMonotonic", "ActiveExitTimestampMonotonic", "ExecMainExitTimestampMonotonic",
)  # fmt: skip
_CHILD_CODES = {"1": "exited", "2": "killed", "3": "dumped"}  # CLD_EXITED, CLD_KILLED, CLD_DUMPED of waitid(2)


def environment_for_parsing(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which systemd's commands print what parsers expect: English, no pager, no colours."""
    return {**environment, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "SYSTEMD_LESS": ""}


def runner(module: Any) -> Runner:
    """Run commands by an AnsibleModule. One that is missing or hangs gives status 127 or 124."""
    environment = environment_for_parsing(os.environ)

    def run(command: list[str]) -> tuple[int, str, str]:
        try:
            return module.run_command(  # type: ignore[no-any-return]
                ["timeout", "10", *command], environ_update=environment, errors="replace", handle_exceptions=False
            )
        except OSError as problem:
            return 127, "", str(problem)

    return run


def unit_name(name: str) -> str:
    """The unit of an instance: ``kimi`` is ``sglang-kimi.service``; a full unit name stays as it is."""
    unit = name if name.endswith(".service") else f"sglang-{name}.service"
    if not _CHARACTER.match(unit):
        raise SystemdError(f"{name!r} cannot be the name of a systemd unit: letters, digits, ':', '_', '.', '-' are")
    return unit


def show(name: str, run: Runner) -> Unit:
    """Ask systemd for one unit. A unit that is not there has ``load_state`` ``not-found``.

    Raises SystemdError where there is no systemd to ask.
    """
    status, output, error = run(["systemctl", "show", "--property=" + ",".join(_PROPERTIES), "--", name])
    if status != 0:
        raise SystemdError(f"systemctl show {name} failed ({status}): {error.strip() or 'no message'}")
    unit = parse_show(name, output)
    if unit.active_state in ("active", "activating"):
        return unit
    return replace(unit, host_is_stopping=run(["systemctl", "is-system-running"])[1].strip() == "stopping")


def parse_show(name: str, output: str) -> Unit:
    """A Unit from the ``KEY=value`` lines of ``systemctl show``; what is missing counts as empty or 0."""
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)

    def number(key: str) -> int:
        text = values.get(key, "")
        return int(text) if text.isdigit() and text.isascii() else 0

    return Unit(
        name=name,
        load_state=values.get("LoadState", ""),
        active_state=values.get("ActiveState", ""),
        sub_state=values.get("SubState", ""),
        result=values.get("Result", ""),
        invocation_id=values.get("InvocationID", ""),
        control_group=values.get("ControlGroup", ""),
        main_pid=number("MainPID"),
        exec_code=_CHILD_CODES.get(values.get("ExecMainCode", ""), ""),
        exec_status=number("ExecMainStatus"),
        restarts=number("NRestarts"),
        job=number("Job"),
        began=number("InactiveExitTimestampMonotonic"),
        left_active=number("ActiveExitTimestampMonotonic"),
        ended=number("ExecMainExitTimestampMonotonic"),
    )
