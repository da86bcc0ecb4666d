# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""A plan: what is wanted and what there is, put together into SGLang arguments, predictions and findings. Pure.

What the user fixed wins; the plan then says what that does. Figures are those of one data-parallel worker, except for
those that SGLang itself counts over all of them (``args``, tokens per second).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan import memory
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import Finding, PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.findings import (
    memory_findings,
    placement_findings,
    release_findings,
    scheduler_findings,
    throughput_findings,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.layouts import Candidate, search
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.partition import Splits, default_limit, split_layers
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.predictions import (
    Throughput,
    predicted,
    throughput_of,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import (
    Wishes,
    check,
    per_worker,
    stages,
    target,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.ring import Alternative, Ring
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import captured_batch
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang import releases


@dataclass(frozen=True)
class Plan:
    """All that was found out. `result` gives it as the module returns it."""

    wishes: Wishes
    release: releases.Release
    model: ModelShape | None
    gpus: Gpus | None
    pp_size: int
    concurrency: int
    splits: Splits | None
    chosen: Alternative
    alternatives: tuple[Alternative, ...]
    throughput: Throughput
    graph_batch: int
    findings: tuple[Finding, ...]
    layouts: tuple[Candidate, ...] = ()

    @property
    def works(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)


def make_plan(wishes: Wishes, model: ModelShape | None = None, gpus: Gpus | None = None) -> Plan:
    """Return the plan for *wishes*; *model* and *gpus* None plan the scheduler without looking at memory.

    Raises PlanError, with one line for the user, where the wishes contradict themselves or are no values at all.
    """
    check(wishes, gpus)
    found: list[Finding] = []
    layouts: tuple[Candidate, ...] = ()
    if wishes.layouts == "search":
        if model is None or gpus is None:
            raise PlanError("layouts: search needs a model (model_path or model_config) and the GPUs (gpus)")
        layouts = search(wishes, model, gpus, lambda asked: make_plan(asked, model, gpus))
        best = layouts[0]
        wishes = replace(
            wishes,
            pp_size=best.pp_size,
            tp_size=best.tp_size,
            dp_size=best.dp_size,
            enable_dp_attention=best.enable_dp_attention,
            dcp_size=best.dcp_size,
        )
    try:
        release = releases.parse_release(wishes.sglang_version or releases.NEWEST_KNOWN)
    except releases.ReleaseError as error:
        raise PlanError(str(error)) from error
    pp_size = stages(wishes, gpus)
    found += release_findings(wishes, release, model, pp_size)
    found += placement_findings(wishes, model, gpus, pp_size)
    if wishes.pp_async_batch_depth and (
        pp_size == 1 or releases.argument_name("pp_async_batch_depth", release) is None
    ):
        wishes = replace(wishes, pp_async_batch_depth=0)
    concurrency = -(-target(wishes) // wishes.dp_size)
    asked = per_worker(wishes.max_running_requests, wishes, release)
    splits = split_layers(wishes, release, model, gpus, pp_size, asked or concurrency)
    kv_tokens = splits.layout.kv_tokens if splits is not None and splits.layout.fits else None
    ring = Ring(
        wishes=wishes,
        pp_size=pp_size,
        concurrency=concurrency,
        asked=asked,
        kv_requests=None if kv_tokens is None else kv_tokens // (wishes.input_tokens + wishes.output_tokens),
        kv_tokens=kv_tokens,
        default_limit=default_limit(wishes, model, kv_tokens),
    )
    chosen, alternatives = ring.alternatives()
    throughput = throughput_of(wishes, model, splits, ring, chosen.planned, gpus.bandwidth_gbs * 1e9 if gpus else 0.0)
    alternatives = predicted(alternatives, throughput, wishes.dp_size)
    chosen = next(row for row in alternatives if (row.limit, row.planned) == (chosen.limit, chosen.planned))
    cap = chosen.planned.cap
    graphs = captured_batch(min(cap, memory.largest_graph(gpus.memory_mib if gpus else 90 * 1024, wishes.tp_size)))
    found += scheduler_findings(wishes, ring, chosen, graphs)
    found += throughput_findings(wishes, throughput, chosen, alternatives)
    if splits is not None and model is not None:
        found += memory_findings(wishes, model, gpus, splits, ring, chosen)
    order = {"error": 0, "warning": 1, "info": 2}
    return Plan(
        wishes=wishes,
        release=release,
        model=model,
        gpus=gpus,
        pp_size=pp_size,
        concurrency=concurrency,
        splits=splits,
        chosen=chosen,
        alternatives=alternatives,
        throughput=throughput,
        graph_batch=graphs,
        findings=tuple(sorted(found, key=lambda finding: order[finding.severity])),
        layouts=layouts,
    )
