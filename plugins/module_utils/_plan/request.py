# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What is wanted of a plan and what is fixed by hand, and whether SGLang could take it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan import memory
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang import releases

STRATEGIES = ("balanced", "sglang_auto", "uncapped")
LAYOUTS = ("given", "search")
GPU_LINKS = ("pcie", "pcie_p2p", "nvlink")
LAYER_BALANCES = ("memory", "latency", "sglang")
_LARGEST_COUNT = 10**7
_LARGEST_RING = 4096


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
    enable_dp_attention: bool = False
    dcp_size: int = 1
    ep_size: int = 1
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
    layouts: str = "given"
    gpu_link: str = "pcie"
    measured: tuple[Measured, ...] = ()

    @property
    def gpus_per_stage(self) -> int:
        """The GPUs of one stage of all copies: the ranks of DP attention share those of tensor parallel."""
        return self.tp_size * (1 if self.enable_dp_attention else self.dp_size)


def check(wishes: Wishes, gpus: Gpus | None) -> None:
    """Raise PlanError, naming everything that is wrong at once, where a wish is no value that SGLang could take."""
    bounds: list[tuple[str, float | None, float, float]] = [
        ("target_concurrency", wishes.target_concurrency, 1, _LARGEST_COUNT),
        ("pp_size", wishes.pp_size, 1, _LARGEST_RING),
        ("tp_size", wishes.tp_size, 1, _LARGEST_RING),
        ("dp_size", wishes.dp_size, 1, _LARGEST_RING),
        ("dcp_size", wishes.dcp_size, 1, _LARGEST_RING),
        ("ep_size", wishes.ep_size, 1, _LARGEST_RING),
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
        ("layouts", wishes.layouts, LAYOUTS),
        ("gpu_link", wishes.gpu_link, GPU_LINKS),
        ("layer_balance", wishes.layer_balance, LAYER_BALANCES),
        ("kv_cache_dtype", wishes.kv_cache_dtype, tuple(memory.KV_NUMBER_BYTES)),
    ):
        if text not in known:
            wrong.append(f"{name}: expected one of {', '.join(known)}, got {text!r}")
    if wishes.target_concurrency is None and wishes.max_running_requests is None:
        wrong.append("target_concurrency: expected the number of requests that are to run at once; it is missing")
    if wrong:
        raise PlanError("; ".join(wrong))


def stages(wishes: Wishes, gpus: Gpus | None) -> int:
    if wishes.pp_size is not None:
        return wishes.pp_size
    if gpus is None:
        raise PlanError(
            "pp_size: expected the number of pipeline stages; it is missing, and gpus.count does not tell it either"
        )
    return max(1, gpus.count * wishes.nnodes // wishes.gpus_per_stage)


def target(wishes: Wishes) -> int:
    return wishes.target_concurrency or wishes.max_running_requests or 1


def per_worker(limit: int | None, wishes: Wishes, release: releases.Release) -> int | None:
    """Return what a max_running_requests means for one data-parallel worker."""
    if limit is None or not releases.has_feature("limit_divided_by_dp", release):
        return limit
    return max(limit // wishes.dp_size, 1)
