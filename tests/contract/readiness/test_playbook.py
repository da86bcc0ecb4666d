# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""server_ready in plays of all kinds, run by the real ansible-playbook: strategies, batches, async, and Ctrl-C."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from ansible_collections.gpufleet.sglang.tests.support.local_hosts import LocalHosts, interrupt

HOSTS = ("one", "two", "three")
WAIT = {
    "gpufleet.sglang.server_ready": {"name": "demo", "port": "{{ server_port }}", "models": ["tiny"], "timeout": 60}
}
LINE = re.compile(r"(one|two|three) \| demo \| +\d+ s \| (?:READY(?: \([a-z0-9., ]+\))?|[a-z ]+)\Z")


@contextlib.contextmanager
def loading(seconds: float) -> Iterator[LocalHosts]:
    script = {"models": ["tiny"], "steps": [{"wait": seconds}, "listen", "ready"]}
    with LocalHosts(dict.fromkeys(HOSTS, script)) as hosts:
        yield hosts


def recap(output: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) +: (ok=\d+ +changed=\d+ +unreachable=\d+ +failed=\d+)", output, re.MULTILINE))


@pytest.mark.parametrize("keywords", [{"strategy": "free"}, {"serial": [1, 2]}])
def test_each_host_tells_that_it_is_ready_in_a_line_of_its_own(keywords: dict[str, Any]) -> None:
    with loading(1.5) as hosts:
        output, _nothing = hosts.play(WAIT, **keywords).communicate(timeout=120)
    assert {host: result.split()[0] for host, result in recap(output).items()} == dict.fromkeys(HOSTS, "ok=1"), output
    lines = [line for line in output.splitlines() if " | demo | " in line]
    assert all(LINE.match(line) for line in lines), lines
    ready = [line.split(" ", 1)[0] for line in lines if "READY" in line]
    assert sorted(ready) == sorted(HOSTS)
    if "serial" in keywords:
        first = next(number for number, line in enumerate(lines) if "READY" in line)
        assert all(line.startswith("one ") for line in lines[: first + 1]), "the next batch has begun early"


def test_async() -> None:
    """Without lines of progress: there is nobody who could show them."""
    waiting = {**WAIT, "async": 60, "poll": 0, "register": "begun"}
    collect = {
        "ansible.builtin.async_status": {"jid": "{{ begun.ansible_job_id }}"},
        "register": "begun", "until": "begun.finished", "retries": 30, "delay": 1,
    }  # fmt: skip
    tell = {"ansible.builtin.assert": {"that": ["begun.ready", "begun.phase == 'ready'"]}}
    with loading(1.5) as hosts:
        output, _nothing = hosts.play(waiting, collect, tell).communicate(timeout=120)
    assert set(recap(output)) == set(HOSTS)
    assert all("failed=0" in result for result in recap(output).values()), output
    assert " | demo | " not in output


def test_ctrl_c_ends_the_wait_and_leaves_the_server_alone() -> None:
    script = {"models": ["tiny"], "steps": ["listen"]}
    wait = {"gpufleet.sglang.server_ready": {**WAIT["gpufleet.sglang.server_ready"], "progress_interval": 5}}
    with LocalHosts({"one": script}) as hosts:
        process = hosts.play(wait)
        assert process.stdout
        for line in process.stdout:
            if " | demo | " in line:
                break
        time.sleep(0.5)  # a worker that is ended while it tells a line makes ansible-core hang
        interrupt(process)
        process.communicate(timeout=60)
        assert process.returncode != 0
        with requests.Session() as session:
            session.trust_env = False
            assert session.get(f"{hosts.servers['one'].url}/v1/models", timeout=5).status_code == 200
        # The slice that runs may go on to its end, as on a host that is far away; there is no other.
        assert any(is_quiet(hosts) for _round in range(10)), "somebody still waits"


def is_quiet(hosts: LocalHosts, seconds: float = 3) -> bool:
    """Whether nobody asks its server for some seconds."""
    before = len(hosts.servers["one"].requests)
    time.sleep(seconds)
    return len(hosts.servers["one"].requests) == before
