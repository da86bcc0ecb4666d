#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: config_file
short_description: Write a configuration file of an SGLang server without showing its secrets
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Writes the file that SGLang reads with C(--config), or the environment file of its systemd unit, from a dictionary.
  - Values arrive at SGLang exactly as given, whatever quotes, blanks, C(%), C($), C(#) or letters are in them.
  - The diff shows one line for each key. Of a secret it shows only that it is there, or that it changed.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
  - ansible.builtin.files
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  path:
    description:
      - The file to write. It is replaced in one step, and only where its content changes.
      - The directory that holds it must be there.
    type: path
    required: true
  format:
    description:
      - V(server_yaml) for SGLang's C(--config), V(environment) for C(EnvironmentFile=) of a unit.
    type: str
    choices:
      - server_yaml
      - environment
    default: server_yaml
  values:
    description:
      - SGLang's arguments by their own names (V(pp_size), V(pp-size) and V(--pp-size) are one), or environment
        variables.
      - A null leaves the key out.
      - Lists and dictionaries are for arguments only, lists for arguments that take several values, dictionaries for
        arguments that take JSON.
    type: dict
    default: {}
  secrets:
    description:
      - Further values, laid over O(values), that appear in no output.
      - SGLang's own keys (C(api-key), C(admin-api-key), C(ssl-keyfile-password)) and variables with names like
        E(HF_TOKEN) are hidden in the diff even where they come in O(values), but C(-vvv) shows O(values).
    type: dict
    default: {}
seealso:
  - module: gpufleet.sglang.server_ready
"""

EXAMPLES = r"""
- name: Configure a server of eight pipeline stages
  gpufleet.sglang.config_file:
    path: /etc/sglang/kimi/server.yaml
    group: sglang
    mode: "0640"
    values:
      model_path: /models/Kimi-K2.6
      served_model_name: kimi-k2.6
      pp_size: 8
      trust_remote_code: true
    secrets:
      api_key: "{{ vaulted_api_key }}"

- name: Write the environment of its unit
  gpufleet.sglang.config_file:
    path: /etc/sglang/kimi/environment
    format: environment
    mode: "0640"
    values:
      SGLANG_PP_LAYER_PARTITION: 8,8,8,8,8,7,7,7
    secrets:
      HF_TOKEN: "{{ vaulted_hugging_face_token }}"
"""

RETURN = r"""
path:
  description: The file that was written, or would have been.
  type: str
  returned: always
  sample: /etc/sglang/kimi/server.yaml
names:
  description: The names of the arguments or variables in the file, in the order in which they stand there.
  type: list
  elements: str
  returned: success
  sample: [model-path, pp-size, served-model-name, trust-remote-code]
changes:
  description:
    - The values that are not what they were, by name. A value that is not there is null, a secret is C(<secret>).
    - Empty where the file was not written by this module before.
  type: dict
  returned: success
  sample: {pp-size: {before: 4, after: 8}}
checksum_before:
  description: The SHA-256 of the file as it was; empty where there was none.
  type: str
  returned: success
  sample: ""
"""

import hashlib
import os
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import (
    FORMATS,
    HIDDEN,
    ConfigError,
    Format,
    public_diff,
)


def write(module: AnsibleModule, path: str, text: str) -> None:
    """Replace the file in one step: a reader sees the old content or the new one, and nobody a new one too early."""
    if not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    module.atomic_move(temporary, path)


def changes(
    form: Format, before: dict[str, Any], after: dict[str, Any], secret_keys: frozenset[str]
) -> dict[str, dict[str, Any]]:
    """The values that differ, by name, without the secrets."""

    def shown(values: dict[str, Any], name: str) -> Any:
        secret = name in secret_keys or form.is_secret(name)
        return HIDDEN if secret and name in values else values.get(name)

    names = sorted({*before, *after}) if before else []
    return {
        name: {"before": shown(before, name), "after": shown(after, name)}
        for name in names
        if before.get(name) != after.get(name)
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "format": {"type": "str", "choices": list(FORMATS), "default": "server_yaml"},
            "values": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
        },
        add_file_common_args=True,
        supports_check_mode=True,
    )
    path, form = module.params["path"], FORMATS[module.params["format"]]
    try:
        secrets = form.normalize(module.params["secrets"])
        after = {**form.normalize(module.params["values"]), **secrets}
        text = form.dump(after)
    except ConfigError as error:
        module.fail_json(msg=f"{path} was not written: {error}", path=path)
    try:
        with open(path, encoding="utf-8", newline="") as stream:
            old = stream.read()
    except FileNotFoundError:
        old = ""
    except (OSError, UnicodeDecodeError) as error:
        module.fail_json(msg=f"{path} was not written, since what is there cannot be read: {error}", path=path)
    before: dict[str, Any] = {}
    try:
        before = form.load(old) if old else {}
        shown = public_diff(form, before, after, frozenset(secrets))
        shown = (shown[0] if old else "", shown[1])
    except ConfigError:
        # Content of somebody else's may hold secrets in places that nobody knows.
        shown = ("# content that this module did not write\n", public_diff(form, {}, after, frozenset(secrets))[1])
    changed = old != text
    if changed and not module.check_mode:
        if not os.path.isdir(os.path.dirname(path)):
            module.fail_json(msg=f"{path} was not written: there is no directory {os.path.dirname(path)}", path=path)
        write(module, path, text)
    file_args = module.load_file_common_arguments(module.params)
    if os.path.exists(path):
        changed = module.set_fs_attributes_if_different(file_args, changed)
    module.exit_json(
        changed=changed,
        path=path,
        names=list(after),
        changes=changes(form, before, after, frozenset(secrets)),
        checksum_before=hashlib.sha256(old.encode("utf-8")).hexdigest() if old else "",
        diff={"before_header": path, "after_header": path, "before": shown[0], "after": shown[1]},
    )


if __name__ == "__main__":
    main()
