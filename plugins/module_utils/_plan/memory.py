# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What fits where: weights and KV cache of each pipeline rank, SGLang's own memory fraction, the split of layers.

A rank has ``memory * mem_fraction_static`` bytes for its weights and its KV cache. A token needs room on every rank, so
the rank with the least room decides for all: to hold more tokens means to split the layers better. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape

MIB = 2**20

# What the driver, the CUDA context and NCCL have taken before the weights are loaded. SGLang applies
# mem_fraction_static to what is free then, not to the whole memory ("Init torch distributed ends. mem usage=0.62 GB").
CONTEXT_MIB = 600

KV_NUMBER_BYTES = {"auto": 2.0, "bf16": 2.0, "bfloat16": 2.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0}


@dataclass(frozen=True)
class Gpus:
    """The GPUs of each node: how many, and what the smallest has. *bandwidth_gbs* is 0.0 where it is not known."""

    count: int
    memory_mib: int
    name: str = ""
    bandwidth_gbs: float = 0.0


GPU_QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")


def read_gpus(query: str) -> Gpus:
    """Return the GPUs that nvidia-smi lists when it is asked GPU_QUERY; raise PlanError where it tells no sizes."""
    rows = [line.rpartition(",") for line in query.splitlines() if line.strip()]
    sizes = [size.strip() for _name, _comma, size in rows]
    if not rows or not all(size.isdecimal() for size in sizes):
        raise PlanError(
            f"gpus: expected nvidia-smi to list the memory of each GPU, it said {query.strip()[:80]!r}; give gpus with "
            "count and memory_mib"
        )
    names = sorted({name.strip() for name, _comma, _size in rows})
    return Gpus(len(rows), min(map(int, sizes)), ", ".join(names))


@dataclass(frozen=True)
class GpuClass:
    """What SGLang chooses for GPUs with less than *below_mib* of memory."""

    below_mib: float
    chunked_prefill_size: int
    graph_batch: int
    graph_batch_tp4: int


GPU_CLASSES = (
    GpuClass(20 * 1024, 2048, 8, 8),
    GpuClass(35 * 1024, 2048, 24, 80),
    GpuClass(60 * 1024, 4096, 32, 160),
    GpuClass(160 * 1024, 8192, 256, 512),
    GpuClass(float("inf"), 16384, 512, 512),
)


def gpu_class(memory_mib: int) -> GpuClass:
    return next(entry for entry in GPU_CLASSES if memory_mib < entry.below_mib)


def largest_graph(memory_mib: int, tp_size: int) -> int:
    """Return the largest batch SGLang captures a CUDA graph for where nothing is said."""
    chosen = gpu_class(memory_mib)
    return chosen.graph_batch if tp_size < 4 else chosen.graph_batch_tp4


def automatic_mem_fraction(
    memory_mib: int,
    tp_size: int,
    pp_size: int,
    chunked_prefill_size: int | None = None,
    graph_batch: int | None = None,
    vision: tuple[int, int] | None = None,
) -> float:
    """Return the mem_fraction_static that SGLang computes where none is given.

    *vision* is (layers, hidden size) of a vision tower, for which SGLang keeps some memory back.
    """
    chunk = chunked_prefill_size or gpu_class(memory_mib).chunked_prefill_size
    graphs = graph_batch or largest_graph(memory_mib, tp_size)
    reserved = 512 + max(chunk, 2048) * 1.5 + graphs * 2 + tp_size * pp_size / 8 * 1024
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    fraction = round((memory_mib - reserved) / memory_mib, 3)
    if vision is not None:
        layers, hidden = vision
        ratio = layers * hidden * hidden / (24 * 1024 * 1024)
        fraction *= 0.95 * min(max(1 - 0.1 * (ratio - 1), 0.8), 1.05)
    return round(max(fraction, 0.0), 3)


def kv_cache_bytes(shape: ModelShape, tokens: int, number_bytes: float, tp_size: int = 1, dcp_size: int = 1) -> int:
    """Return what *tokens* take on one GPU that holds all layers; *dcp_size* GPUs share the tokens among them."""
    return shape.attention.bytes_per_token(number_bytes, tp_size, 1) * sum(shape.cached) * tokens // dcp_size


# --- one split of the layers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """What a pipeline rank holds. *kv_tokens* is None where it caches nothing, and below 0 where it does not fit."""

    rank: int
    layers: int
    weight_bytes: int
    state_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int | None


@dataclass(frozen=True)
class Layout:
    """A split of the layers over the ranks, and what it leaves for the KV cache (None where the GPUs are not known)."""

    partition: tuple[int, ...]
    ranks: tuple[Rank, ...]
    kv_tokens: int | None
    limiting_rank: int

    @property
    def heaviest(self) -> Rank:
        return max(self.ranks, key=lambda rank: rank.weight_bytes)

    @property
    def fits(self) -> bool:
        return self.kv_tokens is None or self.kv_tokens > 0


@dataclass(frozen=True)
class Budget:
    """A model on the GPUs of a pipeline: all that decides how its layers may be split.

    *costs* are running totals of the bytes of the layers on one GPU (one entry more than there are layers), *cached*
    running totals of the layers that cache something; *extras* is what each rank holds besides layers; *static_bytes*
    the room on each GPU, None where that is not known.
    """

    costs: tuple[int, ...]
    cached: tuple[int, ...]
    extras: tuple[int, ...]
    states: tuple[int, ...]
    kv_bytes: int
    static_bytes: int | None

    @property
    def layers(self) -> int:
        return len(self.costs) - 1

    def layout(self, partition: Sequence[int]) -> Layout:
        """Return what *partition*, the number of layers of each rank, means for each of them."""
        ranks = []
        start = 0
        for rank, (size, extra) in enumerate(zip(partition, self.extras)):
            end = start + size
            state = self.states[end] - self.states[start]
            weight = self.costs[end] - self.costs[start] - state + extra
            per_token = (self.cached[end] - self.cached[start]) * self.kv_bytes
            tokens = None
            if self.static_bytes is not None:
                room = self.static_bytes - weight - state
                tokens = room // per_token if per_token else (None if room >= 0 else -1)
            ranks.append(Rank(rank, size, weight, state, per_token, tokens))
            start = end
        bounded = [rank for rank in ranks if rank.kv_tokens is not None]
        tightest = (
            min(bounded, key=lambda rank: rank.kv_tokens or 0) if bounded else max(ranks, key=lambda r: r.weight_bytes)
        )
        return Layout(tuple(partition), tuple(ranks), tightest.kv_tokens, tightest.rank)


def budget(
    shape: ModelShape,
    pp_size: int,
    tp_size: int = 1,
    kv_cache_dtype: str = "auto",
    running_requests: int = 0,
    gpus: Gpus | None = None,
    mem_fraction_static: float | None = None,
) -> Budget:
    """Return the room that a pipeline of *pp_size* stages with *tp_size* GPUs each has for *shape*.

    *running_requests* is how many requests keep a state in layers without a KV cache (linear attention).
    """
    weights = shape.weights
    state = shape.state_bytes * running_requests // tp_size
    states = [0 if cached else state for cached in shape.cached]
    # Norms, routers and the way down into a latent are whole on every tensor-parallel rank; all else is spread.
    costs = [
        (layer - whole) // tp_size + whole + kept
        for layer, whole, kept in zip(weights.layers, weights.replicated, states)
    ]
    first = weights.first // tp_size
    last = (weights.last + (weights.tied if pp_size > 1 else 0)) // tp_size
    extras = [weights.everywhere] * pp_size
    extras[0] += first
    extras[-1] += last
    static_bytes = None
    if gpus is not None and mem_fraction_static is not None:
        static_bytes = int((gpus.memory_mib - CONTEXT_MIB) * MIB * mem_fraction_static)
    return Budget(
        costs=(0, *accumulate(costs)),
        cached=(0, *accumulate(map(int, shape.cached))),
        extras=tuple(extras),
        states=(0, *accumulate(states)),
        kv_bytes=shape.attention.bytes_per_token(KV_NUMBER_BYTES[kv_cache_dtype], tp_size),
        static_bytes=static_bytes,
    )


# --- which split ------------------------------------------------------------------------------------------------------


def sglang_split(layers: int, pp_size: int, remainder_on_last_ranks: bool = True) -> tuple[int, ...]:
    """Return SGLang's own split: the remainder on the last ranks, one each, or (before 0.5.6) all on the last one."""
    share, rest = divmod(layers, pp_size)
    if remainder_on_last_ranks:
        return (share,) * (pp_size - rest) + (share + 1,) * rest
    return (share,) * (pp_size - 1) + (share + rest,)


def most_tokens_split(room: Budget) -> tuple[int, ...]:
    """Return the split that leaves room for the most tokens, as even as that allows, longer stages first.

    Where nothing fits, or the GPUs are not known, it is the split whose heaviest rank is lightest.
    """
    static_bytes = room.static_bytes
    if static_bytes is None:
        return lightest_split(room.costs, room.extras)
    limits = [static_bytes - extra for extra in room.extras]
    spare = sum(limits) - room.costs[-1]

    def tokens(partition: Sequence[int]) -> int:
        found = room.layout(partition).kv_tokens
        return ceiling if found is None else found

    def within(count: int) -> tuple[int, ...] | None:
        per_layer = count * room.kv_bytes
        return _even_split([cost + per_layer * held for cost, held in zip(room.costs, room.cached)], limits)

    ceiling = max(spare // max(room.kv_bytes * room.cached[-1], 1), 0)
    return _best_split(_front_heavy(room.layers, len(limits)), tokens, within, -1, ceiling) or lightest_split(
        room.costs, room.extras
    )


def lightest_split(costs: Sequence[int], extras: Sequence[int]) -> tuple[int, ...]:
    """Return the split whose largest rank is smallest.

    *costs* are running totals over the layers, *extras* what each rank has besides layers.
    """

    def lightness(partition: Sequence[int]) -> int:
        start = largest = 0
        for size, extra in zip(partition, extras):
            largest = max(largest, costs[start + size] - costs[start] + extra)
            start += size
        return -largest

    def within(level: int) -> tuple[int, ...] | None:
        return _even_split(costs, [-level - extra for extra in extras])

    start = _front_heavy(len(costs) - 1, len(extras))
    ceiling = -max(*extras, -(-(costs[-1] + sum(extras)) // len(extras)))
    return _best_split(start, lightness, within, lightness(start), ceiling) or start


def _front_heavy(layers: int, ranks: int) -> tuple[int, ...]:
    share, rest = divmod(layers, ranks)
    return (share + 1,) * rest + (share,) * (ranks - rest)


def _best_split(
    start: tuple[int, ...],
    score: Callable[[Sequence[int]], int],
    within: Callable[[int], tuple[int, ...] | None],
    floor: int,
    ceiling: int,
) -> tuple[int, ...] | None:
    """Return the split with the highest score, or None where none scores more than *floor* does.

    *within* answers with a split that scores at least so much, or None where there is none. The even split is the best
    one, or nearly, for almost every model, so the first question is whether anything beats it.
    """
    best = max(score(start), floor)
    probe = best + 1
    while best < ceiling:
        found = within(probe)
        if found is None:
            ceiling = probe - 1
        else:
            best = max(score(found), probe)
        probe = (best + ceiling + 1) // 2
    return within(best) if best > floor else None


def _even_split(costs: Sequence[int], limits: Sequence[int]) -> tuple[int, ...] | None:
    """Return a split in which no rank exceeds its limit, or None where there is none.

    From the back, for each rank: at which layers may it start, so that it and all ranks behind it stay within their
    limits? From the front, each then takes its even share of what is left, as nearly as that allows.
    """
    layers, ranks = len(costs) - 1, len(limits)
    nowhere = layers + 1
    ends = [*costs, float("inf")]
    # For each layer the next one, itself included, that a rank may start at; behind the last rank only the end is left.
    behind = [layers] * (layers + 1) + [nowhere]
    starts = [behind]
    for limit in reversed(limits):
        table = [nowhere] * (layers + 2)
        nearest = nowhere
        for start in range(layers - 1, -1, -1):
            if ends[behind[start + 1]] - costs[start] <= limit:
                nearest = start
            table[start] = nearest
        starts.append(table)
        behind = table
    if behind[0] != 0:
        return None
    starts.reverse()
    sizes = []
    start = 0
    for rank, limit in enumerate(limits):
        allowed = starts[rank + 1]
        even = start - (start - layers) // (ranks - rank)
        end = allowed[even]
        if ends[end] - costs[start] > limit:
            end = min(even, bisect_right(costs, costs[start] + limit) - 1)
            while allowed[end] != end:
                end -= 1
        sizes.append(end - start)
        start = end
    return tuple(sizes)
