# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands, with errors that a person can read."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import IO


class TestHostsError(Exception):
    """A fault of the world; its text is all that the user sees."""

    __test__ = False  # not a test, whatever pytest thinks of the name


def run(argv: Sequence[str], stdin: IO[bytes] | int = subprocess.DEVNULL) -> str:
    """Standard output of a command. A command that fails is a TestHostsError with the last lines that it wrote."""
    code, out, err = attempt(argv, stdin)
    if code != 0:
        tail = "\n".join(err.strip().splitlines()[-8:])
        raise TestHostsError(f"this command failed (exit {code}): {shlex.join(argv)}\n{tail}")
    return out


def attempt(argv: Sequence[str], stdin: IO[bytes] | int = subprocess.DEVNULL) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that is allowed to fail."""
    try:
        done = subprocess.run(argv, stdin=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise TestHostsError(f"{argv[0]} is not installed: run `testhosts prepare` as root, or install it") from None
    return done.returncode, done.stdout, done.stderr


def passthrough(argv: Sequence[str]) -> int:
    """Exit code of a command that talks to the user itself."""
    try:
        return subprocess.run(argv, check=False).returncode
    except FileNotFoundError:
        raise TestHostsError(f"{argv[0]} is not installed") from None


def say(message: str, to: IO[str] | None = None) -> None:
    """One line of progress, at once."""
    print(message, file=to or sys.stdout, flush=True)
