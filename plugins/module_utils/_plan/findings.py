# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What the user should know about a plan: of its release, its GPUs, its scheduler and its memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan import memory
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import Finding
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import MIB, Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.partition import (
    Splits,
    budget,
    holds,
    partition_fault,
    spaced,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.predictions import Throughput, rivals
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Wishes
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.ring import Alternative, Ring
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import balanced_cap
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang import releases

GIB = 2**30

# Points that the others miss by more than this do not describe one server.
_CONTRADICTION = 0.5


def release_findings(
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


def placement_findings(wishes: Wishes, model: ModelShape | None, gpus: Gpus | None, pp_size: int) -> Iterable[Finding]:
    """Tell of what SGLang refuses to start with, whatever the numbers of the scheduler are."""
    wanted = pp_size * wishes.gpus_per_stage
    if gpus is not None and wanted > gpus.count * wishes.nnodes:
        yield Finding(
            "does_not_fit",
            "error",
            f"pp_size {pp_size} x tp_size {wishes.tp_size}"
            + ("" if wishes.enable_dp_attention else f" x dp_size {wishes.dp_size}")
            + f" needs {wanted} GPUs; there are {gpus.count * wishes.nnodes}.",
            "pp_size, tp_size or dp_size: less; or gpus.count, nnodes: what there really is",
        )
    elif gpus is not None and wanted < gpus.count * wishes.nnodes:
        idle = gpus.count * wishes.nnodes - wanted
        yield Finding(
            "gpus_idle",
            "warning",
            f"{wanted} of {gpus.count * wishes.nnodes} GPUs are used: {idle} stay idle.",
            "pp_size, tp_size or dp_size: a product that uses all; or gpus.count: what this server may use",
        )
    if wishes.enable_dp_attention and wishes.tp_size % wishes.dp_size:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"enable_dp_attention with tp_size {wishes.tp_size} and dp_size {wishes.dp_size}: the ranks share the GPUs "
            "of a stage, so tp_size has to be a multiple of dp_size.",
            "dp_size: a divisor of tp_size",
        )
    if wishes.tp_size % wishes.dcp_size:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"dcp_size {wishes.dcp_size} does not divide tp_size {wishes.tp_size}.",
            "dcp_size: a divisor of tp_size",
        )
    if pp_size * wishes.tp_size % wishes.nnodes:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"pp_size {pp_size} x tp_size {wishes.tp_size} cannot be spread evenly over {wishes.nnodes} nodes.",
            "nnodes: a divisor of pp_size x tp_size",
        )
    if wishes.dp_size > 1 and wishes.nnodes > 1 and not wishes.enable_dp_attention:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"dp_size {wishes.dp_size} over {wishes.nnodes} nodes: SGLang refuses it without data-parallel attention.",
            "dp_size: 1, with one server for each group of nodes",
        )
    if model is None:
        return
    yield from _division_findings(wishes, model)
    if pp_size > model.layers:
        yield Finding(
            "partition_invalid",
            "error",
            f"{model.layers} layers cannot be split over {pp_size} ranks: each needs at least one.",
            f"pp_size: at most {model.layers}",
        )
    elif wishes.layer_partition is not None:
        fault = partition_fault(wishes.layer_partition, model, pp_size)
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


def _division_findings(wishes: Wishes, model: ModelShape) -> Iterable[Finding]:
    """Tell of tensors that SGLang cannot cut into tp_size equal parts; it finds out only while it loads."""
    attention_tp = max(wishes.tp_size // wishes.dp_size, 1) if wishes.enable_dp_attention else wishes.tp_size
    heads, block, width = model.attention_heads, model.block_size, model.expert_width
    if heads and heads % attention_tp:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"{heads} attention heads (num_attention_heads) cannot be divided by tp_size {attention_tp}.",
            f"tp_size: a divisor of {heads}",
        )
    kv_heads = model.attention.kv_heads
    if kv_heads and max(kv_heads, attention_tp) % min(kv_heads, attention_tp):
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"{kv_heads} KV heads (num_key_value_heads) cannot be spread over tp_size {attention_tp}.",
            f"tp_size: a divisor or a multiple of {kv_heads}",
        )
    if wishes.ep_size > 1 and (wishes.tp_size % wishes.ep_size or (model.experts and model.experts % wishes.ep_size)):
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"ep_size {wishes.ep_size} does not divide tp_size {wishes.tp_size} and the {model.experts} experts.",
            "ep_size: a divisor of both",
        )
    parts = max(wishes.tp_size // wishes.ep_size, 1)
    if width and width % parts:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"The intermediate size of an expert, {width}, cannot be divided by {parts} (tp_size / ep_size).",
            "tp_size: less; or ep_size: more",
        )
    elif width and block and parts > 1 and (width // parts) % block:
        yield Finding(
            "rejected_by_sglang",
            "error",
            f"Experts are quantized in blocks of {block}: {width} / {parts} = {width // parts} is no multiple of it.",
            f"tp_size: at most {max(width // block, 1)}; or ep_size: {wishes.tp_size}, so that experts stay whole",
        )


def scheduler_findings(wishes: Wishes, ring: Ring, chosen: Alternative, graphs: int) -> Iterable[Finding]:
    planned = chosen.planned
    if planned.limit == "cap":
        yield Finding(
            "starved",
            "warning",
            f"{planned.queued} of {planned.concurrency} requests wait: {planned.slots} slots of at most {planned.cap} "
            f"hold {planned.capacity}, max_running_requests {planned.max_running_requests} would let "
            f"{min(planned.concurrency, planned.max_running_requests) - planned.running} more run.",
            f"pp_max_micro_batch_size: "
            f"{balanced_cap(min(planned.concurrency, planned.max_running_requests), planned.slots)}",
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


def throughput_findings(
    wishes: Wishes, throughput: Throughput, chosen: Alternative, alternatives: Iterable[Alternative]
) -> Iterable[Finding]:
    sure = throughput.certainty
    if sure is None:
        return
    for index in throughput.above_bandwidth:
        point = wishes.measured[index]
        yield Finding(
            "measured_above_bandwidth",
            "warning",
            f"measured[{index}]: {point.output_tokens_per_second:g} tokens/s at {point.concurrency} requests are more "
            "than the memory bandwidth of these GPUs allows for this model.",
            "measured, gpus.memory_bandwidth_gbs, model_config: check which one is of another server",
        )
    error = max(throughput.largest_error or 0.0, sure.error or 0.0)
    if error > _CONTRADICTION:
        yield Finding(
            "measured_contradict",
            "warning",
            f"The measured points contradict each other: predicted from the others, one is {error:.0%} off.",
            "measured: repeat the measurement, with the same prompts and the cap that was in force",
        )
    caps = sorted({row.planned.cap for row in rivals(chosen, alternatives)})
    if caps:
        yield Finding(
            "caps_do_not_differ",
            "info",
            f"What was measured does not tell a cap of {chosen.planned.cap} from {', '.join(map(str, caps))}: their "
            "ranges overlap.",
            "measured: add a point at one of these caps",
        )


def memory_findings(
    wishes: Wishes, model: ModelShape, gpus: Gpus | None, splits: Splits, ring: Ring, chosen: Alternative
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
    if best.fits and holds(best) > holds(own):
        gain = (
            f"{best.kv_tokens:,} tokens instead of {own.kv_tokens:,}"
            if own.fits
            else f"{best.kv_tokens:,} tokens, where SGLang's own split does not fit"
        )
        taken = layout.partition == best.partition
        yield Finding(
            "partition_improves_kv",
            "info",
            f"The layers split as {spaced(best.partition)} leave room for {gain} ({spaced(own.partition)}).",
            "" if taken else "layer_balance: memory",
        )
    automatic = splits.automatic_mem_fraction
    if wishes.mem_fraction_static is None and automatic is not None:
        by_itself = budget(wishes, model, gpus, ring.pp_size, ring.concurrency, automatic).layout(own.partition)
        if holds(by_itself) < min(ring.concurrency * request, layout.kv_tokens):
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
                f"Left alone, SGLang splits the layers as {spaced(own.partition)} and sets mem_fraction_static to "
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
