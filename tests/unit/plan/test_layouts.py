# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The search for a layout: what it finds, what it is worth, and what SGLang would refuse."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.layouts import shapes
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan, make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Wishes
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import (
    DEEPSEEK_FP8,
    KIMI,
    LLAMA,
    QWEN_MOE,
    QWEN_NEXT,
)
from ansible_collections.gpufleet.sglang.tests.unit.plan.published import (
    PP8_POINTS,
    TP8_HELD_OUT,
    TP8_POINTS,
    modelled,
)
from hypothesis import given, settings
from hypothesis import strategies as st

BLACKWELLS = Gpus(8, 97887, "GPU", 1792.0)


def plan(config: dict[str, Any], gpus: Gpus = BLACKWELLS, **wishes: Any) -> Plan:
    return make_plan(Wishes(**{"target_concurrency": 32, **wishes}), read_config(config), gpus)


def messages(found: Plan, code: str) -> list[str]:
    return [finding.message for finding in found.findings if finding.code == code]


def test_search_uses_all_gpus_once() -> None:
    seen = list(shapes(8, 61, latent=True))
    assert len(seen) == len(set(seen))
    for pp, tp, dp, shared, dcp in seen:
        assert pp * tp * (1 if shared else dp) == 8
        assert tp % dcp == 0
    assert {(8, 1, 1, False, 1), (1, 8, 1, False, 8), (1, 8, 8, True, 1), (2, 2, 2, False, 1)} <= set(seen)


def test_search_plans_its_best_layout() -> None:
    found = plan(KIMI, layouts="search", kv_cache_dtype="fp8_e4m3")
    best = found.layouts[0]
    assert (found.pp_size, found.wishes.tp_size, found.wishes.dp_size) == (best.pp_size, best.tp_size, best.dp_size)
    assert best.fits
    assert found.works
    refused = [row for row in found.layouts if not row.fits]
    assert any("GiB of weights" in row.why_not for row in refused)
    assert found.layouts[-len(refused) :] == tuple(refused)


def test_search_knows_the_all_reduce() -> None:
    """Between GPUs without NVLink, tensor parallel loses what it gains; with NVLink it is the fastest."""
    speed = {
        link: {
            (row.pp_size, row.tp_size): row.speed
            for row in plan(KIMI, layouts="search", gpu_link=link).layouts
            if row.dp_size == row.dcp_size == 1
        }
        for link in ("pcie", "nvlink")
    }
    assert speed["nvlink"][1, 8] > 1.4 * speed["pcie"][1, 8]
    assert speed["nvlink"][1, 8] > 1.4 * speed["nvlink"][8, 1]
    assert speed["pcie"][1, 8] < 1.2 * speed["pcie"][8, 1]


@pytest.mark.parametrize(("concurrency", "published"), TP8_POINTS.items())
def test_tensor_parallel_as_published(concurrency: int, published: float) -> None:
    assert modelled(concurrency, tp_size=8) == pytest.approx(published, rel=0.25)


@pytest.mark.parametrize(("concurrency", "published"), TP8_HELD_OUT.items())
def test_tensor_parallel_as_published_and_not_fitted(concurrency: int, published: float) -> None:
    assert modelled(concurrency, tp_size=8) == pytest.approx(published, rel=0.25)


@pytest.mark.parametrize(("concurrency", "cap", "published"), PP8_POINTS)
def test_pipeline_parallel_as_measured(concurrency: int, cap: int, published: float) -> None:
    assert modelled(concurrency, pp_size=8, cap=cap, input_tokens=64) == pytest.approx(published, rel=0.25)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([KIMI, LLAMA, QWEN_MOE, QWEN_NEXT, DEEPSEEK_FP8]),
    st.sampled_from([1, 2, 3, 4, 6, 8]),
    st.integers(16_000, 190_000),
    st.integers(1, 200),
    st.sampled_from(["pcie", "pcie_p2p", "nvlink"]),
)
def test_what_fits_ranks_first(config: dict[str, Any], count: int, memory_mib: int, target: int, link: str) -> None:
    found = plan(config, Gpus(count, memory_mib), layouts="search", target_concurrency=target, gpu_link=link)
    fits = [row.fits for row in found.layouts]
    assert fits == sorted(fits, reverse=True)
    speeds = [row.speed for row in found.layouts if row.fits]
    assert speeds == sorted(speeds, reverse=True)
    assert found.works == any(fits)


def test_search_needs_a_model() -> None:
    with pytest.raises(PlanError, match=r"^layouts: search needs a model"):
        make_plan(Wishes(target_concurrency=1, layouts="search"), None, BLACKWELLS)


def test_quantization_blocks_that_do_not_divide() -> None:
    config = {**QWEN_MOE, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert messages(plan(config, pp_size=1, tp_size=8), "rejected_by_sglang") == [
        "Experts are quantized in blocks of 128: 1536 / 8 = 192 is no multiple of it."
    ]
    assert not messages(plan(config, pp_size=2, tp_size=4), "rejected_by_sglang")
    assert not messages(plan(config, pp_size=1, tp_size=8, ep_size=8), "rejected_by_sglang")


def test_heads_that_do_not_divide() -> None:
    found = plan(LLAMA, Gpus(3, 97887), pp_size=1, tp_size=3)
    assert messages(found, "rejected_by_sglang")[0] == (
        "64 attention heads (num_attention_heads) cannot be divided by tp_size 3."
    )


@pytest.mark.parametrize(
    ("wishes", "used"), [({"pp_size": 3, "tp_size": 2}, "6 of 8"), ({"tp_size": 3}, "6 of 8"), ({"pp_size": 8}, "")]
)
def test_idle_gpus(wishes: dict[str, Any], used: str) -> None:
    found = messages(plan(KIMI, **wishes), "gpus_idle")
    assert found == ([f"{used} GPUs are used: 2 stay idle."] if used else [])


def test_dp_attention_shares_the_gpus() -> None:
    wishes: dict[str, Any] = {"pp_size": 2, "tp_size": 8, "dp_size": 8, "enable_dp_attention": True}
    assert messages(plan(KIMI, **wishes), "does_not_fit")[0] == "pp_size 2 x tp_size 8 needs 16 GPUs; there are 8."
    assert not messages(plan(KIMI, Gpus(16, 97887), **wishes), "does_not_fit")


def test_context_parallel_shares_the_tokens() -> None:
    alone, shared = (result(plan(KIMI, pp_size=1, tp_size=8, dcp_size=size))["memory"]["kv_tokens"] for size in (1, 8))
    assert shared == pytest.approx(8 * alone, rel=1e-4)
