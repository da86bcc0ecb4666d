# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run gates, that is targets of make, and end with a table: which one took how long, and which one failed.

C(run.py GATE... --beside GATE): the first ones two at a time, or one at a time beside the last one. The output of each
is printed in one piece when it is done, that of the gate after --beside as it comes. All gates run, even after one has
failed. The lines in which a gate reported its failure are repeated after the table.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

SKIPPED = "skipped: "
FAULT = re.compile(r"fatal: |FAILED|^E  |error:|Error\b")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Outcome:
    """How a gate went; result is passed, failed or skipped with the reason, faults the lines that tell of a failure."""

    gate: str
    seconds: float
    result: str
    faults: tuple[str, ...] = ()


def run(gate: str, *, live: bool, niceness: int = 0) -> Outcome:
    """Run one gate and print its output, as it comes or in one piece."""
    start = time.monotonic()
    if live:
        print(f"\n==> make {gate}", flush=True)
    lines = []
    with subprocess.Popen(
        ["nice", f"-n{niceness}", "make", "--keep-going", gate],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if live:
                print(line, end="", flush=True)
    seconds = time.monotonic() - start
    if not live:
        print(f"\n==> make {gate}", *lines, sep="\n", flush=True)
    plain = [COLOUR.sub("", line) for line in lines]
    faults: tuple[str, ...] = ()
    last = plain[-1] if plain else ""
    if process.returncode:
        result = "failed"
        faults = tuple([line[:1000] for line in plain if FAULT.search(line)][-8:] or plain[-8:])
    elif last.startswith(SKIPPED):
        result = last
    else:
        result = "passed"
    return Outcome(gate, seconds, result, faults)


def main() -> int:
    """Run all, print the table, return 1 if one failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("gates", nargs="*")
    parser.add_argument("--beside")
    arguments = parser.parse_args()

    start = time.monotonic()
    with ThreadPoolExecutor(max_workers=2) as pool:
        beside = pool.submit(run, arguments.beside, live=True) if arguments.beside else None
        # What waits for servers goes first: the gates take the time that it leaves.
        niceness = 5 if beside else 0
        outcomes = list(pool.map(lambda gate: run(gate, live=False, niceness=niceness), arguments.gates))
        if beside:
            outcomes.append(beside.result())

    print(f"\n{'gate':<16}{'seconds':>8}  result")
    for outcome in outcomes:
        print(f"{outcome.gate:<16}{outcome.seconds:>8.1f}  {outcome.result}")
    print(f"{'together':<16}{time.monotonic() - start:>8.1f}")
    for outcome in outcomes:
        if outcome.faults:
            print(f"\n{outcome.gate} reported:", *outcome.faults, sep="\n  ")
    failed = sum(outcome.result == "failed" for outcome in outcomes)
    passed = sum(outcome.result == "passed" for outcome in outcomes)
    print(f"\ngates: {passed} passed, {failed} failed, {len(outcomes) - passed - failed} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
