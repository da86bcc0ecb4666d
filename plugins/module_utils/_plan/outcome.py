# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""A plan as the module returns it: plain values only. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.arguments import arguments, environment
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.explanation import explanation
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.layouts import Candidate
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import MIB
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.predictions import rivals
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.ring import Alternative
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import automatic_cap, physical_step_time


def result(plan: Plan) -> dict[str, Any]:
    """Return *plan* as the module returns it: plain values only."""
    planned = plan.chosen.planned
    return {
        "args": arguments(plan),
        "environment": environment(plan),
        "scheduler": {
            "strategy": plan.chosen.strategies[0],
            "pp_size": plan.pp_size,
            "slots": planned.slots,
            "pp_max_micro_batch_size": planned.cap,
            "sglang_auto_micro_batch_size": automatic_cap(planned.max_running_requests, plan.pp_size),
            "max_running_requests": planned.max_running_requests,
            "concurrency": planned.concurrency,
            "capacity": planned.capacity,
            "occupancy": list(planned.occupancy),
            "filled_slots": planned.filled,
            "running": planned.running,
            "queued": planned.queued,
        },
        "memory": _memory_result(plan),
        "throughput": _throughput_result(plan),
        "layouts": [_layout_result(row, plan.layouts[0].speed, plan.layouts[0].first_token) for row in plan.layouts],
        "alternatives": [_alternative_result(plan, row) for row in plan.alternatives],
        "findings": [asdict(finding) for finding in plan.findings],
        "explanation": explanation(plan),
        "model": _model_result(plan.model),
        "sglang_version": str(plan.release),
        "works": plan.works,
    }


def _alternative_result(plan: Plan, row: Alternative) -> dict[str, Any]:
    return {
        "strategies": list(row.strategies),
        "chosen": row is plan.chosen,
        "pp_max_micro_batch_size": row.planned.cap,
        "max_running_requests": row.planned.max_running_requests,
        "capacity": row.planned.capacity,
        "occupancy": list(row.planned.occupancy),
        "filled_slots": row.planned.filled,
        "running": row.planned.running,
        "queued": row.planned.queued,
        "relative_throughput": row.relative,
        "output_tokens_per_second": row.tokens_per_second,
        "output_tokens_per_second_range": None if row.range is None else list(row.range),
    }


def _layout_result(row: Candidate, best_speed: float, best_wait: float) -> dict[str, Any]:
    return {
        "pp_size": row.pp_size,
        "tp_size": row.tp_size,
        "dp_size": row.dp_size,
        "enable_dp_attention": row.enable_dp_attention,
        "dcp_size": row.dcp_size,
        "fits": row.fits,
        "why_not": row.why_not,
        "kv_tokens": row.tokens,
        "running": row.running,
        "pp_max_micro_batch_size": row.cap,
        "relative_throughput": round(row.speed / best_speed, 4) if row.fits else None,
        "relative_time_to_first_token": round(row.first_token / best_wait, 4) if row.fits else None,
        "prefill_bubble": round(row.bubble, 3) if row.fits else None,
    }


def _memory_result(plan: Plan) -> dict[str, Any] | None:
    splits = plan.splits
    if splits is None or plan.model is None:
        return None
    layout = splits.layout
    known = plan.gpus is not None
    return {
        "ranks": [
            {
                "rank": rank.rank,
                "layers": rank.layers,
                "weight_bytes": rank.weight_bytes,
                "state_bytes": rank.state_bytes,
                "kv_bytes_per_token": rank.kv_bytes_per_token,
                "kv_tokens": None if rank.kv_tokens is None else max(rank.kv_tokens, 0),
            }
            for rank in layout.ranks
        ],
        "kv_tokens": None if layout.kv_tokens is None else max(layout.kv_tokens, 0),
        "limiting_rank": layout.limiting_rank,
        "partition": list(layout.partition),
        "fits": layout.fits if known else None,
        "weight_bytes": plan.model.weights.total,
        "weights_from": plan.model.weights.source,
        "mem_fraction_static": splits.mem_fraction_static if known else None,
        "sglang_auto_mem_fraction_static": splits.automatic_mem_fraction,
        "static_bytes": splits.static_bytes,
        "gpu_memory_bytes": plan.gpus.memory_mib * MIB if plan.gpus is not None else None,
        "gpu_name": plan.gpus.name if plan.gpus is not None else "",
        "alternatives": [
            {
                "layer_balance": name,
                "chosen": name == splits.chosen,
                "partition": list(other.partition),
                "kv_tokens": None if other.kv_tokens is None else max(other.kv_tokens, 0),
                "heaviest_weight_bytes": other.heaviest.weight_bytes,
                "limiting_rank": other.limiting_rank,
            }
            for name, other in splits.layouts.items()
        ],
    }


def _throughput_result(plan: Plan) -> dict[str, Any]:
    step, planned = plan.throughput.step, plan.chosen.planned
    bandwidth = plan.gpus.bandwidth_gbs if plan.gpus is not None else 0.0
    bound = None
    if step is not None and bandwidth and plan.model is not None:
        fastest = physical_step_time(step.cost, bandwidth * 1e9).tokens_per_second(planned)
        bound = round(fastest * plan.wishes.dp_size, 1)
    error, sure = plan.throughput.largest_error, plan.throughput.certainty
    return {
        "basis": plan.throughput.basis,
        "output_tokens_per_second": plan.chosen.tokens_per_second,
        "bandwidth_bound_tokens_per_second": bound,
        "largest_error_percent": None if error is None else round(error * 100, 1),
        "left_out_error_percent": None if sure is None or sure.error is None else round(sure.error * 100, 1),
        "output_tokens_per_second_range": None if plan.chosen.range is None else list(plan.chosen.range),
        "caps_that_do_not_differ": sorted({row.planned.cap for row in rivals(plan.chosen, plan.alternatives)}),
        "measured": [asdict(point) for point in plan.wishes.measured],
    }


def _model_result(model: ModelShape | None) -> dict[str, Any] | None:
    if model is None:
        return None
    return {
        "architecture": model.architecture,
        "layers": model.layers,
        "attention": model.attention_kind,
        "layers_with_kv_cache": sum(model.cached),
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
        "quantization": model.quantization,
        "context_length": model.context_length,
    }
