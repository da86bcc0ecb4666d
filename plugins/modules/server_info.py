#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_info
short_description: Tell what a running SGLang server runs with, and how that differs from a plan
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Asks a running server for its release, its models, its arguments, and what its scheduler made of them.
  - The cap on micro-batches and the limit on running requests are the ones in force. SGLang computes them where they
    are not given, and lowers them where the memory is too small.
  - API keys, tokens and passwords are never returned, whatever argument they are in.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
  - gpufleet.sglang.server
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
options:
  plan:
    description:
      - Arguments that the server is expected to run with, by SGLang's names, as RV(gpufleet.sglang.pp_plan#module:args)
        has them. V(pp_size), V(pp-size) and V(--pp-size) are one argument.
      - An argument that is null is left to SGLang. Keys are not compared.
    type: dict
    default: {}
  request_timeout:
    description:
      - Seconds for an HTTP request. The scheduler answers between two batches.
    type: float
    default: 20
seealso:
  - module: gpufleet.sglang.pp_plan
  - module: gpufleet.sglang.micro_batch
  - module: gpufleet.sglang.server_ready
"""

EXAMPLES = r"""
- name: See what the server that the role deployed runs with
  gpufleet.sglang.server_info:
    name: kimi
  register: running

- name: Fail where something else is in force than was planned
  gpufleet.sglang.server_info:
    name: kimi
    plan: "{{ plan.args }}"
  register: running
  failed_when: running is failed or running.differences | length > 0

- name: Ask a server that somebody else started
  gpufleet.sglang.server_info:
    host: 10.0.0.7
    port: 8000
    api_key: "{{ vaulted_api_key }}"
"""

RETURN = r"""
url:
  description: The address that was asked.
  type: str
  returned: success
  sample: http://127.0.0.1:30000
endpoint:
  description: The endpoint that told. V(/get_server_info) is that of releases before 0.5.6.
  type: str
  returned: success
  sample: /server_info
version:
  description: The release of SGLang that runs.
  type: str
  returned: success
  sample: 0.5.23
models:
  description: The ids of the models that are served, without LoRA adapters.
  type: list
  elements: str
  returned: success
  sample: [kimi-k2.6]
scheduler:
  description: What is in force in the scheduler, that of the first rank where there is data parallelism.
  type: dict
  returned: success
  contains:
    pp_size:
      description: The number of pipeline stages.
      type: int
      returned: always
      sample: 8
    slots:
      description: The number of micro-batches that the scheduler goes round, C(pp_size + pp_async_batch_depth).
      type: int
      returned: always
      sample: 8
    pp_max_micro_batch_size:
      description: The most requests that a micro-batch takes. Null where the release does not tell.
      type: int
      returned: always
      sample: 4
    sglang_auto_micro_batch_size:
      description:
        - What SGLang takes where the argument is left out, which is also the most that can be set while it runs.
      type: int
      returned: always
      sample: 8
    max_running_requests:
      description: The most requests that run at once. Null where the release does not tell.
      type: int
      returned: always
      sample: 64
    max_total_num_tokens:
      description: The tokens that the KV cache holds. Null where the release does not tell.
      type: int
      returned: always
      sample: 1134592
arguments:
  description: All arguments by SGLang's names, as the process has them that takes the requests, without secrets.
  type: dict
  returned: success
  sample: {model_path: /models/Kimi-K2.6, pp_size: 8}
internal_states:
  description:
    - For each scheduler (one for each data-parallel rank), what it adds to RV(arguments) or has otherwise. Which these
      are depends on the release. Memory is in GiB.
  type: list
  elements: dict
  returned: success
  sample:
    - effective_max_running_requests_per_dp: 64
      last_gen_throughput: 412.7
      max_running_requests: 64
      memory_usage: {kvcache: 14.2, token_capacity: 1134592, weight: 73.9}
      pp_max_micro_batch_size: 4
differences:
  description: The arguments in O(plan) that are not in force, in the order in which they stand there.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: The argument as O(plan) spells it.
      type: str
      returned: always
      sample: pp-max-micro-batch-size
    expected:
      description: The value in O(plan).
      type: raw
      returned: always
      sample: 4
    actual:
      description: The value in force. Null where the server has none.
      type: raw
      returned: always
      sample: 8
  sample: [{name: pp-max-micro-batch-size, expected: 4, actual: 8}]
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import HAS_REQUESTS
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import ConfigError
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import without_secrets
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server import (
    SERVER_OPTIONS,
    ServerError,
    find_server,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import (
    InfoError,
    ask,
    differences,
    model_ids,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **SERVER_OPTIONS,
            "plan": {"type": "dict", "default": {}},
            "request_timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    if not HAS_REQUESTS:
        module.fail_json(msg=missing_required_lib("requests"))
    timeout = module.params["request_timeout"]
    try:
        server = find_server(module.params)
        client = server.client()
        info = ask(client, timeout, server.secrets)
        found = differences(info, module.params["plan"])
    except ConfigError as error:
        module.fail_json(msg=f"plan: {error}")
    except (ServerError, InfoError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        url=server.url,
        endpoint=info.endpoint,
        version=info.version,
        models=without_secrets(model_ids(client.get("/v1/models", timeout).json()), server.secrets),
        scheduler={
            "pp_size": info.pp_size,
            "slots": info.slots,
            "pp_max_micro_batch_size": info.caps[0],
            "sglang_auto_micro_batch_size": info.auto_cap,
            "max_running_requests": info.limits[0],
            "max_total_num_tokens": info.max_total_num_tokens,
        },
        arguments=info.arguments,
        internal_states=info.extras,
        differences=without_secrets([asdict(difference) for difference in found], server.secrets),
    )


if __name__ == "__main__":
    main()
