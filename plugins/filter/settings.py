# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The filter settings: what the variables of an inventory ask for. The logic is in module_utils."""

from __future__ import annotations

DOCUMENTATION = r"""
name: settings
author: gpufleet contributors
version_added: 0.1.0
short_description: Tell what the variables of an inventory ask of an SGLang server
description:
  - Turns the variables of the role P(gpufleet.sglang.sglang_server#role) into the arguments and the environment of the
    server, and into the options of its plan, each with the variable that it comes from.
  - An argument has one name in the result, whichever of SGLang's spellings was given. V(pipeline_parallel_size),
    V(pp-size), V(--pp-size) and V(pp) are V(pp-size). Two spellings with different values are an error.
  - What the user names wins over the plan. The plan wins over SGLang's own values.
positional: _input
options:
  _input:
    description:
      - The variables by their names. C(sglang_server_args) and C(sglang_server_environment) are among them.
      - A variable that is missing or empty asks for nothing.
    type: dict
    required: true
  planned:
    description: What M(gpufleet.sglang.pp_plan) returned, with C(args) and C(environment).
    type: dict
  options:
    description: Options of M(gpufleet.sglang.pp_plan) that win over those of the variables.
    type: dict
notes:
  - The result has secrets in C(secret_arguments) and C(secret_environment) only. Pass those to options that are not
    logged, such as O(gpufleet.sglang.config_file#module:secrets), and do not register or print the whole result.
seealso:
  - module: gpufleet.sglang.pp_plan
  - module: gpufleet.sglang.config_file
"""

EXAMPLES = r"""
- name: Show which variable each argument comes from
  ansible.builtin.debug:
    msg: "{{ (asked | gpufleet.sglang.settings).sources.arguments }}"
  vars:
    asked:
      sglang_server_port: 30000
      sglang_server_args: {tp: 2}
  # {"port": "sglang_server_port", "tp-size": "sglang_server_args.tp"}
"""

RETURN = r"""
_value:
  description:
    - C(arguments) for server.yaml, C(environment), C(secret_arguments), C(secret_environment), the options C(plan) of
      M(gpufleet.sglang.pp_plan), C(pp_size) as a number, and C(sources), which names the variable behind each of them.
  type: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import ConfigError
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.settings import SettingsError
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.settings import settings as asked_for


def settings(
    given: Mapping[str, Any], planned: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """See `asked_for`."""
    if not isinstance(given, Mapping):
        raise AnsibleFilterError(f"settings: expected a mapping of variables, found {type(given).__name__}")
    try:
        return asked_for(given, planned, options).to_dict()
    except (SettingsError, ConfigError) as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """The filters by their names."""
        return {"settings": settings}
