#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_ready
short_description: Wait until an SGLang server is ready, or say why it will not be
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Waits until a server really serves, and fails as soon as it is known that it will not, with the cause.
  - Ready means all of these, in this order. The systemd unit runs, and is not restarting. The port is open. The process
    that listens there belongs to the unit. The API key is taken. The expected model is among those that are served. The
    warm-up is over. A completion comes back with a token in it.
  - While it waits, one line for each phase and for each O(progress_interval) is shown on the controller.
  - A connection to the host that is lost in the meantime is taken up again until the O(timeout) is over.
  - With C(async) all of the wait is one run of the module on the host, without lines of progress.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
  - gpufleet.sglang.server
attributes:
  check_mode:
    support: full
    details:
      - In check mode the module looks once, does not wait, and does not fail for what it sees.
  diff_mode:
    support: none
    details:
      - There is nothing to show a difference of.
  idempotent:
    support: full
    details:
      - Changes nothing.
options:
  name:
    description:
      - The server, by the name that the role P(gpufleet.sglang.sglang_server#role) deployed it under, or a systemd unit
        whose name ends in C(.service).
    type: str
    required: true
  models:
    description:
      - The ids that C(/v1/models) must list. LoRA adapters do not count.
      - The default is C(served-model-name) in O(config), else C(model-path); without either any model is fine.
    type: list
    elements: str
  probe:
    description:
      - How far to go. V(models) stops when the model is listed, V(health) when the warm-up is over, V(completion) when
        a completion came back.
    type: str
    choices:
      - models
      - health
      - completion
    default: completion
  prompt:
    description:
      - What to have completed. One token is asked for, or up to 64 where O(expect) is given.
    type: str
    default: 1 2 3 4
  expect:
    description:
      - A regular expression that must be found in the completion.
    type: str
  timeout:
    description:
      - Seconds for the whole wait. Loading hundreds of gigabytes from a network file system takes many minutes.
    type: float
    default: 3600
  stall_timeout:
    description:
      - Seconds without any sign of life, after which the server is said to hang. Signs are a new line in the journal,
        bytes read, a process that comes or goes, a change of GPU memory and, until the port is open, CPU time. What
        requests cause is none. V(0) is for never.
    type: float
    default: 600
  poll_interval:
    description:
      - Seconds between two looks. News in the journal lead to a look at once.
    type: float
    default: 1
  health_interval:
    description:
      - Seconds between two requests that make SGLang generate. Releases before 0.5.20 can be asked in no other way
        whether they are warm.
    type: float
    default: 5
  request_timeout:
    description:
      - Seconds for an HTTP request, apart from the ones that generate, which have 30.
    type: float
    default: 5
  progress:
    description:
      - Whether to show lines of progress on the controller.
    type: bool
    default: true
  progress_interval:
    description:
      - Seconds between two lines of progress in the same phase.
    type: float
    default: 15
  slice:
    description:
      - Look for so many seconds at most, and return then or when the phase changes. V(0) is for the whole O(timeout).
      - The action plugin sets this. It is of use where the module is called without it.
    type: float
    default: 0
  resume:
    description:
      - The RV(resume) of an earlier slice, to go on from there.
    type: dict
    default: {}
  run:
    description:
      - The run whose lock is prolonged if it holds that of M(gpufleet.sglang.server_lock). Set by the action plugin.
    type: str
    default: ""
seealso:
  - module: gpufleet.sglang.config_file
"""

EXAMPLES = r"""
- name: Wait until the server that the role deployed is ready
  gpufleet.sglang.server_ready:
    name: kimi

- name: Wait for a unit that somebody else wrote, up to two hours
  gpufleet.sglang.server_ready:
    name: my-llm.service
    port: 8000
    models:
      - kimi-k2.6
    timeout: 7200

- name: Have the model say something that shows that it is not out of its mind
  gpufleet.sglang.server_ready:
    name: kimi
    prompt: "The capital of France is"
    expect: Paris
"""

RETURN = r"""
ready:
  description: Whether everything holds that O(probe) asks for.
  type: bool
  returned: always
  sample: true
phase:
  description:
    - Where the server is. One of V(starting), V(loading), V(allocating), V(capturing), V(listening), V(warming_up),
      V(ready).
  type: str
  returned: always
  sample: ready
detail:
  description: What is known of the phase.
  type: str
  returned: always
  sample: 22 of 64 shards
elapsed:
  description: Seconds since the wait began.
  type: float
  returned: always
  sample: 121.4
timeline:
  description: Seconds spent in each phase, as they were seen.
  type: dict
  returned: always
  sample: {starting: 6.1, loading: 74.3, capturing: 28.2, warming_up: 12.0}
models:
  description: The ids of the models that the server lists.
  type: list
  elements: str
  returned: always
  sample: [kimi-k2.6]
attempts:
  description: How often the server was looked at.
  type: int
  returned: always
  sample: 122
tolerated:
  description: How many answers were waited out, since they may have been of the moment.
  type: int
  returned: always
  sample: 4
unit:
  description: The systemd unit.
  type: str
  returned: always
  sample: sglang-kimi.service
invocation_id:
  description: systemd's id of the start that was waited for.
  type: str
  returned: always
  sample: 6bb1d5ab2f5e4e0d9f6a8a4b1e0c3d57
resume:
  description: What O(resume) takes to go on with this wait.
  type: dict
  returned: always
  sample: {phase: ready}
failure:
  description: Why the server is not ready and will not be.
  type: dict
  returned: when there is a cause
  contains:
    cause:
      description:
        - A word that stays the same from release to release, like V(exec_failed), V(bad_argument), V(crash_loop),
          V(foreign_listener), V(unauthorized), V(wrong_model), V(generation_failed), V(timeout) or V(unknown).
      type: str
      returned: always
      sample: foreign_listener
    summary:
      description: What was seen.
      type: str
      returned: always
      sample: "another process answers on the server's port: process 812 (nginx: master process)"
    evidence:
      description: Lines of the journal that show it, without secrets.
      type: list
      elements: str
      returned: always
      sample: []
    advice:
      description: What to change.
      type: str
      returned: always
      sample: Stop it, or change sglang_server_port.
"""

import contextlib
import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Journal
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import (
    SystemdError,
    environment_for_parsing,
    runner,
    unit_name,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import FACTS, Verdict, Wait, Wanted
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.waiting import HostProbes, Pace, run_slice
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import HAS_REQUESTS
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server import (
    SERVER_OPTIONS,
    Server,
    ServerError,
    find_server,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.lock import LockError, Locks

MARGIN = 60.0
"""Seconds that a lock lasts beyond the end of a slice: until the next slice has begun."""


def wanted_of(params: dict[str, Any], server: Server) -> Wanted:
    """What is waited for, by the options and by what the server was started with."""
    model = server.config.get("served-model-name") or server.config.get("model-path")
    return Wanted(
        models=tuple(params["models"] if params["models"] is not None else [model] if model else []),
        probe=params["probe"],
        prompt=params["prompt"],
        max_tokens=64 if params["expect"] else 1,
        expect=params["expect"] or "",
        secrets=server.secrets,
        stall_timeout=params["stall_timeout"],
        health_interval=params["health_interval"],
    )


def seen(wait: Wait, verdict: Verdict, unit: str, elapsed: float) -> dict[str, Any]:
    """What the module returns, whatever the end."""
    return {
        "ready": verdict.ready,
        "phase": verdict.phase,
        "detail": verdict.detail,
        "elapsed": elapsed,
        "timeline": wait.timeline,
        "models": wait.models,
        "attempts": wait.attempts,
        "tolerated": wait.tolerated,
        "unit": unit,
        "invocation_id": wait.invocation_id,
        "resume": {**wait.to_dict(), "elapsed": elapsed},
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **SERVER_OPTIONS,
            "name": {"type": "str", "required": True},
            "models": {"type": "list", "elements": "str"},
            "probe": {"type": "str", "choices": list(FACTS), "default": "completion"},
            "prompt": {"type": "str", "default": "1 2 3 4"},
            "expect": {"type": "str"},
            "timeout": {"type": "float", "default": 3600},
            "stall_timeout": {"type": "float", "default": 600},
            "poll_interval": {"type": "float", "default": 1},
            "health_interval": {"type": "float", "default": 5},
            "request_timeout": {"type": "float", "default": 5},
            "progress": {"type": "bool", "default": True},
            "progress_interval": {"type": "float", "default": 15},
            "slice": {"type": "float", "default": 0},
            "resume": {"type": "dict", "default": {}},
            "run": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    if not HAS_REQUESTS:
        module.fail_json(msg=missing_required_lib("requests"))
    params = module.params
    try:
        server = find_server(params)
        unit = unit_name(params["name"])
    except (ServerError, SystemdError) as error:
        module.fail_json(msg=str(error))

    with contextlib.suppress(LockError):  # who may not look at it does not hold it
        Locks().prolong(unit, params["run"], params["slice"] + MARGIN)
    run = runner(module)
    journal = Journal(run, environment_for_parsing(os.environ))
    pace = Pace(params["poll_interval"], params["timeout"], params["slice"] or None)
    if module.check_mode:
        pace = Pace(params["poll_interval"], float("inf"), 0)
    earlier = dict(params["resume"])
    offset = float(earlier.pop("elapsed", 0)) - time.monotonic()
    wait = Wait.from_dict(earlier)

    def clock() -> float:
        return offset + time.monotonic()

    probes = HostProbes(
        unit,
        server.host,
        server.port,
        server.client(),
        journal,
        run,
        params["request_timeout"],
        lambda: min(pace.timeout, wait.life.at + (params["stall_timeout"] or float("inf"))) - clock(),
    )
    try:
        verdict = run_slice(wait, wanted_of(params, server), probes, journal, pace, clock)
    except SystemdError as error:
        module.fail_json(msg=f"{unit} cannot be looked at: {error}")
    result = seen(wait, verdict, unit, round(clock(), 3))
    if verdict.failure is None:
        module.exit_json(**result)
    failure = verdict.failure
    result["failure"] = failure.to_dict()
    if module.check_mode:
        module.exit_json(**result)
    module.fail_json(msg=f"{unit} is not ready: {failure.summary}. {failure.advice}", **result)


if __name__ == "__main__":
    main()
