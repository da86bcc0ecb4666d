# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the parsers make of whole logs of real SGLang 0.5.23: each line is of a known kind, or counted as unknown."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.batches import batch_of
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import (
    Entry,
    Signs,
    is_echo,
    phase_of,
    split,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import first_cause

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
REQUEST = re.compile(r'"(?:GET|POST) /\S* HTTP/1\.1" \d{3}')


def entries_of(run: str) -> list[Entry]:
    return [Entry.of(line) for line in split((RECORDINGS / f"{run}.log").read_text(encoding="utf-8"))]


def kind_of(entry: Entry) -> str:
    if phase_of(entry):
        return "phase"
    if "Completed |" in entry.text:
        return "progress"
    batch = batch_of(entry)
    if batch is not None:
        return batch.kind
    if REQUEST.search(entry.plain):
        return "request"
    return "said otherwise" if entry.plain != entry.text else "unknown"


# Counted with grep, apart from the last column, which is what nothing was made of.
KINDS = ("phase", "progress", "prefill", "decode", "request", "said otherwise", "unknown")
RUNS = [
    ("pp1-opt", 1, (6, 2, 11, 0, 52, 70, 21)),
    ("pp1-skip-warmup", 1, (6, 2, 8, 0, 41, 61, 83)),
    ("pp2-llama-auto-cap", 2, (10, 2, 26, 80, 76, 113, 31)),
    ("pp2-llama-cap16", 2, (10, 2, 28, 80, 76, 114, 31)),
    ("pp2-opt-auto-cap", 2, (10, 0, 26, 80, 76, 92, 31)),
    ("pp8-llama-cap64-depth8", 8, (34, 1, 192, 320, 80, 300, 79)),
]


@pytest.mark.parametrize(("run", "ranks", "counts"), RUNS)
def test_every_line_of_a_run(run: str, ranks: int, counts: tuple[int, ...]) -> None:
    entries = entries_of(run)
    seen = Counter(kind_of(entry) for entry in entries)
    assert tuple(seen[kind] for kind in KINDS) == counts
    assert len({entry.rank for entry in entries if entry.rank}) == (ranks if ranks > 1 else 0)


@pytest.mark.parametrize("run", sorted(path.stem for path in RECORDINGS.glob("*.log")))
def test_phases_come_in_their_order_and_end_in_ready(run: str) -> None:
    signs, phases = Signs(), ["starting"]
    for entry in entries_of(run):
        signs.read(entry)
        if signs.phase != phases[-1]:
            phases.append(signs.phase)
    assert phases == ["starting", "loading", "allocating", "capturing", "listening", "ready"]
    assert signs.fired_up is not None


@pytest.mark.parametrize("run", sorted(path.stem for path in RECORDINGS.glob("*.log")))
def test_a_good_start_names_no_cause(run: str) -> None:
    """Although it is full of words like error, cannot and failed."""
    assert first_cause(entries_of(run)) is None


def test_requests_are_no_sign_of_life() -> None:
    entries = entries_of("pp2-opt-auto-cap")
    echoes = [entry for entry in entries if is_echo(entry)]
    assert len(echoes) == 76 + sum("Prefill batch" in entry.text for entry in entries)
    assert not any(phase_of(entry) for entry in echoes)
