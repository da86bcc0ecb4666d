# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""SGLang's pipeline-parallel scheduler as arithmetic: slots, caps, occupancy, and what a cap does to throughput.

The scheduler goes round ``pp_size + pp_async_batch_depth`` slots. A slot takes waiting requests until it holds
``pp_max_micro_batch_size`` of them, or until all slots together hold ``max_running_requests``; only then has the next
slot its turn, and a request never moves to another slot. Everything below follows from that. Pure: no input, no output,
no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError

# The batch sizes SGLang captures CUDA graphs for: 1, 2, 4, then steps that grow with the size. (first, step) pairs.
_GRAPH_STEPS = ((8, 4), (16, 8), (256, 16), (512, 32))
_SMALL_GRAPHS = (1, 2, 4)

# The interval nearest to SGLang's own 40 that a ring of a usual size has no common divisor with.
_LOG_INTERVAL = 41


@dataclass(frozen=True)
class Schedule:
    """What the scheduler does with a burst of concurrent requests.

    *cap* is the micro-batch limit in force, *occupancy* the number of requests in each slot, *limit* what keeps the
    queued requests out: "cap", "max_running_requests", "kv" or "" when nothing queues.
    """

    pp_size: int
    concurrency: int
    max_running_requests: int
    cap: int
    capacity: int
    occupancy: tuple[int, ...]
    limit: str

    @property
    def slots(self) -> int:
        return len(self.occupancy)

    @property
    def running(self) -> int:
        return sum(self.occupancy)

    @property
    def queued(self) -> int:
        return self.concurrency - self.running

    @property
    def filled(self) -> int:
        return sum(1 for held in self.occupancy if held)

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """The sizes of the micro-batches, largest first, each with the number of slots that hold it."""
        full, rest = divmod(self.running, self.cap)
        return tuple(pair for pair in ((self.cap, full), (rest, 1)) if pair[0] and pair[1])

    @property
    def idle_fraction(self) -> float:
        """The part of the time a stage has nothing to do, 0.0 to 1.0."""
        return max(0.0, (self.pp_size - self.filled) / self.pp_size)


def automatic_cap(max_running_requests: int, pp_size: int) -> int:
    """Return the cap SGLang computes itself where none is given. The depth has no part in it."""
    return max(max_running_requests // pp_size, 1)


def balanced_cap(concurrency: int, slots: int) -> int:
    """Return the smallest cap that lets *concurrency* requests run at once: each slot gets its share, none more."""
    return max(-(-concurrency // slots), 1)


def schedule(
    concurrency: int,
    pp_size: int,
    max_running_requests: int,
    cap: int | None = None,
    depth: int = 0,
    kv_requests: int | None = None,
) -> Schedule:
    """Return what happens to *concurrency* requests that arrive at once.

    *cap* None leaves the micro-batch to SGLang; *kv_requests* is how many requests the KV cache has room for, None
    where that is not known. Raises PlanError for numbers that no server takes.
    """
    for name, value, least in (
        ("target_concurrency", concurrency, 0),
        ("pp_size", pp_size, 1),
        ("max_running_requests", max_running_requests, 1),
        ("pp_max_micro_batch_size", 1 if cap is None else cap, 1),
        ("pp_async_batch_depth", depth, 0),
    ):
        if value < least:
            raise PlanError(f"{name}: expected at least {least}, got {value}")
    limit_of_slot = automatic_cap(max_running_requests, pp_size) if cap is None else cap
    slots = pp_size + depth
    # Of two equal bounds the first is named: a cap only starves requests where everything else has room.
    bounds = [(max_running_requests, "max_running_requests"), (slots * limit_of_slot, "cap")]
    if kv_requests is not None:
        bounds.insert(0, (max(kv_requests, 0), "kv"))
    capacity, limit = min(bounds, key=lambda bound: bound[0])
    running = min(concurrency, capacity)
    full, rest = divmod(running, limit_of_slot)
    occupancy = (limit_of_slot,) * full + ((rest,) if rest else ())
    occupancy += (0,) * (slots - len(occupancy))
    return Schedule(
        pp_size=pp_size,
        concurrency=concurrency,
        max_running_requests=max_running_requests,
        cap=limit_of_slot,
        capacity=capacity,
        occupancy=occupancy,
        limit=limit if concurrency > capacity else "",
    )


@dataclass(frozen=True)
class StepCost:
    """What the slowest stage has to read to decode one micro-batch once, in bytes.

    *fixed* is read whatever the batch is (attention, shared experts, dense layers, output head), *per_expert* for each
    routed expert that a token of the batch goes to, *per_request* for each request (its KV cache).
    """

    fixed: float
    per_request: float
    per_expert: float = 0.0
    experts: int = 0
    experts_per_token: int = 0

    def experts_read(self, batch: int) -> float:
        """Return how many different experts a batch goes to when every expert is as likely as any other."""
        if not self.experts:
            return 0.0
        return self.experts * (1.0 - (1.0 - self.experts_per_token / self.experts) ** batch)

    def variable(self, batch: int) -> float:
        """Return the bytes that depend on the batch."""
        return self.per_expert * self.experts_read(batch) + self.per_request * batch


@dataclass(frozen=True)
class StepTime:
    """The time a stage needs for a micro-batch: *base* seconds, plus *per_byte* for what depends on the batch."""

    cost: StepCost
    base: float
    per_byte: float

    def seconds(self, batch: int) -> float:
        return self.base + self.per_byte * self.cost.variable(batch)

    def round_seconds(self, planned: Schedule) -> float:
        """Return the time from one token of a request to its next.

        A stage serves all filled slots in turn, and a slot passes all stages: whichever takes longer.
        """
        times = [(self.seconds(size), count) for size, count in planned.batches]
        if not times:
            return 0.0
        return max(sum(time * count for time, count in times), planned.pp_size * times[0][0])

    def tokens_per_second(self, planned: Schedule) -> float:
        """Return the output tokens per second of all requests together."""
        seconds = self.round_seconds(planned)
        return planned.running / seconds if seconds > 0 else 0.0


@dataclass(frozen=True)
class Measurement:
    """A throughput that was measured, with the schedule it was measured under."""

    planned: Schedule
    tokens_per_second: float


def physical_step_time(cost: StepCost, bytes_per_second: float = 1.0) -> StepTime:
    """Return the step time of a stage that only reads memory: right in its proportions, not in its height."""
    return StepTime(cost, cost.fixed / bytes_per_second, 1.0 / bytes_per_second)


def calibrate(cost: StepCost, points: Sequence[Measurement]) -> StepTime:
    """Return the step time that fits *points* with the smallest squared relative error.

    One point, or points that all have the same micro-batch, can only set the height: the proportions stay those of
    *cost*.
    """
    fitted = physical_step_time(cost)
    # Which of the two terms of the round is the longer one depends on the times that are being looked for, so: guess,
    # fit, repeat.
    for _attempt in range(8):
        rows = [_row(fitted, point) for point in points]
        refitted = _fit(cost, rows)
        if refitted == fitted:
            break
        fitted = refitted
    return fitted


def _row(guess: StepTime, point: Measurement) -> tuple[float, float]:
    """Return the weights of base and per_byte in a round, as parts of the round that was measured."""
    planned, cost = point.planned, guess.cost
    measured = planned.running / point.tokens_per_second
    largest = planned.batches[0][0]
    if sum(guess.seconds(size) * count for size, count in planned.batches) > planned.pp_size * guess.seconds(largest):
        variable = sum(cost.variable(size) * count for size, count in planned.batches)
        return planned.filled / measured, variable / measured
    return planned.pp_size / measured, planned.pp_size * cost.variable(largest) / measured


def _fit(cost: StepCost, rows: Sequence[tuple[float, float]]) -> StepTime:
    """Solve base * a + per_byte * b = 1 over all *rows* (a, b) by least squares, both results at least 0."""
    aa = sum(a * a for a, _b in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _a, b in rows)
    sum_a = sum(a for a, _b in rows)
    sum_b = sum(b for _a, b in rows)
    determinant = aa * bb - ab * ab
    # Points of one micro-batch, or a variable part that is lost beside the fixed one, cannot tell the two apart.
    if determinant <= 1e-9 * aa * bb or sum_b <= 1e-12 * cost.fixed * sum_a:
        scale_rows = [a * cost.fixed + b for a, b in rows]
        scale = sum(scale_rows) / sum(value * value for value in scale_rows)
        return StepTime(cost, cost.fixed * scale, scale)
    base = (sum_a * bb - sum_b * ab) / determinant
    per_byte = (sum_b * aa - sum_a * ab) / determinant
    if base < 0.0:
        base, per_byte = 0.0, sum_b / bb
    elif per_byte < 0.0:
        base, per_byte = sum_a / aa, 0.0
    return StepTime(cost, base, per_byte)


def captured_batch(batch: int) -> int:
    """Return the smallest batch size with a CUDA graph that a micro-batch of *batch* fits into."""
    for size in _SMALL_GRAPHS:
        if batch <= size:
            return size
    first, step = [pair for pair in _GRAPH_STEPS if pair[0] <= max(batch, 8)][-1]
    return first + -(-(batch - first) // step) * step if batch > first else first


def log_interval(slots: int) -> int:
    """Return a decode_log_interval that shows every slot in turn: one without a common divisor with their number."""
    interval = _LOG_INTERVAL
    while math.gcd(interval, slots) != 1:
        interval += 2
    return interval
