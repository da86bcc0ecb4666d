# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The journal of an SGLang unit: entries, and what SGLang's lines say of phases and progress.

The parsers are pure. `Journal` is the one reader: a bounded look back, and a follower that waits for new entries.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PHASES = ("starting", "loading", "allocating", "capturing", "listening", "warming_up", "ready")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?P<prefix>(?: [A-Z_]+\d+)*)\] (?P<text>.*)\Z", re.DOTALL
)
_SHARDS = re.compile(r"(\d+)% Completed \| (\d+)/(\d+)")

# What a line of SGLang 0.4.6 to 0.5.23 says of the phase that its process has entered.
_PHASE_LINES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (r"Init (?:torch distributed|parallel) begin", "starting"),
        (r"Load weight begin", "loading"),
        (r"Load weight end\.", "allocating"),
        (r"Capture .*[Cc][Uu][Dd][Aa] graph begin", "capturing"),
        (r"max_total_num_tokens=\d+, ", "capturing"),
        (r"Uvicorn running on ", "listening"),
        (r"The server is fired up and ready to roll!", "ready"),
    )
)


@dataclass(frozen=True)
class Entry:
    """One line of the journal. ``time`` is in seconds since the epoch, ``rank`` is like ``PP3 TP1`` or empty."""

    text: str
    time: float = 0.0
    cursor: str = ""
    rank: str = ""
    plain: str = ""

    @classmethod
    def of(cls, text: str, time: float = 0.0, cursor: str = "") -> Entry:
        """An entry from a line as SGLang printed it, its timestamp and rank taken apart."""
        match = _LINE.search(text)
        if match is None:
            return cls(text, time, cursor, "", text)
        return cls(text, time, cursor, match["prefix"].strip(), match["text"])


@dataclass
class Signs:
    """What the lines of one start have said so far."""

    phases: dict[str, str] = field(default_factory=dict)
    shards: tuple[int, int] | None = None
    fired_up: float | None = None

    def read(self, entry: Entry) -> None:
        """Take one entry in."""
        match = _SHARDS.search(entry.plain)
        if match:
            self.shards = (int(match[2]), int(match[3]))
        for pattern, phase in _PHASE_LINES:
            if pattern.search(entry.plain):
                if phase == "ready":
                    self.fired_up = entry.time
                known = self.phases.get(entry.rank, "starting")
                self.phases[entry.rank] = max(known, phase, key=PHASES.index)

    @property
    def phase(self) -> str:
        """The phase of the slowest rank; the main process counts only where no rank has spoken."""
        ranks = [phase for rank, phase in self.phases.items() if rank]
        return min(ranks or list(self.phases.values()) or ["starting"], key=PHASES.index)

    @property
    def detail(self) -> str:
        """What is known of the progress, in a few words."""
        if self.phase == "loading" and self.shards:
            return f"{self.shards[0]} of {self.shards[1]} shards"
        ranks = [phase for rank, phase in self.phases.items() if rank]
        ahead = sum(PHASES.index(phase) > PHASES.index(self.phase) for phase in ranks)
        return f"{ahead} of {len(ranks)} ranks are past it" if ahead else ""

    def to_dict(self) -> dict[str, Any]:
        """A form that passes through JSON, for `from_dict`."""
        return {"phases": self.phases, "shards": self.shards, "fired_up": self.fired_up}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Signs:
        """The Signs that `to_dict` described."""
        shards = content.get("shards")
        return cls(
            phases={str(rank): phase for rank, phase in content.get("phases", {}).items() if phase in PHASES},
            shards=(int(shards[0]), int(shards[1])) if shards else None,
            fired_up=content.get("fired_up"),
        )


def parse_json(line: bytes) -> list[Entry]:
    """The lines in one object of ``journalctl -o json``; what is not such an object gives none.

    A message is a text, or a list of bytes where it holds what is not printable (carriage returns of a progress bar).
    """
    try:
        content = json.loads(line)
        message = content.get("MESSAGE")
        if isinstance(message, list):
            message = bytes(message).decode("utf-8", "replace")
        seconds = int(content.get("__REALTIME_TIMESTAMP", 0)) / 1e6
    except (ValueError, TypeError, AttributeError):
        return []
    if not isinstance(message, str):
        return []
    cursor = str(content.get("__CURSOR", ""))
    pieces = re.split(r"[\r\n]+", _ANSI.sub("", message))
    return [Entry.of(piece, seconds, cursor) for piece in pieces if piece.strip()]


def matches(unit: str, invocation_id: str) -> list[str]:
    """Words for journalctl: what the unit's processes and systemd said of one start, or of all starts."""
    if invocation_id:
        return [f"_SYSTEMD_INVOCATION_ID={invocation_id}", "+", f"INVOCATION_ID={invocation_id}"]
    return ["--unit", unit]


class Journal:
    """The journal of one start of one unit. A host without a journal gives no entries and no error."""

    MAX_BYTES = 4_000_000
    """What one call takes in at most; a flood is thinned out by dropping what came first."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def last(self, unit: str, invocation_id: str, lines: int = 400) -> list[Entry]:
        """The newest entries, oldest first, written to disk before they are read."""
        self._run(["journalctl", "--sync"])
        output = self._run([*self._command(), f"--lines={lines}", *matches(unit, invocation_id)])
        return [entry for line in output.splitlines() for entry in parse_json(line)]

    def follow(self, unit: str, invocation_id: str, cursor: str) -> None:
        """Begin to follow one start, behind ``cursor`` or from its beginning."""
        self.close()
        start = [f"--after-cursor={cursor}"] if cursor else ["--lines=2000"]
        command = [*self._command(), "--follow", *start, *matches(unit, invocation_id)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
            )
        except OSError:
            self._process = None

    def wait(self, seconds: float) -> list[Entry]:
        """New entries, as soon as there are any; an empty list after ``seconds`` without one."""
        if self._process is None or self._process.stdout is None:
            time.sleep(seconds)
            return []
        handle = self._process.stdout.fileno()
        if not select.select([handle], [], [], seconds)[0]:
            return []
        chunks, size = [self._rest], 0
        while size < self.MAX_BYTES and select.select([handle], [], [], 0)[0]:
            chunk = os.read(handle, 1 << 16)
            if not chunk:
                self.close()
                break
            chunks.append(chunk)
            size += len(chunk)
        *lines, self._rest = b"".join(chunks).split(b"\n")
        return [entry for line in lines for entry in parse_json(line)]

    def close(self) -> None:
        """Stop following."""
        process, self._process, self._rest = self._process, None, b""
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @staticmethod
    def _command() -> list[str]:
        return ["journalctl", "--no-pager", "--all", "--output=json", "--output-fields=MESSAGE"]

    def _run(self, command: list[str]) -> bytes:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._environment,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return b""
        return done.stdout
