#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: micro_batch
short_description: Set the cap on micro-batches of a running SGLang server
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Sets O(pp_max_micro_batch_size) of a server while it runs. No request is lost, and nothing is loaded again.
  - What was set is read back from the scheduler, since releases up to 0.5.19 say that it is done even where they
    refused.
  - The change lasts until the server is restarted. Set the argument in the server's configuration as well to keep it.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
  - gpufleet.sglang.server
attributes:
  check_mode:
    support: full
    details:
      - The server is asked what it would have to change, and whether it would take it.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  pp_max_micro_batch_size:
    description:
      - The most requests that a micro-batch may take.
      - A running server takes V(1) up to C(max_running_requests // pp_size), the value that it takes by itself where
        it is given none. To try out several values, start it with a large C(max_running_requests).
    type: int
    required: true
  admin_api_key:
    description:
      - The key to make the change with.
      - The default is C(admin-api-key) in O(config), else the O(api_key), which SGLang takes where it has no admin key.
    type: str
  request_timeout:
    description:
      - Seconds for an HTTP request. The scheduler answers between two batches.
    type: float
    default: 20
seealso:
  - module: gpufleet.sglang.pp_plan
  - module: gpufleet.sglang.server_info
"""

EXAMPLES = r"""
- name: Spread 32 requests over eight stages
  gpufleet.sglang.micro_batch:
    name: kimi
    pp_max_micro_batch_size: 4

- name: Do so on a server that somebody else started
  gpufleet.sglang.micro_batch:
    port: 8000
    api_key: "{{ vaulted_api_key }}"
    admin_api_key: "{{ vaulted_admin_api_key }}"
    pp_max_micro_batch_size: 4
"""

RETURN = r"""
before:
  description:
    - The cap before. Where the ranks of a data-parallel server had different ones, the first that was not the one asked
      for.
  type: int
  returned: when the server told it
  sample: 8
after:
  description: The cap that was read back; in check mode, the one that would be.
  type: int
  returned: success
  sample: 4
limit:
  description: The largest cap that the server takes while it runs.
  type: int
  returned: when the server told it
  sample: 8
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import HAS_REQUESTS
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.micro_batch import (
    ENDPOINT,
    MicroBatchError,
    check_answer,
    check_effect,
    plan_change,
    request,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import hide
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server import (
    SERVER_OPTIONS,
    ServerError,
    find_server,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import InfoError, ask


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **SERVER_OPTIONS,
            "pp_max_micro_batch_size": {"type": "int", "required": True},
            "admin_api_key": {"type": "str", "no_log": True},
            "request_timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    if not HAS_REQUESTS:
        module.fail_json(msg=missing_required_lib("requests"))
    wanted, timeout = module.params["pp_max_micro_batch_size"], module.params["request_timeout"]
    secrets: tuple[str, ...] = ()
    known: dict[str, Any] = {}
    try:
        server = find_server(module.params)
        secrets = server.secrets
        info = ask(server.client(), timeout, secrets)
        change = plan_change(info, wanted)
        known = {"before": change.before, "limit": change.limit}
        if change.needed and not module.check_mode:
            check_answer(server.admin_client().post(ENDPOINT, request(info, change), timeout))
            check_effect(ask(server.client(), timeout, secrets), change)
    except (ServerError, InfoError) as error:
        module.fail_json(msg=str(error), **known)
    except MicroBatchError as error:
        module.fail_json(msg=f"{server.url}: {hide(str(error), secrets)}", **known)
    module.exit_json(
        changed=change.needed,
        after=wanted,
        diff={
            "before": f"pp_max_micro_batch_size: {change.before}\n",
            "after": f"pp_max_micro_batch_size: {wanted}\n",
        },
        **known,
    )


if __name__ == "__main__":
    main()
