# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The processes of a unit: which of them listens on a port, and whether they do anything. Readers of /proc only."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass

_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Listener:
    """Who listens on a port.

    ``owner`` is ``unit``; ``stale`` for a process of the unit that is older than its main process; ``foreign``; or,
    where the kernel does not tell, ``unknown``.
    """

    owner: str
    pid: int = 0
    command: str = ""


@dataclass(frozen=True)
class Pulse:
    """What the processes of a unit have done so far: seconds of CPU time, and bytes read from files."""

    processes: int = 0
    cpu_seconds: float = 0.0
    read_bytes: int = 0


def find_listener(host: str, port: int, control_group: str, main_pid: int = 0, proc: str = "/proc") -> Listener | None:
    """The process that listens where a client of ``host``:``port`` gets to; None while nobody does."""
    inodes = frozenset(_listening_inodes(host, port, proc))
    if not inodes:
        return None
    for pid in (*_members(control_group, proc), *_pids(proc)):
        if _holds(pid, inodes, proc):
            return Listener(_owner(pid, control_group, main_pid, proc), pid, _command(pid, proc))
    return Listener("unknown")


def pulse(control_group: str, besides: int = 0, proc: str = "/proc") -> Pulse:
    """How many processes a unit has, and what they, ``besides`` one, have done so far.

    What the kernel does not tell counts as nothing.
    """
    members = list(_members(control_group, proc))
    pids = [pid for pid in members if pid != besides]
    return Pulse(
        len(members),
        sum(sum(_numbers(_statistics(pid, proc)[11:13])) for pid in pids) / _TICKS_PER_SECOND,
        sum(_read_bytes(pid, proc) for pid in pids),
    )


def in_cgroup(pid: int, control_group: str, proc: str = "/proc") -> bool:
    """Whether a process runs in the cgroup of a unit or below it."""
    if not control_group:
        return False
    for line in _read(f"{proc}/{pid}/cgroup").splitlines():
        path = line.split(":", 2)[-1]
        if path == control_group or path.startswith(control_group + "/"):
            return True
    return False


def _owner(pid: int, control_group: str, main_pid: int, proc: str) -> str:
    if not in_cgroup(pid, control_group, proc):
        return "foreign"
    # Left over by an earlier start, which systemd allows with KillMode=process and KillMode=none.
    return "stale" if main_pid and _started(pid, proc) < _started(main_pid, proc) else "unit"


def _members(control_group: str, proc: str) -> Iterable[int]:
    if not control_group:
        return ()
    for root in _CGROUPS if proc == "/proc" else ():
        words = _read(f"{root}{control_group}/cgroup.procs").split()
        if words:
            return _numbers(words)
    return [pid for pid in _pids(proc) if in_cgroup(pid, control_group, proc)]


def _listening_inodes(host: str, port: int, proc: str) -> Iterable[str]:
    wanted = _addresses(host)
    for name in ("tcp", "tcp6"):
        for line in _read(f"{proc}/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != "0A":  # TCP_LISTEN
                continue
            address, _colon, hex_port = fields[1].rpartition(":")
            try:
                if int(hex_port, 16) == port and (wanted is None or _decode(address) in wanted):
                    yield fields[9]
            except ValueError:
                continue


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
    return _numbers(os.listdir(proc))


def _numbers(words: Iterable[str]) -> list[int]:
    return [int(word) for word in words if word.isascii() and word.isdigit()]


def _statistics(pid: int, proc: str) -> list[str]:
    """The fields of /proc/PID/stat behind the name of the command, which may hold anything."""
    return _read(f"{proc}/{pid}/stat").rpartition(")")[2].split()


def _started(pid: int, proc: str) -> int:
    """When a process began, in ticks since the machine was booted; 0 where it is gone."""
    return sum(_numbers(_statistics(pid, proc)[19:20]))


def _read_bytes(pid: int, proc: str) -> int:
    # rchar counts read(2), from the page cache as well; read_bytes what was fetched for mmap(2), too.
    values = dict(line.split(": ", 1) for line in _read(f"{proc}/{pid}/io").splitlines() if ": " in line)
    return max([0, *_numbers(values.get(key, "") for key in ("rchar", "read_bytes"))])


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
