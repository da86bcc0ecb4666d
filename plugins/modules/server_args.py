#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_args
short_description: Have the installed SGLang judge arguments before a server is started with them
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Has the parser of the SGLang that is installed on the host check the arguments of a server, in its own Python. No
    server is started or asked, no GPU is used and no connection is made.
  - Tells all arguments that this release does not have, with the names that may be meant, all values of a wrong kind,
    combinations that SGLang refuses, arguments that are going to be removed, and a model that cannot be split into
    pipeline stages.
  - What cannot be found out on this host is told as a finding of the code V(not_checked), and is no reason to fail.
  - This takes some ten seconds, since SGLang takes that long to load. The answer is kept, so that the same question
    costs next to nothing.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
attributes:
  check_mode:
    support: full
    details:
      - It never changes anything, apart from the answers that it keeps in O(cache), and those not in check mode.
      - Without an engine, which an earlier task would have installed, nothing is checked in check mode.
  diff_mode:
    support: none
    details:
      - There is nothing to show a difference of.
  idempotent:
    support: full
options:
  values:
    description:
      - SGLang's arguments by their own names (V(pp_size), V(pp-size) and V(--pp-size) are one), as
        M(gpufleet.sglang.config_file) takes them.
      - A null leaves an argument out.
    type: dict
  secrets:
    description:
      - Further values, laid over O(values), that appear in no output.
      - SGLang's own keys (C(api-key), C(admin-api-key), C(ssl-keyfile-password)) are not even given to the parser.
    type: dict
    default: {}
  config:
    description:
      - A file for SGLang's C(--config) to be checked instead of O(values).
    type: path
  engine:
    description:
      - The virtual environment that has SGLang.
    type: path
    default: /opt/sglang/current
  environment:
    description:
      - Variables that the server will be started with. Some of them change what SGLang takes.
    type: dict
    default: {}
  user:
    description:
      - The user to run the parser as. Where C(trust-remote-code) is among the arguments, the parser runs Python code
        that comes with the model, so this is best the user that the server will run as.
      - The default is the user that the module runs as.
    type: str
  cache:
    description:
      - The directory where answers are kept.
    type: path
    default: /var/cache/gpufleet-sglang/server_args
  timeout:
    description:
      - Seconds to wait for the parser.
    type: float
    default: 180
  on_error:
    description:
      - What to do where SGLang would not start with the arguments.
    type: str
    choices:
      fail: Fail with all that is wrong in one line.
      report: Return what is wrong.
    default: fail
seealso:
  - module: gpufleet.sglang.config_file
  - module: gpufleet.sglang.pp_plan
"""

EXAMPLES = r"""
- name: Check the arguments before anything of the running server is touched
  gpufleet.sglang.server_args:
    user: sglang
    values:
      model_path: /models/Kimi-K2.6
      pp_size: 8
      pp_max_micro_batch_size: 4
      trust_remote_code: true

- name: See what another release would say to the configuration in use
  gpufleet.sglang.server_args:
    config: /etc/sglang/kimi/server.yaml
    engine: /opt/sglang/next
    user: sglang
    on_error: report
  register: judged
"""

RETURN = r"""
valid:
  description: Whether there is nothing known that SGLang refuses.
  type: bool
  returned: success, and failure because of the arguments
  sample: true
version:
  description: The release of SGLang that judged. Empty where it could not be asked.
  type: str
  returned: as RV(valid)
  sample: 0.5.23
engine:
  description: The virtual environment that was asked, without symbolic links.
  type: str
  returned: as RV(valid)
  sample: /opt/sglang/0.5.23-e5965f45
cached:
  description: Whether the answer to the same question was kept from an earlier time.
  type: bool
  returned: as RV(valid)
  sample: false
findings:
  description: What is worth knowing of the arguments.
  type: list
  elements: dict
  returned: as RV(valid)
  contains:
    code:
      description:
        - A word that stays the same from release to release. With the severity V(error), one of
          V(unknown_argument), V(invalid_value), V(missing_argument), V(refused), V(no_config_file),
          V(no_pipeline_support) and V(no_sglang). With V(warning), V(deprecated_argument) or
          V(abbreviated_argument). With V(info), V(not_checked).
      type: str
      returned: always
      sample: unknown_argument
    severity:
      description: V(error) for what a start would fail of, V(warning) or V(info).
      type: str
      returned: always
      sample: error
    argument:
      description: The argument that it is about. Empty where it is about all of them.
      type: str
      returned: always
      sample: cuda-graph-max-bs
    message:
      description: What was found.
      type: str
      returned: always
      sample: "cuda-graph-max-bs: this release has no such argument since 0.5.15"
    advice:
      description: What to change.
      type: str
      returned: always
      sample: write cuda-graph-max-bs-decode
  sample: []
"""

import os
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import (
    ConfigError,
    environment_variables,
    load_server_yaml,
    server_arguments,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import known_secrets
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_args import (
    EngineError,
    Finding,
    Judgement,
    Question,
    as_written,
    fingerprint,
    judge,
    masked,
    recall,
    remember,
)


def read_arguments(params: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The arguments, without the server's own keys, and all texts that are secrets.

    Raises OSError, UnicodeDecodeError and ConfigError.
    """
    if params["config"] is not None:
        with open(params["config"], encoding="utf-8") as stream:
            text = stream.read()
        values = load_server_yaml(text)
        return as_written(text, masked(values)), known_secrets(values)
    secrets = server_arguments(params["secrets"])
    values = {**server_arguments(params["values"] or {}), **secrets}
    return masked(values), known_secrets(values) | known_secrets(secrets, secret=True)


def ask(module: AnsibleModule, question: Question, secrets: set[str]) -> Judgement:
    """What is kept, or what the engine says now."""
    if module.check_mode and not os.path.exists(question.engine):
        advice = "nothing: an earlier task would have installed it"
        message = f"SGLang could not be asked: there is no {question.engine}"
        return Judgement("", (Finding("not_checked", "info", "", message, advice),), asked=False)
    key = fingerprint(question)
    cache = module.params["cache"]
    judgement = recall(cache, key)
    if judgement is None:
        judgement = judge(question, secrets)
        if not module.check_mode:
            remember(cache, key, judgement)
    return judgement


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "values": {"type": "dict"},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "config": {"type": "path"},
            "engine": {"type": "path", "default": "/opt/sglang/current"},
            "environment": {"type": "dict", "default": {}},
            "user": {"type": "str"},
            "cache": {"type": "path", "default": "/var/cache/gpufleet-sglang/server_args"},
            "timeout": {"type": "float", "default": 180},
            "on_error": {"type": "str", "choices": ["fail", "report"], "default": "fail"},
        },
        mutually_exclusive=[("values", "config")],
        required_one_of=[("values", "config")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        values, secrets = read_arguments(params)
        environment = environment_variables(params["environment"])
        question = Question(params["engine"], values, environment, params["user"], params["timeout"])
        judgement = ask(module, question, secrets)
    except (OSError, UnicodeDecodeError, ConfigError, EngineError) as error:
        module.fail_json(msg=f"the arguments cannot be checked: {error}")
    result = {
        "valid": not judgement.errors,
        "version": judgement.version,
        "engine": os.path.realpath(params["engine"]),
        "cached": judgement.cached,
        "findings": [asdict(finding) for finding in judgement.findings],
    }
    if judgement.errors and params["on_error"] == "fail":
        wrong = " ".join(f"{finding.message} ({finding.advice})." for finding in judgement.errors)
        release = f"SGLang {judgement.version}".strip()
        module.fail_json(msg=f"{release} would not start with these arguments: {wrong}", **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
