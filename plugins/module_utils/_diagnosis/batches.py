# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What SGLang's lines say of its batches. Pure. Each line tells of one slot of one rank, at one step."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry

# Up to 0.5.3 there is a full stop behind "batch", and a comma at the end; the order differs from release to release.
_BATCH = re.compile(r"(?P<kind>Prefill|Decode) batch[.,] (?P<rest>.*)", re.DOTALL)
_RUNNING = re.compile(r"#running-req: (\d{1,9})")
_QUEUED = re.compile(r"#queue-req: (\d{1,9})")
_USAGE = re.compile(r"(?:full )?token usage: (\d+\.?\d*)")
_THROUGHPUT = re.compile(r"gen throughput \(token/s\): (\d+\.?\d*)")


@dataclass(frozen=True)
class Batch:
    """One line: requests in this slot, requests that wait, share of the KV cache in use, tokens per second."""

    kind: str
    rank: str
    time: float
    running: int
    queued: int
    token_usage: float
    throughput: float


def batch_of(entry: Entry) -> Batch | None:
    """The batch that a line tells of; None where it tells of none."""
    match = _BATCH.search(entry.plain)
    if match is None:
        return None

    def number(pattern: re.Pattern[str]) -> float:
        found = pattern.search(match["rest"])
        return float(found[1]) if found else 0.0

    return Batch(
        kind=match["kind"].lower(),
        rank=entry.rank,
        time=entry.time,
        running=int(number(_RUNNING)),
        queued=int(number(_QUEUED)),
        token_usage=number(_USAGE),
        throughput=number(_THROUGHPUT),
    )
