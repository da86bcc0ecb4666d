# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Throughput that others measured: Kimi K2.6 in INT4 on eight RTX PRO 6000 (PCIe without P2P), output tokens/s."""

from __future__ import annotations

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.layouts import candidate
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Wishes
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI

# github.com/soulmachine/skills, Kimi K2.6 baselines, row 10 ("canon"): SGLang 0.5.12.post1, TP 8, FP8 KV cache,
# mem_fraction_static 0.85, 1024 tokens in and 256 out. The link "pcie" is fitted to these.
TP8_POINTS = {1: 59.6, 8: 201.1, 16: 295.3, 32: 344.6, 64: 345.1, 128: 381.9}
# The same page, row 7: another run with another client. Not used for fitting.
TP8_HELD_OUT = {1: 59.5, 8: 196.9, 64: 368.0, 128: 377.7}
# The first user's server: pp 8, short prompts; (concurrency, cap, tokens/s). The memory efficiency is fitted to the
# first of them, the second is not used for fitting.
PP8_POINTS = [(1, 8, 34.0), (32, 8, 248.0)]


def modelled(
    concurrency: int, pp_size: int = 1, tp_size: int = 1, cap: int | None = None, input_tokens: int = 1024
) -> float:
    """Return the tokens per second that the search assumes for that server without any measurement."""
    wishes = Wishes(
        target_concurrency=concurrency,
        pp_size=pp_size,
        tp_size=tp_size,
        input_tokens=input_tokens,
        output_tokens=256,
        kv_cache_dtype="fp8_e4m3",
        mem_fraction_static=0.85,
        max_running_requests=max(64, concurrency),
        pp_max_micro_batch_size=cap,
    )
    shape, gpus = read_config(KIMI), Gpus(8, 97887, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 1792.0)
    return candidate(wishes, shape, gpus, lambda asked: make_plan(asked, shape, gpus)).speed
