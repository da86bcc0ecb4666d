# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How long an unchanged host takes to be told so, and where the time goes."""

from __future__ import annotations

import re
import time

from ansible_collections.gpufleet.sglang.tests.bench.fleet import host_is_up, playbook, run, tell

RUNS = 3


def converge(inventories: list[str]) -> tuple[float, list[tuple[str, float]]]:
    """One run of the playbook on an unchanged host: seconds in all, and by task in the order of the play."""
    began = time.monotonic()
    steps = [("(start of ansible-playbook)", began)]
    process = playbook(*inventories, "gpufleet.sglang.deploy")
    output = []
    for line in process.stdout or ():
        output.append(line)
        match = re.match(r"(?:TASK|PLAY RECAP) ?(?:\[(?:gpufleet\.sglang\.)?(.*?)\])?", line)
        if match:
            steps.append((match[1] or "(end)", time.monotonic()))
    text = "".join(output)
    if process.wait() != 0 or not re.search(r"changed=0 ", text):
        raise SystemExit(text)
    ends = [moment for _name, moment in steps[1:]] + [time.monotonic()]
    return time.monotonic() - began, [(name, end - at) for (name, at), end in zip(steps, ends)]


def main() -> None:
    """Three runs; the fastest is the one that the neighbours on this machine disturbed least."""
    inventories = host_is_up()
    run(*inventories, "gpufleet.sglang.deploy")
    seconds, steps = min(converge(inventories) for _run in range(RUNS))
    for name, took in sorted(steps, key=lambda step: -step[1]):
        print(f"{took:6.2f} s  {name}")
    print(f"{seconds:6.2f} s  in all")
    tell(noop_converge_s=seconds)


if __name__ == "__main__":
    main()
