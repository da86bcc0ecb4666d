#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: server_lock
short_description: Let one run at a time change an SGLang server
version_added: 0.1.0
author: gpufleet contributors (@gpufleet)
description:
  - Takes the lock of a server for the run of Ansible that the task belongs to, or gives it back. While another run has
    it, the task waits.
  - A run that was killed does not lock others out. Where it ran on the same controller as this one, its lock is free at
    once; else it comes free O(lease) seconds after the last step that prolonged it, or when the host is booted.
  - M(gpufleet.sglang.server_ready) prolongs the lock of its own run while it waits.
  - The role P(gpufleet.sglang.sglang_server#role) does this by itself. The module is for playbooks that change a
    server in other ways. It has to run as root.
extends_documentation_fragment:
  - gpufleet.sglang.attributes
attributes:
  check_mode:
    support: full
    details:
      - In check mode the module tells who has the lock, and neither takes it nor waits.
  diff_mode:
    support: none
    details:
      - There is nothing to show a difference of.
  idempotent:
    support: full
    details:
      - A run may take a lock again that it has. The lock is no change of the host.
options:
  name:
    description:
      - The server, by the name that the role P(gpufleet.sglang.sglang_server#role) deployed it under.
    type: str
    required: true
  state:
    description:
      - V(held) takes the lock, V(released) gives it back if this run has it.
    type: str
    choices:
      - held
      - released
    default: held
  lease:
    description:
      - Seconds that the lock lasts without being prolonged. It should be longer than the longest single step.
    type: float
    default: 360
  timeout:
    description:
      - Seconds to wait at most for another run.
    type: float
    default: 600
  run:
    description:
      - Which run this is. Set by the action plugin.
    type: str
    default: ""
  run_text:
    description:
      - What to call this run. Set by the action plugin.
    type: str
    default: ""
  gone:
    description:
      - A run that is known to have died. Set by the action plugin.
    type: str
    default: ""
seealso:
  - module: gpufleet.sglang.server_ready
"""

EXAMPLES = r"""
- name: Change a server in a way of our own
  block:
    - name: Keep other runs away
      gpufleet.sglang.server_lock:
        name: kimi

    - name: Do it
      ansible.builtin.include_tasks: ours.yml
  always:
    - name: Let others
      gpufleet.sglang.server_lock:
        name: kimi
        state: released
"""

RETURN = r"""
held:
  description: Whether this run has the lock now.
  type: bool
  returned: success
  sample: true
waited:
  description: Seconds that another run was waited for.
  type: float
  returned: when it was waited for another run
  sample: 31.4
holder:
  description: Whose the lock is; null where it is free.
  type: dict
  returned: success
  contains:
    run:
      description: The run, as an id.
      type: str
      returned: always
      sample: 1b9e3c4e-5d9f-4c1d-8b57-0cf0e2a5a3f1/4026531836/4242/91830
    text:
      description: The run in words.
      type: str
      returned: always
      sample: alice@ops-1, process 4242
    taken:
      description: When it took the lock, in UTC.
      type: str
      returned: always
      sample: "2026-11-30T03:04:05+00:00"
    remaining:
      description: Seconds until the lock comes free if that run does nothing any more.
      type: float
      returned: always
      sample: 352.1
"""

from datetime import datetime, timezone
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import SystemdError, unit_name
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.lock import Holder, LockError, Locks


def told(locks: Locks, holder: Holder | None) -> dict[str, Any] | None:
    """A holder as the module returns it."""
    if holder is None:
        return None
    return {
        "run": holder.run,
        "text": holder.text,
        "taken": datetime.fromtimestamp(holder.taken, timezone.utc).isoformat("T", "seconds"),
        "remaining": round(locks.remaining(holder), 1),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
            "lease": {"type": "float", "default": 360},
            "timeout": {"type": "float", "default": 600},
            "run": {"type": "str", "default": ""},
            "run_text": {"type": "str", "default": ""},
            "gone": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    state, lease, run = (module.params[option] for option in ("state", "lease", "run"))
    if lease <= 0:
        module.fail_json(msg=f"lease: expected more than 0, found {lease}")
    if not run:
        module.fail_json(msg="run: expected the run that the action plugin of this module tells, found nothing")
    locks = Locks()
    try:
        name = unit_name(module.params["name"])
        if module.check_mode:
            holder = locks.holder(name)
        elif state == "held":
            holder = locks.hold(name, run, module.params["run_text"], lease, module.params["gone"])
        else:
            locks.release(name, run)
            holder = locks.holder(name)
    except (LockError, SystemdError) as error:
        module.fail_json(msg=str(error))
    held = holder is not None and holder.run == run
    module.exit_json(changed=False, held=held, holder=told(locks, holder))


if __name__ == "__main__":
    main()
