# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Which run of Ansible this is, and whether another one on this controller still lives."""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Run:
    """A run: an id that no other run has, and what to call it."""

    id: str
    text: str


def current_run(pid: int | None = None, proc: Path = PROC) -> Run:
    """The run that this process is a worker of. Its id is C(machine/process namespace/process/start)."""
    pid = os.getppid() if pid is None else pid
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    host = socket.gethostname()
    return Run(f"{_place(proc)}/{pid}/{_started(pid, proc)}", f"{user}@{host}, process {pid}")


def is_gone(run: str, proc: Path = PROC) -> bool:
    """Whether that run has ended for sure: of one on another machine or in another container nobody knows here."""
    place, _slash, process = run.rpartition("/")
    place, _slash, pid = place.rpartition("/")
    if place != _place(proc) or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return _started(int(pid), proc) != process


def _place(proc: Path) -> str:
    """Where a process number means the same process."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(proc / 'self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux
        return f"{socket.gethostname()}/"


def _started(pid: int, proc: Path) -> str:
    """When a process began, in the kernel's ticks; empty where nobody tells, or it has ended and waits to be buried."""
    try:
        # The name before it, in parentheses, may hold blanks and parentheses.
        fields = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
