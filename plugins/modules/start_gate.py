#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: start_gate
short_description: Wait between the stop and the start of an SGLang server until nothing is in the way
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Waits until the ports of a server are free, no process of its earlier start is left, and the memory of its GPUs is
    free. A server that is started before that fails minutes later, for want of memory.
  - What is still in the way when the time is over is named, with process, command, user and systemd unit. Nothing is
    ever killed.
  - The ports are C(port), C(nccl-port) and, on the first node, that of C(dist-init-addr) in O(config).
  - The GPUs are those that SGLang counts out to its ranks, from C(base-gpu-id), C(gpu-id-step) and the sizes in
    O(config), among those in E(CUDA_VISIBLE_DEVICES) of the file C(environment) beside it. Without O(config) they are
    all that are visible.
  - A host without C(nvidia-smi) has no GPUs to look at.
  - It needs no library but Python's own, and should run as root, who alone may see whose a process is.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode the module looks once, does not wait, and does not fail for what it sees. Of a server that still
        runs, its own processes do not count as being in the way.
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
        whose name ends in C(.service). It has to be stopped.
    type: str
    required: true
  config:
    description:
      - The file that the server is started with.
      - The default is C(/etc/sglang/NAME/server.yaml) where that file is there.
    type: path
  timeout:
    description:
      - Seconds to wait at most. The memory of a process that was killed takes up to a minute to come back.
    type: float
    default: 120
  poll_interval:
    description:
      - Seconds between two looks.
    type: float
    default: 1
  max_used_mib:
    description:
      - The memory of a GPU, in MiB, that may be in use. Drivers, monitoring and displays use some.
    type: int
    default: 1024
seealso:
  - module: gpufleet.sglang.server_ready
"""

EXAMPLES = r"""
- name: Stop the server
  ansible.builtin.systemd_service:
    name: sglang-kimi.service
    state: stopped

- name: Wait until the memory of its GPUs is free
  gpufleet.sglang.start_gate:
    name: kimi

- name: Start it
  ansible.builtin.systemd_service:
    name: sglang-kimi.service
    state: started
"""

RETURN = r"""
waited:
  description: Seconds until nothing was in the way, or until the time was over.
  type: float
  returned: when the unit could be looked at
  sample: 31.2
blockers:
  description: What is in the way; empty when the server can be started.
  type: list
  elements: dict
  returned: when the unit could be looked at
  contains:
    kind:
      description:
        - V(port) for a port that is taken, V(process) for a process that is left of the earlier start, V(gpu) for
          memory of a GPU that is held.
      type: str
      returned: always
      sample: gpu
    pid:
      description: The process. Null where it cannot be seen, as one in another container.
      type: int
      returned: always
      sample: 21043
    command:
      description: Its command line, without secrets, cut after 200 characters.
      type: str
      returned: always
      sample: sglang::scheduler_PP3
    user:
      description: The user that it runs as.
      type: str
      returned: always
      sample: alice
    unit:
      description: The systemd unit or scope that it runs in, or its cgroup.
      type: str
      returned: always
      sample: session-4.scope
    port:
      description: The port that is taken. Null for the other kinds.
      type: int
      returned: always
      sample:
    gpu:
      description: The index of the GPU. Null for the other kinds.
      type: int
      returned: always
      sample: 3
    used_mib:
      description: The memory of the GPU that is held, in MiB. Null for the other kinds, and where it is not known.
      type: int
      returned: always
      sample: 90113
    text:
      description: All of it in words.
      type: str
      returned: always
      sample: 90113 MiB of GPU 3 held by process 21043 (sglang::scheduler_PP3, user alice, session-4.scope)
clean_stop:
  description:
    - Whether the last run of the server ended in an orderly way. Null where it has not ended, or nobody knows.
  type: bool
  returned: when the unit could be looked at
  sample: true
last_stop:
  description: How the last run of the server ended.
  type: dict
  returned: when the unit could be looked at
  contains:
    how:
      description:
        - V(clean).
        - V(killed_itself) when it was asked to stop and then ended itself by SIGKILL, in time. Releases of SGLang up to
          0.5.18 do so at each stop.
        - V(timeout) when systemd killed it, since it had not ended in time.
        - V(failed) when it ended without being asked to, or with an error.
        - V(running) when it has not ended.
        - V(unknown) when it never ran since the host was booted, or C(systemctl reset-failed) made systemd forget.
      type: str
      returned: always
      sample: killed_itself
    result:
      description: What systemd calls it.
      type: str
      returned: always
      sample: signal
    exit:
      description: How its main process ended; empty where it did not.
      type: str
      returned: always
      sample: signal 9
gpus:
  description: The indices of the GPUs that were looked at.
  type: list
  elements: int
  returned: when the unit could be looked at
  sample: [0, 1, 2, 3, 4, 5, 6, 7]
ports:
  description: The ports that were looked at.
  type: list
  elements: int
  returned: when the unit could be looked at
  sample: [30000]
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import SystemdError, runner, unit_name
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server import ServerError, find_server
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.gate import (
    GateError,
    HostProbes,
    Wanted,
    cuda_visible_devices,
    explain,
    used_ports,
    wait_until_free,
)

# What find_server takes and this module has no use for.
_NO_CLIENT = {"host": None, "port": None, "api_key": None, "ca_path": None, "validate_certs": True}


def wanted_of(params: dict[str, Any], predict: bool) -> Wanted:
    """What has to be free, by the options and the files that the server is started with."""
    server = find_server({**_NO_CLIENT, **params})
    config = Path(params["config"] or f"/etc/sglang/{params['name']}/server.yaml")
    try:
        environment = config.with_name("environment").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        environment = ""
    return Wanted(
        ports=used_ports(server.host, server.port, server.config),
        max_used_mib=params["max_used_mib"],
        config=server.config,
        devices=cuda_visible_devices(environment),
        predict=predict,
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "config": {"type": "path"},
            "timeout": {"type": "float", "default": 120},
            "poll_interval": {"type": "float", "default": 1},
            "max_used_mib": {"type": "int", "default": 1024},
        },
        supports_check_mode=True,
    )
    params = module.params
    for option in ("timeout", "max_used_mib"):
        if params[option] < 0:
            module.fail_json(msg=f"{option}: expected 0 or more, found {params[option]}")
    if params["poll_interval"] <= 0:
        module.fail_json(msg=f"poll_interval: expected more than 0, found {params['poll_interval']}")
    try:
        unit = unit_name(params["name"])
        wanted = wanted_of(params, module.check_mode)
    except (ServerError, SystemdError, OSError) as error:
        module.fail_json(msg=str(error))
    began = time.monotonic()
    try:
        waiting = wait_until_free(
            wanted,
            HostProbes(unit, runner(module)),
            0 if module.check_mode else params["timeout"],
            params["poll_interval"],
            lambda: time.monotonic() - began,
            time.sleep,
        )
    except (GateError, SystemdError) as error:
        module.fail_json(msg=str(error))
    seen = waiting.look
    if seen.problem:
        module.warn(f"The memory of the GPUs was not looked at: {seen.problem}")
    result: dict[str, Any] = {
        "waited": round(waiting.waited, 3),
        "blockers": [blocker.to_dict() for blocker in seen.blockers],
        "clean_stop": seen.stop.clean,
        "last_stop": asdict(seen.stop),
        "gpus": list(seen.gpus),
        "ports": [port for _host, port in wanted.ports],
    }
    if seen.blockers and not module.check_mode:
        module.fail_json(msg=explain(unit, waiting), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
