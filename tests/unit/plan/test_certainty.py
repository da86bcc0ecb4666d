# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranges: what they contain, and when they say that nothing is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.certainty import certainty
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan, make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.render import render
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Measured, Wishes
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import (
    Measurement,
    StepCost,
    StepTime,
    schedule,
)
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI

FIRST_USER = Wishes(target_concurrency=32, pp_size=8, max_running_requests=64)


def plan(*points: Measured, **wishes: object) -> Plan:
    asked = replace(FIRST_USER, measured=points, **wishes)  # type: ignore[arg-type]
    return make_plan(asked, read_config(KIMI), Gpus(8, 97887, "GPU", 1792.0))


def codes(found: Plan) -> set[str]:
    return {finding.code for finding in found.findings}


def test_one_point_knows_little() -> None:
    found = plan(Measured(1, 34.0), pp_max_micro_batch_size=8)
    low, high = found.chosen.range or (0.0, 0.0)
    assert low < 248 < high
    assert result(found)["throughput"]["left_out_error_percent"] is None


def test_two_points_tell_the_caps_apart() -> None:
    found = plan(Measured(1, 34.0), Measured(32, 248.0, 8))
    throughput = result(found)["throughput"]
    assert throughput["left_out_error_percent"] is None
    assert 8 not in throughput["caps_that_do_not_differ"]
    low, high = throughput["output_tokens_per_second_range"]
    assert low < throughput["output_tokens_per_second"] <= high


def test_points_that_contradict_each_other() -> None:
    found = plan(Measured(32, 248.0, 8), Measured(32, 31.0, 8), Measured(1, 34.0))
    assert "measured_contradict" in codes(found)
    assert "measured_contradict" not in codes(plan(Measured(1, 34.0), Measured(32, 248.0, 8)))


def test_points_above_the_memory_bandwidth() -> None:
    assert "measured_above_bandwidth" in codes(plan(Measured(1, 340.0)))
    assert "measured_above_bandwidth" not in codes(plan(Measured(1, 34.0)))


def test_ranges_contain_the_point_that_was_held_out() -> None:
    """100 servers with 5 % noise: the range has to contain at least 90 of the points that the fit has not seen."""
    chance = random.Random(20261203)
    contained = 0
    for _server in range(100):
        cost = StepCost(1.0, chance.uniform(0.001, 0.05), chance.uniform(0.001, 0.02), 256, 8)
        truth = StepTime(cost, chance.uniform(0.001, 0.01), chance.uniform(0.001, 0.01))
        shape = chance.choice([2, 4, 8])
        loads = chance.sample([1, 2, 4, 8, 16, 32, 64, 128], chance.randint(4, 7))
        points = []
        for load in loads:
            planned = schedule(load, shape, 128, max(1, -(-load // shape)))
            points.append(Measurement(planned, truth.tokens_per_second(planned) * chance.gauss(1.0, 0.05)))
        low, high = certainty(cost, points[1:]).range(points[0].planned)
        contained += low <= points[0].tokens_per_second <= high
    assert contained >= 90


def test_requests_that_wait_are_not_all_kept_out_by_the_cap() -> None:
    found = make_plan(Wishes(target_concurrency=32, pp_size=8, max_running_requests=20, strategy="sglang_auto"))
    starved = next(finding for finding in found.findings if finding.code == "starved")
    assert starved.message == (
        "16 of 32 requests wait: 8 slots of at most 2 hold 16, max_running_requests 20 would let 4 more run."
    )
    assert starved.advice == "pp_max_micro_batch_size: 3"


@pytest.mark.parametrize(("gpus", "shown"), [(8, True), (4, False)])
def test_only_a_plan_that_works_shows_how_to_start(gpus: int, shown: bool) -> None:
    found = make_plan(FIRST_USER, read_config(KIMI), Gpus(gpus, 97887))
    assert ("TO START THE SERVER WITH" in render(result(found))) is shown
