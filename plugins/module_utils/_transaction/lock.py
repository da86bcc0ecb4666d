# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Who may change a server: one run at a time, by a file on the server's host.

A run is a process on some controller, which the host cannot see. Its lock therefore lasts for a lease, which its steps
prolong; what is held by a run that died comes free when the lease is over, or when the host is booted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Callable, NoReturn

LOCKS = Path("/run/gpufleet-sglang")
"""Root's alone, and empty after a boot."""


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LockError(RuntimeError):
    """The locks of this host cannot be used."""


@dataclass(frozen=True)
class Holder:
    """A run that holds a lock: its id, what to call it, and when it took it, in seconds since the epoch.

    ``lease`` is in seconds, ``expires`` in seconds since the host was booted.
    """

    run: str
    text: str
    taken: float
    lease: float
    expires: float


@dataclass(frozen=True)
class Locks:
    """The locks of a host, by name. A lock of unknown content counts as none: nobody can have meant it."""

    directory: Path = LOCKS
    clock: Callable[[], float] = _boot_time

    def hold(self, name: str, run: str, text: str, lease: float, gone: str = "") -> Holder:
        """Take the lock, or prolong it; whose it is then. Whoever that is, and is not ``run``, has to be waited for.

        The run ``gone`` is known to have died: its lock is free.
        """
        with self._alone():
            holder = self._holder(name)
            if holder is None or holder.run == gone or (holder.run != run and self.remaining(holder) <= 0):
                holder = Holder(run, text, time.time(), lease, 0)
            if holder.run == run:
                holder = self._write(name, replace(holder, lease=lease, expires=self.clock() + lease))
            return holder

    def prolong(self, name: str, run: str, least: float = 0) -> None:
        """Begin the lease anew, for ``least`` seconds or more, if that run holds the lock; else do nothing."""
        if not self.directory.is_dir():
            return
        with self._alone():
            holder = self._holder(name)
            if holder is not None and holder.run == run:
                self._write(name, replace(holder, expires=self.clock() + max(holder.lease, least)))

    def release(self, name: str, run: str) -> None:
        """Give the lock back if that run holds it; else do nothing."""
        if not self.directory.is_dir():
            return
        with self._alone():
            holder = self._holder(name)
            if holder is not None and holder.run == run:
                self._path(name).unlink()
            with contextlib.suppress(OSError):  # there are others
                self.directory.rmdir()

    def holder(self, name: str) -> Holder | None:
        """Who holds the lock; nothing is changed."""
        holder = self._holder(name)
        return holder if holder is not None and self.remaining(holder) > 0 else None

    def remaining(self, holder: Holder) -> float:
        """Seconds until the lock comes free if its run does nothing any more."""
        return holder.expires - self.clock()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else looks at these locks meanwhile. The directory is what is locked, so nothing is left of it."""
        while True:
            with contextlib.suppress(FileExistsError):
                self.directory.mkdir(mode=0o700)
            try:
                handle = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # another run removed it just now
                continue
            except OSError as error:
                raise LockError(f"{self.directory} cannot be used: {error.strerror}") from error
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                if self._is(handle):
                    yield
                    return
            finally:
                os.close(handle)

    def _is(self, handle: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(handle), self.directory.stat())
        return False

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.lock"

    def _holder(self, name: str) -> Holder | None:
        try:
            return Holder(**json.loads(self._path(name).read_text(encoding="utf-8")))
        except (FileNotFoundError, TypeError, ValueError):
            return None
        except OSError as error:
            _give_up(error)

    def _write(self, name: str, holder: Holder) -> Holder:
        try:
            new = self._path(name).with_suffix(".new")
            new.write_text(json.dumps(asdict(holder)), encoding="utf-8")
            new.replace(self._path(name))
        except OSError as error:
            _give_up(error)
        return holder


def _give_up(error: OSError) -> NoReturn:
    raise LockError(f"{error.filename} cannot be used: {error.strerror}") from error
