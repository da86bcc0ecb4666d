# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where things lie on the disk, what they are keyed by, and who may change them at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .shell import say


def digest(parts: Iterable[bytes]) -> str:
    """A key of 12 hexadecimal digits for the given inputs; their boundaries count."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "big"))
        total.update(part)
    return total.hexdigest()[:12]


@dataclass(frozen=True)
class Cache:
    """The directory that holds everything which testhosts keeps outside podman."""

    root: Path

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Cache:
        """$GPUFLEET_CACHE, else gpufleet in the user's cache directory."""
        if environ.get("GPUFLEET_CACHE"):
            return cls(Path(environ["GPUFLEET_CACHE"]).absolute())
        home = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
        return cls(Path(home) / "gpufleet")

    @property
    def ssh(self) -> Path:
        """Key pair of the user, host key of the hosts, known_hosts."""
        return self.root / "ssh"

    @property
    def models(self) -> Path:
        """Model directories, mounted at /srv/models."""
        return self.root / "models"

    def wheels(self, key: str) -> Path:
        """The wheel directory of one set of requirements, mounted at /srv/wheels."""
        return self.root / "wheels" / key

    def hosts(self, name: str) -> Path:
        """State of one set of hosts."""
        return self.root / "hosts" / name

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep other testhosts commands away from the subject `name`; says so when it has to wait."""
        path = self.root / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another testhosts command that works on {name}")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A new directory that becomes `target` when the block ends well: `target` is complete or absent, never half."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_if_changed(path: Path, text: str) -> bool:
    """Write a file in one step, only when its content differs; True when it did."""
    if path.is_file() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)
    return True
