# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Waiting for a server on its host: one slice of polls, and the real probes that a slice looks through."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Callable, Protocol

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import PHASES, Entry, Journal
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import (
    Listener,
    Pulse,
    find_listener,
    pulse,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Runner, Unit, show
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import AFTERMATH
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import (
    GENERATION_TIMEOUT,
    Probes,
    Verdict,
    Wait,
    Wanted,
    look,
    out_of_time,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer, Client

# The phases behind this one are short: a round trip to the controller would make them longer.
_OPEN = PHASES.index("listening")
# What makes the next look worth having at once, besides a new phase.
_ENDED = re.compile(r"Main process exited|Failed with result|Control process exited|Start request repeated")


class Follower(Protocol):
    """What a slice needs of a `Journal`: its new entries are also the clock by which it sleeps."""

    def follow(self, invocation_id: str, cursor: str) -> None:
        """Begin to follow one start."""

    def wait(self, seconds: float) -> list[Entry]:
        """New entries, as soon as there are any."""

    def age(self, entry: Entry) -> float:
        """Seconds since an entry was written."""

    def close(self) -> None:
        """Stop following."""


@dataclass(frozen=True)
class Pace:
    """Seconds: between two looks, of the whole wait, and of one slice; None goes on to the end in one."""

    poll_interval: float
    timeout: float
    slice: float | None = None


def run_slice(
    wait: Wait, wanted: Wanted, probes: Probes, follower: Follower, pace: Pace, clock: Callable[[], float]
) -> Verdict:
    """Look until the server is ready or failed, its loading enters a new phase, or the slice or the timeout is over.

    ``clock`` tells the seconds since the wait began, which may be in an earlier slice.
    """
    phase, following = wait.phase, ""
    end = pace.timeout if pace.slice is None else clock() + pace.slice
    try:
        while True:
            verdict = look(wait, wanted, probes, clock())
            if verdict.ready or verdict.failure is not None:
                return verdict
            if clock() >= pace.timeout:
                return Verdict(verdict.phase, verdict.detail, out_of_time(wait, wanted, probes, pace.timeout))
            if pace.slice is not None and (clock() >= end or (wait.phase != phase and wait.phase in PHASES[:_OPEN])):
                return verdict
            phase = wait.phase
            if wait.invocation_id != following:
                following = wait.invocation_id
                follower.follow(following, wait.cursor)
            until = min(end, wait.life.at + (wanted.stall_timeout or math.inf))
            _sleep(wait, follower, min(pace.poll_interval, max(until - clock(), 0.05)), clock)
    finally:
        follower.close()


def _sleep(wait: Wait, follower: Follower, seconds: float, clock: Callable[[], float]) -> None:
    """Take in new entries for some time; an entry that makes a difference ends it."""
    until = clock() + seconds
    known = (wait.signs.phase, wait.signs.fired_up)
    while clock() < until:
        entries = follower.wait(until - clock())
        for entry in entries:
            wait.read(entry, clock() - max(follower.age(entry), 0.0))
        if known != (wait.signs.phase, wait.signs.fired_up) or any(_ENDED.search(entry.text) for entry in entries):
            return


@dataclass(frozen=True)
class HostProbes:
    """The probes of a host with systemd and a server that listens on ``host``:``port``."""

    unit_name: str
    host: str
    port: int
    client: Client
    journal: Journal
    run: Runner
    request_timeout: float
    remaining: Callable[[], float] = lambda: math.inf
    """Seconds until there is a verdict in any case: no request goes on for longer, but for a second that each has."""

    def unit(self) -> Unit:
        """See `Probes`."""
        return show(self.unit_name, self.run)

    def listener(self, unit: Unit) -> Listener | None:
        """See `Probes`."""
        return find_listener(self.host, self.port, unit.control_group, unit.main_pid)

    def pulse(self, unit: Unit, besides: int) -> Pulse:
        """See `Probes`."""
        return pulse(unit.control_group, besides)

    def gpu_memory(self) -> list[int]:
        """See `Probes`."""
        _status, output, _error = self.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
        return [int(line) for line in output.split() if line.isdigit()]

    def models(self) -> Answer:
        """See `Probes`."""
        return self.client.get("/v1/models", self._seconds(self.request_timeout))

    def ready(self) -> Answer:
        """See `Probes`."""
        return self.client.get("/ready", self._seconds(self.request_timeout))

    def health(self) -> Answer:
        """See `Probes`."""
        return self.client.get("/health", self._seconds(GENERATION_TIMEOUT))

    def completion(self, model: str, prompt: str, max_tokens: int) -> Answer:
        """See `Probes`."""
        content = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self.client.post("/v1/completions", content, self._seconds(GENERATION_TIMEOUT))

    def age(self, entry: Entry) -> float:
        """See `Probes`."""
        return self.journal.age(entry)

    def last_entries(self, invocation_id: str) -> list[Entry]:
        """See `Probes`; the kernel's lines of the time just before the end are among them."""
        entries = self.journal.last(self.unit_name, invocation_id)
        kernel = self.journal.kernel(max(entries[0].time, entries[-1].time - AFTERMATH)) if entries else []
        return sorted([*entries, *kernel], key=lambda entry: entry.time)

    def _seconds(self, wanted: float) -> float:
        return min(wanted, max(self.remaining(), 1.0))
