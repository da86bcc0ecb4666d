# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans: what is chosen, what is found, and what is said about it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.arguments import arguments, environment
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.explanation import explanation
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan, make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Measured, Wishes
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI, LLAMA, QWEN_NEXT

BLACKWELLS = Gpus(8, 97887, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 1792.0)
SHAPE = read_config(KIMI)
FIGURES = (Measured(1, 34.0), Measured(32, 248.0, 8))
FIRST_USER = Wishes(target_concurrency=32, pp_size=8, max_running_requests=64, measured=FIGURES)


def kimi(**wishes: Any) -> Plan:
    return make_plan(replace(FIRST_USER, **wishes), SHAPE, BLACKWELLS)


def bare(**wishes: Any) -> Plan:
    return make_plan(Wishes(**{"target_concurrency": 32, "pp_size": 8, **wishes}))


def codes(plan: Plan) -> dict[str, str]:
    return {finding.code: finding.severity for finding in plan.findings}


def advice(plan: Plan, code: str) -> str:
    return next(finding.advice for finding in plan.findings if finding.code == code)


# --- the first user ---------------------------------------------------------------------------------------------------


def test_first_user() -> None:
    plan = kimi()
    assert arguments(plan) == {
        "pp_size": 8,
        "tp_size": 1,
        "pp_max_micro_batch_size": 4,
        "max_running_requests": 64,
        "cuda_graph_max_bs_decode": 4,
        "mem_fraction_static": 0.85,
        "decode_log_interval": 41,
    }
    assert environment(plan) == {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,7,7,7"}
    assert codes(plan) == {
        "balanced": "info",
        "caps_do_not_differ": "info",
        "overlap_disabled": "info",
        "partition_improves_kv": "info",
        "auto_mem_fraction_too_low": "info",
    }


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [
        (8, {1: 272, 2: 180, 4: 108, 8: 62, 64: 62}),
        (16, {1: 272, 2: 359, 4: 216, 8: 124, 16: 71, 64: 71}),
        (32, {1: 272, 2: 359, 4: 433, 8: 248, 16: 141, 32: 85, 64: 85}),
        (64, {1: 272, 2: 359, 4: 433, 8: 496, 16: 283, 32: 169, 64: 114}),
    ],
)
def test_first_user_predicted(concurrency: int, expected: dict[int, float]) -> None:
    """Short prompts, as in the published table."""
    plan = kimi(target_concurrency=concurrency, input_tokens=16, output_tokens=32)
    predicted = {row.planned.cap: row.tokens_per_second for row in plan.alternatives}
    assert predicted == pytest.approx(expected, abs=2)
    best = max(plan.alternatives, key=lambda row: row.tokens_per_second or 0)
    assert plan.chosen is best
    assert plan.throughput.basis == "calibrated"


def test_first_user_explained() -> None:
    own, uncapped, chosen, verdict = explanation(kimi(input_tokens=16, output_tokens=32))
    assert "64 // 8 = 8" in own
    assert "32 requests fill 4 of 8 slots" in own
    assert "idle 50%" in own
    assert "= max_running_requests = 64" in uncapped
    assert "fill 1 of 8 slots" in uncapped
    assert "idle 88%" in uncapped
    assert "pp_max_micro_batch_size 4 = ceil(32 / 8)" in chosen
    assert "every stage has work" in chosen
    assert "34 at 1; 248 at 32 with a cap of 8" in verdict
    assert "433 output tokens per second are predicted" in verdict
    assert "248 with SGLang's own cap, 85 with no cap" in verdict
    assert "measure it before you rely on it" in verdict


def test_without_figures_only_proportions() -> None:
    plan = kimi(measured=())
    assert plan.throughput.basis == "model"
    assert plan.chosen.relative == 1.0
    assert {row.tokens_per_second for row in plan.alternatives} == {None}
    assert "By the bytes a step reads, SGLang's own cap gives 0." in explanation(plan)[-1]


def test_bandwidth_bounds_the_prediction() -> None:
    throughput = result(kimi())["throughput"]
    assert throughput["output_tokens_per_second"] < throughput["bandwidth_bound_tokens_per_second"]
    assert throughput["largest_error_percent"] == 0.0


def test_figures_without_a_model_give_a_straight_line() -> None:
    points = (Measured(8, 80.0, 1), Measured(32, 160.0, 4))
    plan = bare(max_running_requests=64, measured=points)
    assert plan.throughput.basis == "calibrated"
    assert plan.chosen.tokens_per_second == pytest.approx(160)
    assert bare(max_running_requests=64, measured=points[:1]).throughput.basis == "none"


# --- strategies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "cap", "limit", "occupancy"),
    [
        ({"strategy": "balanced"}, 4, 32, [4] * 8),
        ({"strategy": "balanced", "max_running_requests": 64}, 4, 64, [4] * 8),
        ({"strategy": "balanced", "target_concurrency": 33}, 5, 40, [5, 5, 5, 5, 5, 5, 3, 0]),
        ({"strategy": "balanced", "pp_async_batch_depth": 1}, 4, 36, [4] * 8 + [0]),
        ({"strategy": "balanced", "max_running_requests": 10}, 2, 10, [2] * 5 + [0] * 3),
        ({"strategy": "sglang_auto", "max_running_requests": 64}, 8, 64, [8] * 4 + [0] * 4),
        ({"strategy": "sglang_auto"}, 256, 2048, [32] + [0] * 7),
        ({"strategy": "uncapped", "max_running_requests": 64}, 64, 64, [32] + [0] * 7),
        ({"strategy": "uncapped"}, 32, 32, [32] + [0] * 7),
        ({"pp_max_micro_batch_size": 16}, 16, 128, [16, 16] + [0] * 6),
        ({"pp_max_micro_batch_size": 2, "max_running_requests": 64}, 2, 64, [2] * 8),
    ],
)
def test_strategies(wishes: dict[str, Any], cap: int, limit: int, occupancy: list[int]) -> None:
    planned = bare(**wishes).chosen.planned
    assert (planned.cap, planned.max_running_requests) == (cap, limit)
    assert list(planned.occupancy) == occupancy


def test_what_is_left_to_sglang_is_left_out() -> None:
    assert "pp_max_micro_batch_size" not in arguments(bare(strategy="sglang_auto"))
    assert "max_running_requests" not in arguments(bare(strategy="sglang_auto"))
    assert arguments(bare(strategy="sglang_auto", max_running_requests=60))["max_running_requests"] == 60


def test_one_stage_needs_no_cap() -> None:
    plan = bare(pp_size=1, max_running_requests=64, pp_async_batch_depth=4)
    assert plan.chosen.planned.occupancy == (32,)
    assert not {"pp_max_micro_batch_size", "pp_async_batch_depth", "decode_log_interval"} & set(arguments(plan))
    assert codes(plan) == {}
    assert "nothing to balance" in explanation(plan)[0]


def test_everything_is_per_copy_but_the_limit() -> None:
    plan = bare(target_concurrency=64, dp_size=2)
    assert (plan.concurrency, plan.chosen.planned.cap) == (32, 4)
    assert arguments(plan)["max_running_requests"] == 64
    assert arguments(bare(target_concurrency=64, dp_size=2, sglang_version="0.5.2"))["max_running_requests"] == 32
    given = bare(target_concurrency=64, dp_size=2, max_running_requests=128)
    assert given.chosen.planned.max_running_requests == 64
    assert arguments(given)["max_running_requests"] == 128


def test_stages_from_the_gpus() -> None:
    plan = make_plan(Wishes(target_concurrency=32, tp_size=2, nnodes=2), gpus=BLACKWELLS)
    assert arguments(plan)["pp_size"] == 8
    assert arguments(plan)["nnodes"] == 2


def test_default_limit_follows_the_cache() -> None:
    plan = kimi(strategy="sglang_auto", max_running_requests=None, measured=(), mem_fraction_static=0.95)
    assert plan.splits is not None
    assert plan.splits.layout.kv_tokens == 1_900_302
    assert plan.chosen.planned.max_running_requests == 1_900_302 * 512 // 262144


# --- findings about the scheduler -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "code", "severity", "hint"),
    [
        ({"strategy": "uncapped"}, "concentrated", "warning", "pp_max_micro_batch_size: 4"),
        ({"target_concurrency": 33}, "concentrated", "info", "a multiple of 8"),
        ({"pp_max_micro_batch_size": 2, "max_running_requests": 64}, "starved", "warning", "micro_batch_size: 4"),
        ({"max_running_requests": 10}, "saturated", "warning", "max_running_requests: 32"),
        ({"target_concurrency": 3}, "underfed", "info", "target_concurrency"),
        ({"strategy": "sglang_auto", "max_running_requests": 60}, "floor_loss", "warning", "a multiple of 8"),
        ({"pp_max_micro_batch_size": 65, "max_running_requests": 64}, "cap_above_limit", "info", "batch_size: 4"),
        ({"pp_async_batch_depth": 2}, "depth_untested", "warning", "pp_async_batch_depth: 0, or 1"),
        ({"pp_max_micro_batch_size": 300}, "graphs_too_small", "warning", "pp_max_micro_batch_size: less"),
        ({}, "balanced", "info", ""),
        ({}, "overlap_disabled", "info", ""),
    ],
)
def test_scheduler_findings(wishes: dict[str, Any], code: str, severity: str, hint: str) -> None:
    plan = bare(**wishes)
    assert codes(plan)[code] == severity
    assert hint in advice(plan, code)
    assert plan.works


def test_no_comment_where_there_is_nothing_to_say() -> None:
    assert set(codes(bare())) == {"balanced", "overlap_disabled"}
    assert set(codes(bare(pp_async_batch_depth=1))) == {"balanced", "overlap_disabled"}
    assert "floor_loss" not in codes(bare(max_running_requests=60))
    assert "floor_loss" not in codes(bare(max_running_requests=60, strategy="sglang_auto", pp_async_batch_depth=1))


def test_floor_loss_says_how_many_wait() -> None:
    plan = bare(strategy="sglang_auto", max_running_requests=60, target_concurrency=60)
    assert plan.chosen.planned.queued == 4
    assert codes(plan)["starved"] == "warning"
    assert "4 of 60 requests can never run" in next(f.message for f in plan.findings if f.code == "floor_loss")


# --- findings about memory --------------------------------------------------------------------------------------------


def test_a_model_that_is_too_large() -> None:
    plan = kimi(pp_size=4, measured=())
    assert codes(plan)["does_not_fit"] == "error"
    assert "more GPUs" in advice(plan, "does_not_fit")
    assert "partition_improves_kv" not in codes(plan)
    assert result(plan)["memory"]["fits"] is False
    assert result(plan)["memory"]["kv_tokens"] == 0
    assert plan.chosen.planned.running == 32, "the scheduler is planned all the same"


def test_too_few_gpus() -> None:
    plan = kimi(pp_size=8, tp_size=2, measured=())
    assert "needs 16 GPUs; there are 8" in next(f.message for f in plan.findings if f.code == "does_not_fit")


@pytest.mark.parametrize(
    ("wishes", "hint"),
    [
        ({"layer_balance": "sglang", "mem_fraction_static": 0.79}, "layer_balance: memory"),
        ({"mem_fraction_static": 0.7}, "mem_fraction_static: at least 0.79"),
    ],
)
def test_what_would_make_it_fit(wishes: dict[str, Any], hint: str) -> None:
    plan = kimi(**wishes)
    assert codes(plan)["does_not_fit"] == "error"
    assert advice(plan, "does_not_fit") == hint


def test_sglang_before_0_5_6_puts_the_rest_on_the_last_rank() -> None:
    plan = make_plan(
        Wishes(target_concurrency=32, pp_size=8, layer_balance="sglang", sglang_version="0.5.5"),
        replace(SHAPE, architecture="DeepseekV3ForCausalLM"),
        BLACKWELLS,
    )
    assert plan.splits is not None
    assert plan.splits.layout.partition == (7, 7, 7, 7, 7, 7, 7, 12)
    assert codes(plan)["does_not_fit"] == "error"


def test_a_cache_that_is_too_small() -> None:
    plan = kimi(input_tokens=100_000, output_tokens=1000)
    assert codes(plan)["kv_limits"] == "warning"
    assert codes(plan)["saturated"] == "warning"
    assert plan.chosen.planned.capacity == 793_392 // 101_000 == 7
    assert plan.chosen.planned.cap == 1
    assert codes(kimi(input_tokens=20_000, output_tokens=1000))["kv_limits"] == "info"


def test_the_cache_lowers_the_limit() -> None:
    for_100_tokens = (79_398_985_728 + 100 * 9216 + 1) / ((97887 - 600) * 2**20)
    plan = kimi(mem_fraction_static=for_100_tokens, strategy="sglang_auto", input_tokens=0, output_tokens=1)
    assert plan.splits is not None
    assert plan.splits.layout.kv_tokens == 100
    assert plan.chosen.limit == 64
    assert (plan.chosen.planned.max_running_requests, plan.chosen.planned.cap) == (50, 6)
    assert codes(plan)["floor_loss"] == "warning"


def test_smaller_numbers_hold_more_tokens() -> None:
    half = kimi(kv_cache_dtype="fp8_e4m3")
    assert half.splits is not None
    assert half.splits.layout.kv_tokens == pytest.approx(2 * 793_392, abs=2)
    assert arguments(half)["kv_cache_dtype"] == "fp8_e4m3"


def test_splits() -> None:
    assert environment(kimi(layer_balance="sglang")) == {}
    assert advice(kimi(layer_balance="sglang"), "partition_improves_kv") == "layer_balance: memory"
    given = kimi(layer_partition=(8, 8, 8, 8, 8, 8, 7, 6))
    assert environment(given) == {"SGLANG_PP_LAYER_PARTITION": "8,8,8,8,8,8,7,6"}
    fast = kimi(layer_balance="latency")
    assert fast.splits is not None
    assert sum(fast.splits.layout.partition) == 61
    assert fast.splits.layout.partition[-1] < 7, "the last stage has the output head to read as well"
    even = make_plan(Wishes(target_concurrency=32, pp_size=8), read_config(LLAMA), BLACKWELLS)
    assert environment(even) == {}, "80 layers over 8 ranks are split evenly as it is"


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ((8, 8, 8, 8, 8, 7, 7), r"expected 8 numbers \(pp_size\), got 7"),
        ((8, 8, 8, 8, 8, 8, 7, 7), "the numbers add up to 62"),
        ((61, 0, 0, 0, 0, 0, 0, 0), "expected at least one layer on each rank"),
    ],
)
def test_a_wrong_partition(partition: tuple[int, ...], message: str) -> None:
    plan = kimi(layer_partition=partition)
    assert codes(plan)["partition_invalid"] == "error"
    assert re.search(f"^layer_partition: .*{message}", plan.findings[0].message)


def test_fewer_layers_than_ranks() -> None:
    plan = kimi(pp_size=62, measured=())
    assert codes(plan)["partition_invalid"] == "error"
    assert result(plan)["memory"] is None


def test_hybrid_model() -> None:
    plan = make_plan(Wishes(target_concurrency=64, pp_size=4), read_config(QWEN_NEXT), Gpus(4, 81559))
    memory = result(plan)["memory"]
    assert memory["fits"]
    assert sum(rank["state_bytes"] for rank in memory["ranks"]) == 36 * 64 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)


def test_memory_without_gpus_is_weights_only() -> None:
    plan = make_plan(Wishes(target_concurrency=32, pp_size=8), SHAPE)
    memory = result(plan)["memory"]
    assert (memory["kv_tokens"], memory["fits"], memory["static_bytes"]) == (None, None, None)
    assert memory["partition"] == [8, 8, 8, 8, 8, 7, 7, 7]
    assert "mem_fraction_static" not in arguments(plan)


# --- findings about the release and the placement ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "found"),
    [
        ("0.5.8", ("release_too_old", "does not know")),
        ("0.5.9", ("release_too_old", "then refuses to split it")),
        ("0.5.10", ("release_has_fault", "half-prefilled")),
        ("0.5.15.post1", ("release_has_fault", "structured output")),
        ("0.5.22", ("release_has_fault", "counted twice")),
    ],
)
def test_release_findings(release: str, found: tuple[str, str]) -> None:
    plan = kimi(sglang_version=release)
    assert any(finding.code == found[0] and found[1] in finding.message for finding in plan.findings)
    assert plan.works == (release not in ("0.5.8", "0.5.9"))


def test_a_release_without_depth() -> None:
    plan = bare(sglang_version="0.5.5", pp_async_batch_depth=1)
    assert codes(plan)["release_too_old"] == "warning"
    assert "pp_async_batch_depth" not in arguments(plan)
    assert plan.chosen.planned.slots == 8


def test_before_pipelines() -> None:
    assert codes(bare(sglang_version="0.4.5"))["release_too_old"] == "error"
    assert codes(bare(sglang_version="0.4.5", pp_size=1)) == {}


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"nnodes": 3}, "cannot be spread evenly over 3 nodes"),
        ({"nnodes": 2, "dp_size": 2}, "refuses it without data-parallel attention"),
    ],
)
def test_placements_sglang_refuses(wishes: dict[str, int], message: str) -> None:
    plan = bare(**wishes)
    assert not plan.works
    assert message in plan.findings[0].message


def test_context() -> None:
    assert codes(kimi(context_length=300_000))["rejected_by_sglang"] == "error"
    assert codes(kimi(context_length=1500))["rejected_by_sglang"] == "error"
    assert arguments(kimi(context_length=32768, chunked_prefill_size=4096)).items() >= {
        ("context_length", 32768),
        ("chunked_prefill_size", 4096),
    }


# --- wishes that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"target_concurrency": None}, "target_concurrency: expected the number of requests"),
        ({"pp_size": None}, "pp_size: expected the number of pipeline stages; it is missing"),
        ({"pp_size": 0}, "pp_size: expected 1 to 4096, got 0"),
        ({"mem_fraction_static": 1.5}, "mem_fraction_static: expected 0.01 to 0.99, got 1.5"),
        ({"mem_fraction_static": float("nan")}, "mem_fraction_static: expected"),
        ({"chunked_prefill_size": 0}, "chunked_prefill_size: expected a number of tokens, or -1"),
        ({"strategy": "magic"}, "strategy: expected one of balanced, sglang_auto, uncapped, got 'magic'"),
        ({"sglang_version": "newest"}, "sglang_version: expected a release such as"),
        ({"measured": (Measured(8, 0.0),)}, "measured[0].output_tokens_per_second: expected"),
        ({"measured": (Measured(8, 100.0),)}, "measured[0].pp_max_micro_batch_size: expected the cap"),
    ],
)
def test_what_is_no_wish(wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        bare(**wishes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(PlanError, match=r"tp_size: .*; nnodes: .*; gpus.memory_mib: "):
        make_plan(Wishes(target_concurrency=1, tp_size=0, nnodes=0), gpus=Gpus(8, 0))
