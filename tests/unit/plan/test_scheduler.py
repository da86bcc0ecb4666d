# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The scheduler's known answers: who runs, who waits, and what a cap is worth."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import (
    Measurement,
    StepCost,
    automatic_cap,
    balanced_cap,
    calibrate,
    captured_batch,
    log_interval,
    physical_step_time,
    schedule,
)

# A stage of Kimi K2.6: 8 layers of 290 MB, and 24.8 MB for each expert a batch goes to.
STAGE = StepCost(fixed=8 * 290e6, per_request=0.0, per_expert=8 * 24.8e6, experts=384, experts_per_token=8)


@pytest.mark.parametrize(
    ("concurrency", "depth", "limit", "cap", "occupancy", "queued"),
    [
        (32, 0, 64, None, [8, 8, 8, 8], 0),
        (32, 8, 64, None, [8, 8, 8, 8], 0),
        (32, 8, 64, 64, [32], 0),
        (32, 0, 64, 4, [4] * 8, 0),
        (64, 0, 64, None, [8] * 8, 0),
        (64, 0, 64, 16, [16] * 4, 0),
        (64, 0, 2048, None, [64], 0),
        (10, 0, 10, None, [1] * 8, 2),
        (60, 0, 60, None, [7] * 8, 4),
        (200, 0, 64, None, [8] * 8, 136),
        (3, 0, 64, None, [3], 0),
        (33, 0, 64, 5, [5, 5, 5, 5, 5, 5, 3], 0),
        (64, 2, 64, 8, [8] * 8, 0),
    ],
)
def test_occupancy(
    concurrency: int, depth: int, limit: int, cap: int | None, occupancy: list[int], queued: int
) -> None:
    planned = schedule(concurrency, 8, limit, cap, depth)
    assert list(planned.occupancy) == occupancy + [0] * (8 + depth - len(occupancy))
    assert planned.queued == queued
    assert planned.filled == len(occupancy)


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [
        ({"concurrency": 200, "max_running_requests": 64}, "max_running_requests"),
        ({"concurrency": 60, "max_running_requests": 60}, "cap"),
        ({"concurrency": 64, "max_running_requests": 64, "cap": 4}, "cap"),
        ({"concurrency": 64, "max_running_requests": 64, "kv_requests": 20}, "kv"),
        ({"concurrency": 32, "max_running_requests": 64}, ""),
    ],
)
def test_what_keeps_requests_out(arguments: dict[str, int], limit: str) -> None:
    assert schedule(pp_size=8, **arguments).limit == limit


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((1, 0, 64), "pp_size"),
        ((1, 8, 0), "max_running_requests"),
        ((1, 8, 64, 0), "pp_max_micro_batch_size"),
        ((1, 8, 64, None, -1), "pp_async_batch_depth"),
        ((-1, 8, 64), "target_concurrency"),
    ],
)
def test_impossible_numbers(arguments: tuple[int, ...], name: str) -> None:
    with pytest.raises(PlanError, match=f"^{name}: expected at least"):
        schedule(*arguments)


def test_caps() -> None:
    assert [automatic_cap(limit, 8) for limit in (64, 60, 10, 7, 1)] == [8, 7, 1, 1, 1]
    assert [balanced_cap(load, 8) for load in (0, 1, 8, 9, 32, 33)] == [1, 1, 1, 2, 4, 5]


def test_experts_read() -> None:
    assert [round(STAGE.experts_read(batch)) for batch in (1, 4, 8, 32)] == [8, 31, 60, 188]
    assert StepCost(1.0, 1.0).experts_read(8) == 0.0


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [
        (8, (272, 180, 108, 62, 62, 62, 62)),
        (16, (272, 359, 216, 124, 71, 71, 71)),
        (32, (272, 359, 433, 248, 141, 85, 85)),
        (64, (272, 359, 433, 496, 283, 169, 114)),
    ],
)
def test_prediction_from_two_figures(concurrency: int, expected: tuple[int, ...]) -> None:
    step = calibrate(STAGE, [Measurement(schedule(1, 8, 64), 34), Measurement(schedule(32, 8, 64, 8), 248)])
    predicted = [step.tokens_per_second(schedule(concurrency, 8, 64, cap)) for cap in (1, 2, 4, 8, 16, 32, 64)]
    assert predicted == pytest.approx(expected, abs=2)


def test_one_figure_sets_the_height() -> None:
    figure = Measurement(schedule(32, 8, 64, 8), 248)
    step = calibrate(STAGE, [figure])
    assert step.tokens_per_second(figure.planned) == pytest.approx(248)
    assert step.base / step.per_byte == pytest.approx(STAGE.fixed)


def test_a_falling_step_time_is_not_believed() -> None:
    """Larger batches that seem to cost less are noise: the time stays the same, and nothing is divided by zero."""
    step = calibrate(STAGE, [Measurement(schedule(8, 8, 64, 1), 100), Measurement(schedule(32, 8, 64, 4), 900)])
    assert step.per_byte == 0.0
    assert step.base > 0.0


def test_a_step_without_fixed_part() -> None:
    step = calibrate(STAGE, [Measurement(schedule(1, 8, 64), 40), Measurement(schedule(64, 8, 64, 64), 40)])
    assert step.base == 0.0
    assert step.per_byte > 0.0


def test_more_filled_slots_than_stages_share_them() -> None:
    step = physical_step_time(StepCost(fixed=1.0, per_request=0.0))
    assert step.tokens_per_second(schedule(16, 4, 64, 4)) == pytest.approx(16 / 4)
    assert step.tokens_per_second(schedule(16, 4, 64, 2, depth=4)) == pytest.approx(16 / 8)


def test_calibration_with_more_slots_than_stages() -> None:
    points = [Measurement(schedule(36, 8, 64, 4, depth=1), 433), Measurement(schedule(13, 8, 64, 2, depth=1), 300)]
    step = calibrate(StepCost(fixed=1.0, per_request=1.0), points)
    assert [step.tokens_per_second(point.planned) for point in points] == pytest.approx([433, 300])


def test_nothing_runs() -> None:
    nothing = schedule(4, 8, 64, kv_requests=0)
    assert nothing.running == 0
    assert physical_step_time(STAGE).tokens_per_second(nothing) == 0.0


def test_graph_sizes() -> None:
    captured = [captured_batch(batch) for batch in (1, 2, 3, 5, 8, 9, 13, 17, 255, 257, 513)]
    assert captured == [1, 2, 4, 8, 8, 12, 16, 24, 256, 272, 544]


def test_log_interval_shows_each_slot() -> None:
    assert (log_interval(8), log_interval(40), log_interval(41), log_interval(41 * 43)) == (41, 41, 43, 45)
