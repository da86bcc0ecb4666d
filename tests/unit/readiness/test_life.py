# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Signs of life: what counts as one, and what is only idling."""

from __future__ import annotations

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Pulse
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.life import Life

BEFORE = Life(at=100.0, felt=100.0, processes=4, cpu_seconds=50.0, read_bytes=1000)


@pytest.mark.parametrize(
    ("pulse", "alive", "alive_though_it_polls"),
    [
        (Pulse(4, 50.0, 1000), False, False),
        (Pulse(4, 50.0, 1000 + (1 << 17)), True, True),
        (Pulse(4, 50.0, 1100), False, False),
        (Pulse(4, 51.9, 1000), False, False),  # 10 s, 4 processes, 5 % each
        (Pulse(4, 52.1, 1000), True, False),
        (Pulse(4, 90.0, 1000), True, False),  # each process turns round and round
        (Pulse(3, 50.0, 1000), True, True),  # a process has ended
        (Pulse(5, 50.0, 1000), True, True),  # a compiler, for example
        (Pulse(0, 0.0, 0), True, True),  # systemd's turn
    ],
)
def test_signs(pulse: Pulse, alive: bool, alive_though_it_polls: bool) -> None:
    for polls, expected in ((False, alive), (True, alive_though_it_polls)):
        life = Life(**vars(BEFORE))
        life.feel(pulse, 110.0, polls)
        assert life.at == (110.0 if expected else 100.0)


def test_a_line_is_a_sign_of_the_moment_when_it_was_written() -> None:
    life = Life(at=100.0)
    life.hear(60.0)
    assert life.at == 100.0
    life.hear(107.5)
    assert life.at == 107.5


def test_a_trickle_adds_up() -> None:
    """A load of 1 kB/s is slow, but moves."""
    life = Life()
    life.feel(Pulse(1, 0.0, 0), 0.0)
    for second in range(1, 601):
        life.feel(Pulse(1, 0.0, second * 1024), float(second))
    assert life.at > 500


def test_gpus_are_looked_at_only_where_nothing_else_moves() -> None:
    life = Life(at=0.0, processes=1)
    asked = []
    for second in range(1, 91):
        now = float(second)
        life.feel(Pulse(1, 0.0, 0), now)
        if life.wants_gpu(now):
            asked.append(now)
            life.feel_gpu([100, 200], now)
    assert asked == [30.0, 60.0, 90.0]
    assert life.at == 0.0
    life.feel_gpu([100, 216], 120.0)
    assert life.at == 120.0


def test_what_nobody_watched_is_no_silence() -> None:
    """The connection was lost for some minutes: the server may be ready by now, and idle."""
    life = Life(at=100.0, felt=100.0, processes=1)
    life.feel(Pulse(1, 0.0, 0), 180.0, polls=True)
    assert life.at == 100.0
    life.feel(Pulse(1, 0.0, 0), 480.0, polls=True)
    assert life.at == 480.0


def test_it_passes_from_slice_to_slice() -> None:
    assert Life.from_dict({**vars(BEFORE), "later": 1}) == BEFORE
