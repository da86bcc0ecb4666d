# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The splits of the layers over the pipeline ranks that a plan chooses from. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan import memory
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus, Layout
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Wishes, target
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import StepCost, balanced_cap
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang import releases

# The highest share of the memory that was seen to hold under load with this kind of model; above it, what lives outside
# of the pool (activations, a vision tower at work) runs out.
PROVEN_MEM_FRACTION = 0.85

# SGLang's own max_running_requests lies in this range, whatever the memory.
_DEFAULT_LIMITS = (2048, 4096)
_DEFAULT_LIMIT_FACTOR = 512
_SMALL_GRAPH = 32


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


def split_layers(
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
    room = budget(wishes, model, gpus, pp_size, running_requests, fraction)
    partitions = {
        "sglang": memory.sglang_split(model.layers, pp_size, releases.has_feature("remainder_on_last_ranks", release)),
        "memory": memory.most_tokens_split(room),
    }
    if wishes.layer_balance == "latency":
        batch = balanced_cap(-(-target(wishes) // wishes.dp_size), pp_size + wishes.pp_async_batch_depth)
        partitions["latency"] = _fastest_split(model, pp_size, batch)
    chosen = wishes.layer_balance
    if wishes.layer_partition is not None and partition_fault(wishes.layer_partition, model, pp_size) is None:
        partitions["explicit"] = wishes.layer_partition
        chosen = "explicit"
    layouts = {name: room.layout(partition) for name, partition in partitions.items()}
    if chosen == "memory" and holds(layouts["sglang"]) >= holds(layouts["memory"]):
        chosen = "sglang"  # nothing to gain: nothing to set
    automatic = None
    if gpus is not None:
        automatic = memory.automatic_mem_fraction(
            gpus.memory_mib, wishes.tp_size, pp_size, wishes.chunked_prefill_size, vision=model.vision
        )
    return Splits(chosen, layouts, fraction, automatic, room.static_bytes)


def budget(
    wishes: Wishes, model: ModelShape, gpus: Gpus | None, pp_size: int, running_requests: int, fraction: float
) -> memory.Budget:
    if wishes.enable_dp_attention and wishes.dp_size > 1:
        model = with_dp_attention(model, wishes.tp_size, wishes.dp_size)
    room = memory.budget(model, pp_size, wishes.tp_size, wishes.kv_cache_dtype, running_requests, gpus, fraction)
    return replace(room, kv_bytes=-(-room.kv_bytes // wishes.dcp_size))


def with_dp_attention(model: ModelShape, tp_size: int, dp_size: int) -> ModelShape:
    """Return *model* as one GPU of *tp_size* holds it when *dp_size* ranks each keep an attention of their own.

    Routed experts are still spread over all GPUs; everything else only over the tp_size / dp_size of its rank. The
    result has more that is whole on every GPU, and more KV heads, so that dividing by *tp_size* comes out right.
    """
    weights, attention_tp = model.weights, tp_size // dp_size
    whole = tuple(
        kept + int((layer - routed - kept) * (1 / attention_tp - 1 / tp_size) / (1 - 1 / tp_size))
        for layer, routed, kept in zip(weights.layers, weights.routed, weights.replicated)
    )
    attention = replace(model.attention, kv_heads=model.attention.kv_heads * dp_size)
    return replace(model, weights=replace(weights, replicated=whole), attention=attention)


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


def holds(layout: Layout) -> float:
    """Return how good a split is for the cache: its tokens, or where they are not known how light it is."""
    return layout.kv_tokens if layout.kv_tokens is not None else -layout.heaviest.weight_bytes


def _fastest_split(model: ModelShape, pp_size: int, batch: int) -> tuple[int, ...]:
    """Return the split whose slowest stage reads least for a micro-batch of *batch*."""
    share = share_of_experts(model, batch)
    costs = [0]
    for layer, routed in zip(model.weights.layers, model.weights.routed):
        costs.append(costs[-1] + layer - routed + int(routed * share))
    return memory.lightest_split(costs, [0] * (pp_size - 1) + [head_bytes(model)])


def share_of_experts(model: ModelShape, batch: int) -> float:
    if not model.experts:
        return 1.0
    return StepCost(0.0, 0.0, 0.0, model.experts, model.experts_per_token).experts_read(batch) / model.experts


def head_bytes(model: ModelShape) -> int:
    """The bytes of the output head, read for every step; a tied embedding does its work as well."""
    return model.weights.last + model.weights.tied


def partition_fault(partition: Sequence[int], model: ModelShape, pp_size: int) -> str | None:
    if len(partition) != pp_size:
        return f"expected {pp_size} numbers (pp_size), got {len(partition)}"
    if min(partition) < 1:
        return f"expected at least one layer on each rank, got {spaced(partition)}"
    if sum(partition) != model.layers:
        return f"expected {model.layers} layers in all (num_hidden_layers), the numbers add up to {sum(partition)}"
    return None


def default_limit(wishes: Wishes, model: ModelShape | None, tokens: int | None) -> int:
    """Return the max_running_requests SGLang arrives at where none is given."""
    lowest, highest = _DEFAULT_LIMITS
    if tokens is None:
        return lowest
    context = wishes.context_length or (model.context_length if model else None) or highest
    return min(max(tokens * _DEFAULT_LIMIT_FACTOR // context, lowest), highest)


def spaced(numbers: Iterable[int]) -> str:
    return " ".join(map(str, numbers))
