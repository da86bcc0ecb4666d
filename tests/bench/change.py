# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Changes of real SGLang that go wrong, through the whole role: what is told, and who serves in the end.

Each fault is tried twice. First as a change of a server that works, while a client asks it every 100 ms: the old
configuration has to serve in the end, and what is refused before the stop may not cost a request. Then as the first
deployment of another server: nothing may run or start again. With words on the command line, only the faults with these
in their names are tried; with ``--check``, the exit status is 1 when something was not as it should be.

The outage, the longest time without an answer, is compared with what the journal of the same run says that it takes
without the role: the stop of the old server, the time until the new one's fault can be seen, the stop of that one if it
still runs, and the load of the old one.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Callable

import requests
import yaml
from ansible_collections.gpufleet.sglang.tests.bench.fleet import CACHE, DEMO, ROOT, host_is_up, on_host, playbook, tell
from ansible_collections.gpufleet.sglang.tests.support.traffic import Outcome, ask, longest_gap

SET, HOST = "change", "gpu-change"
# One stage, so that a start takes 15 s, and a stop that does not wait long for processes that do not listen.
ARGUMENTS = {
    key: value
    for key, value in yaml.safe_load((DEMO.parent / "group_vars/sglang.yml").read_text())["sglang_server_args"].items()
    if key != "pp_size"
}
VARIABLES = {"sglang_server_ready_timeout": 120, "sglang_server_stop_timeout": 15}
OLD, NEW = {"max_running_requests": 16}, {"max_running_requests": 14}
DELAYS = {16: 5, 14: 6}
"""What goes into the unit, so that each change is one of the unit, too."""
LOADING = "server_args="
ENDED = "Main process exited"
READY = "fired up"

SPOIL_MODEL = "rm -rf /srv/m; cp -r /srv/models/tiny-opt /srv/m; chmod -R a+rX /srv/m; cd /srv/m; "
SHARDED = (
    "mv model.safetensors model-00001-of-00002.safetensors; "
    """echo '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}' """
    ">model.safetensors.index.json"
)
SCHEDULER = (
    "main=$(systemctl show --value --property=MainPID $unit); "
    "until scheduler=$(pgrep -g $main -f 'multiprocessing.spawn|sglang::scheduler' | head -n 1); [ $scheduler ]; do "
    "sleep 0.2; done; "
)
SERVED_MODEL = {"sglang_server_model_path": "/srv/m"}
WEIGHTS = {"load_format": "auto"}
STAGES = {"pp_size": 2}


def partition(layers: str) -> dict[str, Any]:
    """The demo's environment for two stages, with its layers split so."""
    return {
        "sglang_server_environment": {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
            "SGLANG_PP_LAYER_PARTITION": layers,
        }
    }


@dataclass(frozen=True)
class Fault:
    """A fault, and what the role must say of it: a regular expression.

    ``arguments`` are SGLang's, ``variables`` the role's. ``prepare``, ``during`` and ``repair`` are shell on the host,
    where ``$name`` is the server and ``$unit`` its unit; ``during`` runs once the journal of the new start has a line
    like ``when``. The fault can be seen from the first such line like ``visible`` on, or else from the end of
    ``during``, but not before ``after`` seconds of the start. What is ``refused`` never gets as far as a stop.
    """

    name: str
    said: str
    arguments: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    prepare: str = ":"
    repair: str = ":"
    when: str = LOADING
    during: str = ""
    visible: str = ""
    after: float = 0.0
    refused: bool = False


FAULTS = (
    Fault("unknown argument", "max-running-requets", {"max_running_requets": 16}, refused=True),
    Fault("argument that was removed", "cuda-graph-max-bs", {"cuda_graph_max_bs": 4}, refused=True),
    Fault("argument of a newer release", "pp-stage-of-tomorrow", {"pp_stage_of_tomorrow": 4}, refused=True),
    Fault(
        "port taken before",
        "port 30099 is taken by",
        variables={"sglang_server_port": 30099},
        prepare="systemd-run --quiet --unit stranger python3 -m http.server 30099; sleep 1",
        repair="systemctl stop stranger",
        refused=True,
    ),
    Fault(
        "engine without SGLang",
        "there is no SGLang",
        variables={"sglang_server_engine": "/opt/empty"},
        prepare="python3 -m venv --without-pip --system-site-packages /opt/empty",
        refused=True,
    ),
    Fault(
        "no space for the arguments",
        "No space left",
        prepare="mkdir -p /etc/sglang/$name; cp -a /etc/sglang/$name /run/kept; "
        "mount -t tmpfs -o size=16k,mode=755 none /etc/sglang/$name; cp -a /run/kept/. /etc/sglang/$name; "
        "cat /dev/zero >/etc/sglang/$name/full 2>/dev/null",
        repair="umount /etc/sglang/$name; rm -r /run/kept",
        refused=True,
    ),
    Fault(
        "model path missing",
        "SGLang finds no model|no model",
        variables={"sglang_server_model_path": "/srv/models/nothing"},
        visible=ENDED,
    ),
    Fault(
        "config.json missing",
        "SGLang finds no model|no model",
        variables=SERVED_MODEL,
        prepare=SPOIL_MODEL + "rm config.json",
        visible=ENDED,
    ),
    Fault(
        "model that the service may not read",
        "SGLang finds no model|no model|cannot read",
        variables=SERVED_MODEL,
        prepare=SPOIL_MODEL + "chmod 700 .",
        visible=ENDED,
    ),
    Fault("shard missing", "lacks weights", WEIGHTS, SERVED_MODEL, prepare=SPOIL_MODEL + SHARDED, visible=ENDED),
    Fault(
        "shard truncated",
        "lacks weights",
        WEIGHTS,
        SERVED_MODEL,
        prepare=SPOIL_MODEL + "truncate -s 1000 model.safetensors",
        visible=ENDED,
    ),
    Fault("layer partition too short", "SGLANG_PP_LAYER_PARTITION", STAGES, partition("8"), visible=ENDED),
    Fault("layer partition of wrong sum", "SGLANG_PP_LAYER_PARTITION", STAGES, partition("3,4"), visible=ENDED),
    Fault(
        "unknown argument, not validated",
        "does not take an argument",
        {"max_running_requets": 16},
        {"sglang_server_validate": False},
        visible=ENDED,
    ),
    Fault(
        "engine without SGLang, not validated",
        "No module named|no SGLang",
        variables={"sglang_server_engine": "/opt/empty", "sglang_server_validate": False},
        prepare="python3 -m venv --without-pip --system-site-packages /opt/empty",
        visible=ENDED,
    ),
    Fault(
        "port taken while loading",
        "another process has the server's port",
        variables={"sglang_server_port": 30098},
        during="systemd-run --quiet --unit stranger python3 -m http.server 30098",
        repair="systemctl stop stranger",
    ),
    Fault(
        "smoke test fails",
        "Paris",
        variables={"sglang_server_smoke_test": {"prompt": "The capital of France is", "expect": "Paris"}},
        visible=READY,
    ),
    Fault(
        "scheduler killed while loading",
        "scheduler process died|killed",
        during=SCHEDULER + "kill -KILL $scheduler",
        visible=ENDED,
    ),
    Fault(
        "main process killed while loading",
        "killed by a signal",
        during="systemctl kill --kill-whom=main --signal=KILL $unit",
        visible=ENDED,
    ),
    Fault(
        "scheduler stopped (SIGSTOP)",
        "not ready in time|hangs",
        variables={"sglang_server_ready_timeout": 40},
        during=SCHEDULER + "kill -STOP $scheduler",
        after=40,
    ),
    Fault("stopped by a person", "stopped during the wait", during="systemctl stop $unit"),
    Fault("unit file removed", "no such unit", during="rm /etc/systemd/system/$unit.service; systemctl daemon-reload"),
)


@dataclass(frozen=True)
class Server:
    """A server on the test host."""

    name: str
    port: int

    @property
    def url(self) -> str:
        hosts = yaml.safe_load((CACHE / "hosts" / SET / "inventory.yml").read_text())["sglang"]["hosts"]
        return f"http://{hosts[HOST]['ansible_host']}:{self.port}"

    def shell(self, script: str) -> str:
        """Run shell on its host; what that printed."""
        return on_host(SET, HOST, f"name={self.name}; unit=sglang-{self.name}; {script}")

    def journal(self, since: float) -> list[tuple[float, str]]:
        """The lines of its unit, systemd's included, with their times in seconds since the epoch."""
        lines = []
        for line in self.shell(f"journalctl --unit $unit --since @{int(since)} --output=json --all").splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            at, text = int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6, entry.get("MESSAGE")
            if at >= since and isinstance(text, str):
                lines.append((at, text))
        return lines

    def state(self) -> dict[str, str]:
        """What systemd says of its unit, and what its files hold."""
        shown = self.shell("systemctl show -p ActiveState -p UnitFileState -p InvocationID $unit").splitlines()
        files = self.shell("sha256sum /etc/sglang/$name/server.yaml /etc/sglang/$name/environment $(systemctl show "
                           "--value --property=FragmentPath $unit)")  # fmt: skip
        return {**dict(line.split("=", 1) for line in shown if "=" in line), "files": files}

    def serves(self, expected: dict[str, Any]) -> str:
        """Empty when it completes and has these values, or else what it does."""
        with requests.Session() as session:
            session.trust_env = False
            try:
                body = {"model": "tiny", "prompt": "1 2 3", "max_tokens": 2, "ignore_eos": True}
                answer = session.post(f"{self.url}/v1/completions", json=body, timeout=30)
                generated = answer.json()["usage"]["completion_tokens"]
                info = session.get(f"{self.url}/server_info", timeout=30).json()
            except (requests.exceptions.RequestException, KeyError, ValueError) as error:
                return f"does not serve: {error}"
        found = {key: info.get(key) for key in expected}
        return "" if generated == 2 and found == expected else f"serves {found}, {generated} tokens"


@dataclass(frozen=True)
class Run:
    """A run of the playbook. Times in seconds since the epoch."""

    began: float
    failed: bool
    said: str
    output: str
    during_ended: float


def deploy(inventories: list[str], server: Server, fault: Fault | None, arguments: dict[str, Any]) -> Run:
    """Deploy it, with a fault or without."""
    variables = {
        **VARIABLES,
        "sglang_server_name": server.name,
        "sglang_server_port": server.port,
        "sglang_server_restart_delay": DELAYS[arguments["max_running_requests"]],
        "sglang_server_args": {**ARGUMENTS, **arguments, **(fault.arguments if fault else {})},
        **(fault.variables if fault else {}),
    }
    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory) / "record"
        record.touch()
        began, ended = time.time(), 0.0
        process = playbook(
            *inventories,
            "gpufleet.sglang.deploy",
            f"--extra-vars={json.dumps(variables)}",
            ANSIBLE_CALLBACK_PLUGINS=str(ROOT / "tests/support/callbacks"),
            ANSIBLE_CALLBACKS_ENABLED="record",
            RECORD_TO=str(record),
        )
        with ThreadPoolExecutor(1) as pool:
            output = pool.submit(lambda: process.communicate()[0])
            if fault and fault.during:
                before = server.shell("systemctl show --value --property=InvocationID $unit")
                if began_to_load(server, fault.when, before, began, lambda: process.poll() is not None):
                    server.shell(fault.during)
                    ended = time.time()
            text = output.result()
        ends = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    failures = [end["msg"] for end in ends if end["outcome"] == "failed"]
    return Run(began, process.returncode != 0, failures[-1] if failures else "", text, ended)


def began_to_load(server: Server, line: str, before: str, since: float, over: Callable[[], bool]) -> bool:
    """Wait until another start than the one ``before`` has written such a line."""
    while not over():
        now = server.shell("systemctl show --value --property=InvocationID $unit")
        if now.strip() and now != before:
            started = [at for at, text in server.journal(since) if text.startswith("Starting ")]
            if started and any(at > started[-1] and re.search(line, text) for at, text in server.journal(since)):
                return True
        time.sleep(0.5)
    return False


class Traffic:
    """A client that asks all the while."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._asked: Future[list[Outcome]]
        self.outcomes: list[Outcome] = []

    def __enter__(self) -> Traffic:
        self._asked = self._pool.submit(partial(ask, self._url, 1, self._over.is_set, timeout=10))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        time.sleep(1)  # what was brought back is asked, too
        self._over.set()
        self.outcomes = self._asked.result()
        self._pool.shutdown()

    @property
    def failed(self) -> int:
        return sum(not outcome.answered for outcome in self.outcomes)


def moments(journal: list[tuple[float, str]], pattern: str) -> list[float]:
    """When there were such lines."""
    return [at for at, text in journal if re.search(pattern, text)]


def stops(journal: list[tuple[float, str]]) -> list[float]:
    """How long each orderly stop took."""
    begun = moments(journal, r"^Stopping ")
    return [
        min([end for end in moments(journal, r"^(Stopped|\S+: Failed with)") if end > at], default=at) - at
        for at in begun
    ]


def floor(fault: Fault | None, run: Run, journal: list[tuple[float, str]]) -> float:
    """The time without service that a change cannot do without, or nan where the old server did not come back."""
    starts, ready = moments(journal, r"^Starting "), moments(journal, READY)
    if not starts or not ready or ready[-1] < starts[-1]:
        return math.nan
    seen = 0.0
    if fault:
        visible = moments([line for line in journal if line[0] > starts[0]], fault.visible) if fault.visible else []
        seen = max((visible[0] if visible else run.during_ended) - starts[0], fault.after)
    return sum(stops(journal)) + seen + ready[-1] - starts[-1]


@dataclass(frozen=True)
class Verdict:
    """What came of a fault."""

    fault: Fault
    told: bool
    rolled_back: str
    """Empty, or what was not as before."""
    lost: int
    outage: float
    floor: float
    first: str
    """Empty, or what the first deployment left."""
    said: str
    took: float


def good_change(inventories: list[str], server: Server) -> None:
    """What there is to compare with."""
    with Traffic(server.url) as traffic:
        run = deploy(inventories, server, None, NEW)
    if run.failed:
        raise SystemExit(run.output)
    outage, least = longest_gap(traffic.outcomes), floor(None, run, server.journal(run.began))
    print(f"  {'a good change':38} {outage:5.1f} s without service, floor {least:5.1f}", flush=True)


def change(inventories: list[str], server: Server, fault: Fault) -> tuple[Run, str, int, float, float]:
    """Try the fault on a server that works: the run, what is not as before, lost requests, outage and its floor."""
    server.shell(fault.prepare)
    before = server.state()
    with Traffic(server.url) as traffic:
        run = deploy(inventories, server, fault, NEW)
    problems = [] if run.failed else ["the run did not fail"]
    after = server.state()
    if after["files"] != before["files"]:
        problems.append("the files are others than before")
    if after["UnitFileState"] != "enabled":
        problems.append(f"the unit is {after['UnitFileState']}")
    if fault.refused and after["InvocationID"] != before["InvocationID"]:
        problems.append("it was restarted")
    problems += [serves] if (serves := server.serves(OLD)) else []
    problems += strangers(server)
    server.shell(fault.repair)
    least = 0.0 if fault.refused else floor(fault, run, server.journal(run.began))
    return run, "; ".join(problems), traffic.failed, longest_gap(traffic.outcomes), least


def strangers(server: Server) -> list[str]:
    """Processes of SGLang that belong to no start that is in force."""
    found = server.shell(
        "own=$(cat /sys/fs/cgroup/system.slice/sglang-*.service/cgroup.procs 2>/dev/null); "
        "for pid in $(pgrep -f 'sglang::|sglang.launch_server'); do "
        """echo "$own" | grep -qx $pid || tr '\\0' ' ' </proc/$pid/cmdline; done"""
    )
    return [f"left: {line}" for line in found.splitlines() if "pgrep" not in line]


def first(inventories: list[str], server: Server, fault: Fault) -> tuple[Run, str]:
    """Try the fault where nothing was before: the run, and what is left that runs or will."""
    server.shell(fault.prepare)
    run = deploy(inventories, server, fault, NEW)
    problems = [] if run.failed else ["the run did not fail"]
    state = server.state()
    if state["ActiveState"] != "inactive":
        problems.append(f"the unit is {state['ActiveState']}")
    if state["UnitFileState"] == "enabled":
        problems.append("the unit is enabled")
    problems += [
        f"left: {line}"
        for line in server.shell("pgrep -af config./etc/sglang/$name").splitlines()
        if "sh -c" not in line
    ]
    server.shell(
        f"{fault.repair}; systemctl disable --now $unit; rm -rf /etc/systemd/system/$unit.service* /etc/sglang/$name "
        "/var/lib/sglang/$name /var/cache/sglang/$name /var/lib/gpufleet-sglang/$name; systemctl daemon-reload"
    )
    return run, "; ".join(problems)


def restore(inventories: list[str], server: Server) -> None:
    """Have the server as each fault finds it."""
    run = deploy(inventories, server, None, OLD)
    if run.failed:
        raise SystemExit(run.output)


def attempt(inventories: list[str], fault: Fault, servers: tuple[Server, Server]) -> Verdict:
    """Try a fault on both servers."""
    began = time.monotonic()
    run, rolled_back, lost, outage, least = change(inventories, servers[0], fault)
    if rolled_back:
        restore(inventories, servers[0])
    fresh, left = first(inventories, servers[1], fault)
    told = bool(re.search(fault.said, run.said)) and bool(re.search(fault.said, fresh.said))
    said = run.said if not re.search(fault.said, run.said) else fresh.said if not told else run.said
    return Verdict(fault, told, rolled_back, lost, outage, least, left, said, time.monotonic() - began)


def row(verdict: Verdict) -> str:
    """A line of the table."""
    fault = verdict.fault
    marks = {
        "cause not told": not verdict.told,
        verdict.rolled_back: bool(verdict.rolled_back),
        f"first deployment: {verdict.first}": bool(verdict.first),
    }
    wrong = "; ".join(text for text, holds in marks.items() if holds)
    outage = (
        f"{verdict.lost:4} lost"
        if fault.refused
        else f"{verdict.outage:5.1f} s without service, floor {verdict.floor:5.1f}"
    )
    return f"{'!' if wrong else ' '} {fault.name:38} {outage:42} {wrong}"


def main() -> None:
    """All faults, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 when something was not as it should be")
    parser.add_argument("words", nargs="*", help="only faults with one of these in their names")
    wanted = parser.parse_args()
    faults = [fault for fault in FAULTS if not wanted.words or any(word in fault.name for word in wanted.words)]
    inventories = host_is_up(SET, HOST)
    servers = (Server("demo", 30000), Server("first", 30001))
    restore(inventories, servers[0])
    good_change(inventories, servers[0])
    restore(inventories, servers[0])
    verdicts = []
    for fault in faults:
        verdict = attempt(inventories, fault, servers)
        verdicts.append(verdict)
        print(f"{row(verdict)} ({verdict.took:.0f} s)\n      {verdict.said}", flush=True)
    refused = [verdict for verdict in verdicts if verdict.fault.refused]
    stopped = [verdict for verdict in verdicts if not verdict.fault.refused and verdict.floor > 0]
    tell(
        faults=len(verdicts),
        not_rolled_back=sum(bool(verdict.rolled_back) for verdict in verdicts),
        left_of_first_deployment=sum(bool(verdict.first) for verdict in verdicts),
        cause_not_told=sum(not verdict.told for verdict in verdicts),
        lost_requests_on_refused_change=sum(verdict.lost for verdict in refused),
        outage_over_floor_ratio=max((verdict.outage / verdict.floor for verdict in stopped), default=0.0),
    )
    wrong = any(verdict.rolled_back or verdict.first or not verdict.told for verdict in verdicts)
    if wanted.check and (wrong or any(verdict.lost for verdict in refused)):
        sys.exit(1)


if __name__ == "__main__":
    main()
