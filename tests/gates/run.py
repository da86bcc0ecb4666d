# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gates, that is targets of make, and end with a table: which one took how long, and which one failed.

C(run.py GATE... --then GATE...): the first ones two at a time, each one's output in one piece when it is done; those
after --then alone and with their output as it comes. All gates run, whatever the others do.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

SKIPPED = "skipped: "


@dataclass(frozen=True)
class Outcome:
    """How a gate went; result is passed, failed or skipped with the reason."""

    gate: str
    seconds: float
    result: str


def run(gate: str, *, alone: bool) -> Outcome:
    """Run one gate and print its output."""
    start = time.monotonic()
    if alone:
        print(f"\n==> make {gate}", flush=True)
    done = subprocess.run(
        ["make", "--keep-going", gate],
        stdin=subprocess.DEVNULL,
        stdout=None if alone else subprocess.PIPE,
        stderr=None if alone else subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - start
    output = (done.stdout or "").rstrip()
    if not alone:
        print(f"\n==> make {gate}\n{output}", flush=True)
    last = output.splitlines()[-1] if output else ""
    if done.returncode:
        result = "failed"
    elif last.startswith(SKIPPED):
        result = last
    else:
        result = "passed"
    return Outcome(gate, seconds, result)


def main() -> int:
    """Run all, print the table, return 1 if one failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gates", nargs="*")
    parser.add_argument("--then", nargs="*", default=[])
    arguments = parser.parse_args()

    start = time.monotonic()
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = list(pool.map(lambda gate: run(gate, alone=False), arguments.gates))
    outcomes += [run(gate, alone=True) for gate in arguments.then]

    print(f"\n{'gate':<16}{'seconds':>8}  result")
    for outcome in outcomes:
        print(f"{outcome.gate:<16}{outcome.seconds:>8.1f}  {outcome.result}")
    print(f"{'together':<16}{time.monotonic() - start:>8.1f}")
    failed = sum(outcome.result == "failed" for outcome in outcomes)
    passed = sum(outcome.result == "passed" for outcome in outcomes)
    print(f"\ngates: {passed} passed, {failed} failed, {len(outcomes) - passed - failed} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
