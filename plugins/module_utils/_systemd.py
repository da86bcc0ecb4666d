# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What systemd, the kernel's socket tables and cgroups tell about a unit. Readers only; nothing is changed."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Callable

Runner = Callable[[list[str]], "tuple[int, str, str]"]
"""Runs a command, returns its exit status, output and error output."""

EXIT_NAMES = {  # systemd.exec(5), "Process exit codes": what failed before the program began
    200: "CHDIR", 202: "FDS", 203: "EXEC", 204: "MEMORY", 205: "LIMITS", 206: "OOM_ADJUST", 207: "SIGNAL_MASK",
    208: "STDIN", 209: "STDOUT", 210: "CHROOT", 213: "IOPRIO", 214: "SETSCHEDULER", 216: "GROUP", 217: "USER",
    218: "CAPABILITIES", 219: "CGROUP", 224: "PAM", 225: "NETWORK", 226: "NAMESPACE", 227: "NO_NEW_PRIVILEGES",
    228: "SECCOMP", 233: "RUNTIME_DIRECTORY", 238: "STATE_DIRECTORY", 239: "CACHE_DIRECTORY", 240: "LOGS_DIRECTORY",
    241: "CONFIGURATION_DIRECTORY", 242: "NUMA_POLICY", 243: "CREDENTIALS",
}  # fmt: skip

_CHARACTER = re.compile(r"[A-Za-z0-9:_.@\\-]+\Z")


class SystemdError(RuntimeError):
    """systemd could not be asked."""


@dataclass(frozen=True)
class Unit:
    """A unit as ``systemctl show`` tells it; texts are systemd's own words."""

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
    "ExecMainCode", "ExecMainStatus", "NRestarts",
)  # fmt: skip
_CHILD_CODES = {"1": "exited", "2": "killed", "3": "dumped"}  # CLD_EXITED, CLD_KILLED, CLD_DUMPED of waitid(2)


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
    return parse_show(name, output)


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
    )


@dataclass(frozen=True)
class Listener:
    """Who listens on a port. ``owner`` is ``unit``, ``foreign`` or, where the kernel does not tell, ``unknown``."""

    owner: str
    pid: int = 0
    command: str = ""


def find_listener(host: str, port: int, control_group: str, proc: str = "/proc") -> Listener | None:
    """The process that listens where a client of ``host``:``port`` gets to; None while nobody does."""
    inodes = frozenset(_listening_inodes(host, port, proc))
    if not inodes:
        return None
    for pid in _pids_of_cgroup(control_group, proc):
        if _holds(pid, inodes, proc):
            return Listener("unit", pid, _command(pid, proc))
    for pid in _pids(proc):
        if _holds(pid, inodes, proc):
            owner = "unit" if in_cgroup(pid, control_group, proc) else "foreign"
            return Listener(owner, pid, _command(pid, proc))
    return Listener("unknown")


def in_cgroup(pid: int, control_group: str, proc: str = "/proc") -> bool:
    """Whether a process runs in the cgroup of a unit or below it."""
    if not control_group:
        return False
    for line in _read(f"{proc}/{pid}/cgroup").splitlines():
        path = line.split(":", 2)[-1]
        if path == control_group or path.startswith(control_group + "/"):
            return True
    return False


def _pids_of_cgroup(control_group: str, proc: str) -> Iterable[int]:
    # Only a shortcut past the other processes of the host: where the file is elsewhere, all of them are looked at.
    text = _read(f"/sys/fs/cgroup{control_group}/cgroup.procs") if control_group and proc == "/proc" else ""
    return (int(word) for word in text.split() if word.isdigit())


def _listening_inodes(host: str, port: int, proc: str) -> Iterable[str]:
    wanted = _addresses(host)
    for name in ("tcp", "tcp6"):
        for line in _read(f"{proc}/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != "0A":  # TCP_LISTEN
                continue
            address, _colon, hex_port = fields[1].rpartition(":")
            if int(hex_port, 16) == port and (wanted is None or _decode(address) in wanted):
                yield fields[9]


def _addresses(host: str) -> frozenset[str] | None:
    """The listening addresses that a client of ``host`` can end at; None for all (a name, or a wildcard)."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    if address.is_unspecified:
        return None
    return frozenset({str(address), f"::ffff:{address}", "0.0.0.0", "::"})


def _decode(hexadecimal: str) -> str:
    """An address as the kernel prints it: groups of four bytes, each in the byte order of the machine."""
    raw = bytes.fromhex(hexadecimal)
    packed = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    address = ipaddress.ip_address(packed)
    mapped = getattr(address, "ipv4_mapped", None)
    return f"::ffff:{mapped}" if mapped else str(address)


def _pids(proc: str) -> Iterable[int]:
    return (int(name) for name in os.listdir(proc) if name.isdigit())


def _holds(pid: int, inodes: frozenset[str], proc: str) -> bool:
    directory = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in names:
        try:
            target = os.readlink(f"{directory}/{name}")
        except OSError:
            continue
        if target.startswith("socket:[") and target[8:-1] in inodes:
            return True
    return False


def _command(pid: int, proc: str) -> str:
    words = _read(f"{proc}/{pid}/cmdline").replace("\0", " ").strip()
    return words[:200] or _read(f"{proc}/{pid}/comm").strip()


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def environment_for_parsing(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which systemd's commands print what parsers expect: English, no pager, no colours."""
    return {**environment, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "SYSTEMD_LESS": ""}
