# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ansible inventory of a set of hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from . import keys

GROUP = "sglang"


def render(name: str, addresses: Mapping[str, tuple[str, int]], ssh: Path) -> str:
    """The inventory as YAML: the hosts in the group `sglang`, with all that ansible-playbook needs to reach them.

    `addresses` gives address and port of each host's sshd, `ssh` is the directory of the keys.
    """
    options = f"-o UserKnownHostsFile={ssh / keys.KNOWN_HOSTS} -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
    # The connection is kept for the next task; a host that went away is noticed after 10 seconds.
    keep = "-o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=5 -o ServerAliveCountMax=2"
    variables = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(ssh / keys.USER),
        "ansible_ssh_common_args": options,
        "ansible_ssh_args": keep,
        "ansible_ssh_pipelining": True,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    lines = ["---", f"# Test hosts of the set {name}, written by testhosts.", f"{GROUP}:", "  hosts:"]
    for host, (address, port) in sorted(addresses.items()):
        lines += [f"    {host}:", f"      ansible_host: {address}", f"      ansible_port: {port}"]
    lines += ["  vars:", *(f"    {key}: {json.dumps(value)}" for key, value in variables.items())]
    return "\n".join(lines) + "\n"
