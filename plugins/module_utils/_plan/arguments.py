# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The SGLang arguments and environment variables of a plan. Pure."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import log_interval
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang import releases

PARTITION_VARIABLE = "SGLANG_PP_LAYER_PARTITION"


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
        "enable_dp_attention": True if wishes.enable_dp_attention and wishes.dp_size > 1 else None,
        "dcp_size": wishes.dcp_size if wishes.dcp_size > 1 else None,
        "ep_size": wishes.ep_size if wishes.ep_size > 1 else None,
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
