#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_status
short_description: Tell how the SGLang servers of a host are, in one call
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Looks once at each systemd unit of a host that is called C(sglang-NAME.service), and at the server behind it. It
    changes nothing and waits for nothing, and a server that is down is a result, not a failure.
  - Each server is asked for its models, whether it is warm, and for what it runs with, once each. Releases before
    0.5.20 can only be asked whether they are warm by having them generate a token.
  - With O(table), it draws what it returned for many hosts as one table on the controller. The playbook
    C(gpufleet.sglang.status) does both.
  - Where the Python of the host has no requests, the module goes on in the virtual environment of a server.
  - It should run as root, who alone can read configurations, generations, and whose process listens on a port.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
attributes:
  check_mode:
    support: full
    details:
      - It never changes anything.
  diff_mode:
    support: none
    details:
      - There is nothing to show a difference of.
  idempotent:
    support: full
requirements:
  - requests (Python library, on the host of the servers; the virtual environment of SGLang has it)
options:
  name:
    description:
      - The server to look at, by the name that the role P(gpufleet.sglang.sglang_server#role) deployed it under. It may
        be one that is not there.
      - The default is all of the host.
    type: str
  request_timeout:
    description:
      - Seconds for an HTTP request, apart from the one that generates, which has 30.
    type: float
    default: 5
  ca_path:
    description:
      - A file with the certificates that servers with TLS are trusted by. The default is the system's.
    type: path
  validate_certs:
    description:
      - Whether the certificate of a server with TLS has to be valid.
    type: bool
    default: true
  table:
    description:
      - What this module returned for each host, by the host's name. It is drawn on the controller, and no host is
        looked at.
      - A host that could not be reached, or looked at, has a C(msg) in place of RV(servers).
    type: dict
seealso:
  - module: gpufleet.sglang.server_info
  - module: gpufleet.sglang.server_ready
  - module: gpufleet.sglang.last_good
"""

EXAMPLES = r"""
- name: Look at all servers of all hosts
  gpufleet.sglang.server_status:
  become: true
  register: status
  ignore_unreachable: true

- name: Draw them as one table
  gpufleet.sglang.server_status:
    table: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'status'))) }}"
  run_once: true

- name: Fail where the server is not ready
  gpufleet.sglang.server_status:
    name: kimi
  become: true
  register: status
  failed_when: status is failed or not status.servers[0].ready
"""

RETURN = r"""
servers:
  description: The servers of the host, sorted by their units.
  type: list
  elements: dict
  returned: success, without O(table)
  contains:
    name:
      description: The name of the server.
      type: str
      returned: always
      sample: kimi
    unit:
      description: Its systemd unit.
      type: str
      returned: always
      sample: sglang-kimi.service
    state:
      description:
        - systemd's C(ActiveState), as V(active), V(activating), V(failed) or V(inactive); V(auto-restart) for a unit
          that failed and is going to be started again; V(not-found) or V(masked) for one that cannot be started.
      type: str
      returned: always
      sample: active
    since:
      description: When it came into that state, in UTC. Null where it never left it since the host was booted.
      type: str
      returned: always
      sample: "2026-11-29T14:02:11+00:00"
    since_seconds:
      description: How many seconds ago that was, by the clock of the host.
      type: float
      returned: always
      sample: 47893.2
    restarts:
      description: How often systemd has started it again by itself.
      type: int
      returned: always
      sample: 0
    version:
      description: The release of SGLang that runs or, where nothing answers, that is installed.
      type: str
      returned: always
      sample: 0.5.23
    model:
      description: The model that is served or, where nothing answers, that is configured.
      type: str
      returned: always
      sample: kimi-k2.6
    port:
      description: The port that is configured. Null where there is no C(server.yaml).
      type: int
      returned: always
      sample: 30000
    pp_size:
      description: The number of pipeline stages that run or, where nothing answers, that are configured.
      type: int
      returned: always
      sample: 8
    pp_max_micro_batch_size:
      description: The cap on micro-batches that is in force. Null where nothing answers.
      type: int
      returned: always
      sample: 4
    ready:
      description:
        - Whether the unit runs, its own process listens on the port, the expected model is listed, the warm-up is over,
          and the scheduler answers. No completion is asked for; M(gpufleet.sglang.server_ready) does that.
      type: bool
      returned: always
      sample: true
    phase:
      description:
        - How far it is. One of V(starting), V(loading), V(allocating), V(capturing), V(listening), V(warming_up),
          V(ready); V(stopped) for a unit that was stopped; empty where there is no C(server.yaml) that can be read.
      type: str
      returned: always
      sample: ready
    detail:
      description: What is known of the phase.
      type: str
      returned: always
      sample: ""
    failure:
      description: Why it is not ready and will not be; null where it is, or may become so.
      type: dict
      returned: always
      contains:
        cause:
          description:
            - A word as in RV(gpufleet.sglang.server_ready#module:failure.cause), or V(no_server_info) for a server that
              says that it is ready but whose scheduler does not answer in time, or V(unhealthy) for one that does, but
              that its watch has seen not to generate any more; see RV(servers[].watch).
          type: str
          returned: always
          sample: gpu_out_of_memory_at_load
        summary:
          description: What was seen.
          type: str
          returned: always
          sample: a GPU ran out of memory while the model was loaded
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
          sample: Raise mem_fraction_static, or divide the layers better.
      sample:
    restart_owed:
      description:
        - Whether it runs with other files than there are now. Null where it does not run, or nobody noted what it was
          started with.
      type: bool
      returned: always
      sample: false
    generation:
      description: The number of the newest configuration that was proven. Null where there is none.
      type: int
      returned: always
      sample: 7
    promoted:
      description: When that was, in UTC.
      type: str
      returned: always
      sample: "2026-11-29T14:04:40+00:00"
    changed_files:
      description: The files that differ from that generation.
      type: list
      elements: str
      returned: always
      sample: []
    watch:
      description:
        - What the watch of the role P(gpufleet.sglang.sglang_server#role) (C(sglang_server_watch)) has seen of the
          start that runs. Null where it does not run, or is not watched.
      type: dict
      returned: always
      contains:
        healthy:
          description: Whether it generates; false after so many failures in a row, null before its first token.
          type: bool
          returned: always
          sample: true
        failures:
          description: How many looks in a row have failed.
          type: int
          returned: always
          sample: 0
        since:
          description: Since when it is healthy or not, in UTC.
          type: str
          returned: always
          sample: "2026-11-29T14:04:40+00:00"
        last_error:
          description: What the last of these looks saw. Empty where none has failed.
          type: str
          returned: always
          sample: ""
      sample:
lines:
  description: The lines of the table, at most 100 columns wide.
  type: list
  elements: str
  returned: success, with O(table)
  sample:
    - "SGLang · 1 host · 1 of 1 server ready                              2026-11-30 03:20 UTC"
"""

import os
import re
import time

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.common.respawn import has_respawned, probe_interpreters_for_module, respawn_module
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import (
    SystemdError,
    environment_for_parsing,
    runner,
    unit_name,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import HAS_REQUESTS
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.status import RealHost, status


def find_requests(module: AnsibleModule, host: RealHost, units: list[str]) -> None:
    """Begin again in the Python of a server, which has the library; fail where none has."""
    pythons = [
        path for unit in units for path in re.findall(r"path=(\S+/python\S*)", host.show(unit).get("ExecStart", ""))
    ]
    found = None if has_respawned() else probe_interpreters_for_module(pythons, "requests")
    if not found:
        module.fail_json(msg=missing_required_lib("requests"))
    respawn_module(found)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str"},
            "request_timeout": {"type": "float", "default": 5},
            "ca_path": {"type": "path"},
            "validate_certs": {"type": "bool", "default": True},
            "table": {"type": "dict"},
        },
        mutually_exclusive=[["name", "table"]],
        supports_check_mode=True,
    )
    params = module.params
    host = RealHost(
        runner(module),
        environment_for_parsing(os.environ),
        (time.time(), time.monotonic()),
        params["request_timeout"],
        params["ca_path"],
        params["validate_certs"],
    )
    try:
        units = [unit_name(params["name"])] if params["name"] else host.units()
        if units and not HAS_REQUESTS:
            find_requests(module, host, units)
        servers = [status(host, unit).to_dict() for unit in units]
    except SystemdError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, servers=servers)


if __name__ == "__main__":
    main()
