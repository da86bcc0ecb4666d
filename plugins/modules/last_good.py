#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: last_good
short_description: Keep the proven configurations of an SGLang server, and go back to one
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Keeps copies of the files that a start of a server is made of - the systemd unit, C(server.yaml) and the environment
    file - as numbered generations, and brings one of them back.
  - The unit names the virtual environment of SGLang that it runs in, so that going back brings back the engine, too.
  - It restarts nothing. The role P(gpufleet.sglang.sglang_server#role) does that around it.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    details:
      - The files hold keys. RV(files) names those that differ.
  idempotent:
    support: full
options:
  name:
    description:
      - The server, by the name that the role P(gpufleet.sglang.sglang_server#role) deployed it under.
    type: str
    required: true
  state:
    description:
      - V(promoted) keeps the files as they are now, unless the newest generation has them already. V(restored) brings
        back the files of a generation. V(listed) only looks.
    type: str
    choices:
      - listed
      - promoted
      - restored
    default: listed
  generation:
    description:
      - The number of the generation to go back to, or to compare with.
      - The default is the newest one, and with O(state=restored) the newest one that is not what the files are now.
    type: int
  keep:
    description:
      - How many generations there are at most after a promotion.
    type: int
    default: 5
seealso:
  - module: gpufleet.sglang.server_ready
"""

EXAMPLES = r"""
- name: Keep what was proven just now
  gpufleet.sglang.last_good:
    name: kimi
    state: promoted

- name: Go back to what worked last
  gpufleet.sglang.last_good:
    name: kimi
    state: restored
"""

RETURN = r"""
generation:
  description: The number of the generation that was promoted or restored, or of the newest one.
  type: int
  returned: when there is one
  sample: 7
generations:
  description: The generations that are kept, the oldest first.
  type: list
  elements: dict
  returned: success
  contains:
    number:
      description: Its number.
      type: int
      returned: always
      sample: 7
    promoted:
      description: When it was promoted, in UTC.
      type: str
      returned: always
      sample: "2026-11-30T03:04:05+00:00"
files:
  description: The files that differ from that generation; with O(state=restored), the ones that were brought back.
  type: list
  elements: str
  returned: when there is a generation
  sample: [/etc/sglang/kimi/server.yaml]
"""

from datetime import datetime, timezone

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import SystemdError, unit_name
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.generations import GenerationError, Store


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat("T", "seconds")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["listed", "promoted", "restored"], "default": "listed"},
            "generation": {"type": "int"},
            "keep": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    name, state, number, keep = (module.params[option] for option in ("name", "state", "generation", "keep"))
    if keep < 1:
        module.fail_json(msg=f"keep: expected 1 or more, found {keep}")
    changed = False
    result: dict[str, object] = {}
    try:
        unit_name(name)
        store = Store.of_server(name)
        if state == "promoted" and store.needs_promotion():
            changed = True
            if not module.check_mode:
                store.promote(keep)
        known = store.generations()
        generation = (
            store.find(number) if number or (state == "restored" and not known) else known[-1] if known else None
        )
        if state == "restored" and not number:
            generation = store.earlier() or generation
        if generation is not None:
            files = store.differing(generation)
            result = {"generation": generation.number, "files": [str(path) for path in files]}
            if state == "restored" and files:
                changed = True
                if not module.check_mode:
                    store.restore(generation, module.atomic_move)
    except (GenerationError, SystemdError, OSError) as error:
        module.fail_json(msg=f"{name}: {error}")
    generations = [{"number": entry.number, "promoted": _utc(entry.promoted)} for entry in store.generations()]
    module.exit_json(changed=changed, generations=generations, **result)


if __name__ == "__main__":
    main()
