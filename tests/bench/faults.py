# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Servers that are broken on purpose: what server_ready says of each, how late, and what a shell loop would have said.

Real faults are of real SGLang on a test host; the others are of a stand-in on the same host. The loop polls every 15 s,
60 times at most: failed where ``systemctl is-active`` says so, ready where ``/v1/models`` has an id.
With words on the command line, only the faults with these in their names are tried.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.sglang.tests.bench.fleet import CACHE, DEMO, ROOT, playbook, run, tell

TESTHOSTS = ROOT / "tests/support/testhosts"
INVENTORY = f"--inventory={CACHE}/hosts/faults/inventory.yml"
HOST_FILES = {
    "/root/faults.sh": ROOT / "tests/bench/faults.sh",
    "/root/standin.py": ROOT / "tests/support/standin/standin.py",
}
LOOP_INTERVAL, LOOP_POLLS = 15.0, 60
PORT_OPEN = "Uvicorn running"
ENDED = "Main process exited"


@dataclass(frozen=True)
class Fault:
    """A fault, and what must come out: a cause, or ``ready``.

    ``prepare`` and ``during`` are shell on the host; ``during`` runs once the journal has a line like ``when``. The
    fault can be seen from the first line like ``visible`` on, or else from the end of the last of the two, or
    ``after`` seconds later. ``waits`` playbooks wait for it at once.
    """

    name: str
    expected: str
    prepare: str
    options: dict[str, Any] = field(default_factory=dict)
    when: str = ""
    during: str = ""
    visible: str = ""
    after: float = 0.0
    waits: int = 1


def played(*steps: Any, **script: Any) -> str:
    """The words of a stand-in on the unit's port that goes through these steps."""
    return "'" + json.dumps({"port": 30100, "steps": list(steps), **script}).replace("'", "'\\''") + "'"


def bad(answer: dict[str, Any]) -> str:
    """A stand-in whose /v1/models answers like that."""
    return f"standin {played('listen', 'ready', answers={'/v1/models': answer})}"


IDLE = played("listen", "ready")
DEAD_END = {"timeout": 8}
REBOOT = "reboot"
"""In place of shell: the host itself cannot bring itself back."""
REDIRECT = {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}
TRUSTED = {"ca_path": "/root/certificate.pem"}

REAL = (
    Fault("good start", "ready", "real"),
    Fault("unknown argument", "bad_argument", "real 'max-running-requets: 16'", visible=ENDED),
    Fault("argument that was removed", "bad_argument", "real 'cuda-graph-max-bs: 4'", visible=ENDED),
    Fault(
        "server.yaml not readable", "config_unreadable", "real; chmod 600 /etc/sglang/fault/server.yaml", visible=ENDED
    ),
    Fault("argument of a newer release", "bad_argument", "real 'pp-stage-of-tomorrow: 4'", visible=ENDED),
    Fault("model path missing", "model_not_found", "real 'model-path: \"/srv/models/nothing\"'", visible=ENDED),
    Fault(
        "config.json missing",
        "model_not_found",
        "model /srv/m; rm /srv/m/config.json; real 'model-path: \"/srv/m\"'",
        visible=ENDED,
    ),
    Fault(
        "shard missing",
        "model_incomplete",
        "model /srv/m; cd /srv/m; mv model.safetensors model-00001-of-00002.safetensors; "
        """echo '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}' """
        ">model.safetensors.index.json; real 'model-path: \"/srv/m\"' 'load-format: \"auto\"' 'pp-size: 1'",
        visible=ENDED,
    ),
    Fault(
        "shard truncated",
        "model_incomplete",
        "model /srv/m; truncate -s 1000 /srv/m/model.safetensors; "
        "real 'model-path: \"/srv/m\"' 'load-format: \"auto\"' 'pp-size: 1'",
        visible=ENDED,
    ),
    Fault("layer partition too short", "bad_layer_partition", "partition 8", visible=ENDED),
    Fault("layer partition of wrong sum", "bad_layer_partition", "partition 3,4", visible=ENDED),
    Fault(
        "port taken, another id", "foreign_listener", f"stranger {played('listen', 'ready', models=['other'])}; real"
    ),
    Fault("port taken, the same id", "foreign_listener", f"stranger {IDLE}; real"),
    Fault(
        "scheduler killed while loading",
        "scheduler_died",
        "real",
        when="Init parallel begin",
        during="kill -KILL $(process sglang::scheduler)",
        visible=ENDED,
    ),
    Fault(
        "main process killed while loading",
        "killed",
        "real",
        when="Init parallel begin",
        during="systemctl kill --kill-whom=main --signal=KILL $unit",
        visible=ENDED,
    ),
    Fault(
        "stopped by a person", "stopped_by_someone", "real", when="Init parallel begin", during="systemctl stop $unit"
    ),
    Fault(
        "unit file removed",
        "unit_missing",
        "real",
        when="Init parallel begin",
        during="rm $file; systemctl daemon-reload",
    ),
    Fault(
        "crash loop, Restart=on-failure",
        "bad_argument",
        "real 'max-running-requets: 16'; sed -i -e /RestartPrevent/d -e s/^RestartSec=.*/RestartSec=5/ $file; start",
        visible=ENDED,
    ),
    Fault(
        "crash loop, Restart=always",
        "bad_argument",
        "real 'max-running-requets: 16'; sed -i -e /RestartPrevent/d -e s/^Restart=.*/Restart=always/ $file; start",
        visible=ENDED,
    ),
    Fault("API key given", "ready", "real 'api-key: \"the key\"'"),
    Fault("API key wrong", "unauthorized", ":", {"api_key": "another"}),
    Fault("API key rotated in the file only", "unauthorized", "sed -i s/the.key/new/ /etc/sglang/fault/server.yaml"),
    Fault("API key missing", "unauthorized", "sed -i /^api-key/d /etc/sglang/fault/server.yaml"),
    Fault(
        "served name differs",
        "wrong_model",
        "echo 'api-key: \"the key\"' >>/etc/sglang/fault/server.yaml",
        {"models": ["kimi"]},
    ),
    Fault("one of two models", "wrong_model", ":", {"models": ["tiny", "kimi"]}),
    Fault("two waits at once", "ready", ":", waits=2),
    Fault(
        "scheduler stopped (SIGSTOP)",
        "stalled",
        "kill -STOP $(process sglang::scheduler_PP1)",
        {"stall_timeout": 40},
        after=40,
    ),
    Fault(
        "scheduler killed after ready",
        "scheduler_died",
        "kill -CONT $(process sglang::scheduler_PP1); kill -KILL $(process sglang::scheduler_PP1)",
        visible=ENDED,
    ),
    Fault(
        "connection lost for 60 s",
        "ready",
        "real",
        {"request_timeout": 5},
        when="Init parallel begin",
        during="systemd-run --quiet --on-active=60 systemctl start ssh; systemctl stop ssh; pkill -x sshd || true",
    ),
    Fault("host rebooted", "ready", "real; systemctl enable --quiet $unit", when="Init parallel begin", during=REBOOT),
)

STANDIN = (
    Fault("unit missing", "unit_missing", ":"),
    Fault(
        "unit masked", "unit_masked", f"standin {IDLE}; systemctl stop $unit; rm $file; systemctl mask --quiet $unit"
    ),
    Fault("unit not started", "unit_inactive", f"standin {IDLE}; systemctl stop $unit"),
    Fault(
        "program missing",
        "exec_failed",
        f"standin {IDLE} ExecStart= ExecStart=/opt/none",
        visible=ENDED,
    ),
    Fault("user missing", "exec_failed", f"standin {IDLE} User=nobody-of-that-name", visible=ENDED),
    Fault(
        "silent crash loop, Restart=on-failure",
        "crash_loop",
        f"standin {played({'exit': 1})} Restart=on-failure RestartSec=5; sleep 8",
    ),
    Fault(
        "silent crash loop, Restart=always, status 0",
        "crash_loop",
        f"standin {played({'exit': 0})} Restart=always RestartSec=5; sleep 8",
    ),
    Fault("start limit hit", "crash_loop", f"standin {played({'exit': 1})} Restart=always RestartSec=0.1; sleep 3"),
    Fault(
        "old process still answers",
        "foreign_listener",
        f"stranger {IDLE}; standin {played({'load': {'seconds': 60}}, 'listen', 'ready')}",
    ),
    Fault(
        "process of an earlier start still answers",
        "foreign_listener",
        f"standin {IDLE} KillMode=process ExecStart= "
        f"'ExecStart=/bin/sh -c \"/usr/bin/python3 /root/standin.py /root/script.json & sleep 600\"'; sleep 2; "
        "systemctl restart $unit",
    ),
    Fault(
        "warm-up never ends", "stalled", f"standin {played('listen')}", {"stall_timeout": 8}, visible=PORT_OPEN, after=8
    ),
    Fault(
        "warm-up fails",
        "warmup_failed",
        "standin "
        + played(
            "listen",
            {
                "log": [
                    "[{now}] Initialization failed. warmup error: Traceback (most recent call last):",
                    "  File x",
                    "RuntimeError: no such luck",
                ]
            },
            {"kill": "KILL"},
        ),
        visible=ENDED,
    ),
    Fault(
        "out of memory in the warm-up",
        "gpu_out_of_memory_at_runtime",
        "standin "
        + played(
            {"load": {"ranks": 2}},
            "listen",
            {
                "log": [
                    "[{now} PP1] Scheduler hit an exception: Traceback (most recent call last):",
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB.",
                    "[{now}] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
                ]
            },
            {"kill": "KILL"},
        ),
        visible=ENDED,
    ),
    Fault(
        "slow load that moves",
        "ready",
        f"standin {played({'load': {'seconds': 25}}, 'listen', 'ready')}",
        {"stall_timeout": 8},
    ),
    Fault(
        "load that stops moving",
        "stalled",
        "standin " + played({"log": "[{now} PP0] Load weight begin. avail mem=9 GB"}, "hang"),
        {"stall_timeout": 8},
        visible="Load weight begin",
        after=8,
    ),
    Fault(
        "journal flood",
        "ready",
        "standin " + played({"flood": {"seconds": 6, "lines_per_second": 10000}}, "listen", {"wait": 2}, "ready"),
        visible="rate limits of the journal leave no such line",
        after=8,
    ),
    Fault(
        "binary and coloured lines",
        "ready",
        "standin "
        + played(
            {"load": {"ranks": 8, "shards": 20}},
            {"log": ["\u001b[31mred\u001b[0m", "\u0001\u0002 \u00e4"]},
            "listen",
            "ready",
        )
        + " Environment=LC_ALL=de_DE.UTF-8",
    ),
    Fault("slow answers", "ready", bad({"delay": 3, "body": {"data": [{"id": "tiny"}]}}), after=3),
    Fault("answers too slow", "timeout", bad({"delay": 30}), DEAD_END, after=8),
    Fault("answers that drip", "timeout", bad({"drip": 0.5, "body": "x" * 100}), DEAD_END, after=8),
    Fault("answers cut short", "bad_answer", bad({"body": "{", "size": 100, "cut": 1}), DEAD_END, after=8),
    Fault("not JSON", "bad_answer", bad({"body": "it works"}), DEAD_END, after=8),
    Fault("an answer of 1 GB", "bad_answer", bad({"body": "x" * 1000, "size": 1 << 30}), DEAD_END, after=8),
    Fault("HTML of a proxy", "bad_answer", bad({"body": "<html>Bad gateway</html>"}), DEAD_END, after=8),
    Fault("redirect elsewhere", "bad_answer", bad(REDIRECT), DEAD_END, after=8),
    Fault("TLS, self-signed", "certificate_refused", "certificate IP:127.0.0.1 2; tls", visible=PORT_OPEN),
    Fault("TLS, its authority given", "ready", "certificate IP:127.0.0.1 2; tls", TRUSTED),
    Fault("TLS, wrong name", "certificate_refused", "certificate DNS:elsewhere 2; tls", TRUSTED, visible=PORT_OPEN),
    Fault("TLS, expired", "certificate_refused", "expired; tls", TRUSTED, visible=PORT_OPEN),
    Fault(
        "only a LoRA adapter has the name",
        "wrong_model",
        f"standin {played('listen', 'ready', models=['base', {'id': 'tiny', 'parent': 'base'}])}",
        visible=PORT_OPEN,
    ),
    Fault("two models", "ready", f"standin {played('listen', 'ready', models=['other', 'tiny'])}"),
    Fault(
        "schedulers hang, models are listed",
        "stalled",
        f"standin {played('listen', {'become': 'hung'})}",
        {"stall_timeout": 8},
        visible=PORT_OPEN,
        after=8,
    ),
    Fault("no tokens", "generation_failed", f"standin {played('listen', 'ready', completion='')}", visible=PORT_OPEN),
    Fault("a release without /ready", "ready", f"standin {played('listen', {'wait': 3}, 'ready', release='0.5.9')}"),
)


def on_host(script: str) -> str:
    """Run shell on the test host; its output."""
    words = [str(TESTHOSTS), "exec", "--set", "faults", "gpu-f", "--", "sh", "-c", f". /root/faults.sh; {script}"]
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


def restart_host() -> str:
    """Reboot the test host."""
    words = [str(TESTHOSTS), "reboot", "--set", "faults", "gpu-f"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr


def host_is_up() -> None:
    """A host with the demo's server, stopped, and what the faults are made with."""
    subprocess.run([TESTHOSTS, "prepare", "--wheels"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([TESTHOSTS, "up", "--set", "faults", "gpu-f"], check=True, stdout=subprocess.DEVNULL)
    if "No such" in on_host("ls /etc/systemd/system/sglang-demo.service"):
        run(INVENTORY, f"--inventory={DEMO}", "gpufleet.sglang.deploy")
    for path, source in HOST_FILES.items():
        content = base64.b64encode(source.read_bytes()).decode()
        words = [
            str(TESTHOSTS),
            "exec",
            "--set",
            "faults",
            "gpu-f",
            "--",
            "sh",
            "-c",
            f"echo {content} | base64 -d >{path}",
        ]
        subprocess.run(words, check=True)
    on_host("systemctl stop sglang-demo; clean")


def first_line(pattern: str, since: float) -> float | None:
    """When the unit's journal first had a line like that, in seconds since the epoch."""
    for line in on_host(f"journalctl --unit $unit --since @{since:.0f} --output=json --all").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        message, at = entry.get("MESSAGE"), int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6
        if at >= since and isinstance(message, str) and re.search(pattern, message):
            return at
    return None


class Loop(threading.Thread):
    """The shell loop beside ours: it looks at once, and every 15 s until it has a verdict or is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.began = time.time()
        self.said, self.at = "", 0.0
        self.over = threading.Event()

    def run(self) -> None:
        polls = 0
        while not self.said and not self.over.wait(max(0.0, self.began + polls * LOOP_INTERVAL - time.time())):
            self.look(self.began + polls * LOOP_INTERVAL)
            polls += 1

    def look(self, at: float) -> None:
        said = on_host("loop").strip()
        if said in ("FAILED", "READY") and not self.said:
            self.said, self.at = said, max(at, time.time())

    def conclude(self) -> None:
        """Nothing changes any more: what it would say at its next look is what it would say now."""
        self.over.set()
        self.join()
        if not self.said:
            passed = time.time() - self.began
            self.look(self.began + math.ceil(passed / LOOP_INTERVAL) * LOOP_INTERVAL)
        if not self.said:
            self.said, self.at = "TIMEOUT", self.began + LOOP_POLLS * LOOP_INTERVAL


@dataclass(frozen=True)
class Outcome:
    """What came out. Times in seconds; ``late`` is from when it could be seen, and was asked for."""

    fault: Fault
    said: str
    late: float
    loop_said: str
    loop_late: float
    summary: str
    left: str

    @property
    def right(self) -> bool:
        return self.said == self.fault.expected

    @property
    def false_ready(self) -> bool:
        return self.said == "ready" and self.fault.expected != "ready"

    @property
    def loop_false_ready(self) -> bool:
        return self.loop_said == "READY" and self.fault.expected != "ready"


def attempt(fault: Fault, keep: bool) -> Outcome:
    """Break the server, wait for it, and see."""
    began = time.time()
    trouble = on_host(fault.prepare)
    prepared = time.time()
    loop = Loop()
    loop.start()
    with tempfile.TemporaryDirectory() as directory:
        options = json.dumps({"ready_options": {"name": "fault", "timeout": 300, **fault.options}})
        outputs = [Path(directory) / f"{number}.json" for number in range(fault.waits)]
        play = str(ROOT / "tests/bench/faults.yml")
        waits = [playbook(INVENTORY, play, "-e", f"output={output}", "-e", options) for output in outputs]
        if fault.during:
            while first_line(fault.when, began) is None and waits[0].poll() is None:
                time.sleep(0.5)
            trouble += on_host(fault.during) if fault.during != REBOOT else restart_host()
            prepared = time.time()
        texts = [wait.communicate()[0] for wait in waits]
        if not all(output.exists() for output in outputs):
            return Outcome(
                fault, "no outcome", math.inf, loop.said, math.inf, trouble + texts[0][-600:], on_host("clean")
            )
        contents = [json.loads(output.read_text(encoding="utf-8")) for output in outputs]
    loop.conclude()
    # Of several waits, one that went wrong counts.
    content = next((content for content in contents if said_of(content) != fault.expected), contents[0])
    pattern = fault.visible or ("fired up" if fault.expected == "ready" else "")
    visible = ((first_line(pattern, began) if pattern else None) or prepared) + fault.after
    return Outcome(
        fault,
        said_of(content),
        # Nobody can tell before being asked.
        content["returned"] - max(visible, content["began"] + fault.after),
        loop.said,
        loop.at - max(visible, loop.began),
        content["ready"].get("failure", {}).get("summary", ""),
        "" if keep else on_host("clean").strip(),
    )


def said_of(content: dict[str, Any]) -> str:
    """What a wait came to: ready, or a cause."""
    ready = content["ready"]
    return "ready" if ready.get("ready") else str(ready.get("failure", {}).get("cause", ready.get("msg", "?")))


def main() -> None:
    """All faults, one after another."""
    wanted = sys.argv[1:]
    faults = [fault for fault in (*STANDIN, *REAL) if not wanted or any(word in fault.name for word in wanted)]
    host_is_up()
    outcomes = []
    for number, fault in enumerate(faults):
        following = faults[number + 1] if number + 1 < len(faults) else None
        # A fault of a server that runs already is made with the one before it.
        keep = (
            following is not None and following in REAL and not re.search(r"\breal\b|\bpartition\b", following.prepare)
        )
        outcome = attempt(fault, keep)
        outcomes.append(outcome)
        mark, left = " " if outcome.right else "!", outcome.left and f"   LEFT {outcome.left}"
        print(
            f"{mark} {fault.name:44} {outcome.said:28} {outcome.late:6.1f} s"
            f"   loop: {outcome.loop_said:8} {outcome.loop_late:6.1f} s{left}",
            flush=True,
        )
        if os.environ.get("VERBOSE") or not outcome.right:
            print(f"      expected {fault.expected}; {outcome.summary}", flush=True)
    broken = [outcome for outcome in outcomes if outcome.fault.expected != "ready"]
    tell(
        faults=len(broken),
        good=len(outcomes) - len(broken),
        false_ready=sum(outcome.false_ready for outcome in outcomes),
        wrong_cause=sum(not outcome.right for outcome in outcomes),
        late_max_s=max(outcome.late for outcome in broken),
        left_behind=sum(bool(outcome.left) for outcome in outcomes),
        loop_false_ready=sum(outcome.loop_false_ready for outcome in outcomes),
        loop_late_max_s=max(outcome.loop_late for outcome in broken if not outcome.loop_false_ready),
    )


if __name__ == "__main__":
    main()
