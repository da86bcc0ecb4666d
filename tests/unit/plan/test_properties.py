# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What holds for every plan. GPUFLEET_HYPOTHESIS_PROFILE=thorough tries each with thousands of examples."""

from __future__ import annotations

import itertools
import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.arguments import arguments
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import (
    KV_NUMBER_BYTES,
    Budget,
    Gpus,
    automatic_mem_fraction,
    budget,
    lightest_split,
    most_tokens_split,
    sglang_split,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import (
    Attention,
    ModelError,
    ModelShape,
    Weights,
    read_config,
    read_directory,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.render import WIDTH, render
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import (
    LAYER_BALANCES,
    STRATEGIES,
    Measured,
    Wishes,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import (
    Measurement,
    StepCost,
    balanced_cap,
    calibrate,
    captured_batch,
    physical_step_time,
    schedule,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.releases import ReleaseError, parse_release
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI, LLAMA, QWEN_MOE, QWEN_NEXT
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

EXAMPLES = settings(
    max_examples=5000 if os.environ.get("GPUFLEET_HYPOTHESIS_PROFILE") == "thorough" else 300,
    suppress_health_check=[HealthCheck.too_slow],
)

sizes = st.integers(1, 64)
loads = st.integers(0, 3000)
costs = st.builds(
    StepCost,
    fixed=st.floats(1.0, 1e11),
    per_request=st.floats(0.0, 1e9),
    per_expert=st.floats(0.0, 1e9),
    experts=st.sampled_from([0, 8, 128, 384]),
    experts_per_token=st.integers(1, 8),
)


def _is_one_line(error: Exception) -> None:
    assert str(error)
    assert "\n" not in str(error)


# --- scheduler --------------------------------------------------------------------------------------------------------


@EXAMPLES
@given(loads, sizes, st.integers(1, 4096), st.none() | st.integers(1, 300), st.integers(0, 8), st.none() | loads)
def test_nobody_is_lost_and_nothing_is_exceeded(
    load: int, pp_size: int, limit: int, cap: int | None, depth: int, kv_requests: int | None
) -> None:
    planned = schedule(load, pp_size, limit, cap, depth, kv_requests)
    assert sum(planned.occupancy) + planned.queued == load
    assert planned.queued >= 0
    assert len(planned.occupancy) == pp_size + depth
    assert max(planned.occupancy) <= planned.cap
    assert planned.running <= min(limit, planned.capacity)
    assert kv_requests is None or planned.running <= kv_requests
    assert bool(planned.queued) == bool(planned.limit)
    assert sorted(planned.occupancy, reverse=True) == list(planned.occupancy)
    assert sum(size * count for size, count in planned.batches) == planned.running
    assert sum(count for _size, count in planned.batches) == planned.filled


@EXAMPLES
@given(st.integers(1, 2000), sizes, st.integers(0, 4), st.integers(1, 2500))
def test_balanced_fills_at_least_as_many_slots_as_any_other_cap(
    load: int, pp_size: int, depth: int, other: int
) -> None:
    slots = pp_size + depth
    cap = balanced_cap(load, slots)
    balanced = schedule(load, pp_size, slots * cap, cap, depth)
    assert balanced.queued == 0
    rival = schedule(load, pp_size, slots * cap, other, depth)
    assume(rival.queued == 0)
    assert balanced.filled >= rival.filled


@EXAMPLES
@given(costs, st.integers(1, 2000), sizes, st.integers(1, 2500))
def test_balanced_is_the_fastest_cap_that_lets_all_run(cost: StepCost, load: int, pp_size: int, other: int) -> None:
    step = physical_step_time(cost, 1e12)
    cap = balanced_cap(load, pp_size)
    rival = schedule(load, pp_size, pp_size * cap, other)
    assume(rival.queued == 0)
    balanced = step.tokens_per_second(schedule(load, pp_size, pp_size * cap, cap))
    assert balanced >= step.tokens_per_second(rival) * (1 - 1e-9)


@EXAMPLES
@given(
    costs, st.lists(st.tuples(st.integers(1, 500), st.integers(1, 100), st.floats(0.1, 1e5)), min_size=1, max_size=6)
)
def test_calibration_never_makes_a_step_faster_by_making_it_larger(
    cost: StepCost, figures: list[tuple[int, int, float]]
) -> None:
    points = [Measurement(schedule(load, 8, max(load, 8), cap), speed) for load, cap, speed in figures]
    step = calibrate(cost, points)
    assert step.base >= 0.0
    assert step.per_byte >= 0.0
    assert 0.0 < step.seconds(1) <= step.seconds(2) <= step.seconds(64) < float("inf")


@EXAMPLES
@given(costs, st.floats(1e-6, 1.0), st.floats(1e-3, 10.0))
def test_calibration_finds_what_it_was_fed(cost: StepCost, base: float, factor: float) -> None:
    truth = physical_step_time(cost, 1e12 / factor)
    points = [schedule(load, 8, 64, cap) for load, cap in ((1, 1), (32, 4), (64, 64))]
    step = calibrate(cost, [Measurement(planned, truth.tokens_per_second(planned)) for planned in points])
    for planned in points:
        assert abs(step.tokens_per_second(planned) / truth.tokens_per_second(planned) - 1) < 1e-3


@EXAMPLES
@given(st.integers(1, 5000))
def test_a_graph_is_large_enough_and_not_much_larger(batch: int) -> None:
    assert batch <= captured_batch(batch) < batch + 33
    assert captured_batch(captured_batch(batch)) == captured_batch(batch)


# --- memory -----------------------------------------------------------------------------------------------------------

layer_sizes = st.lists(st.integers(1, 1000), min_size=1, max_size=9)


def every_split(layers: int, ranks: int) -> list[tuple[int, ...]]:
    cuts = itertools.combinations(range(1, layers), ranks - 1)
    return [tuple(b - a for a, b in zip((0, *cut), (*cut, layers))) for cut in cuts]


@EXAMPLES
@given(st.integers(1, 200), sizes, st.booleans())
def test_own_split_holds_all_layers(layers: int, pp_size: int, modern: bool) -> None:
    partition = sglang_split(layers, pp_size, modern)
    assert sum(partition) == layers
    assert len(partition) == pp_size


@EXAMPLES
@given(layer_sizes, st.integers(1, 4), st.data())
def test_the_lightest_split_is_the_lightest_of_all(sizes_of: list[int], ranks: int, data: st.DataObject) -> None:
    assume(ranks <= len(sizes_of))
    extras = data.draw(st.lists(st.integers(0, 1500), min_size=ranks, max_size=ranks))
    running = (0, *itertools.accumulate(sizes_of))

    def heaviest(partition: tuple[int, ...]) -> int:
        ends = [0, *itertools.accumulate(partition)]
        return max(running[b] - running[a] + extra for (a, b), extra in zip(zip(ends, ends[1:]), extras))

    found = lightest_split(running, extras)
    assert sum(found) == len(sizes_of)
    assert min(found) >= 1
    assert heaviest(found) == min(map(heaviest, every_split(len(sizes_of), ranks)))


@EXAMPLES
@given(layer_sizes, st.integers(1, 4), st.integers(1, 6000), st.integers(1, 20), st.data())
def test_the_best_split_holds_the_most_tokens_of_all(
    sizes_of: list[int], ranks: int, static_bytes: int, kv_bytes: int, data: st.DataObject
) -> None:
    assume(ranks <= len(sizes_of))
    extras = data.draw(st.lists(st.integers(0, 1500), min_size=ranks, max_size=ranks))
    cached = data.draw(st.lists(st.integers(0, 1), min_size=len(sizes_of), max_size=len(sizes_of)))
    assume(any(cached))
    room = Budget(
        costs=(0, *itertools.accumulate(sizes_of)),
        cached=(0, *itertools.accumulate(cached)),
        extras=tuple(extras),
        states=(0,) * (len(sizes_of) + 1),
        kv_bytes=kv_bytes,
        static_bytes=static_bytes,
    )
    best = max(room.layout(split).kv_tokens or 0 for split in every_split(len(sizes_of), ranks))
    found = room.layout(most_tokens_split(room))
    assert sum(found.partition) == len(sizes_of)
    if best > 0:
        assert found.kv_tokens == best
    else:
        assert not found.fits


@EXAMPLES
@given(st.integers(2000, 300_000), st.integers(1, 8), sizes, st.integers(512, 32768), st.integers(1, 512))
def test_own_fraction_is_a_fraction(memory: int, tp_size: int, pp_size: int, chunk: int, graphs: int) -> None:
    fraction = automatic_mem_fraction(memory, tp_size, pp_size, chunk, graphs)
    assert 0.0 <= fraction < 1.0
    assert automatic_mem_fraction(memory, tp_size, pp_size, chunk * 2, graphs) <= fraction
    assert automatic_mem_fraction(memory + 1000, tp_size, pp_size, chunk, graphs) >= fraction - 0.2


@EXAMPLES
@given(st.integers(1, 61), st.floats(0.1, 0.9), st.integers(20_000, 200_000), st.integers(1, 8))
def test_memory_is_monotone(pp_size: int, fraction: float, memory: int, tp_size: int) -> None:
    shape = read_config(KIMI)

    def tokens(fraction: float, memory: int, tp_size: int, dtype: str = "auto") -> float:
        room = budget(shape, pp_size, tp_size, dtype, gpus=Gpus(8, memory), mem_fraction_static=fraction)
        return room.layout(sglang_split(61, pp_size)).kv_tokens or 0

    here = tokens(fraction, memory, tp_size)
    assert tokens(fraction + 0.05, memory, tp_size) >= here
    assert tokens(fraction, memory + 1000, tp_size) >= here
    assert tokens(fraction, memory, tp_size + 1) >= here
    assert here < 0 or tokens(fraction, memory, tp_size, "fp8_e4m3") >= here


# --- plans ------------------------------------------------------------------------------------------------------------

SHAPES = tuple(read_config(config) for config in (KIMI, LLAMA, QWEN_MOE, QWEN_NEXT))
odd_shapes = st.integers(1, 20).flatmap(
    lambda layers: st.builds(
        ModelShape,
        architecture=st.sampled_from(["", "KimiK25ForConditionalGeneration", "X\x1b[2J" * 20]),
        layers=st.just(layers),
        hidden_size=st.just(64),
        context_length=st.none() | st.integers(1, 10**6),
        attention=st.builds(Attention, shared=st.integers(1, 600)),
        cached=st.lists(st.booleans(), min_size=layers, max_size=layers).map(lambda held: (True, *held[1:])),
        state_bytes=st.integers(0, 10**7),
        experts=st.sampled_from([0, 16]),
        experts_per_token=st.just(2),
        vision=st.none() | st.just((27, 1152)),
        quantization=st.just("bf16"),
        weights=st.builds(
            Weights,
            layers=st.lists(st.integers(0, 10**11), min_size=layers, max_size=layers).map(tuple),
            routed=st.just((0,) * layers),
            replicated=st.just((0,) * layers),
            first=st.integers(0, 10**10),
            last=st.integers(0, 10**10),
            everywhere=st.integers(0, 10**10),
            tied=st.integers(0, 10**9),
        ),
    )
)
numbers = st.none() | st.integers(-2, 5000) | st.integers(10**6, 2 * 10**7)
wishes = st.builds(
    Wishes,
    target_concurrency=numbers,
    pp_size=st.none() | st.integers(-1, 70),
    tp_size=st.integers(0, 9),
    dp_size=st.integers(0, 4),
    nnodes=st.integers(0, 3),
    input_tokens=st.integers(-1, 10**6),
    output_tokens=st.integers(-1, 10**6),
    strategy=st.sampled_from(STRATEGIES),
    layer_balance=st.sampled_from(LAYER_BALANCES),
    max_running_requests=numbers,
    pp_max_micro_batch_size=numbers,
    pp_async_batch_depth=st.integers(-1, 20),
    mem_fraction_static=st.none() | st.floats(),
    layer_partition=st.none() | st.lists(st.integers(-3, 70), max_size=9).map(tuple),
    kv_cache_dtype=st.sampled_from([*KV_NUMBER_BYTES, "int4"]),
    context_length=numbers,
    chunked_prefill_size=st.none() | st.integers(-2, 70_000),
    sglang_version=st.none() | st.sampled_from(["0.4.6", "0.5.2", "0.5.9", "0.5.15.post1", "0.5.23", "1.0", "?", ""]),
    measured=st.lists(st.builds(Measured, st.integers(-1, 500), st.floats(), numbers), max_size=3).map(tuple),
)
gpus = st.none() | st.builds(
    Gpus, st.integers(0, 9), st.integers(-1, 200_000), st.text(max_size=90), st.floats(0, 9000)
)


@EXAMPLES
@given(wishes, st.none() | st.sampled_from(SHAPES) | odd_shapes, gpus)
def test_any_wish_gets_a_plan_or_one_line(wish: Wishes, shape: ModelShape | None, there: Gpus | None) -> None:
    try:
        plan = make_plan(wish, shape, there)
    except PlanError as error:
        _is_one_line(error)
        return
    returned = result(plan)
    json.dumps(returned, allow_nan=False)
    planned = plan.chosen.planned
    assert plan.chosen in plan.alternatives
    assert planned.running + planned.queued == plan.concurrency
    assert plan.works == returned["works"] == all(f["severity"] != "error" for f in returned["findings"])
    assert set(arguments(plan)) >= {"pp_size", "tp_size"}
    for finding in plan.findings:
        assert finding.message.endswith(".")
    for row in plan.alternatives:
        assert row.relative is None or 0.0 <= row.relative <= 1.0
    if plan.splits is not None and shape is not None:
        assert all(sum(layout.partition) == shape.layers for layout in plan.splits.layouts.values())
    for short in (True, False):
        lines = render(returned, short=short)
        assert max(map(len, lines)) <= WIDTH
        assert all(line.isprintable() for line in lines)


@EXAMPLES
@given(st.integers(1, 500), st.integers(2, 32), st.integers(0, 1), st.none() | st.integers(1, 1000))
def test_a_balanced_plan_lets_all_run_or_says_why_not(load: int, pp_size: int, depth: int, limit: int | None) -> None:
    plan = make_plan(
        Wishes(target_concurrency=load, pp_size=pp_size, pp_async_batch_depth=depth, max_running_requests=limit)
    )
    planned = plan.chosen.planned
    assert planned.slots * planned.cap >= min(load, limit or load)
    assert planned.running == min(load, limit or load)
    assert limit is not None or planned.max_running_requests >= planned.slots * planned.cap
    assert bool(planned.queued) == any(finding.code == "saturated" for finding in plan.findings)


# --- what is read -----------------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner), max_leaves=6
)
KEYS = sorted({*KIMI, *KIMI["text_config"], *LLAMA, *QWEN_MOE, *QWEN_NEXT, "text_config", "quantization_config"})


@EXAMPLES
@given(
    st.sampled_from([KIMI, LLAMA, QWEN_MOE, QWEN_NEXT, KIMI["text_config"], {}]),
    st.dictionaries(st.sampled_from(KEYS), values | st.integers(0, 300), max_size=4),
)
def test_any_configuration_gives_a_shape_or_one_line(base: dict[str, Any], change: dict[str, Any]) -> None:
    try:
        shape = read_config({**base, **change})
    except ModelError as error:
        _is_one_line(error)
        return
    assert len(shape.weights.layers) == shape.layers == len(shape.cached)
    assert shape.weights.total > 0


@EXAMPLES
@given(
    st.binary(max_size=60)
    | st.dictionaries(st.text(max_size=5), values, max_size=3).map(lambda v: json.dumps(v).encode())
)
def test_any_file_gives_a_shape_or_one_line(header: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(LLAMA))
        Path(directory, "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        try:
            read_directory(directory)
        except ModelError as error:
            _is_one_line(error)
        else:
            raise AssertionError("nothing of this can hold 80 layers")


@EXAMPLES
@given(st.text(max_size=20) | st.from_regex(r"v?\d+\.\d+\.\d+(\.post\d+|rc\d+|\.dev\d+)?", fullmatch=True))
def test_any_text_is_a_release_or_one_line(text: str) -> None:
    try:
        release = parse_release(text)
    except ReleaseError as error:
        _is_one_line(error)
    else:
        assert release == parse_release(f"v{str(release).lstrip('v')}")
