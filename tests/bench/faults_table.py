# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The faults that faults.py tries, and what has to come out. Data; the shell that they call is in faults.sh."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

PORT_OPEN = "Uvicorn running"
FIRED_UP = "fired up"
ENDED = "Main process exited"
LOADING = "Load weight begin"
RANKS_BEGIN = "Init parallel begin"


@dataclass(frozen=True)
class Fault:
    """A fault, and what must come out: a cause, with ``evidence`` like that (a regular expression), or ``ready``.

    ``prepare`` and ``during`` are shell on the host; ``during`` runs once the journal has a line like ``when``. The
    fault can be seen from the first line like ``visible`` on, where that is empty from the end of the last of the two,
    or ``after`` seconds later; a good start, unless it says otherwise, from SGLang's own word on. ``waits`` playbooks
    wait for it at once. One that ``follows`` is done to the server that the fault before it has left. It is tried where
    the shell ``needs`` succeeds.
    """

    name: str
    expected: str
    prepare: str
    options: dict[str, Any] = field(default_factory=dict)
    when: str = ""
    during: str = ""
    visible: str | None = None
    after: float = 0.0
    waits: int = 1
    follows: bool = False
    needs: str = ""
    evidence: str = ""

    @property
    def seen_by(self) -> str:
        """The line from which on it can be seen; empty for the end of what is done to the server."""
        if self.visible is not None:
            return self.visible
        return FIRED_UP if self.expected == "ready" else ""


def played(*steps: Any, **script: Any) -> str:
    """The words of a stand-in on the unit's port that goes through these steps."""
    return "'" + json.dumps({"port": 30100, "steps": list(steps), **script}).replace("'", "'\\''") + "'"


def bad(answer: dict[str, Any]) -> str:
    """A stand-in whose /v1/models answers like that."""
    return f"standin {played('listen', 'ready', answers={'/v1/models': answer})}"


def dying(last_words: str) -> str:
    """The words of a stand-in that dies some seconds after it has begun to load."""
    return played({"load": {"seconds": 0.1}}, {"wait": 4}, {"log": last_words}, {"kill": "KILL"})


IDLE = played("listen", "ready")
NCCL_ERROR = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited"
CHILD_DIED = "[{now}] Received sigquit from a child process. It usually means the child failed."
XID = "NVRM: Xid (PCI:0000:41:00): 79, pid=3997, name=sglang::schedul, GPU has fallen off the bus."
OUT_OF_MEMORY = (
    "Out of memory: Killed process 3997 (sglang::schedul) total-vm:91234567kB, anon-rss:64234567kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:998 pgtables:131072kB oom_score_adj:0"
)
PATIENCE = 5
"""Seconds of the timeouts of the stand-in's faults."""
DEAD_END = {"timeout": PATIENCE}
IMPATIENT = {"stall_timeout": PATIENCE}
REBOOT = "reboot"
"""In place of shell: the host itself cannot bring itself back."""
REDIRECT = {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}
TRUSTED = {"ca_path": "/srv/faults/certificate.pem"}

WAITING = played({"wait": 50}, "listen", "ready")
LOOPING = "real 'max-running-requets: 16' RestartPreventExitStatus= RestartSec=5"

REAL = (
    Fault("good start", "ready", "real"),
    Fault(
        "unknown argument",
        "bad_argument",
        "real 'max-running-requets: 16'",
        visible=ENDED,
        evidence="max-running-requets",
    ),
    Fault(
        "argument that was removed",
        "bad_argument",
        "real 'cuda-graph-max-bs: 4'",
        visible=ENDED,
        evidence="cuda-graph-max-bs",
    ),
    Fault(
        "server.yaml not readable",
        "config_unreadable",
        "real; chmod 600 /etc/sglang/fault/server.yaml",
        visible=ENDED,
        evidence="Permission denied.*server.yaml",
    ),
    Fault(
        "argument of a newer release",
        "bad_argument",
        "real 'pp-stage-of-tomorrow: 4'",
        visible=ENDED,
        evidence="pp-stage-of-tomorrow",
    ),
    Fault(
        "model path missing",
        "model_not_found",
        "real 'model-path: \"/srv/models/nothing\"'",
        visible=ENDED,
        evidence="/srv/models/nothing",
    ),
    Fault(
        "config.json missing",
        "model_not_found",
        "model /srv/m; rm /srv/m/config.json; real 'model-path: \"/srv/m\"'",
        visible=ENDED,
        evidence="/srv/m",
    ),
    Fault(
        "shard missing",
        "model_incomplete",
        "model /srv/m; cd /srv/m; mv model.safetensors model-00001-of-00002.safetensors; "
        """echo '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}' """
        ">model.safetensors.index.json; real 'model-path: \"/srv/m\"' 'load-format: \"auto\"' 'pp-size: 1'",
        visible=ENDED,
        evidence="model-0000",
    ),
    Fault(
        "shard truncated",
        "model_incomplete",
        "model /srv/m; truncate -s 1000 /srv/m/model.safetensors; "
        "real 'model-path: \"/srv/m\"' 'load-format: \"auto\"' 'pp-size: 1'",
        visible=ENDED,
        evidence="incomplete metadata|Safetensor",
    ),
    Fault("layer partition too short", "bad_layer_partition", "partition 8", visible=ENDED, evidence="PARTITION"),
    Fault("layer partition of wrong sum", "bad_layer_partition", "partition 3,4", visible=ENDED, evidence="PARTITION"),
    Fault(
        "port taken, another id",
        "foreign_listener",
        f"stranger {played('listen', 'ready', models=['other'])}; real",
        evidence="process .*standin",
    ),
    Fault("port taken, the same id", "foreign_listener", f"stranger {IDLE}; real", evidence="process .*standin"),
    Fault(
        "scheduler killed while loading",
        "scheduler_died",
        "real",
        during="kill -KILL $(process sglang::scheduler_PP1)",
        visible=ENDED,
        evidence="exit code: -9",
    ),
    Fault(
        "main process killed while loading",
        "killed",
        "real",
        when=RANKS_BEGIN,
        during="systemctl kill --kill-whom=main --signal=KILL $unit",
        visible=ENDED,
        evidence="signal 9|status=9/KILL",
    ),
    Fault(
        "stopped by a person",
        "stopped_by_someone",
        "real",
        when=RANKS_BEGIN,
        during="systemctl stop $unit",
        evidence="sglang-fault",
    ),
    Fault(
        "unit file removed",
        "unit_missing",
        "real",
        when=RANKS_BEGIN,
        during="rm $file; systemctl daemon-reload",
        evidence="sglang-fault",
    ),
    Fault(
        "crash loop, Restart=on-failure",
        "bad_argument",
        f"{LOOPING} Restart=on-failure",
        visible=ENDED,
        evidence="max-running-requets",
    ),
    Fault(
        "crash loop, Restart=always",
        "bad_argument",
        f"{LOOPING} Restart=always",
        visible=ENDED,
        evidence="max-running-requets",
    ),
    Fault(
        "crash loop that has hit the start limit",
        "bad_argument",
        f"{LOOPING} Restart=always; until systemctl is-failed --quiet $unit; do sleep 1; done",
        evidence="max-running-requets",
    ),
    Fault(
        "another language",
        "model_not_found",
        "real 'model-path: \"/srv/models/nothing\"' 'Environment=LC_ALL=de_DE.UTF-8 LANGUAGE=de'",
        visible=ENDED,
        evidence="/srv/models/nothing",
    ),
    Fault(
        "more than the unit's memory",
        "host_out_of_memory",
        "real MemoryMax=400M MemorySwapMax=0",
        visible=ENDED,
        needs="grep -qw memory /sys/fs/cgroup/cgroup.controllers",
        evidence="oom|memory",
    ),
    Fault("API key given", "ready", "real 'api-key: \"the key\"'"),
    Fault("API key wrong", "unauthorized", ":", {"api_key": "another"}, follows=True, evidence="401"),
    Fault(
        "API key rotated in the file only",
        "unauthorized",
        "sed -i s/the.key/new/ /etc/sglang/fault/server.yaml",
        follows=True,
        evidence="401",
    ),
    Fault(
        "API key missing",
        "unauthorized",
        "sed -i /^api-key/d /etc/sglang/fault/server.yaml",
        follows=True,
        evidence="401",
    ),
    Fault(
        "served name differs",
        "wrong_model",
        "echo 'api-key: \"the key\"' >>/etc/sglang/fault/server.yaml",
        {"models": ["kimi"]},
        follows=True,
        evidence="expected 'kimi', /v1/models lists 'tiny'",
    ),
    Fault(
        "one of two models",
        "wrong_model",
        ":",
        {"models": ["tiny", "kimi"]},
        follows=True,
        evidence="expected 'kimi', /v1/models lists 'tiny'",
    ),
    Fault("two waits at once", "ready", ":", waits=2, follows=True),
    Fault(
        "scheduler stopped (SIGSTOP)",
        "stalled",
        "kill -STOP $(process sglang::scheduler_PP1)",
        {"stall_timeout": 40},
        after=40,
        follows=True,
        evidence="no sign of life for 4[012] s",
    ),
    Fault(
        "scheduler killed after ready",
        "scheduler_died",
        "kill -CONT $(process sglang::scheduler_PP1); kill -KILL $(process sglang::scheduler_PP1)",
        visible=ENDED,
        follows=True,
        evidence="scheduler",
    ),
    Fault(
        "connection lost for 60 s",
        "ready",
        "real",
        {"request_timeout": 5},
        when=RANKS_BEGIN,
        during="systemd-run --quiet --on-active=60 --timer-property=AccuracySec=0.1 systemctl start ssh; "
        "systemctl stop ssh; pkill -x sshd || true",
        visible="",
        after=60,
    ),
    Fault("host rebooted", "ready", "real; systemctl enable --quiet $unit", when=RANKS_BEGIN, during=REBOOT),
)

STANDIN = (
    Fault("unit missing", "unit_missing", ":", evidence="sglang-fault"),
    Fault(
        "unit masked",
        "unit_masked",
        f"standin {IDLE}; systemctl stop $unit; rm $file; systemctl mask --quiet $unit",
        evidence="sglang-fault",
    ),
    Fault("unit not started", "unit_inactive", f"standin {IDLE}; systemctl stop $unit", evidence="sglang-fault"),
    Fault(
        "program missing",
        "exec_failed",
        f"standin {IDLE} ExecStart= ExecStart=/opt/none",
        visible=ENDED,
        evidence="/opt/none",
    ),
    Fault(
        "user missing",
        "exec_failed",
        f"standin {IDLE} User=nobody-of-that-name",
        visible=ENDED,
        evidence="status=217/USER",
    ),
    Fault(
        "silent crash loop, Restart=on-failure",
        "crash_loop",
        f"standin {played({'exit': 1})} Restart=on-failure RestartSec=3; sleep 5",
        evidence=r"started \d times",
    ),
    Fault(
        "silent crash loop, Restart=always, status 0",
        "crash_loop",
        f"standin {played({'exit': 0})} Restart=always RestartSec=3; sleep 5",
        evidence=r"started \d times",
    ),
    Fault(
        "start limit hit",
        "crash_loop",
        f"standin {played({'exit': 1})} Restart=always RestartSec=0.1; sleep 3",
        evidence="start request repeated too quickly|Start request repeated",
    ),
    Fault(
        "old process still answers",
        "foreign_listener",
        f"stranger {IDLE}; standin {played({'load': {'seconds': 60}}, 'listen', 'ready')}",
        evidence="process .*standin",
    ),
    Fault(
        "process of an earlier start still answers",
        "foreign_listener",
        f"standin {IDLE} KillMode=process ExecStart= "
        "'ExecStart=/bin/sh -c \"/usr/bin/python3 /srv/faults/standin.py /srv/faults/script.json & sleep 600\"'; "
        "sleep 2; systemctl restart $unit",
        evidence="left over by an earlier start",
    ),
    Fault(
        "stopped by a person, and it kills itself",
        "stopped_by_someone",
        f"standin {played({'load': {'seconds': 6}}, 'listen', release='0.5.9')}",
        when=PORT_OPEN,
        during="systemctl stop $unit",
        evidence="sglang-fault",
    ),
    Fault(
        "restarted by a person, and it kills itself",
        "ready",
        f"standin {played({'load': {'seconds': 6}}, 'listen', {'wait': 8}, 'ready', release='0.5.9')}",
        when=PORT_OPEN,
        during="systemctl restart $unit",
    ),
    Fault(
        "warm-up never ends",
        "stalled",
        f"standin {played('listen')}",
        IMPATIENT,
        visible=PORT_OPEN,
        after=PATIENCE,
        evidence="warming up, and no sign of life for",
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
        evidence="no such luck",
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
        evidence="Tried to allocate 448.00 MiB",
    ),
    Fault(
        "GPU falls off the bus while loading",
        "xid",
        f"standin {dying(NCCL_ERROR)}",
        when=LOADING,
        during=f"kernel '{XID}'",
        visible=ENDED,
        evidence="Xid .*79",
    ),
    Fault(
        "GPU falls off the bus, and the server hangs",
        "xid",
        "standin " + played({"load": {"seconds": 0.1}}, "hang"),
        IMPATIENT,
        when=LOADING,
        during=f"kernel '{XID}'",
        visible=LOADING,
        after=PATIENCE,
        evidence="Xid .*79",
    ),
    Fault(
        "the kernel kills a scheduler for memory",
        "host_out_of_memory",
        f"standin {dying(CHILD_DIED)}",
        when=LOADING,
        during=f"kernel '{OUT_OF_MEMORY}'",
        visible=ENDED,
        evidence="Killed process 3997",
    ),
    Fault(
        "the kernel kills a process of others for memory",
        "scheduler_died",
        f"standin {dying(CHILD_DIED)}",
        when=LOADING,
        during="kernel 'Out of memory: Killed process 812 (postgres) total-vm:9200kB, anon-rss:9000kB'",
        visible=ENDED,
        evidence="sigquit from a child",
    ),
    Fault(
        "slow load that moves",
        "ready",
        f"standin {played({'load': {'seconds': 12}}, 'listen', 'ready')}",
        IMPATIENT,
    ),
    Fault(
        "load that stops moving",
        "stalled",
        "standin " + played({"log": "[{now} PP0] Load weight begin. avail mem=9 GB"}, "hang"),
        IMPATIENT,
        visible=LOADING,
        after=PATIENCE,
        evidence="loading, and no sign of life for",
    ),
    Fault(
        "journal flood",
        "ready",
        "standin " + played({"flood": {"seconds": 6, "lines_per_second": 10000}}, "listen", {"wait": 2}, "ready"),
        visible="",  # the rate limits of the journal leave no line that tells it
        after=8,  # six seconds of flood, two of warm-up
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
    Fault(
        "answers too slow", "timeout", bad({"delay": 30}), DEAD_END, after=PATIENCE, evidence="no whole answer within"
    ),
    Fault(
        "answers that drip",
        "timeout",
        bad({"drip": 0.5, "body": "x" * 100}),
        DEAD_END,
        after=PATIENCE,
        evidence="no whole answer within",
    ),
    Fault(
        "answers cut short",
        "bad_answer",
        bad({"body": "{", "size": 100, "cut": 1}),
        DEAD_END,
        after=PATIENCE,
        evidence=r"HTTP 200: \{|IncompleteRead",
    ),
    Fault("not JSON", "bad_answer", bad({"body": "it works"}), DEAD_END, after=PATIENCE, evidence="it works"),
    Fault(
        "an answer of 1 GB",
        "bad_answer",
        bad({"body": "x" * 1000, "size": 1 << 30}),
        DEAD_END,
        after=PATIENCE,
        evidence="more than 1048576 bytes",
    ),
    Fault(
        "HTML of a proxy",
        "bad_answer",
        bad({"body": "<html>Bad gateway</html>"}),
        DEAD_END,
        after=PATIENCE,
        evidence="<html>",
    ),
    Fault("redirect elsewhere", "bad_answer", bad(REDIRECT), DEAD_END, after=PATIENCE, evidence="HTTP 302"),
    Fault(
        "TLS, self-signed",
        "certificate_refused",
        "certificate IP:127.0.0.1 2; tls",
        visible=PORT_OPEN,
        evidence="self.signed",
    ),
    Fault("TLS, its authority given", "ready", "certificate IP:127.0.0.1 2; tls", TRUSTED),
    Fault(
        "TLS, wrong name",
        "certificate_refused",
        "certificate DNS:elsewhere 2; tls",
        TRUSTED,
        visible=PORT_OPEN,
        evidence="127.0.0.1",
    ),
    Fault("TLS, expired", "certificate_refused", "expired; tls", TRUSTED, visible=PORT_OPEN, evidence="expired"),
    Fault(
        "only a LoRA adapter has the name",
        "wrong_model",
        f"standin {played('listen', 'ready', models=['base', {'id': 'tiny', 'parent': 'base'}])}",
        visible=PORT_OPEN,
        evidence="expected 'tiny', /v1/models lists 'base'",
    ),
    Fault("two models", "ready", f"standin {played('listen', 'ready', models=['other', 'tiny'])}"),
    Fault(
        "schedulers hang, models are listed",
        "stalled",
        f"standin {played('listen', {'become': 'hung'})}",
        IMPATIENT,
        visible=PORT_OPEN,
        after=PATIENCE,
        evidence="no sign of life for",
    ),
    Fault(
        "no tokens",
        "generation_failed",
        f"standin {played('listen', 'ready', completion='')}",
        visible=PORT_OPEN,
        evidence="completion|token",
    ),
    Fault("a release without /ready", "ready", f"standin {played('listen', {'wait': 3}, 'ready', release='0.5.9')}"),
)
