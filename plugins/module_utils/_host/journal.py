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
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Runner

PHASES = ("starting", "loading", "allocating", "capturing", "listening", "warming_up", "ready")

MAX_LINE = 4000
"""Characters of a line that are looked at: what matters of SGLang's lines is in front."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?P<prefix>(?: [A-Z_]+\d+)*)\] (?P<text>.*)\Z", re.DOTALL
)
_SHARDS = re.compile(r"(\d{1,9})% Completed \| (\d{1,9})/(\d{1,9})")
# What a request makes of itself in the journal, whoever sent it and whatever comes of it.
_ECHO = re.compile(r'"(?:GET|POST) /\S* HTTP/1\.[01]" \d{3}|Prefill batch[,.] |Health check failed\.')

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
    """One line of the journal, of the process ``pid``.

    ``time`` is in seconds since the epoch, ``rank`` is like ``PP3 TP1`` or empty.
    """

    text: str
    time: float = 0.0
    cursor: str = ""
    rank: str = ""
    plain: str = ""
    pid: int = 0

    @classmethod
    def of(cls, text: str, time: float = 0.0, cursor: str = "", pid: int = 0) -> Entry:
        """An entry from a line as SGLang printed it, its timestamp and rank taken apart."""
        text = text[:MAX_LINE]
        match = _LINE.search(text)
        if match is None:
            return cls(text, time, cursor, "", text, pid)
        return cls(text, time, cursor, match["prefix"].strip(), match["text"], pid)


@dataclass
class Signs:
    """What the lines of one start have said so far."""

    phases: dict[str, str] = field(default_factory=dict)
    shards: tuple[int, int] | None = None
    fired_up: float | None = None

    def read(self, entry: Entry) -> None:
        """Take one entry in."""
        match = _SHARDS.search(entry.text)
        if match:
            self.shards = (int(match[2]), int(match[3]))
        phase = phase_of(entry)
        if not phase:
            return
        if phase == "ready":
            self.fired_up = entry.time
        known = self.phases.get(entry.rank, "starting")
        self.phases[entry.rank] = max(known, phase, key=PHASES.index)

    @property
    def phase(self) -> str:
        """The phase of the slowest rank. The main process counts where no rank has spoken, and once it listens."""
        main = self.phases.get("", "starting")
        if not self._ranks or PHASES.index(main) >= PHASES.index("listening"):
            return main
        return min(self._ranks, key=PHASES.index)

    @property
    def detail(self) -> str:
        """What is known of the progress, in a few words."""
        words = []
        if self.phase == "loading" and self.shards:
            words.append(f"{self.shards[0]} of {self.shards[1]} shards")
        ahead = sum(PHASES.index(phase) > PHASES.index(self.phase) for phase in self._ranks)
        if ahead:
            words.append(f"{ahead} of {len(self._ranks)} ranks are past it")
        return ", ".join(words)

    @property
    def _ranks(self) -> list[str]:
        return [phase for rank, phase in self.phases.items() if rank]

    def to_dict(self) -> dict[str, Any]:
        """A form that passes through JSON, for `from_dict`."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Signs:
        """The Signs that `to_dict` described."""
        shards = content.get("shards")
        return cls(
            phases={str(rank): phase for rank, phase in content.get("phases", {}).items() if phase in PHASES},
            shards=(int(shards[0]), int(shards[1])) if shards else None,
            fired_up=content.get("fired_up"),
        )


def is_echo(entry: Entry) -> bool:
    """Whether a line only tells of a request: who asks whether a server lives must not take that for its answer."""
    return _ECHO.search(entry.plain) is not None


def phase_of(entry: Entry) -> str:
    """The phase that a line says its process has entered; empty where it says nothing of the kind."""
    return next((phase for pattern, phase in _PHASE_LINES if pattern.search(entry.plain)), "")


def parse_json(line: bytes | str) -> list[Entry]:
    """The lines in one object of ``journalctl -o json``; what is not such an object gives none.

    A message is a text, or a list of bytes where it holds what is not printable (carriage returns of a progress bar).
    """
    try:
        content = json.loads(line)
        message = content.get("MESSAGE")
        if isinstance(message, list):
            message = bytes(message).decode("utf-8", "replace")
        seconds = int(content.get("__REALTIME_TIMESTAMP", 0)) / 1e6
        pid = int(content.get("_PID", 0))
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        return []
    if not isinstance(message, str):
        return []
    cursor = str(content.get("__CURSOR", ""))
    return [Entry.of(piece, seconds, cursor, pid) for piece in split(message)]


def split(message: str) -> list[str]:
    """The lines in a message: a progress bar that is written over itself is several, of which the last is newest."""
    return [piece for piece in re.split(r"[\r\n]+", _ANSI.sub("", message)) if piece.strip()]


class Journal:
    """The journal of one start of one unit. A host without a journal gives no entries and no error."""

    MAX_BYTES = 4_000_000
    """What one call takes in at most; a flood is thinned out by dropping what came first."""

    def __init__(self, run: Runner, environment: Mapping[str, str]) -> None:
        self._run = run
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def last(self, unit: str, invocation_id: str, lines: int = 2000) -> list[Entry]:
        """The newest entries of one start, or of all where none is named; oldest first. They are synced before."""
        self._run(["journalctl", "--sync"])
        return self._entries([f"--lines={lines}", *(_of_start(invocation_id) if invocation_id else ["--unit", unit])])

    def kernel(self, since: float, lines: int = 400) -> list[Entry]:
        """The newest entries of the kernel itself since a moment, in seconds since the epoch."""
        return self._entries(["--dmesg", "--identifier=kernel", f"--lines={lines}", f"--since=@{since:.0f}"])

    def _entries(self, words: list[str]) -> list[Entry]:
        _status, output, _error = self._run([*_JOURNALCTL, *words])
        return [entry for line in output.splitlines() for entry in parse_json(line)]

    def follow(self, invocation_id: str, cursor: str) -> None:
        """Begin to follow one start, behind ``cursor`` or from its beginning."""
        self.close()
        start = [f"--after-cursor={cursor}"] if cursor else ["--lines=2000"]
        try:
            # run_command is for commands that end; this one goes on until it is told to stop.
            self._process = subprocess.Popen(  # pylint: disable=ansible-bad-function
                [*_JOURNALCTL, "--follow", *start, *_of_start(invocation_id)],
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
        *lines, rest = b"".join(chunks).split(b"\n")
        self._rest = rest if len(rest) < self.MAX_BYTES else b""
        return [entry for line in lines for entry in parse_json(line)]

    def age(self, entry: Entry) -> float:
        """Seconds since an entry was written."""
        return time.time() - entry.time

    def close(self) -> None:
        """Stop following."""
        process, self._process, self._rest = self._process, None, b""
        if process is not None:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


_JOURNALCTL = ("journalctl", "--no-pager", "--quiet", "--all", "--output=json", "--output-fields=MESSAGE,_PID")


def _of_start(invocation_id: str) -> list[str]:
    """Words for journalctl: what the unit's processes, and systemd of them, said in one start."""
    return [f"_SYSTEMD_INVOCATION_ID={invocation_id}", "+", f"INVOCATION_ID={invocation_id}"]
