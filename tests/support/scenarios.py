# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run Molecule scenarios on test hosts; run-molecule sets the environment.

Without arguments all scenarios run, in two lanes: each lane has a set of hosts, and takes the next scenario when it is
done with one, so that an engine is installed once in a lane. All scenarios run, even after one has failed. A table of
the seconds of each step comes last. With arguments these are molecule's, on the hosts of the first lane, which stay.

The names of the sets contain a hash of the path of the checkout: two checkouts may test at the same time.
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "extensions" / "molecule"
HOSTS = ("gpu-a", "gpu-blank")
LANES = 2
# The first one needs a host that has nothing yet. After that the longest ones, so that the lanes end together.
ORDER = ("default", "aborted", "transaction", "pipeline", "reuse", "check_change")
STEP = re.compile(r"(?P<scenario>\w+) ➜ (?P<step>[\w ]+): (?P<what>Executing|Executed)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Steps:
    """When the steps of a scenario began, from the lines that molecule prints."""

    started: list[tuple[str, float]] = field(default_factory=list)
    ended: float = 0.0

    def see(self, line: str, now: float) -> None:
        """Take note of a line that was printed at a time."""
        match = STEP.search(COLOUR.sub("", line))
        if match and match["what"] == "Executing":
            self.started.append((match["step"], now))
        self.ended = now

    def seconds(self) -> list[tuple[str, float]]:
        """Each step with how long it took, in the order of the run."""
        ends = [start for _step, start in self.started[1:]] + [self.ended]
        return [(step, end - start) for (step, start), end in zip(self.started, ends)]


@dataclass(frozen=True)
class Outcome:
    """How a scenario went."""

    scenario: str
    lane: int
    seconds: float
    failed: bool
    steps: Sequence[tuple[str, float]]


def set_name(lane: int, root: Path = ROOT) -> str:
    """The set of hosts of a lane of this checkout."""
    return f"molecule-{hashlib.sha256(str(root).encode()).hexdigest()[:6]}-{lane}"


def ordered(names: Sequence[str]) -> list[str]:
    """The scenarios in the order in which lanes take them; those that ORDER does not know come last."""
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def environment(lane: int, base: Mapping[str, str]) -> dict[str, str]:
    """What molecule and the scenarios see. Each lane has a home for Ansible's sockets, state and async files."""
    home = ROOT / ".cache" / "molecule" / str(lane)
    return {**base, "ANSIBLE_HOME": str(home), "GPUFLEET_SET": set_name(lane), "PYTHONUNBUFFERED": "1"}


def testhosts(*arguments: str) -> None:
    """Run the command of that name."""
    subprocess.run([ROOT / "tests/support/testhosts", *arguments], check=True)


def run(scenario: str, lane: int) -> Outcome:
    """Run one scenario; each line of its output is marked with its name."""
    start = time.monotonic()
    steps = Steps()
    with subprocess.Popen(
        ["molecule", "test", "--no-command-borders", "--scenario-name", scenario],
        cwd=ROOT,
        env=environment(lane, os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            steps.see(line, time.monotonic())
            print(f"{scenario:<12} | {line}", end="", flush=True)
    return Outcome(scenario, lane, time.monotonic() - start, process.returncode != 0, steps.seconds())


def lane_of(number: int, waiting: queue.SimpleQueue[str], outcomes: list[Outcome]) -> None:
    """Run scenarios until none is left; a lane that cannot get hosts leaves them to the other."""
    try:
        testhosts("down", "--set", set_name(number))  # what a run left behind that was killed
        testhosts("up", "--set", set_name(number), *HOSTS)
        while True:
            outcomes.append(run(waiting.get_nowait(), number))
    except queue.Empty:
        pass
    finally:
        testhosts("down", "--set", set_name(number))


def table(outcomes: Sequence[Outcome], missing: Sequence[str], together: float) -> str:
    """Where the time went."""
    lines = [f"{'scenario':<14}{'lane':>4}{'seconds':>9}  result  steps"]
    for outcome in outcomes:
        steps = ", ".join(f"{step} {seconds:.0f}" for step, seconds in outcome.steps)
        result = "failed" if outcome.failed else "passed"
        lines.append(f"{outcome.scenario:<14}{outcome.lane:>4}{outcome.seconds:>9.1f}  {result}  {steps}")
    lines += [f"{name:<14}{'':>13}  failed  did not run: its lane has no hosts" for name in missing]
    lines.append(f"{'together':<18}{together:>9.1f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run molecule with these arguments, or all scenarios; 1 when one has failed."""
    if arguments:
        testhosts("up", "--set", set_name(1), *HOSTS)
        seen = environment(1, os.environ)
        return subprocess.run(["molecule", *arguments], cwd=ROOT, env=seen, check=False).returncode

    start = time.monotonic()
    names = ordered([path.parent.name for path in SCENARIOS.glob("*/molecule.yml")])
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    outcomes: list[Outcome] = []
    lanes = [threading.Thread(target=lane_of, args=(number + 1, waiting, outcomes)) for number in range(LANES)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    missing = [name for name in names if name not in {outcome.scenario for outcome in outcomes}]
    print(f"\n{table(outcomes, missing, time.monotonic() - start)}")
    return 1 if missing or any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
