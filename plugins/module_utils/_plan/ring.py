# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The ways to set the cap of a ring of slots, side by side. Pure."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import STRATEGIES, Wishes
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.scheduler import Schedule, balanced_cap, schedule


@dataclass(frozen=True)
class Alternative:
    """A way to set the cap, what the scheduler makes of it, and what that is worth.

    *strategies* are the names that lead here, *left_out* says that the cap is SGLang's own, *limit* is the
    max_running_requests that is asked for (*planned* has the one that is left of it once SGLang knows its KV cache).
    *relative* is a part of the best throughput of all alternatives, *tokens_per_second* is there only after
    calibration.
    """

    strategies: tuple[str, ...]
    left_out: bool
    limit: int
    planned: Schedule
    relative: float | None = None
    tokens_per_second: float | None = None
    range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Ring:
    """The scheduler's ring of slots with the load that is meant for it, for one data-parallel worker."""

    wishes: Wishes
    pp_size: int
    concurrency: int
    asked: int | None
    kv_requests: int | None
    kv_tokens: int | None
    default_limit: int

    @property
    def slots(self) -> int:
        return self.pp_size + self.wishes.pp_async_batch_depth

    def plan(self, limit: int, cap: int | None) -> Schedule:
        """Return the schedule under *limit*, which SGLang lowers to half of the tokens its KV cache holds."""
        resolved = limit if self.kv_tokens is None else max(min(limit, self.kv_tokens // 2), 1)
        depth = self.wishes.pp_async_batch_depth
        return schedule(self.concurrency, self.pp_size, resolved, cap, depth, self.kv_requests)

    @functools.cached_property
    def balanced(self) -> int:
        """The cap that gives each slot its share of the requests that can run at all."""
        runnable = min(self.concurrency, self.asked or self.concurrency, max(self.kv_requests or self.concurrency, 1))
        return balanced_cap(runnable, self.slots)

    def strategies(self) -> dict[str, tuple[int, int | None]]:
        """Return (max_running_requests, cap or None where it is left out) for each strategy."""
        explicit = self.wishes.pp_max_micro_batch_size
        if self.pp_size == 1:
            # One stage has one slot: there is nothing to fill evenly, and a cap could only make requests wait.
            limit = self.asked or max(self.concurrency, explicit or 1)
            choices: dict[str, tuple[int, int | None]] = dict.fromkeys(STRATEGIES, (limit, None))
        else:
            even = -(-self.concurrency // self.pp_size) * self.pp_size
            uncapped = self.asked or even
            choices = {
                "balanced": (self.asked or self.slots * self.balanced, self.balanced),
                "sglang_auto": (self.asked or self.default_limit, None),
                "uncapped": (uncapped, uncapped),
            }
        if explicit is not None:
            choices["explicit"] = (self.asked or self.slots * explicit, explicit)
        return choices

    def alternatives(self) -> tuple[Alternative, tuple[Alternative, ...]]:
        """Return the chosen way, and all that are worth comparing, smallest cap first."""
        choices = self.strategies()
        chosen_name = "explicit" if "explicit" in choices else self.wishes.strategy
        rows: dict[tuple[int, int], Alternative] = {}
        for name in sorted(choices, key=lambda name: name != chosen_name):
            limit, wanted = choices[name]
            planned = self.plan(limit, wanted)
            row = rows.get((limit, planned.cap)) or Alternative((), wanted is None, limit, planned)
            rows[(limit, planned.cap)] = replace(row, strategies=(*row.strategies, name))
        chosen = next(iter(rows.values()))
        cap = 1
        while self.pp_size > 1 and cap <= min(self.concurrency, chosen.limit):
            key = (chosen.limit, cap)
            rows.setdefault(key, Alternative((), left_out=False, limit=chosen.limit, planned=self.plan(*key)))
            cap *= 2
        return chosen, tuple(sorted(rows.values(), key=lambda row: (row.planned.cap, row.limit)))
