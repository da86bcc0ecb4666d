# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lines of SGLang from 0.4.6 to 0.5.23, as their format strings give them, and what each has to be taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.batches import batch_of
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry, Signs, parse_json, phase_of
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.catalogue import BY_CODE
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import first_cause

LINES = Path(__file__).parents[1] / "data" / "lines"
DOCS = Path(__file__).parents[3] / "docs" / "readiness.md"
AT = "[2026-11-01 10:00:26 PP3] "


def known(name: str) -> list[tuple[str, str]]:
    """The lines of a file under data/lines/, each behind what it has to be taken for (- for nothing)."""
    lines = (LINES / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [(value, line) for value, _bar, line in (text.partition(" | ") for text in lines)]


@pytest.mark.parametrize(("phase", "line"), known("phases"))
def test_phases(phase: str, line: str) -> None:
    assert (phase_of(Entry.of(line)) or "-") == phase


@pytest.mark.parametrize(
    ("line", "rank", "plain"),
    [
        ("[2026-11-01 10:00:26 PP3] a", "PP3", "a"),
        ("[2026-11-01 10:00:26 DP1 PP3 TP1 EP2] a", "DP1 PP3 TP1 EP2", "a"),
        ("[2026-11-01 10:00:26.123 ATTN_CP0 MOE_DP1] a", "ATTN_CP0 MOE_DP1", "a"),
        ("[2026-11-01 10:00:26] a", "", "a"),
        (
            "Pipeline parallelism is incompatible with overlap schedule.",
            "",
            "Pipeline parallelism is incompatible with overlap schedule.",
        ),
        ("Multi-thread loading shards:   0% Completed | 0/1 [00:00<?, ?it/s][2026-11-01 10:00:26 PP0] a", "PP0", "a"),
        ("[rank3]:[E1101 10:00:26 ProcessGroupNCCL.cpp:1] x", "", "[rank3]:[E1101 10:00:26 ProcessGroupNCCL.cpp:1] x"),
    ],
)
def test_prefixes(line: str, rank: str, plain: str) -> None:
    entry = Entry.of(line)
    assert (entry.rank, entry.plain) == (rank, plain)


@pytest.mark.parametrize(
    "line",
    [
        "Loading safetensors checkpoint shards:  34% Completed | 22/64 [00:17<00:35,  3.02it/s]",
        "Multi-thread loading shards:  34% Completed | 22/64 [00:17<00:35,  1.21it/s]",
        "Multi-thread loading shards:  34% Completed | 22/64 [00:17<00:35][2026-11-01 10:00:26 PP0] something else",
    ],
)
def test_progress(line: str) -> None:
    signs = Signs()
    signs.read(Entry.of(AT + "Load weight begin. avail mem=94.20 GB"))
    signs.read(Entry.of(line))
    assert signs.shards == (22, 64)
    assert signs.detail == "22 of 64 shards"


@pytest.mark.parametrize(
    "message",
    ["\r  1% Completed | 1/64\r 34% Completed | 22/64 [00:17<\x1b[A", "\x1b[33m 34% Completed | 22/64\x1b[0m"],
)
def test_progress_bars_as_the_journal_has_them(message: str) -> None:
    """Carriage returns and colours make journald keep a message as bytes."""
    signs = Signs()
    for entry in parse_json(
        json.dumps({"MESSAGE": list(message.encode()), "__REALTIME_TIMESTAMP": "1795990000000000"})
    ):
        signs.read(entry)
    assert signs.shards == (22, 64)


@pytest.mark.parametrize(("values", "line"), known("batches"))
def test_batches(values: str, line: str) -> None:
    batch = batch_of(Entry.of(line))
    assert batch is not None
    assert f"{batch.kind} {batch.running} {batch.queued} {batch.throughput}" == values
    assert batch.rank == "PP0"


@pytest.mark.parametrize(("code", "line"), known("causes"))
def test_causes(code: str, line: str) -> None:
    found = first_cause([Entry.of(line)])
    assert (found[0].code if found else "-") == code


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_cause_is_documented(code: str) -> None:
    assert f"`{code}`" in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_cause_says_what_to_do(code: str) -> None:
    cause = BY_CODE[code]
    assert cause.summary
    assert cause.advice.endswith((".", "'"))
