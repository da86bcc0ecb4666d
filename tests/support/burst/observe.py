# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read what SGLang's scheduler did with the bursts of send.py from the log of its first pipeline rank.

For each pass of each slot that decodes, SGLang 0.5.23 can write two lines: the names of the requests in the slot and of
those that wait, then the Decode line with their numbers. It does so with decode_log_interval: 1, enable_metrics: true,
and SGLANG_LOG_SCHEDULER_STATUS_TARGET=stdout and SGLANG_LOG_SCHEDULER_STATUS_INTERVAL=0 in its environment. It is the
names that make it certain: by the numbers alone, one slot of four requests and two that take turns look the same.

Reads the lines on standard input, writes a JSON object with an observation for each burst.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import dropwhile

_STATUS = re.compile(r'\{.*"event": "scheduler\.status", "rank": 0, .*\}$')
_DECODE = re.compile(r" PP0\] Decode batch, #running-req: (\d+),.* #queue-req: (\d+)")


class ObservationError(ValueError):
    """The lines do not tell what was to be observed; the text is one line that says what is missing."""


@dataclass(frozen=True)
class Pass:
    """One decoding pass of one slot: the names of the requests in the slot, and of those that wait for any slot."""

    running: frozenset[str]
    queued: frozenset[str]


@dataclass(frozen=True)
class Observation:
    """What became of one burst.

    *requests* is how many were seen, *peak* the most that were ever in one slot. The others are of the time when all
    that could start had started and none had finished: *occupancy* the requests in each slot that had any, largest
    first, *running* their sum, *queued* how many waited all that time, *rounds* how often the slots had their turn.
    """

    requests: int
    peak: int
    occupancy: tuple[int, ...]
    running: int
    queued: int
    rounds: int


def read_passes(lines: Iterable[str]) -> list[Pass]:
    """Return the decoding passes of the first pipeline rank.

    Raises ObservationError where a Decode line does not agree with the names that come before it, or has none.
    """
    passes: list[Pass] = []
    counted = 0
    for line in lines:
        if status := _STATUS.search(line):
            entry = json.loads(status.group())
            passes.append(Pass(frozenset(entry["running_rids"]), frozenset(entry["queued_rids"])))
        elif decode := _DECODE.search(line):
            counted += 1
            counts = (int(decode.group(1)), int(decode.group(2)))
            if counted != len(passes) or counts != (len(passes[-1].running), len(passes[-1].queued)):
                raise ObservationError(f"expected one scheduler.status with the same requests before: {line.strip()}")
    return passes


def observe(passes: Sequence[Pass], burst: str) -> Observation:
    """Return what became of the requests whose names begin with *burst* and a hyphen.

    Raises ObservationError where they had company, where they moved from slot to slot, or where they never all ran or
    waited at the same time.
    """
    turns = [number for number, one in enumerate(passes) if any(name.startswith(f"{burst}-") for name in one.running)]
    if not turns:
        raise ObservationError(f"{burst}: none of its requests is in the log")
    own = passes[turns[0] : turns[-1] + 1]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, one in enumerate(own):
        for name in one.running:
            first.setdefault(name, number)
            last[name] = number
    strangers = sorted(name for name in first if not name.startswith(f"{burst}-"))
    if strangers:
        raise ObservationError(f"{burst}: other requests ran at the same time: {', '.join(strangers)}")

    finish = min(last.values())
    started = {name for name, number in first.items() if number <= finish}
    waiting = first.keys() - started
    begin = max(first[name] for name in started)
    # The last ones to wait may arrive after the last ones to start.
    steady = list(dropwhile(lambda one: one.queued != waiting, own[begin : finish + 1]))
    slots = {one.running for one in steady}
    if set().union(*slots) != started:
        raise ObservationError(f"{burst}: the first answer was complete before all requests were there; ask for more")
    if sum(map(len, slots)) != len(started):
        raise ObservationError(f"{burst}: requests moved from slot to slot")
    if any(one.queued != waiting for one in steady):
        raise ObservationError(f"{burst}: the queue changed while no request started or finished")
    return Observation(
        requests=len(first),
        peak=max(len(one.running) for one in own),
        occupancy=tuple(sorted(map(len, slots), reverse=True)),
        running=len(started),
        queued=len(waiting),
        rounds=len(steady) // len(slots),
    )


def main() -> None:
    """Print what became of each burst as JSON; fail with one line where the log does not tell."""
    parser = argparse.ArgumentParser(description="Tell from SGLang's log how it spread requests over its slots.")
    parser.add_argument("bursts", nargs="+", help="the names of the bursts")
    arguments = parser.parse_args()
    try:
        passes = read_passes(sys.stdin)
        json.dump({burst: asdict(observe(passes, burst)) for burst in arguments.bursts}, sys.stdout)
    except ObservationError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
