# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Who listens on a port, as the kernel's socket tables tell it, and what processes a unit has. Readers only."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass


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
