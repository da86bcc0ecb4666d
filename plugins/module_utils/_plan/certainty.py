# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""How sure a fitted prediction is: a range, and an error on points that the fit did not use. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import (
    Measurement,
    Schedule,
    StepCost,
    StepTime,
    calibrate,
)

# What one measurement may be off by where there are too few of them to tell.
_NOISE = 0.1
_LEAST_SPREAD = 0.05
# How many times the error of left-out points a range reaches, by the number of points: few points tell little of it.
_REACH = {3: 3.0, 4: 2.5}
_REACH_OF_MANY = 2.2


@dataclass(frozen=True)
class Certainty:
    """All *fits* that the points allow, and the *spread* on top. *error* is None where it cannot be known."""

    fits: tuple[StepTime, ...]
    spread: float
    error: float | None

    def range(self, planned: Schedule, bound: float | None = None) -> tuple[float, float]:
        """Return the lowest and the highest tokens per second of *planned*; *bound* is what the memory allows."""
        speeds = [fit.tokens_per_second(planned) for fit in self.fits]
        low, high = min(speeds) / (1 + self.spread), max(speeds) * (1 + self.spread)
        if bound is not None:
            high = min(high, bound)
        return min(low, high), high


def certainty(cost: StepCost, points: Sequence[Measurement]) -> Certainty:
    """Return how sure the fit of *cost* to *points* (at least one) is.

    With three points or more, each is left out once and predicted from the others. With fewer, or where all have the
    same micro-batch, the error is unknown: the range then holds every shape that agrees with the points.
    """
    whole = calibrate(cost, points)
    batches = {point.planned.batches[0][0] for point in points}
    if len(batches) == 1:
        return Certainty((whole, _level(cost, points), _steep(cost, points)), _NOISE, None)
    if len(points) < 3:
        shifted = [
            calibrate(
                cost, [*points[:index], Measurement(point.planned, point.tokens_per_second * by), *points[index + 1 :]]
            )
            for index, point in enumerate(points)
            for by in (1 - _NOISE, 1 + _NOISE)
        ]
        return Certainty((whole, *shifted), _NOISE, None)
    fits, errors = [], []
    for index, point in enumerate(points):
        fit = calibrate(cost, [*points[:index], *points[index + 1 :]])
        fits.append(fit)
        errors.append(fit.tokens_per_second(point.planned) / point.tokens_per_second - 1.0)
    error = math.sqrt(sum(value * value for value in errors) / len(errors))
    spread = max(_REACH.get(len(points), _REACH_OF_MANY) * error, _LEAST_SPREAD)
    return Certainty((whole, *fits), spread, error)


def _level(cost: StepCost, points: Sequence[Measurement]) -> StepTime:
    """The step that takes the same time for every micro-batch."""
    return _scaled(StepTime(cost, 1.0, 0.0), points)


def _steep(cost: StepCost, points: Sequence[Measurement]) -> StepTime:
    """The step whose time depends on the micro-batch alone."""
    steep = StepTime(cost, 0.0, 1.0)
    return _scaled(steep, points) if cost.variable(1) > 0 else _level(cost, points)


def _scaled(step: StepTime, points: Sequence[Measurement]) -> StepTime:
    factor = sum(step.tokens_per_second(point.planned) / point.tokens_per_second for point in points) / len(points)
    return StepTime(step.cost, step.base * factor, step.per_byte * factor)
