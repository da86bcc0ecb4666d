# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Configurations of a server that were proven to work, kept on its host as numbered generations.

A generation is a directory with copies of the files that a start is made of. It appears in one step, when it is whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

STORE = Path("/var/lib/gpufleet-sglang")
"""Root's alone: whoever could write here would write units. The server's own state directory belongs to its user."""


class GenerationError(RuntimeError):
    """There is nothing to keep, or nothing to go back to."""


@dataclass(frozen=True)
class Generation:
    """One proven configuration; ``promoted`` is in seconds since the epoch."""

    number: int
    promoted: float
    path: Path


@dataclass(frozen=True)
class Store:
    """The generations of one server, whose ``files`` have names that differ from each other."""

    root: Path
    files: tuple[Path, ...]

    @classmethod
    def of_server(cls, name: str, store: Path = STORE) -> Store:
        """The store of a server that the role sglang_server deployed."""
        directory = Path("/etc/sglang") / name
        unit = Path("/etc/systemd/system") / f"sglang-{name}.service"
        return cls(store / name, (unit, directory / "server.yaml", directory / "environment"))

    def generations(self) -> list[Generation]:
        """All of them, the oldest first."""
        if not self.root.is_dir():
            return []
        whole = (path for path in self.root.iterdir() if path.name.isdigit())
        found = (Generation(int(path.name), path.stat().st_mtime, path) for path in whole)
        return sorted(found, key=lambda generation: generation.number)

    def find(self, number: int | None = None) -> Generation:
        """The generation of that number, or the newest one. Raises GenerationError where there is none."""
        known = self.generations()
        for generation in reversed(known):
            if number in (None, generation.number):
                return generation
        if number is None or not known:
            raise GenerationError("no configuration of this server has been proven yet")
        there = ", ".join(str(generation.number) for generation in known)
        raise GenerationError(f"expected a generation that is kept ({there}), found {number}")

    def earlier(self) -> Generation | None:
        """The newest generation that is not what the files are now: what going back goes to."""
        return next((generation for generation in reversed(self.generations()) if self.differing(generation)), None)

    def differing(self, generation: Generation) -> list[Path]:
        """The files that are not as they were in a generation."""
        return [path for path in self.files if _digest(path) != _digest(generation.path / path.name)]

    def needs_promotion(self) -> bool:
        """Whether the files, all of which must be there, are not the newest generation already."""
        missing = [str(path) for path in self.files if not path.is_file()]
        if missing:
            raise GenerationError(f"expected the files of a deployed server, there is no {', '.join(missing)}")
        known = self.generations()
        return not known or bool(self.differing(known[-1]))

    def promote(self, keep: int) -> Generation:
        """Keep the files as the newest generation, and of the earlier ones so many that there are ``keep`` in all."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = self.generations()
        number = known[-1].number + 1 if known else 1
        staging = Path(tempfile.mkdtemp(dir=self.root, prefix="incomplete-"))
        for path in self.files:
            _copy(path, staging / path.name)
        staging.rename(self.root / str(number))
        for generation in known[: len(known) + 1 - keep]:
            shutil.rmtree(generation.path)
        for leftover in self.root.glob("incomplete-*"):
            shutil.rmtree(leftover)
        return self.find(number)

    def restore(self, generation: Generation, replace: Callable[[str, str], object]) -> None:
        """Bring the files back. ``replace(source, destination)`` moves one into its place in one step."""
        for path in self.differing(generation):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.restored")
            _copy(generation.path / path.name, temporary)
            replace(str(temporary), str(path))


def _copy(source: Path, destination: Path) -> None:
    """Copy content, mode, times and owner; the copy is never readable for more people than its source."""
    os.close(os.open(destination, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
    status = source.stat()
    shutil.copyfile(source, destination)
    os.chown(destination, status.st_uid, status.st_gid)
    shutil.copystat(source, destination)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
