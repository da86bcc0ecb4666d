#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnose
short_description: Say what is wrong with an SGLang server
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Looks at a server for some seconds, and gives one answer - what state it is in, why, by which lines of the journal
    that is known, and what to change. The phases and causes are those of M(gpufleet.sglang.server_ready).
  - For a server that is ready and has pipeline stages, the answer is how its pipeline is used. That takes O(seconds)
    and metrics (C(enable_metrics)).
  - Does not fail for what it finds.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
  - gpufleet.sglang.server
attributes:
  check_mode:
    support: full
    details:
      - In check mode no bundle is written.
  diff_mode:
    support: none
    details:
      - There is nothing to show a difference of.
  idempotent:
    support: partial
    details:
      - A bundle is written anew each time.
options:
  name:
    description:
      - The server, by the name that the role P(gpufleet.sglang.sglang_server#role) deployed it under, or a systemd unit
        whose name ends in C(.service).
    type: str
    required: true
  seconds:
    description:
      - How long to look at a server that is not ready, and at the load of one that is. A server that gives no sign of
        life for that long is said to hang.
    type: float
    default: 20
  request_timeout:
    description:
      - Seconds for an HTTP request, apart from the ones that generate, which have 30.
    type: float
    default: 5
  bundle:
    description:
      - A file on the host to write all of it to, as a tar.gz for somebody who helps - journal, lines of the kernel,
        unit, configuration, C(/server_info), C(nvidia-smi), versions of packages. Keys and tokens are taken out.
    type: path
seealso:
  - module: gpufleet.sglang.server_ready
"""

EXAMPLES = r"""
- name: Ask what is wrong
  gpufleet.sglang.diagnose:
    name: kimi
  register: diagnosis

- name: Show it
  ansible.builtin.debug:
    msg: "{{ diagnosis.state }}: {{ diagnosis.summary }} {{ diagnosis.advice }}"

- name: Collect what somebody who helps needs
  gpufleet.sglang.diagnose:
    name: kimi
    bundle: /var/tmp/kimi.tar.gz
"""

RETURN = r"""
state:
  description:
    - V(stopped), V(failed), V(hung), V(slow) or V(ready), or the phase of a server on its way - V(starting),
      V(loading), V(allocating), V(capturing), V(listening), V(warming_up).
  type: str
  returned: always
  sample: slow
cause:
  description:
    - Why. A cause of M(gpufleet.sglang.server_ready), or of a running pipeline V(concentrated), V(starved),
      V(saturated), V(underfed), V(balanced), V(idle) or V(unknown). Empty where there is nothing to say.
  type: str
  returned: always
  sample: concentrated
summary:
  description: What was seen.
  type: str
  returned: always
  sample: "60 requests lie in 1 of 8 slots, 64 fit into each: 7 of 8 stages have nothing to do at any time"
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
  sample: Set pp_max_micro_batch_size to 8 for so many requests.
unit:
  description: The systemd unit.
  type: str
  returned: always
  sample: sglang-kimi.service
load:
  description: How the pipeline was used, over all slots.
  type: dict
  returned: when the server is ready and tells what it runs with
  contains:
    requests:
      description: Requests that the server had taken in, on average. Null where that is not known.
      type: int
      returned: always
      sample: 60
    queued:
      description: Requests of these that waited.
      type: int
      returned: always
      sample: 0
    per_slot:
      description: Requests in a slot that had any.
      type: float
      returned: always
      sample: 60.0
    token_usage:
      description: Share of the KV cache in use.
      type: float
      returned: always
      sample: 0.12
    filled:
      description: How many slots had requests. Null where that is not known.
      type: int
      returned: always
      sample: 1
gpus:
  description: The GPUs of the host. Empty where nvidia-smi is missing.
  type: list
  elements: dict
  returned: always
  sample: [{"index": 0, "utilization_percent": 97, "memory_used_mib": 83000, "memory_total_mib": 97887}]
bundle:
  description: The file that was written.
  type: str
  returned: when O(bundle) is given
  sample: /var/tmp/kimi.tar.gz
"""

import json
import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.bundle import pack, packages
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.diagnosis import (
    batches_of_first_rank,
    diagnose,
    read_gpus,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.pipeline import (
    Finding,
    Load,
    Pipeline,
    judge,
    load_of,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Journal
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import (
    Runner,
    SystemdError,
    environment_for_parsing,
    runner,
    unit_name,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import Wait, Wanted
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.waiting import HostProbes, Pace, run_slice
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import HAS_REQUESTS
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import without_secrets
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server import (
    SERVER_OPTIONS,
    Server,
    ServerError,
    find_server,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import InfoError, ServerInfo, ask

SAMPLES = 5
GPU_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,memory.used,memory.total",
    "--format=csv,noheader,nounits",
)


def look_at_pipeline(
    info: ServerInfo, server: Server, journal: Journal, invocation_id: str, params: dict[str, Any]
) -> tuple[Load, Finding]:
    """The load of a running server, sampled over some time."""
    client, began = server.client(), time.time()
    metrics = []
    for number in range(SAMPLES):
        time.sleep(params["seconds"] / SAMPLES if number else 0)
        answer = client.get("/metrics", params["request_timeout"])
        if answer.status == 200:
            metrics.append(answer.body.decode("utf-8", "replace"))
    entries = [entry for entry in journal.last("", invocation_id) if entry.time >= began]
    load = load_of(metrics, batches_of_first_rank(entries))
    pipeline = Pipeline(
        info.pp_size,
        info.slots,
        cap=next(iter(info.caps), None),
        max_running_requests=next(iter(info.limits), None),
    )
    return load, judge(pipeline, load)


def files_of_bundle(
    unit: str, server: Server, info: ServerInfo | None, journal: Journal, run: Runner, result: dict[str, Any]
) -> dict[str, str]:
    """The texts that go into a bundle."""
    entries = journal.last(unit, "", lines=5000)
    kernel = journal.kernel(time.time() - 86400)
    told = (
        None if info is None else {"arguments": dict(info.arguments), "states": [dict(state) for state in info.states]}
    )
    return {
        "diagnosis.json": json.dumps(result, indent=2),
        "journal.txt": "\n".join(f"{entry.time:.3f} {entry.text}" for entry in entries),
        "kernel.txt": "\n".join(f"{entry.time:.3f} {entry.text}" for entry in kernel),
        "unit.txt": run(["systemctl", "cat", "--", unit])[1],
        "status.txt": run(["systemctl", "show", "--", unit])[1],
        "server_config.json": json.dumps(without_secrets(dict(server.config), server.secrets), indent=2),
        "server_info.json": json.dumps(without_secrets(told, server.secrets), indent=2),
        "nvidia_smi.txt": run(["nvidia-smi", "-q"])[1],
        "packages.txt": "\n".join(packages()),
    }


def write(module: AnsibleModule, path: str, content: bytes) -> None:
    """Put a file in place, whole or not at all, for its owner only."""
    temporary = os.path.join(module.tmpdir, "bundle")
    with open(temporary, "wb") as stream:
        stream.write(content)
    os.chmod(temporary, 0o600)
    module.atomic_move(temporary, path)
    os.chmod(path, 0o600)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **SERVER_OPTIONS,
            "name": {"type": "str", "required": True},
            "seconds": {"type": "float", "default": 20},
            "request_timeout": {"type": "float", "default": 5},
            "bundle": {"type": "path"},
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
    run = runner(module)
    journal = Journal(run, environment_for_parsing(os.environ))
    wait, began = Wait(), time.monotonic()
    probes = HostProbes(
        unit,
        server.host,
        server.port,
        server.client(),
        journal,
        run,
        params["request_timeout"],
        lambda: began + params["seconds"] - time.monotonic(),
    )
    wanted = Wanted(secrets=server.secrets, stall_timeout=params["seconds"])
    # A little longer than what is called a hang, so that a hang is seen.
    pace = Pace(1.0, float("inf"), params["seconds"] + 2)
    info, load, finding = None, None, None
    try:
        verdict = run_slice(wait, wanted, probes, journal, pace, lambda: time.monotonic() - began)
        if verdict.ready:
            info = ask(server.client(), params["request_timeout"], server.secrets)
            load, finding = look_at_pipeline(info, server, journal, wait.invocation_id, params)
    except SystemdError as error:
        module.fail_json(msg=f"{unit} cannot be looked at: {error}")
    except InfoError:
        pass  # an old release, or a key that may not ask: what is known without it is told
    result: dict[str, Any] = {
        **diagnose(verdict, wait, finding).to_dict(),
        "unit": unit,
        "gpus": read_gpus(run(list(GPU_QUERY))[1]),
    }
    if load is not None and info is not None:
        result["load"] = {**vars(load), "filled": load.filled(info.slots)}
    if params["bundle"] and not module.check_mode:
        files = files_of_bundle(unit, server, info, journal, run, result)
        write(module, params["bundle"], pack(unit, files, server.secrets))
    if params["bundle"]:
        result.update(bundle=params["bundle"], changed=True)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
