# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mount namespace in which /sys/fs/cgroup is pure cgroup v2.

crun refuses a machine where cgroup v1 controllers are mounted beside v2. There, every podman command of the test hosts
runs in one mount namespace of its own, kept by a file, in which only the v2 hierarchy is mounted; nothing outside it
changes. There is one for the machine, as there is one container storage: containers of one namespace cannot be handled
from another. Where cgroup v2 is what the machine has, none of this happens.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .shell import TestHostsError, attempt, run

_ROOM = Path("/run/gpufleet")
_KEEPER = _ROOM / "cgroup-v2"
_NAMESPACE = _KEEPER / "mnt"

_ENTER = ("nsenter", f"--mount={_NAMESPACE}")
# Changes of this machine's mounts are to be seen inside, those inside not here: hence slave.
_MAKE = ("unshare", f"--mount={_NAMESPACE}", "--propagation", "slave")
_PURE_CGROUP = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup"


def needed(cgroup: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether cgroup v2 is not what is mounted at `cgroup`."""
    return not (cgroup / "cgroup.controllers").exists()


@contextmanager
def entered() -> Iterator[list[str]]:
    """What to put before a command so that it runs in the namespace: nothing where none is needed.

    The namespace cannot be removed inside the block.
    """
    if not needed():
        yield []
        return
    if os.geteuid() != 0:
        raise TestHostsError(
            "/sys/fs/cgroup is not cgroup v2, which containers with systemd need: boot with "
            "systemd.unified_cgroup_hierarchy=1, or run testhosts as root (it then makes a mount namespace that has it)"
        )
    with _flock("users", fcntl.LOCK_SH):
        if not _works():
            with _flock("maker", fcntl.LOCK_EX):
                if not _works():
                    _remove()
                    _make()
        yield [*_ENTER]


def remove_if_unused() -> None:
    """Remove the namespace, unless another testhosts command is inside. To be called when no container is left."""
    if not needed() or not _NAMESPACE.exists():
        return
    try:
        with _flock("users", fcntl.LOCK_EX | fcntl.LOCK_NB):
            _remove()
    except BlockingIOError:
        pass


@contextmanager
def _flock(name: str, operation: int) -> Iterator[None]:
    _ROOM.mkdir(mode=0o755, parents=True, exist_ok=True)
    file = os.open(_ROOM / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, operation)
        yield
    finally:
        os.close(file)


def _works() -> bool:
    """A keeping file without its namespace, as a reboot leaves it, does not."""
    code, kind, _err = attempt([*_ENTER, "stat", "-f", "-c", "%T", "/sys/fs/cgroup"])
    return code == 0 and kind.strip() == "cgroup2fs"


def _make() -> None:
    _KEEPER.mkdir(exist_ok=True)
    # A namespace can only be kept by a file on a mount that does not propagate.
    run(["mount", "--bind", str(_KEEPER), str(_KEEPER)])
    run(["mount", "--make-private", str(_KEEPER)])
    _NAMESPACE.touch()
    run([*_MAKE, "sh", "-c", _PURE_CGROUP])


def _remove() -> None:
    for mount in (_NAMESPACE, _KEEPER):
        while attempt(["umount", str(mount)])[0] == 0:
            pass
    _NAMESPACE.unlink(missing_ok=True)
    if _KEEPER.exists():
        _KEEPER.rmdir()
