# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Signs of life: what counts as one, and what is only idling."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._life import Life
from ansible_collections.gpufleet.sglang.plugins.module_utils._processes import Pulse

BEFORE = Life(at=100.0, lines=7, cpu_seconds=50.0, read_bytes=1000)


@pytest.mark.parametrize(
    ("pulse", "lines", "alive"),
    [
        (Pulse(4, 50.0, 1000), 7, False),
        (Pulse(4, 50.0, 1000), 8, True),
        (Pulse(4, 50.0, 1000 + (1 << 17)), 7, True),
        (Pulse(4, 50.0, 1100), 7, False),
        (Pulse(4, 51.9, 1000), 7, False),  # 10 s, 4 processes, 5 % each
        (Pulse(4, 52.1, 1000), 7, True),
        (Pulse(3, 20.0, 1000), 7, True),  # a process has ended
        (Pulse(0, 0.0, 0), 7, True),  # systemd's turn
    ],
)
def test_signs(pulse: Pulse, lines: int, alive: bool) -> None:
    life = Life(**vars(BEFORE))
    life.feel(pulse, lines, 110.0)
    assert life.at == (110.0 if alive else 100.0)


def test_a_trickle_adds_up() -> None:
    """A load of 1 kB/s is slow, but moves."""
    life = Life()
    life.feel(Pulse(1, 0.0, 0), 1, 0.0)
    for second in range(1, 601):
        life.feel(Pulse(1, 0.0, second * 1024), 1, float(second))
    assert life.at > 500


def test_gpus_are_looked_at_only_where_nothing_else_moves() -> None:
    life = Life(at=0.0, lines=1)
    asked = []
    for second in range(1, 91):
        now = float(second)
        life.feel(Pulse(1, 0.0, 0), 1, now)
        if life.wants_gpu(now):
            asked.append(now)
            life.feel_gpu([100, 200], now)
    assert asked == [30.0, 60.0, 90.0]
    assert life.at == 0.0
    life.feel_gpu([100, 216], 120.0)
    assert life.at == 120.0


def test_it_passes_from_slice_to_slice() -> None:
    assert Life.from_dict({**vars(BEFORE), "later": 1}) == BEFORE
