# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""All layouts that use the GPUs there are, best first: pipeline, tensor, data and context parallel. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan import memory
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import ModelShape
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.performance import (
    LINKS,
    TYPICAL_BANDWIDTH,
    machine,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Wishes

if TYPE_CHECKING:
    from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan


@dataclass(frozen=True)
class Candidate:
    """A layout that was looked at.

    *why_not* is empty where it fits. *tokens*, *running* are those of all copies together; *speed* is output tokens per
    second and *first_token* seconds, as modelled: they are for comparing candidates with each other.
    """

    pp_size: int
    tp_size: int
    dp_size: int
    enable_dp_attention: bool
    dcp_size: int
    why_not: str
    tokens: int
    running: int
    cap: int
    speed: float
    first_token: float
    bubble: float

    @property
    def fits(self) -> bool:
        return not self.why_not


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def shapes(gpus: int, most_stages: int, latent: bool) -> Iterator[tuple[int, int, int, bool, int]]:
    """Yield (pp, tp, dp, DP attention, dcp) of each way to use all of *gpus*, at most *most_stages* stages.

    Context parallel shares a *latent* cache (MLA), which tensor parallel would hold in full on each GPU.
    """
    for pp in _divisors(gpus):
        if pp > most_stages:
            continue
        for tp in _divisors(gpus // pp):
            dp = gpus // pp // tp
            yield pp, tp, dp, False, 1
            if dp > 1:
                continue
            for part in _divisors(tp)[1:]:
                yield pp, tp, part, True, 1
                if latent:
                    yield pp, tp, 1, False, part


def search(wishes: Wishes, model: ModelShape, gpus: Gpus, plan_of: Callable[[Wishes], Plan]) -> tuple[Candidate, ...]:
    """Return all layouts, best first: those that fit before those that do not, faster ones before slower ones."""
    found = [
        candidate(
            replace(
                wishes,
                pp_size=pp,
                tp_size=tp,
                dp_size=dp,
                enable_dp_attention=shared,
                dcp_size=dcp,
                layouts="given",
                layer_partition=None,
                measured=(),
            ),
            model,
            gpus,
            plan_of,
        )
        for pp, tp, dp, shared, dcp in shapes(gpus.count * wishes.nnodes, model.layers, bool(model.attention.shared))
    ]
    return tuple(sorted(found, key=lambda row: (not row.fits, -row.speed, -row.tokens, row.pp_size)))


def candidate(wishes: Wishes, model: ModelShape, gpus: Gpus, plan_of: Callable[[Wishes], Plan]) -> Candidate:
    """Return what *wishes*, a layout that is given, is worth; *plan_of* makes a plan for it."""
    try:
        plan = plan_of(wishes)
    except PlanError as error:
        return _rejected(wishes, str(error))
    errors = [finding.message for finding in plan.findings if finding.severity == "error"]
    if plan.splits is None or errors:
        return _rejected(wishes, errors[0] if errors else "the layers cannot be split like that")
    attention_dp = wishes.dp_size if wishes.enable_dp_attention else 1
    copies = 1 if wishes.enable_dp_attention else wishes.dp_size
    built = machine(
        model,
        plan.splits.layout,
        wishes.input_tokens + wishes.output_tokens / 2,
        wishes.tp_size,
        attention_dp,
        wishes.dcp_size,
        LINKS[wishes.gpu_link],
        gpus.bandwidth_gbs * 1e9 or TYPICAL_BANDWIDTH,
    )
    planned = plan.chosen.planned
    chunk = wishes.chunked_prefill_size or memory.gpu_class(gpus.memory_mib).chunked_prefill_size
    # The slots of all ranks of DP attention step together: what one has is what each has.
    whole = planned
    if attention_dp > 1:
        whole = replace(
            planned,
            concurrency=planned.concurrency * attention_dp,
            cap=planned.cap * attention_dp,
            occupancy=tuple(held * attention_dp for held in planned.occupancy),
        )
    return Candidate(
        wishes.pp_size or 1,
        wishes.tp_size,
        wishes.dp_size,
        wishes.enable_dp_attention,
        wishes.dcp_size,
        "",
        (plan.splits.layout.kv_tokens or 0) * wishes.dp_size,
        min(planned.running * wishes.dp_size, wishes.target_concurrency or planned.running * wishes.dp_size),
        planned.cap,
        built.tokens_per_second(whole, wishes.input_tokens, wishes.output_tokens, chunk) * copies,
        built.first_token_seconds(wishes.input_tokens, chunk),
        built.bubble_fraction(wishes.input_tokens, chunk),
    )


def _rejected(wishes: Wishes, why: str) -> Candidate:
    return Candidate(
        wishes.pp_size or 1, wishes.tp_size, wishes.dp_size, wishes.enable_dp_attention, wishes.dcp_size,
        why, 0, 0, 0, 0.0, 0.0, 0.0,
    )  # fmt: skip
