# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Whether a server that is not ready yet does anything at all. Pure.

A load that is slow but moves is left alone; one that does not move is a hang. Signs of life are new lines in the
journal, CPU time, bytes read, processes that come and go, and GPU memory. A server that only turns round and round in
its idle loops gives none, and neither does one that is only busy with being asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Pulse

IDLE_CPU = 0.05
"""Of a core, for each process: what one that waits for the others to load may use (2 to 3 % were seen)."""
IDLE_READ = 1 << 16
"""Bytes: what all processes may read while nothing happens, from event descriptors for example."""
GPU_AFTER = 30.0
"""Seconds without another sign, before nvidia-smi is asked, and between two times that it is."""


UNWATCHED = 90.0
"""Seconds between two looks that are more than a look takes: nobody was there, and silence cannot be told."""


@dataclass
class Life:
    """The last sign of life ``at``, and the last look whether there is one, ``felt``: seconds since the wait began.

    The rest is what was counted when there was a sign.
    """

    at: float = 0.0
    felt: float = 0.0
    processes: int = 0
    cpu_seconds: float = 0.0
    read_bytes: int = 0
    gpu_mib: list[int] = field(default_factory=list)
    gpu_at: float = 0.0

    def hear(self, at: float) -> None:
        """Take in that the journal has a line, which was written at ``at``."""
        self.at = max(self.at, at)

    def feel(self, pulse: Pulse, now: float, polls: bool = False) -> None:
        """Take in what the processes have done by now.

        Schedulers whose server is open for requests poll for them as fast as they can: with ``polls``, CPU time does
        not count.
        """
        idle = IDLE_CPU * pulse.processes * (now - self.at)
        if (
            not pulse.processes  # systemd has something to do first, and knows when to give up
            or now - self.felt > UNWATCHED
            or pulse.processes != self.processes
            or (not polls and abs(pulse.cpu_seconds - self.cpu_seconds) > idle)
            or abs(pulse.read_bytes - self.read_bytes) > IDLE_READ
        ):
            self.at, self.processes = now, pulse.processes
            self.cpu_seconds, self.read_bytes = pulse.cpu_seconds, pulse.read_bytes
        self.felt = now

    def wants_gpu(self, now: float) -> bool:
        """Whether it is time to look at the memory of the GPUs, which costs more than the other signs."""
        return now - max(self.at, self.gpu_at) >= GPU_AFTER

    def feel_gpu(self, mib: Sequence[int], now: float) -> None:
        """Take in the used memory of each GPU."""
        if self.gpu_mib and list(mib) != self.gpu_mib:
            self.at = now
        self.gpu_mib, self.gpu_at = list(mib), now

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Life:
        """The Life whose ``vars`` are given; keys that are not known are left out."""
        return cls(**{key: value for key, value in content.items() if key in cls.__dataclass_fields__})
