# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What a schedule is worth in output tokens per second: by the bytes a step reads, or fitted to measurements. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.certainty import Certainty, certainty
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.partition import (
    Splits,
    head_bytes,
    share_of_experts,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Wishes
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.ring import Alternative, Ring
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import (
    Measurement,
    Schedule,
    StepCost,
    StepTime,
    automatic_cap,
    calibrate,
    physical_step_time,
    schedule,
)


@dataclass(frozen=True)
class Throughput:
    """How throughput is predicted: "calibrated" by measurements, by the "model" (proportions only), or "none"."""

    basis: str
    step: StepTime | None
    largest_error: float | None = None
    certainty: Certainty | None = None
    above_bandwidth: tuple[int, ...] = ()
    bandwidth: float = 0.0


def throughput_of(
    wishes: Wishes, model: ModelShape | None, splits: Splits | None, ring: Ring, planned: Schedule, bandwidth: float
) -> Throughput:
    cost = None
    if model is not None and splits is not None:
        cost = _slowest_stage(wishes, model, splits, planned.cap)
    points = [_point(wishes, ring, index) for index in range(len(wishes.measured))]
    if cost is None and len({point.planned.occupancy[0] for point in points}) > 1:
        cost = StepCost(1.0, 1.0)  # no model: a straight line through what was measured
    if cost is None:
        return Throughput("none", None)
    if not points:
        return Throughput("model", physical_step_time(cost))
    step = calibrate(cost, points)
    errors = [abs(step.tokens_per_second(point.planned) / point.tokens_per_second - 1.0) for point in points]
    above: tuple[int, ...] = ()
    if model is not None and bandwidth:
        bound = physical_step_time(cost, bandwidth)
        above = tuple(
            index
            for index, point in enumerate(points)
            if point.tokens_per_second > bound.tokens_per_second(point.planned)
        )
    known = bandwidth if model is not None and not above else 0.0
    return Throughput("calibrated", step, max(errors), certainty(cost, points), above, known)


def _point(wishes: Wishes, ring: Ring, index: int) -> Measurement:
    measured = wishes.measured[index]
    concurrency = -(-measured.concurrency // wishes.dp_size)
    if measured.pp_max_micro_batch_size is None and ring.asked is None and concurrency > 1 and ring.pp_size > 1:
        raise PlanError(
            f"measured[{index}].pp_max_micro_batch_size: expected the cap that was in force; it is missing, and "
            "max_running_requests does not tell it either"
        )
    limit = max(ring.asked or concurrency, concurrency)
    cap = measured.pp_max_micro_batch_size
    if cap is None:
        cap = automatic_cap(ring.asked or concurrency, ring.pp_size)
    # What was measured ran: neither the limit nor the cache of this plan has a say in it.
    planned = schedule(concurrency, ring.pp_size, limit, cap, wishes.pp_async_batch_depth)
    return Measurement(planned, measured.output_tokens_per_second / wishes.dp_size)


def _slowest_stage(wishes: Wishes, model: ModelShape, splits: Splits, batch: int) -> StepCost:
    """Return what the slowest stage reads for a step, on one of its GPUs, with requests half way through."""
    tokens = wishes.input_tokens + wishes.output_tokens / 2
    share = share_of_experts(model, batch)
    weights = model.weights
    start = 0
    slowest: tuple[float, StepCost] | None = None
    for rank in splits.layout.ranks:
        end = start + rank.layers
        routed = sum(weights.routed[start:end])
        fixed = sum(weights.layers[start:end]) - routed
        if end == model.layers:
            fixed += head_bytes(model)
        states = model.cached[start:end].count(False) * model.state_bytes
        cost = StepCost(
            fixed / wishes.tp_size,
            rank.kv_bytes_per_token * tokens + states / wishes.tp_size,
            routed / model.experts / wishes.tp_size if model.experts else 0.0,
            model.experts,
            model.experts_per_token,
        )
        read = (fixed + routed * share) / wishes.tp_size + cost.per_request * batch
        if slowest is None or read > slowest[0]:
            slowest = (read, cost)
        start = end
    return slowest[1] if slowest else StepCost(1.0, 0.0)


def _whole(speeds: tuple[float, float], copies: int) -> tuple[float, float]:
    return round(speeds[0] * copies, 1), round(speeds[1] * copies, 1)


def rivals(chosen: Alternative, alternatives: Iterable[Alternative]) -> list[Alternative]:
    """Return the other alternatives whose range meets that of *chosen*: what is known does not tell them apart."""
    if chosen.range is None:
        return []
    low, high = chosen.range
    return [
        row
        for row in alternatives
        if row.range is not None
        and row.planned.cap != chosen.planned.cap
        and row.range[0] <= high
        and row.range[1] >= low
    ]


def predicted(alternatives: Iterable[Alternative], throughput: Throughput, dp_size: int) -> tuple[Alternative, ...]:
    rows = tuple(alternatives)
    step = throughput.step
    if step is None:
        return rows
    speeds = [step.tokens_per_second(row.planned) for row in rows]
    best = max(speeds) or 1.0
    sure = throughput.certainty
    bound = physical_step_time(step.cost, throughput.bandwidth) if throughput.bandwidth else None
    return tuple(
        replace(
            row,
            relative=round(speed / best, 4),
            tokens_per_second=round(speed * dp_size, 1) if throughput.basis == "calibrated" else None,
            range=None
            if sure is None
            else _whole(sure.range(row.planned, bound.tokens_per_second(row.planned) if bound else None), dp_size),
        )
        for row, speed in zip(rows, speeds)
    )
