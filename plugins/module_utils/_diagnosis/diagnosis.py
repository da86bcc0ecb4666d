# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""One answer to the question what is wrong with a server: state, cause, evidence, advice. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.batches import Batch, batch_of
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.pipeline import Finding
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import Verdict, Wait

HUNG = frozenset({"stalled"})
STOPPED = frozenset({"unit_missing", "unit_masked", "unit_inactive", "stopped_by_someone"})
WELL = frozenset({"balanced", "idle", "unknown"})


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong, if anything is.

    ``state`` is ``stopped``, ``failed``, ``hung``, the phase of a server on its way, ``slow`` or ``ready``.
    """

    state: str
    cause: str = ""
    summary: str = ""
    evidence: tuple[str, ...] = ()
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The form in which a module returns it."""
        return {**vars(self), "evidence": list(self.evidence)}


def diagnose(verdict: Verdict, wait: Wait, finding: Finding | None) -> Diagnosis:
    """The answer from what waiting for the server for some seconds gave, and from how its pipeline is used."""
    failure = verdict.failure
    if failure is not None:
        states = {**dict.fromkeys(HUNG, "hung"), **dict.fromkeys(STOPPED, "stopped")}
        state = states.get(failure.cause, "failed")
        return Diagnosis(state, failure.cause, failure.summary, failure.evidence, failure.advice)
    if not verdict.ready:
        return Diagnosis(verdict.phase, summary=verdict.detail, advice="Wait, with the module server_ready.")
    if finding is None:
        return Diagnosis("ready", summary=f"serves {', '.join(wait.models)}")
    state = "ready" if finding.code in WELL else "slow"
    return Diagnosis(state, finding.code, finding.message, advice=finding.advice)


def batches_of_first_rank(entries: Iterable[Entry]) -> list[Batch]:
    """The batches that one rank tells of: each of the others tells the same again."""
    batches = [batch for batch in map(batch_of, entries) if batch is not None]
    first = min((batch.rank for batch in batches), default="")
    return [batch for batch in batches if batch.rank == first]


def read_gpus(output: str) -> list[dict[str, int]]:
    """GPUs from ``nvidia-smi --query-gpu=index,utilization.gpu,memory.used,memory.total`` as CSV without units."""
    names = ("index", "utilization_percent", "memory_used_mib", "memory_total_mib")
    rows = [[word.strip() for word in line.split(",")] for line in output.splitlines()]
    return [
        dict(zip(names, map(int, row)))
        for row in rows
        if len(row) == len(names) and all(word.isascii() and word.isdigit() for word in row)
    ]
