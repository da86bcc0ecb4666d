# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fifty waits at once: is each line of progress whole and right, and does the whole take as long as the slowest?"""

from __future__ import annotations

import re
import time

from ansible_collections.gpufleet.sglang.tests.bench.fleet import tell
from ansible_collections.gpufleet.sglang.tests.support.local_hosts import LocalHosts

HOSTS = 50
LOADING = 40.0
"""Seconds that the slowest takes to load; the others are spread below."""
WAIT = {
    "gpufleet.sglang.server_ready": {
        "name": "many-{{ inventory_hostname }}",
        "port": "{{ server_port }}",
        "models": ["{{ inventory_hostname }}"],
        "timeout": 600,
        "progress_interval": 5,
    }
}


def main() -> None:
    """One playbook with forks=50; each fifth server serves another model."""
    names = [f"host-{number:02}" for number in range(HOSTS)]
    wrong = {host for host in names if host.endswith("5")}
    scripts = {
        host: {
            "models": ["other" if host in wrong else host],
            "steps": [{"wait": LOADING * (number + 1) / HOSTS}, "listen", {"wait": 2}, "ready"],
        }
        for number, host in enumerate(names)
    }
    began = time.monotonic()
    with LocalHosts(scripts) as hosts:
        output, _nothing = hosts.play(WAIT, forks=HOSTS).communicate()
        took = time.monotonic() - began
    lines = output.splitlines()
    whole = re.compile(r"(host-\d\d) \| many-\1 \| +\d+ s \| (?:[a-z ]+(?:: .*)?|READY(?: \([a-z0-9., ]+\))?)\Z")
    progress = [line for line in lines if " | many-" in line]
    ready = {line.split(" ", 1)[0] for line in progress if "READY" in line}
    failed = set(re.findall(r"^fatal: \[(host-\d\d)\]: FAILED! .*wrong_model", output, re.MULTILINE))
    broken = [line for line in progress if not whole.match(line)]
    print("\n".join(broken or progress[-3:]))
    print(
        f"{HOSTS} hosts, {len(progress)} lines of progress, {took:.1f} s; the slowest server took {LOADING + 2:.1f} s"
    )
    tell(
        hosts=HOSTS,
        lines=len(progress),
        broken_lines=len(broken),
        wrong_results=len(ready ^ (set(names) - wrong)) + len(failed ^ wrong),
        took_s=took,
        slowest_s=LOADING + 2,
    )


if __name__ == "__main__":
    main()
