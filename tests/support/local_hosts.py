# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hosts for playbooks that wait, without hosts: local connections to stand-ins of SGLang in this process.

systemctl and journalctl are scripts that say what they would on a host of its own, where the server runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ansible_collections.gpufleet.sglang.tests.support.standin.standin import Standin

ROOT = Path(__file__).resolve().parents[2]
SYSTEMCTL = """#!/bin/sh
echo LoadState=loaded ActiveState=active SubState=running Result=success InvocationID=one MainPID=1 \
    NRestarts=0 ControlGroup={cgroup} | tr ' ' '\\n'
"""
JOURNALCTL = """#!/bin/sh
case "$*" in *--follow*) exec sleep 600 ;; esac
"""


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cgroup() -> str:
    """The cgroup of this process."""
    return Path("/proc/self/cgroup").read_text().splitlines()[-1].split(":", 2)[-1]


class LocalHosts:
    """Each host has a stand-in that plays its script, and listens where the variable ``server_port`` says."""

    def __init__(self, scripts: Mapping[str, Mapping[str, Any]]) -> None:
        self._scripts = scripts
        self._stack = contextlib.ExitStack()
        self.servers: dict[str, Standin] = {}

    def __enter__(self) -> LocalHosts:
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        for program, text in {"systemctl": SYSTEMCTL, "journalctl": JOURNALCTL}.items():
            (self.directory / program).write_text(text.format(cgroup=cgroup()))
            (self.directory / program).chmod(0o755)
        ports = {host: free_port() for host in self._scripts}
        hosts = {host: {"server_port": port} for host, port in ports.items()}
        variables = {
            "ansible_async_dir": str(self.directory),  # its default is found in two ways, which need not agree
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
        }
        inventory = {"all": {"hosts": hosts, "vars": variables}}
        (self.directory / "inventory.json").write_text(json.dumps(inventory))
        for host, script in self._scripts.items():
            server = Standin({**script, "port": ports[host]}, io.StringIO())
            self.servers[host] = self._stack.enter_context(server)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def play(self, *tasks: Mapping[str, Any], forks: int = 5, **keywords: Any) -> subprocess.Popen[str]:
        """Begin a play of these tasks, with the ansible-core of this Python, in a process group of its own."""
        play = [{"hosts": "all", "gather_facts": False, **keywords, "tasks": tasks}]
        (self.directory / "play.json").write_text(json.dumps(play))
        return subprocess.Popen(
            [sys.executable, "-m", "ansible", "playbook", f"-i{self.directory}/inventory.json", f"-f{forks}",
             f"{self.directory}/play.json"],
            env={
                **os.environ,
                "PATH": f"{self.directory}:{os.environ['PATH']}",
                "ANSIBLE_COLLECTIONS_PATH": f"{ROOT}/.collections",
                "ANSIBLE_NOCOLOR": "1",
            },
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip


def interrupt(process: subprocess.Popen[str]) -> None:
    """What Ctrl-C does: a signal to all processes that the play runs in the foreground."""
    os.killpg(process.pid, signal.SIGINT)
