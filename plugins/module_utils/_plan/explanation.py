# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""A plan in words: what SGLang does by itself, what is chosen, and why. Pure."""

from __future__ import annotations

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.ring import Alternative


def explanation(plan: Plan) -> list[str]:
    """Return what SGLang does by itself, what taking the cap away does, what is chosen, and why, a paragraph each."""
    if plan.pp_size == 1:
        return [
            "One pipeline stage has one slot: there is nothing to balance, and pp_max_micro_batch_size is left out."
        ]
    named = {name: row for row in plan.alternatives for name in row.strategies}
    own, uncapped, chosen = named["sglang_auto"], named["uncapped"], plan.chosen
    formula = f"{own.planned.max_running_requests} // {plan.pp_size} = {own.planned.cap}"
    paragraphs = [
        f"Left alone, SGLang caps a micro-batch at {formula} (max_running_requests // pp_size). {_fills(own)}",
    ]
    if uncapped is not own:
        paragraphs.append(
            f"Without a cap (pp_max_micro_batch_size = max_running_requests = {uncapped.planned.cap}, the usual fix by "
            "hand): " + _fills(uncapped)
        )
    if chosen is not own and chosen is not uncapped:
        reason = ""
        if "balanced" in chosen.strategies:
            runnable = min(plan.concurrency, chosen.planned.capacity)
            share = f" = ceil({runnable} / {chosen.planned.slots})"
            reason = f"{share}, the smallest cap that lets {runnable} requests run at once"
        paragraphs.append(
            f"This plan: pp_max_micro_batch_size {chosen.planned.cap}{reason}; max_running_requests {chosen.limit}. "
            f"{_fills(chosen)}"
        )
    return [*paragraphs, _verdict(plan, own, uncapped)]


def _fills(row: Alternative) -> str:
    planned = row.planned
    if not planned.running:
        return "No request can run."
    waiting = f", {planned.queued} wait" if planned.queued else ""
    busy = min(planned.filled, planned.pp_size)
    stages = (
        "every stage has work."
        if busy == planned.pp_size
        else f"work for {busy} of {planned.pp_size} stages at a time, idle {planned.idle_fraction:.0%}."
    )
    return f"{planned.running} requests fill {planned.filled} of {planned.slots} slots{waiting}: {stages}"


def _verdict(plan: Plan, own: Alternative, uncapped: Alternative) -> str:
    chosen = plan.chosen
    if chosen.relative is None:
        return "Which cap is fastest depends on the model: name it (model_path or model_config), or measure (measured)."
    others = [("SGLang's own cap", own), ("no cap", uncapped)]
    if chosen.tokens_per_second is not None:
        points = "; ".join(
            f"{point.output_tokens_per_second:g} at {point.concurrency}"
            + (f" with a cap of {point.pp_max_micro_batch_size}" if point.pp_max_micro_batch_size else "")
            for point in plan.wishes.measured
        )
        predicted = [f"{row.tokens_per_second or 0:.0f} with {name}" for name, row in others if row is not chosen]
        text = (
            f"Fitted to what was measured ({points}), {chosen.tokens_per_second:.0f} output tokens per second are "
            f"predicted for this plan; {', '.join(predicted)}."
        )
    else:
        predicted = [
            f"{name} gives {(row.relative or 0) / max(chosen.relative, 1e-9):.2f} times the throughput of this plan"
            for name, row in others
            if row is not chosen
        ]
        text = f"By the bytes a step reads, {', '.join(predicted)}."
    faster = [row for row in plan.alternatives if row.relative == 1.0 and row is not chosen]
    if chosen.relative < 0.98 and faster:
        other = faster[0].planned
        waits = f", but {other.queued} of {other.concurrency} requests wait" if other.queued else ""
        text += f" A cap of {other.cap} would give {1 / max(chosen.relative, 1e-9):.2f} times as much{waits}."
    return text + " This is a prediction for decoding: measure it before you rely on it."
