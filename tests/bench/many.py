# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Fifty waits at once: is each line of progress whole and right, and does the whole take as long as the slowest?

The hosts are local connections to stand-ins in this process. systemctl and journalctl are scripts that say what they
would on a host of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ansible_collections.gpufleet.sglang.tests.bench.fleet import ENVIRONMENT, ROOT, tell

sys.path.insert(0, str(ROOT / ".collections"))
from ansible_collections.gpufleet.sglang.tests.support.standin.standin import Standin

HOSTS = 50
LOADING = 40.0
"""Seconds that the slowest takes to load; the others are spread below."""

SYSTEMCTL = """#!/bin/sh
echo LoadState=loaded ActiveState=active SubState=running Result=success InvocationID=one MainPID={pid} \
    NRestarts=0 ControlGroup={cgroup} | tr ' ' '\\n'
"""
JOURNALCTL = """#!/bin/sh
case "$*" in *--follow*) exec sleep 600 ;; esac
"""
PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {
                "gpufleet.sglang.server_ready": {
                    "name": "many-{{ inventory_hostname }}",
                    "port": "{{ port }}",
                    "models": ["{{ inventory_hostname }}"],
                    "timeout": 600,
                    "progress_interval": 5,
                },
            }
        ],
    }
]


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cgroup() -> str:
    """The cgroup of this process."""
    return Path("/proc/self/cgroup").read_text().splitlines()[-1].split(":", 2)[-1]


def main() -> None:
    """One playbook with forks=50; each fifth server serves another model."""
    ports = {f"host-{number:02}": free_port() for number in range(HOSTS)}
    wrong = {host for host in ports if host.endswith("5")}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as servers:
        directory = Path(name)
        for program, text in {"systemctl": SYSTEMCTL, "journalctl": JOURNALCTL}.items():
            (directory / program).write_text(text.format(pid=1, cgroup=cgroup()))
            (directory / program).chmod(0o755)
        hosts = {host: {"port": port} for host, port in ports.items()}
        variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        (directory / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
        (directory / "play.json").write_text(json.dumps(PLAY))
        began = time.monotonic()
        for number, (host, port) in enumerate(ports.items()):
            steps = [{"wait": LOADING * (number + 1) / HOSTS}, "listen", {"wait": 2}, "ready"]
            script = {"port": port, "models": ["other" if host in wrong else host], "steps": steps}
            servers.enter_context(Standin(script, io.StringIO()))
        done = subprocess.run(
            ["ansible-playbook", f"-i{directory}/inventory.json", f"-f{HOSTS}", f"{directory}/play.json"],
            env={**ENVIRONMENT, "PATH": f"{directory}:{ENVIRONMENT['PATH']}", "ANSIBLE_NOCOLOR": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        took = time.monotonic() - began
    lines = done.stdout.splitlines()
    whole = re.compile(r"(host-\d\d) \| many-\1 \| +\d+ s \| (?:[a-z ]+(?:: .*)?|READY(?: \([a-z0-9., ]+\))?)\Z")
    progress = [line for line in lines if " | many-" in line]
    ready = {line.split(" ", 1)[0] for line in progress if "READY" in line}
    failed = set(re.findall(r"^fatal: \[(host-\d\d)\]: FAILED! .*wrong_model", done.stdout, re.MULTILINE))
    broken = [line for line in progress if not whole.match(line)]
    print("\n".join(broken or progress[-3:]))
    print(
        f"{HOSTS} hosts, {len(progress)} lines of progress, {took:.1f} s; the slowest server took {LOADING + 2:.1f} s"
    )
    tell(
        hosts=HOSTS,
        lines=len(progress),
        broken_lines=len(broken),
        wrong_results=len(ready ^ (set(ports) - wrong)) + len(failed ^ wrong),
        took_s=took,
        slowest_s=LOADING + 2,
    )


if __name__ == "__main__":
    main()
