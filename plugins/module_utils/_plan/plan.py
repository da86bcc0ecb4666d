# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""A plan: what is wanted and what there is, put together into SGLang arguments, predictions and findings. Pure.

What the user fixed wins; the plan then says what that does. Figures are those of one data-parallel worker, except for
those that SGLang itself counts over all of them (``args``, tokens per second).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan import memory
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import MIB, Gpus, Layout
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import (
    Measurement,
    PlanError,
    Schedule,
    StepCost,
    StepTime,
    automatic_cap,
    balanced_cap,
    calibrate,
    captured_batch,
    log_interval,
    physical_step_time,
    schedule,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang import releases

GIB = 2**30
STRATEGIES = ("balanced", "sglang_auto", "uncapped")
LAYER_BALANCES = ("memory", "latency", "sglang")
PARTITION_VARIABLE = "SGLANG_PP_LAYER_PARTITION"

# The highest share of the memory that was seen to hold under load with this kind of model; above it, what lives outside
# of the pool (activations, a vision tower at work) runs out.
PROVEN_MEM_FRACTION = 0.85

# SGLang's own max_running_requests lies in this range, whatever the memory.
_DEFAULT_LIMITS = (2048, 4096)
_DEFAULT_LIMIT_FACTOR = 512
_SMALL_GRAPH = 32
_LARGEST_COUNT = 10**7
_LARGEST_RING = 4096


@dataclass(frozen=True)
class Finding:
    """Something the user should know. *code* is stable; *advice* names the option to change."""

    code: str
    severity: str
    message: str
    advice: str = ""


@dataclass(frozen=True)
class Measured:
    """Output tokens per second that were measured at a concurrency, with the cap in force (None: SGLang's own)."""

    concurrency: int
    output_tokens_per_second: float
    pp_max_micro_batch_size: int | None = None


@dataclass(frozen=True)
class Wishes:
    """What is wanted, and what is fixed by hand; None leaves it to the plan."""

    target_concurrency: int | None = None
    pp_size: int | None = None
    tp_size: int = 1
    dp_size: int = 1
    nnodes: int = 1
    input_tokens: int = 1024
    output_tokens: int = 1024
    strategy: str = "balanced"
    layer_balance: str = "memory"
    max_running_requests: int | None = None
    pp_max_micro_batch_size: int | None = None
    pp_async_batch_depth: int = 0
    mem_fraction_static: float | None = None
    layer_partition: tuple[int, ...] | None = None
    kv_cache_dtype: str = "auto"
    context_length: int | None = None
    chunked_prefill_size: int | None = None
    sglang_version: str | None = None
    measured: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class Alternative:
    """A way to set the cap, what the scheduler makes of it, and what that is worth.

    *strategies* are the names that lead here, *left_out* says that the cap is SGLang's own, *limit* is the
    max_running_requests that is asked for (*planned* has the one that is left of it once SGLang knows its KV cache).
    *relative* is a part of the best throughput of all alternatives, *tokens_per_second* is there only after
    calibration.
    """

    strategies: tuple[str, ...]
    left_out: bool
    limit: int
    planned: Schedule
    relative: float | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Throughput:
    """How throughput is predicted: "calibrated" by measurements, by the "model" (proportions only), or "none"."""

    basis: str
    step: StepTime | None
    largest_error: float | None = None


@dataclass(frozen=True)
class Splits:
    """The splits of the layers that were looked at; *chosen* is a key of *layouts*."""

    chosen: str
    layouts: Mapping[str, Layout]
    mem_fraction_static: float
    automatic_mem_fraction: float | None
    static_bytes: int | None

    @property
    def layout(self) -> Layout:
        return self.layouts[self.chosen]


@dataclass(frozen=True)
class Plan:
    """All that was found out. `result` gives it as the module returns it."""

    wishes: Wishes
    release: releases.Release
    model: ModelShape | None
    gpus: Gpus | None
    pp_size: int
    concurrency: int
    splits: Splits | None
    chosen: Alternative
    alternatives: tuple[Alternative, ...]
    throughput: Throughput
    graph_batch: int
    findings: tuple[Finding, ...]

    @property
    def works(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)


def make_plan(wishes: Wishes, model: ModelShape | None = None, gpus: Gpus | None = None) -> Plan:
    """Return the plan for *wishes*; *model* and *gpus* None plan the scheduler without looking at memory.

    Raises PlanError, with one line for the user, where the wishes contradict themselves or are no values at all.
    """
    _check(wishes, gpus)
    try:
        release = releases.parse_release(wishes.sglang_version or releases.NEWEST_KNOWN)
    except releases.ReleaseError as error:
        raise PlanError(str(error)) from error
    found: list[Finding] = []
    pp_size = _pp_size(wishes, gpus)
    found += _release_findings(wishes, release, model, pp_size)
    found += _placement_findings(wishes, model, gpus, pp_size)
    if wishes.pp_async_batch_depth and (
        pp_size == 1 or releases.argument_name("pp_async_batch_depth", release) is None
    ):
        wishes = replace(wishes, pp_async_batch_depth=0)
    concurrency = -(-_target(wishes) // wishes.dp_size)
    asked = _per_worker(wishes.max_running_requests, wishes, release)
    splits = _split_layers(wishes, release, model, gpus, pp_size, asked or concurrency)
    kv_tokens = splits.layout.kv_tokens if splits is not None and splits.layout.fits else None
    ring = _Ring(
        wishes=wishes,
        pp_size=pp_size,
        concurrency=concurrency,
        asked=asked,
        kv_requests=None if kv_tokens is None else kv_tokens // (wishes.input_tokens + wishes.output_tokens),
        kv_tokens=kv_tokens,
        default_limit=_default_limit(wishes, model, kv_tokens),
    )
    chosen, alternatives = ring.alternatives()
    throughput = _throughput(wishes, model, splits, ring, chosen.planned)
    alternatives = _predicted(alternatives, throughput, wishes.dp_size)
    chosen = next(row for row in alternatives if (row.limit, row.planned) == (chosen.limit, chosen.planned))
    cap = chosen.planned.cap
    graphs = captured_batch(min(cap, memory.largest_graph(gpus.memory_mib if gpus else 90 * 1024, wishes.tp_size)))
    found += _scheduler_findings(wishes, ring, chosen, graphs)
    if splits is not None and model is not None:
        found += _memory_findings(wishes, model, gpus, splits, ring, chosen)
    order = {"error": 0, "warning": 1, "info": 2}
    return Plan(
        wishes=wishes,
        release=release,
        model=model,
        gpus=gpus,
        pp_size=pp_size,
        concurrency=concurrency,
        splits=splits,
        chosen=chosen,
        alternatives=alternatives,
        throughput=throughput,
        graph_batch=graphs,
        findings=tuple(sorted(found, key=lambda finding: order[finding.severity])),
    )


# --- what is wanted ---------------------------------------------------------------------------------------------------


def _check(wishes: Wishes, gpus: Gpus | None) -> None:
    """Raise PlanError, naming everything that is wrong at once, where a wish is no value that SGLang could take."""
    bounds: list[tuple[str, float | None, float, float]] = [
        ("target_concurrency", wishes.target_concurrency, 1, _LARGEST_COUNT),
        ("pp_size", wishes.pp_size, 1, _LARGEST_RING),
        ("tp_size", wishes.tp_size, 1, _LARGEST_RING),
        ("dp_size", wishes.dp_size, 1, _LARGEST_RING),
        ("nnodes", wishes.nnodes, 1, _LARGEST_RING),
        ("input_tokens", wishes.input_tokens, 0, _LARGEST_COUNT),
        ("output_tokens", wishes.output_tokens, 1, _LARGEST_COUNT),
        ("max_running_requests", wishes.max_running_requests, 1, _LARGEST_COUNT),
        ("pp_max_micro_batch_size", wishes.pp_max_micro_batch_size, 1, _LARGEST_COUNT),
        ("pp_async_batch_depth", wishes.pp_async_batch_depth, 0, _LARGEST_RING),
        ("mem_fraction_static", wishes.mem_fraction_static, 0.01, 0.99),
        ("context_length", wishes.context_length, 1, 10**9),
    ]
    for index, point in enumerate(wishes.measured):
        bounds.append((f"measured[{index}].concurrency", point.concurrency, 1, _LARGEST_COUNT))
        bounds.append((f"measured[{index}].output_tokens_per_second", point.output_tokens_per_second, 1e-3, 1e9))
        bounds.append((f"measured[{index}].pp_max_micro_batch_size", point.pp_max_micro_batch_size, 1, _LARGEST_COUNT))
    if gpus is not None:
        bounds.append(("gpus.count", gpus.count, 1, _LARGEST_RING))
        bounds.append(("gpus.memory_mib", gpus.memory_mib, 1024, 10**8))
        bounds.append(("gpus.memory_bandwidth_gbs", gpus.bandwidth_gbs, 0, 10**6))
    wrong = [
        f"{name}: expected {low:g} to {high:g}, got {value:g}"
        for name, value, low, high in bounds
        if value is not None and not low <= value <= high
    ]
    if wishes.chunked_prefill_size is not None and not (
        wishes.chunked_prefill_size == -1 or 1 <= wishes.chunked_prefill_size <= _LARGEST_COUNT
    ):
        wrong.append(
            f"chunked_prefill_size: expected a number of tokens, or -1 for none, got {wishes.chunked_prefill_size}"
        )
    for name, text, known in (
        ("strategy", wishes.strategy, STRATEGIES),
        ("layer_balance", wishes.layer_balance, LAYER_BALANCES),
        ("kv_cache_dtype", wishes.kv_cache_dtype, tuple(memory.KV_NUMBER_BYTES)),
    ):
        if text not in known:
            wrong.append(f"{name}: expected one of {', '.join(known)}, got {text!r}")
    if wishes.target_concurrency is None and wishes.max_running_requests is None:
        wrong.append("target_concurrency: expected the number of requests that are to run at once; it is missing")
    if wrong:
        raise PlanError("; ".join(wrong))


def _pp_size(wishes: Wishes, gpus: Gpus | None) -> int:
    if wishes.pp_size is not None:
        return wishes.pp_size
    if gpus is None:
        raise PlanError(
            "pp_size: expected the number of pipeline stages; it is missing, and gpus.count does not tell it either"
        )
    return max(1, gpus.count * wishes.nnodes // (wishes.tp_size * wishes.dp_size))


def _target(wishes: Wishes) -> int:
    return wishes.target_concurrency or wishes.max_running_requests or 1


def _per_worker(limit: int | None, wishes: Wishes, release: releases.Release) -> int | None:
    """Return what a max_running_requests means for one data-parallel worker."""
    if limit is None or not releases.has_feature("limit_divided_by_dp", release):
        return limit
    return max(limit // wishes.dp_size, 1)


# --- layers and memory ------------------------------------------------------------------------------------------------


def _split_layers(
    wishes: Wishes,
    release: releases.Release,
    model: ModelShape | None,
    gpus: Gpus | None,
    pp_size: int,
    running_requests: int,
) -> Splits | None:
    """Return the splits to choose from; None without a model, or where it has too few layers to be split like that."""
    if model is None or pp_size > model.layers:
        return None
    fraction = wishes.mem_fraction_static or _mem_fraction(wishes, gpus, pp_size)
    room = _room(wishes, model, gpus, pp_size, running_requests, fraction)
    partitions = {
        "sglang": memory.sglang_split(model.layers, pp_size, releases.has_feature("remainder_on_last_ranks", release)),
        "memory": memory.most_tokens_split(room),
    }
    if wishes.layer_balance == "latency":
        batch = balanced_cap(-(-_target(wishes) // wishes.dp_size), pp_size + wishes.pp_async_batch_depth)
        partitions["latency"] = _fastest_split(model, pp_size, batch)
    chosen = wishes.layer_balance
    if wishes.layer_partition is not None and _partition_fault(wishes.layer_partition, model, pp_size) is None:
        partitions["explicit"] = wishes.layer_partition
        chosen = "explicit"
    layouts = {name: room.layout(partition) for name, partition in partitions.items()}
    if chosen == "memory" and _holds(layouts["sglang"]) >= _holds(layouts["memory"]):
        chosen = "sglang"  # nothing to gain: nothing to set
    automatic = None
    if gpus is not None:
        automatic = memory.automatic_mem_fraction(
            gpus.memory_mib, wishes.tp_size, pp_size, wishes.chunked_prefill_size, vision=model.vision
        )
    return Splits(chosen, layouts, fraction, automatic, room.static_bytes)


def _room(
    wishes: Wishes, model: ModelShape, gpus: Gpus | None, pp_size: int, running_requests: int, fraction: float
) -> memory.Budget:
    return memory.budget(model, pp_size, wishes.tp_size, wishes.kv_cache_dtype, running_requests, gpus, fraction)


def _mem_fraction(wishes: Wishes, gpus: Gpus | None, pp_size: int) -> float:
    """Return the memory fraction to set: SGLang's own for a text model, but no more than was seen to hold.

    SGLang keeps 2 MiB for each request of the largest CUDA graph; with a cap in force the graphs are small.
    """
    if gpus is None:
        return PROVEN_MEM_FRACTION
    own = memory.automatic_mem_fraction(
        gpus.memory_mib, wishes.tp_size, pp_size, wishes.chunked_prefill_size, _SMALL_GRAPH
    )
    return max(min(math.floor(own * 100) / 100, PROVEN_MEM_FRACTION), 0.01)


def _holds(layout: Layout) -> float:
    """Return how good a split is for the cache: its tokens, or where they are not known how light it is."""
    return layout.kv_tokens if layout.kv_tokens is not None else -layout.heaviest.weight_bytes


def _fastest_split(model: ModelShape, pp_size: int, batch: int) -> tuple[int, ...]:
    """Return the split whose slowest stage reads least for a micro-batch of *batch*."""
    share = _share_of_experts(model, batch)
    costs = [0]
    for layer, routed in zip(model.weights.layers, model.weights.routed):
        costs.append(costs[-1] + layer - routed + int(routed * share))
    return memory.lightest_split(costs, [0] * (pp_size - 1) + [_head_bytes(model)])


def _share_of_experts(model: ModelShape, batch: int) -> float:
    if not model.experts:
        return 1.0
    return StepCost(0.0, 0.0, 0.0, model.experts, model.experts_per_token).experts_read(batch) / model.experts


def _head_bytes(model: ModelShape) -> int:
    """The bytes of the output head, read for every step; a tied embedding does its work as well."""
    return model.weights.last + model.weights.tied


def _partition_fault(partition: Sequence[int], model: ModelShape, pp_size: int) -> str | None:
    if len(partition) != pp_size:
        return f"expected {pp_size} numbers (pp_size), got {len(partition)}"
    if min(partition) < 1:
        return f"expected at least one layer on each rank, got {_spaced(partition)}"
    if sum(partition) != model.layers:
        return f"expected {model.layers} layers in all (num_hidden_layers), the numbers add up to {sum(partition)}"
    return None


def _default_limit(wishes: Wishes, model: ModelShape | None, tokens: int | None) -> int:
    """Return the max_running_requests SGLang arrives at where none is given."""
    lowest, highest = _DEFAULT_LIMITS
    if tokens is None:
        return lowest
    context = wishes.context_length or (model.context_length if model else None) or highest
    return min(max(tokens * _DEFAULT_LIMIT_FACTOR // context, lowest), highest)


# --- scheduler --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ring:
    """The scheduler's ring of slots with the load that is meant for it, for one data-parallel worker."""

    wishes: Wishes
    pp_size: int
    concurrency: int
    asked: int | None
    kv_requests: int | None
    kv_tokens: int | None
    default_limit: int

    @property
    def slots(self) -> int:
        return self.pp_size + self.wishes.pp_async_batch_depth

    def plan(self, limit: int, cap: int | None) -> Schedule:
        """Return the schedule under *limit*, which SGLang lowers to half of the tokens its KV cache holds."""
        resolved = limit if self.kv_tokens is None else max(min(limit, self.kv_tokens // 2), 1)
        depth = self.wishes.pp_async_batch_depth
        return schedule(self.concurrency, self.pp_size, resolved, cap, depth, self.kv_requests)

    @functools.cached_property
    def balanced(self) -> int:
        """The cap that gives each slot its share of the requests that can run at all."""
        runnable = min(self.concurrency, self.asked or self.concurrency, max(self.kv_requests or self.concurrency, 1))
        return balanced_cap(runnable, self.slots)

    def strategies(self) -> dict[str, tuple[int, int | None]]:
        """Return (max_running_requests, cap or None where it is left out) for each strategy."""
        explicit = self.wishes.pp_max_micro_batch_size
        if self.pp_size == 1:
            # One stage has one slot: there is nothing to fill evenly, and a cap could only make requests wait.
            limit = self.asked or max(self.concurrency, explicit or 1)
            choices: dict[str, tuple[int, int | None]] = dict.fromkeys(STRATEGIES, (limit, None))
        else:
            even = -(-self.concurrency // self.pp_size) * self.pp_size
            uncapped = self.asked or even
            choices = {
                "balanced": (self.asked or self.slots * self.balanced, self.balanced),
                "sglang_auto": (self.asked or self.default_limit, None),
                "uncapped": (uncapped, uncapped),
            }
        if explicit is not None:
            choices["explicit"] = (self.asked or self.slots * explicit, explicit)
        return choices

    def alternatives(self) -> tuple[Alternative, tuple[Alternative, ...]]:
        """Return the chosen way, and all that are worth comparing, smallest cap first."""
        choices = self.strategies()
        chosen_name = "explicit" if "explicit" in choices else self.wishes.strategy
        rows: dict[tuple[int, int], Alternative] = {}
        for name in sorted(choices, key=lambda name: name != chosen_name):
            limit, wanted = choices[name]
            planned = self.plan(limit, wanted)
            row = rows.get((limit, planned.cap)) or Alternative((), wanted is None, limit, planned)
            rows[(limit, planned.cap)] = replace(row, strategies=(*row.strategies, name))
        chosen = next(iter(rows.values()))
        cap = 1
        while self.pp_size > 1 and cap <= min(self.concurrency, chosen.limit):
            key = (chosen.limit, cap)
            rows.setdefault(key, Alternative((), left_out=False, limit=chosen.limit, planned=self.plan(*key)))
            cap *= 2
        return chosen, tuple(sorted(rows.values(), key=lambda row: (row.planned.cap, row.limit)))


# --- throughput -------------------------------------------------------------------------------------------------------


def _throughput(
    wishes: Wishes, model: ModelShape | None, splits: Splits | None, ring: _Ring, planned: Schedule
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
    return Throughput("calibrated", step, max(errors))


def _point(wishes: Wishes, ring: _Ring, index: int) -> Measurement:
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
    share = _share_of_experts(model, batch)
    weights = model.weights
    start = 0
    slowest: tuple[float, StepCost] | None = None
    for rank in splits.layout.ranks:
        end = start + rank.layers
        routed = sum(weights.routed[start:end])
        fixed = sum(weights.layers[start:end]) - routed
        if end == model.layers:
            fixed += _head_bytes(model)
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


def _predicted(alternatives: Iterable[Alternative], throughput: Throughput, dp_size: int) -> tuple[Alternative, ...]:
    rows = tuple(alternatives)
    step = throughput.step
    if step is None:
        return rows
    speeds = [step.tokens_per_second(row.planned) for row in rows]
    best = max(speeds) or 1.0
    return tuple(
        replace(
            row,
            relative=round(speed / best, 4),
            tokens_per_second=round(speed * dp_size, 1) if throughput.basis == "calibrated" else None,
        )
        for row, speed in zip(rows, speeds)
    )


# --- findings ---------------------------------------------------------------------------------------------------------


def _release_findings(
    wishes: Wishes, release: releases.Release, model: ModelShape | None, pp_size: int
) -> Iterable[Finding]:
    if pp_size > 1:
        if not releases.has_feature("pipeline_parallel", release):
            yield Finding(
                "release_too_old",
                "error",
                f"SGLang {release} cannot split a model into {pp_size} pipeline stages.",
                f"sglang_version: install {releases.RECOMMENDED} or later",
            )
        known = releases.MODEL_CLASSES.get(model.architecture) if model is not None else None
        if model is not None and known is not None and release < releases.parse_release(known.pipeline_since):
            loads = release >= releases.parse_release(known.since)
            yield Finding(
                "release_too_old",
                "error",
                f"SGLang {release} "
                + ("loads all weights of a " if loads else "does not know ")
                + f"{model.architecture}"
                + (", then refuses to split it into stages." if loads else "."),
                f"sglang_version: {known.pipeline_since} is the first that can; {releases.RECOMMENDED} or later is "
                "advised",
            )
        yield Finding(
            "overlap_disabled",
            "info",
            "SGLang switches its overlap schedule off when pp_size is above 1, and warns about it in its log.",
        )
    depth = wishes.pp_async_batch_depth
    if depth and pp_size > 1:
        if releases.argument_name("pp_async_batch_depth", release) is None:
            yield Finding(
                "release_too_old",
                "warning",
                f"SGLang {release} has no pp_async_batch_depth: the plan goes on without it.",
                f"sglang_version: {releases.first_release_with('pp_async_batch_depth')} is the first that has it",
            )
        elif depth > 1:
            yield Finding(
                "depth_untested",
                "warning",
                f"pp_async_batch_depth {depth}: wrong output was reported for depths above 1.",
                "pp_async_batch_depth: 0, or 1 to hide the way back of the results",
            )
    for fault in releases.known_faults(release, ("pipeline",) if pp_size > 1 else ()):
        yield Finding("release_has_fault", fault.severity, f"SGLang {release}: {fault.what}.", fault.advice)


def _placement_findings(wishes: Wishes, model: ModelShape | None, gpus: Gpus | None, pp_size: int) -> Iterable[Finding]:
    """Tell of what SGLang refuses to start with, whatever the numbers of the scheduler are."""
    wanted = pp_size * wishes.tp_size * wishes.dp_size
    if gpus is not None and wanted > gpus.count * wishes.nnodes:
        yield Finding(
            "does_not_fit",
            "error",
            f"pp_size {pp_size} x tp_size {wishes.tp_size} x dp_size {wishes.dp_size} needs {wanted} GPUs; there are "
            f"{gpus.count * wishes.nnodes}.",
            "pp_size, tp_size or dp_size: less; or gpus.count, nnodes: what there really is",
        )
    if pp_size * wishes.tp_size % wishes.nnodes:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"pp_size {pp_size} x tp_size {wishes.tp_size} cannot be spread evenly over {wishes.nnodes} nodes.",
            "nnodes: a divisor of pp_size x tp_size",
        )
    if wishes.dp_size > 1 and wishes.nnodes > 1:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"dp_size {wishes.dp_size} over {wishes.nnodes} nodes: SGLang refuses it without data-parallel attention.",
            "dp_size: 1, with one server for each group of nodes",
        )
    if model is None:
        return
    if pp_size > model.layers:
        yield Finding(
            "partition_invalid",
            "error",
            f"{model.layers} layers cannot be split over {pp_size} ranks: each needs at least one.",
            f"pp_size: at most {model.layers}",
        )
    elif wishes.layer_partition is not None:
        fault = _partition_fault(wishes.layer_partition, model, pp_size)
        if fault is not None:
            yield Finding(
                "partition_invalid",
                "error",
                f"layer_partition: {fault}.",
                "layer_partition: correct it, or leave it out and choose a layer_balance",
            )
    context = wishes.context_length or model.context_length
    if model.context_length and wishes.context_length and wishes.context_length > model.context_length:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"context_length {wishes.context_length} is longer than the {model.context_length} tokens of the model.",
            f"context_length: at most {model.context_length}",
        )
    elif context and wishes.input_tokens + wishes.output_tokens > context:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"A request of {wishes.input_tokens} + {wishes.output_tokens} tokens is longer than the context of "
            f"{context}.",
            "input_tokens, output_tokens: less; or context_length: more, where the model allows it",
        )


def _scheduler_findings(wishes: Wishes, ring: _Ring, chosen: Alternative, graphs: int) -> Iterable[Finding]:
    planned = chosen.planned
    if planned.limit == "cap":
        yield Finding(
            "starved",
            "warning",
            f"{planned.queued} of {planned.concurrency} requests wait although there is room for them: {planned.slots} "
            f"slots of at most {planned.cap} hold {planned.capacity}.",
            f"pp_max_micro_batch_size: {balanced_cap(planned.concurrency, planned.slots)}",
        )
    elif planned.limit == "max_running_requests":
        yield Finding(
            "saturated",
            "warning",
            f"{planned.queued} of {planned.concurrency} requests wait: max_running_requests is "
            f"{planned.max_running_requests}.",
            f"max_running_requests: {-(-planned.concurrency // ring.pp_size) * ring.pp_size * wishes.dp_size}",
        )
    elif planned.limit:
        yield Finding(
            "saturated",
            "warning",
            f"{planned.queued} of {planned.concurrency} requests wait: the KV cache holds {planned.capacity} of "
            f"{wishes.input_tokens} + {wishes.output_tokens} tokens.",
            "mem_fraction_static, kv_cache_dtype fp8_e4m3, or shorter requests",
        )
    if planned.cap > graphs:
        yield Finding(
            "graphs_too_small",
            "warning",
            f"A micro-batch may hold {planned.cap} requests, CUDA graphs are captured up to {graphs}: larger ones run "
            "without.",
            "pp_max_micro_batch_size: less",
        )
    if ring.pp_size == 1:
        return
    unused = planned.max_running_requests - planned.slots * planned.cap
    if chosen.left_out and unused > 0:
        yield Finding(
            "floor_loss",
            "warning",
            f"SGLang rounds {planned.max_running_requests} / {ring.pp_size} down to {planned.cap}: {unused} of "
            f"{planned.max_running_requests} requests can never run.",
            f"max_running_requests: a multiple of {ring.pp_size}",
        )
    if planned.cap > planned.max_running_requests:
        yield Finding(
            "cap_above_limit",
            "info",
            f"pp_max_micro_batch_size {planned.cap} is above max_running_requests {planned.max_running_requests}: no "
            "cap at all.",
            f"pp_max_micro_batch_size: {ring.balanced}",
        )
    full = min(ring.pp_size, planned.running)
    if planned.concurrency < ring.pp_size:
        yield Finding(
            "underfed",
            "info",
            f"{planned.concurrency} concurrent requests cannot keep {ring.pp_size} stages busy, whatever the cap is.",
            "target_concurrency: what really comes; or fewer stages with a larger tp_size",
        )
    if planned.filled < full:
        better = balanced_cap(max(planned.running, 1), planned.slots)
        yield Finding(
            "concentrated",
            "warning" if better < planned.cap else "info",
            f"{planned.running} requests fill {planned.filled} of {planned.slots} slots: each of the {ring.pp_size} "
            f"stages is idle {planned.idle_fraction:.0%} of the time.",
            f"pp_max_micro_batch_size: {better}"
            if better < planned.cap
            else f"none needed; a target_concurrency that is a multiple of {planned.slots} would fill them all",
        )
    elif not planned.queued and planned.concurrency >= ring.pp_size:
        yield Finding(
            "balanced",
            "info",
            f"{planned.running} requests fill {planned.filled} of {planned.slots} slots: every stage has work, nobody "
            "waits.",
        )


def _memory_findings(
    wishes: Wishes, model: ModelShape, gpus: Gpus | None, splits: Splits, ring: _Ring, chosen: Alternative
) -> Iterable[Finding]:
    layout, best, own = splits.layout, splits.layouts["memory"], splits.layouts["sglang"]
    if gpus is None or splits.static_bytes is None or layout.kv_tokens is None:
        return
    if not layout.fits:
        yield _does_not_fit(splits, gpus)
    request = wishes.input_tokens + wishes.output_tokens
    if layout.fits and ring.kv_requests is not None and ring.kv_requests < chosen.limit:
        short = ring.kv_requests < ring.concurrency
        yield Finding(
            "kv_limits",
            "warning" if short else "info",
            f"The KV cache holds {layout.kv_tokens:,} tokens: {ring.kv_requests} requests of {request}, not the "
            f"{chosen.limit} of max_running_requests.",
            "mem_fraction_static, kv_cache_dtype fp8_e4m3, or shorter requests" if short else "",
        )
    if best.fits and _holds(best) > _holds(own):
        gain = (
            f"{best.kv_tokens:,} tokens instead of {own.kv_tokens:,}"
            if own.fits
            else f"{best.kv_tokens:,} tokens, where SGLang's own split does not fit"
        )
        taken = layout.partition == best.partition
        yield Finding(
            "partition_improves_kv",
            "info",
            f"The layers split as {_spaced(best.partition)} leave room for {gain} ({_spaced(own.partition)}).",
            "" if taken else "layer_balance: memory",
        )
    automatic = splits.automatic_mem_fraction
    if wishes.mem_fraction_static is None and automatic is not None:
        by_itself = _room(wishes, model, gpus, ring.pp_size, ring.concurrency, automatic).layout(own.partition)
        if _holds(by_itself) < min(ring.concurrency * request, layout.kv_tokens):
            rank = by_itself.ranks[by_itself.limiting_rank]
            usable = (gpus.memory_mib - memory.CONTEXT_MIB) * MIB * automatic
            shortage = (
                f"leaves room for {by_itself.kv_tokens:,} tokens, {ring.concurrency} requests need "
                f"{ring.concurrency * request:,}"
                if by_itself.fits
                else f"is {usable / GIB:.1f} GiB, rank {rank.rank} has {rank.weight_bytes / GIB:.1f} GiB of weights"
            )
            yield Finding(
                "auto_mem_fraction_too_low",
                "info",
                f"Left alone, SGLang splits the layers as {_spaced(own.partition)} and sets mem_fraction_static to "
                f"{automatic:g}: that {shortage}. The plan sets {splits.mem_fraction_static:g}.",
            )


def _does_not_fit(splits: Splits, gpus: Gpus) -> Finding:
    layout = splits.layout
    rank = layout.heaviest
    available = (gpus.memory_mib - memory.CONTEXT_MIB) * MIB
    needed = math.ceil((rank.weight_bytes + rank.state_bytes) / available * 100 + 1) / 100
    if splits.layouts["memory"].fits and layout is not splits.layouts["memory"]:
        advice = "layer_balance: memory"
    elif needed <= 0.95:
        advice = f"mem_fraction_static: at least {needed:.2f}"
    else:
        advice = "pp_size or tp_size: more GPUs; or a smaller model"
    return Finding(
        "does_not_fit",
        "error",
        f"Rank {rank.rank} has {rank.weight_bytes / GIB:.1f} GiB of weights for its {rank.layers} layers; "
        "mem_fraction_static "
        f"{splits.mem_fraction_static:g} of {available / GIB:.1f} GiB is {(splits.static_bytes or 0) / GIB:.1f} GiB, "
        "with room for the KV cache on top.",
        advice,
    )


def _spaced(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))


# --- what is returned -------------------------------------------------------------------------------------------------


def arguments(plan: Plan) -> dict[str, Any]:
    """Return the SGLang arguments of *plan*, under the names that its release knows."""
    wishes = plan.wishes
    pipeline = plan.pp_size > 1
    per_worker = not releases.has_feature("limit_divided_by_dp", plan.release)
    limit = plan.chosen.limit * (1 if per_worker else wishes.dp_size)
    cap = plan.chosen.planned.cap
    own_limit = plan.chosen.left_out and wishes.max_running_requests is None and pipeline
    values: dict[str, Any] = {
        "pp_size": plan.pp_size,
        "tp_size": wishes.tp_size,
        "dp_size": wishes.dp_size if wishes.dp_size > 1 else None,
        "nnodes": wishes.nnodes if wishes.nnodes > 1 else None,
        "pp_max_micro_batch_size": cap if pipeline and not plan.chosen.left_out else None,
        "pp_async_batch_depth": wishes.pp_async_batch_depth or None,
        "max_running_requests": wishes.max_running_requests or (None if own_limit else limit),
        "cuda_graph_max_bs_decode": plan.graph_batch,
        "mem_fraction_static": plan.splits.mem_fraction_static
        if plan.splits is not None and plan.gpus is not None
        else None,
        "kv_cache_dtype": releases.kv_cache_dtype_name(wishes.kv_cache_dtype, plan.release),
        "context_length": wishes.context_length,
        "chunked_prefill_size": wishes.chunked_prefill_size,
        "decode_log_interval": log_interval(plan.chosen.planned.slots) if pipeline else None,
    }
    if wishes.kv_cache_dtype == "auto":
        del values["kv_cache_dtype"]
    named = ((releases.argument_name(key, plan.release), value) for key, value in values.items() if value is not None)
    return {name: value for name, value in named if name is not None}


def environment(plan: Plan) -> dict[str, str]:
    """Return the environment variables of *plan*: the split of the layers where it is not SGLang's own."""
    splits = plan.splits
    if splits is None or plan.pp_size == 1 or splits.layout.partition == splits.layouts["sglang"].partition:
        return {}
    return {PARTITION_VARIABLE: ",".join(map(str, splits.layout.partition))}


def result(plan: Plan) -> dict[str, Any]:
    """Return *plan* as the module returns it: plain values only."""
    planned = plan.chosen.planned
    return {
        "args": arguments(plan),
        "environment": environment(plan),
        "scheduler": {
            "strategy": plan.chosen.strategies[0],
            "pp_size": plan.pp_size,
            "slots": planned.slots,
            "pp_max_micro_batch_size": planned.cap,
            "sglang_auto_micro_batch_size": automatic_cap(planned.max_running_requests, plan.pp_size),
            "max_running_requests": planned.max_running_requests,
            "concurrency": planned.concurrency,
            "capacity": planned.capacity,
            "occupancy": list(planned.occupancy),
            "filled_slots": planned.filled,
            "running": planned.running,
            "queued": planned.queued,
        },
        "memory": _memory_result(plan),
        "throughput": _throughput_result(plan),
        "alternatives": [_alternative_result(plan, row) for row in plan.alternatives],
        "findings": [asdict(finding) for finding in plan.findings],
        "explanation": explanation(plan),
        "model": _model_result(plan.model),
        "sglang_version": str(plan.release),
        "works": plan.works,
    }


def _alternative_result(plan: Plan, row: Alternative) -> dict[str, Any]:
    return {
        "strategies": list(row.strategies),
        "chosen": row is plan.chosen,
        "pp_max_micro_batch_size": row.planned.cap,
        "max_running_requests": row.planned.max_running_requests,
        "capacity": row.planned.capacity,
        "occupancy": list(row.planned.occupancy),
        "filled_slots": row.planned.filled,
        "running": row.planned.running,
        "queued": row.planned.queued,
        "relative_throughput": row.relative,
        "output_tokens_per_second": row.tokens_per_second,
    }


def _memory_result(plan: Plan) -> dict[str, Any] | None:
    splits = plan.splits
    if splits is None or plan.model is None:
        return None
    layout = splits.layout
    known = plan.gpus is not None
    return {
        "ranks": [
            {
                "rank": rank.rank,
                "layers": rank.layers,
                "weight_bytes": rank.weight_bytes,
                "state_bytes": rank.state_bytes,
                "kv_bytes_per_token": rank.kv_bytes_per_token,
                "kv_tokens": None if rank.kv_tokens is None else max(rank.kv_tokens, 0),
            }
            for rank in layout.ranks
        ],
        "kv_tokens": None if layout.kv_tokens is None else max(layout.kv_tokens, 0),
        "limiting_rank": layout.limiting_rank,
        "partition": list(layout.partition),
        "fits": layout.fits if known else None,
        "weight_bytes": plan.model.weights.total,
        "weights_from": plan.model.weights.source,
        "mem_fraction_static": splits.mem_fraction_static if known else None,
        "sglang_auto_mem_fraction_static": splits.automatic_mem_fraction,
        "static_bytes": splits.static_bytes,
        "gpu_memory_bytes": plan.gpus.memory_mib * MIB if plan.gpus is not None else None,
        "gpu_name": plan.gpus.name if plan.gpus is not None else "",
        "alternatives": [
            {
                "layer_balance": name,
                "chosen": name == splits.chosen,
                "partition": list(other.partition),
                "kv_tokens": None if other.kv_tokens is None else max(other.kv_tokens, 0),
                "heaviest_weight_bytes": other.heaviest.weight_bytes,
                "limiting_rank": other.limiting_rank,
            }
            for name, other in splits.layouts.items()
        ],
    }


def _throughput_result(plan: Plan) -> dict[str, Any]:
    step, planned = plan.throughput.step, plan.chosen.planned
    bandwidth = plan.gpus.bandwidth_gbs if plan.gpus is not None else 0.0
    bound = None
    if step is not None and bandwidth and plan.model is not None:
        fastest = physical_step_time(step.cost, bandwidth * 1e9).tokens_per_second(planned)
        bound = round(fastest * plan.wishes.dp_size, 1)
    error = plan.throughput.largest_error
    return {
        "basis": plan.throughput.basis,
        "output_tokens_per_second": plan.chosen.tokens_per_second,
        "bandwidth_bound_tokens_per_second": bound,
        "largest_error_percent": None if error is None else round(error * 100, 1),
        "measured": [asdict(point) for point in plan.wishes.measured],
    }


def _model_result(model: ModelShape | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return {
        "architecture": model.architecture,
        "layers": model.layers,
        "attention": model.attention_kind,
        "layers_with_kv_cache": sum(model.cached),
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
        "quantization": model.quantization,
        "context_length": model.context_length,
    }


# --- in words ---------------------------------------------------------------------------------------------------------


def explanation(plan: Plan) -> list[str]:
    """Return what SGLang does by itself, what taking the cap away does, what is chosen, and why, a paragraph each."""
    if plan.pp_size == 1:
        return [
            "One pipeline stage has one slot: there is nothing to balance, and pp_max_micro_batch_size is left out."
        ]
    named = {name: row for row in plan.alternatives for name in row.strategies}
    own, uncapped, chosen = named["sglang_auto"], named["uncapped"], plan.chosen
    formula = f"{own.planned.max_running_requests} // {plan.pp_size} = {own.planned.cap}"
    paragraphs = [
        f"Left alone, SGLang caps a micro-batch at {formula} (max_running_requests // pp_size). {_fills(own)}",
    ]
    if uncapped is not own:
        paragraphs.append(
            f"Without a cap (pp_max_micro_batch_size = max_running_requests = {uncapped.planned.cap}, the usual fix by "
            "hand): " + _fills(uncapped)
        )
    if chosen is not own and chosen is not uncapped:
        reason = ""
        if "balanced" in chosen.strategies:
            runnable = min(plan.concurrency, chosen.planned.capacity)
            share = f" = ceil({runnable} / {chosen.planned.slots})"
            reason = f"{share}, the smallest cap that lets {runnable} requests run at once"
        paragraphs.append(
            f"This plan: pp_max_micro_batch_size {chosen.planned.cap}{reason}; max_running_requests {chosen.limit}. "
            f"{_fills(chosen)}"
        )
    return [*paragraphs, _verdict(plan, own, uncapped)]


def _fills(row: Alternative) -> str:
    planned = row.planned
    if not planned.running:
        return "No request can run."
    waiting = f", {planned.queued} wait" if planned.queued else ""
    busy = min(planned.filled, planned.pp_size)
    stages = (
        "every stage has work."
        if busy == planned.pp_size
        else f"work for {busy} of {planned.pp_size} stages at a time, idle {planned.idle_fraction:.0%}."
    )
    return f"{planned.running} requests fill {planned.filled} of {planned.slots} slots{waiting}: {stages}"


def _verdict(plan: Plan, own: Alternative, uncapped: Alternative) -> str:
    chosen = plan.chosen
    if chosen.relative is None:
        return "Which cap is fastest depends on the model: name it (model_path or model_config), or measure (measured)."
    others = [("SGLang's own cap", own), ("no cap", uncapped)]
    if chosen.tokens_per_second is not None:
        points = "; ".join(
            f"{point.output_tokens_per_second:g} at {point.concurrency}"
            + (f" with a cap of {point.pp_max_micro_batch_size}" if point.pp_max_micro_batch_size else "")
            for point in plan.wishes.measured
        )
        predicted = [f"{row.tokens_per_second or 0:.0f} with {name}" for name, row in others if row is not chosen]
        text = (
            f"Fitted to what was measured ({points}), {chosen.tokens_per_second:.0f} output tokens per second are "
            f"predicted for this plan; {', '.join(predicted)}."
        )
    else:
        predicted = [
            f"{name} gives {(row.relative or 0) / max(chosen.relative, 1e-9):.2f} times the throughput of this plan"
            for name, row in others
            if row is not chosen
        ]
        text = f"By the bytes a step reads, {', '.join(predicted)}."
    faster = [row for row in plan.alternatives if row.relative == 1.0 and row is not chosen]
    if chosen.relative < 0.98 and faster:
        other = faster[0].planned
        waits = f", but {other.queued} of {other.concurrency} requests wait" if other.queued else ""
        text += f" A cap of {other.cap} would give {1 / max(chosen.relative, 1e-9):.2f} times as much{waits}."
    return text + " This is a prediction for decoding: measure it before you rely on it."
