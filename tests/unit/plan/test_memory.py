# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Memory: the published figures, SGLang's own fraction, and which layers go where."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import (
    Budget,
    Gpus,
    automatic_mem_fraction,
    budget,
    kv_cache_bytes,
    lightest_split,
    most_tokens_split,
    read_gpus,
    sglang_split,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI, LLAMA, QWEN_NEXT

GIB = 2**30
BLACKWELLS = Gpus(8, 97887)
SHAPE = read_config(KIMI)
OWN = (7, 7, 7, 8, 8, 8, 8, 8)
BETTER = (8, 8, 8, 8, 8, 7, 7, 7)


@pytest.mark.parametrize(
    ("tokens", "number_bytes", "dcp_size", "gib"),
    [
        (478_992, 1, 1, 15.67),
        (953_088, 1, 2, 15.59),
        (1_906_240, 1, 4, 15.59),
        (418_016, 1, 1, 13.68),
        (2_411_136, 1, 8, 9.86),
        (190_000, 2, 1, 12.43),
    ],
)
def test_published_kv_caches(tokens: int, number_bytes: int, dcp_size: int, gib: float) -> None:
    """Whatever tp_size is, MLA keeps the same on each rank: these are of tp_size 8."""
    assert kv_cache_bytes(SHAPE, tokens, number_bytes, 8, dcp_size) / GIB == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    ("partition", "gib", "tokens"),
    [
        (OWN, (58.8, 64.8, 64.8, 73.9, 73.9, 73.9, 73.9, 76.1), (539e3, 871e3, 1.09e6)),
        (BETTER, (67.9, 73.9, 73.9, 73.9, 73.9, 64.8, 64.8, 67.0), (795e3, 1.13e6, 1.35e6)),
    ],
)
def test_kimi_on_eight_gpus(partition: tuple[int, ...], gib: tuple[float, ...], tokens: tuple[float, ...]) -> None:
    for fraction, expected in zip((0.85, 0.88, 0.90), tokens):
        layout = budget(SHAPE, 8, gpus=BLACKWELLS, mem_fraction_static=fraction).layout(partition)
        assert [rank.weight_bytes / GIB for rank in layout.ranks] == pytest.approx(gib, abs=0.05)
        assert layout.kv_tokens == pytest.approx(expected, rel=0.01)


def test_the_tightest_rank_is_named() -> None:
    room = budget(SHAPE, 8, gpus=BLACKWELLS, mem_fraction_static=0.85)
    assert room.layout(OWN).limiting_rank == 7
    assert room.layout(BETTER).limiting_rank == 1
    assert not room.layout(sglang_split(61, 8, remainder_on_last_ranks=False)).fits


def test_own_split_by_release() -> None:
    assert sglang_split(61, 8) == OWN
    assert sglang_split(61, 8, remainder_on_last_ranks=False) == (7, 7, 7, 7, 7, 7, 7, 12)
    assert sglang_split(64, 8) == sglang_split(64, 8, remainder_on_last_ranks=False) == (8,) * 8


def test_best_split_of_kimi() -> None:
    assert most_tokens_split(budget(SHAPE, 8, gpus=BLACKWELLS, mem_fraction_static=0.85)) == BETTER


@pytest.mark.parametrize("extras", [(0, 0, 0), (5, 0, 0), (0, 0, 7), (3, 9, 3)])
@pytest.mark.parametrize("layers", [(1, 5, 5, 5, 5, 5, 5), (9, 1, 1, 1, 1, 1, 9), (2, 2, 8, 2, 2), (4, 4, 4)])
def test_lightest_split_is_the_best_of_all(layers: tuple[int, ...], extras: tuple[int, ...]) -> None:
    def heaviest(partition: tuple[int, ...]) -> int:
        ends = list(itertools.accumulate(partition))
        starts = [0, *ends]
        return max(sum(layers[start:end]) + extra for start, end, extra in zip(starts, ends, extras))

    everything = [
        (first, second - first, len(layers) - second)
        for first, second in itertools.combinations(range(1, len(layers)), 2)
    ]
    found = lightest_split((0, *itertools.accumulate(layers)), extras)
    assert heaviest(found) == min(map(heaviest, everything))


def test_best_split_of_uneven_layers_is_the_best_of_all() -> None:
    costs = (0, *itertools.accumulate((40, 10, 10, 60, 10, 10, 10, 30)))
    cached = (0, *itertools.accumulate((1, 1, 0, 1, 0, 0, 1, 1)))
    room = Budget(costs, cached, extras=(5, 0, 20), states=(0,) * 9, kv_bytes=1, static_bytes=120)
    everything = [(a, b - a, 8 - b) for a, b in itertools.combinations(range(1, 8), 2)]
    best = max(room.layout(partition).kv_tokens or 0 for partition in everything)
    assert room.layout(most_tokens_split(room)).kv_tokens == best


def test_where_nothing_fits_the_lightest_split_is_taken() -> None:
    room = budget(SHAPE, 4, gpus=BLACKWELLS, mem_fraction_static=0.85)
    assert most_tokens_split(room) == most_tokens_split(budget(SHAPE, 4)) == (16, 15, 15, 15)
    assert not room.layout((16, 15, 15, 15)).fits


def test_own_memory_fraction() -> None:
    assert automatic_mem_fraction(97887, 1, 8) == 0.854
    assert automatic_mem_fraction(97887, 1, 8, vision=(27, 1152)) == 0.777
    assert automatic_mem_fraction(97887, 1, 8, chunked_prefill_size=-1, graph_batch=8) == 0.895
    assert automatic_mem_fraction(1024, 1, 8) == 0.0


def test_tensor_parallel_ranks_share_heads_but_not_a_latent() -> None:
    llama = read_config(LLAMA)
    assert llama.attention.bytes_per_token(2) == 2 * 8 * 128 * 2
    assert llama.attention.bytes_per_token(2, tp_size=8) == llama.attention.bytes_per_token(2, tp_size=16) == 512
    assert SHAPE.attention.bytes_per_token(2) == SHAPE.attention.bytes_per_token(2, tp_size=8) == 576 * 2
    whole, half = budget(SHAPE, 8), budget(SHAPE, 8, tp_size=2)
    assert whole.costs[-1] / 2 < half.costs[-1] < whole.costs[-1] / 2 * 1.01


def test_states_of_layers_without_a_cache() -> None:
    shape = read_config(QWEN_NEXT)
    room = budget(shape, 4, running_requests=64, gpus=Gpus(4, 81559), mem_fraction_static=0.8)
    ranks = room.layout((12, 12, 12, 12)).ranks
    assert {rank.kv_bytes_per_token for rank in ranks} == {3 * 2 * 2 * 256 * 2}
    assert {rank.state_bytes for rank in ranks} == {9 * 64 * (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2)}


def test_gpus_from_nvidia_smi() -> None:
    assert read_gpus("NVIDIA A, 97887\nNVIDIA B, 40960\n") == Gpus(2, 40960, "NVIDIA A, NVIDIA B")


@pytest.mark.parametrize("said", ["", "No devices were found\n", "NVIDIA GB10, [N/A]\n"])
def test_gpus_that_do_not_tell(said: str) -> None:
    with pytest.raises(PlanError, match="give gpus with count and memory_mib"):
        read_gpus(said)
