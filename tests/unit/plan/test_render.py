# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.render import render
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Measured, Wishes
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI

SHAPE = read_config(KIMI)
FIRST_USER = Wishes(
    target_concurrency=32,
    pp_size=8,
    max_running_requests=64,
    measured=(Measured(1, 34.0), Measured(32, 248.0, 8)),
)


def drawn(short: bool = False, memory_mib: int = 97887, **wishes: Any) -> list[str]:
    plan = make_plan(replace(FIRST_USER, **wishes), SHAPE, Gpus(8, memory_mib, "NVIDIA RTX PRO 6000"))
    return render(result(plan), short=short)


def test_strategies_side_by_side() -> None:
    lines = drawn()
    rows = {line[2:20].strip(): line for line in lines if "[" in line}
    assert "[ 4][ 4][ 4][ 4][ 4][ 4][ 4][ 4]" in rows["balanced"]
    assert "[ 8][ 8][ 8][ 8][  ][  ][  ][  ]" in rows["SGLang auto"]
    assert "[32][  ][  ][  ][  ][  ][  ][  ]" in rows["uncapped"]
    assert rows["balanced"].startswith("▸")
    assert rows["balanced"].endswith("362-513   ███")
    assert rows["SGLang auto"].endswith("203-300   █▊")


def test_memory_bars() -> None:
    lines = drawn()
    ranks = [line for line in lines if " layers █" in line]
    assert len(ranks) == 8
    assert [line.endswith("◄") for line in ranks] == [False, True] + [False] * 6
    assert "73.9 GiB   793 k" in ranks[1]
    assert ranks[1].count("█") == round(44 * 73.945 / 95.593)
    assert "▸ memory   8 8 8 8 8 7 7 7" in "\n".join(lines)


def test_short_leaves_memory_and_reasons_out() -> None:
    short, full = drawn(short=True), drawn()
    headings = [line.split("  ")[0] for line in short if line.split("  ")[0].isupper()]
    assert headings == ["SIDE BY SIDE", "FINDINGS", "TO START THE SERVER WITH"]
    assert set(short) < set(full)


def test_what_to_start_with() -> None:
    text = " ".join(" ".join(drawn()).split())
    assert "--pp-size 8 --tp-size 1 --pp-max-micro-batch-size 4 --max-running-requests 64" in text
    assert "SGLANG_PP_LAYER_PARTITION=8,8,8,8,8,7,7,7" in text


def test_what_does_not_fit() -> None:
    lines = drawn(memory_mib=40960)
    assert "✗ CANNOT WORK" in lines[1]
    assert sum("too big" in line for line in lines) == 8
    assert "✗ does_not_fit" in lines


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({"pp_async_batch_depth": 8, "strategy": "sglang_auto"}, "▸ SGLang auto           8  ████············"),
        ({"pp_size": 60, "target_concurrency": 61}, "31 of 60 filled, up to 2 in one"),
        ({"pp_max_micro_batch_size": 64}, "▸ given, uncapped      64"),
    ],
)
def test_other_rings(wishes: dict[str, Any], expected: str) -> None:
    assert any(expected in line for line in drawn(**{"measured": (), **wishes}))


def test_rows_of_empty_slots_are_not_drawn() -> None:
    lines = drawn(pp_size=40, measured=(), strategy="uncapped")
    assert sum(line.startswith(" ┌") for line in lines) == 1
    assert " and 32 more slots, all empty" in lines


def test_names_cannot_move_the_cursor() -> None:
    plan = make_plan(FIRST_USER, replace(SHAPE, architecture="\x1b[2Jmodel"), Gpus(8, 97887, "gpu\r\n" * 40))
    lines = render(result(plan))
    assert "?[2Jmodel" in "".join(lines)
    assert all(line.isprintable() and len(line) <= 80 for line in lines)
