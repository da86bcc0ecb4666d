# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the module server_lock in the name of this run, and waits while another one has the lock."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpufleet.sglang.plugins.plugin_utils._run import current_run, is_gone

display = Display()

TIMEOUT = 600.0
PAUSE = 2.0
"""Seconds between two tries."""


class ActionModule(ActionBase):
    """The module takes the lock or tells whose it is. Waiting is the controller's, which knows who of its own died."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return when this run has the lock, or has given it back; fail when another run keeps it for too long."""
        super().run(tmp, task_vars)
        run, began = current_run(), time.monotonic()
        arguments = {**self._task.args, "run": run.id, "run_text": run.text}
        waits = arguments.get("state", "held") == "held" and not self._task.check_mode
        told = ""
        while True:
            result = dict(self._execute_module(module_args=arguments, task_vars=task_vars))
            # Its arguments are not those of the task.
            result.pop("invocation", None)
            if told:
                result["waited"] = round(time.monotonic() - began, 1)
            holder = result.get("holder")
            if result.get("failed") or result.get("held") or not waits or not holder:
                return result
            if is_gone(holder["run"]):
                arguments["gone"] = holder["run"]
                continue
            if time.monotonic() - began >= self._timeout():
                return {**result, "failed": True, "msg": self._in_the_way(holder)}
            if current_run().id != run.id:
                raise AnsibleActionFail("the run that this task belongs to has ended")
            if told != holder["run"]:
                told = holder["run"]
                host = (task_vars or {}).get("inventory_hostname", "localhost")
                display.display(f"{host} | {self._task.args.get('name')} | waits for another run: {holder['text']}")
            time.sleep(PAUSE)

    def _timeout(self) -> float:
        try:
            return float(self._task.args.get("timeout", TIMEOUT))
        except (TypeError, ValueError):
            return TIMEOUT  # what is no number is refused by the module itself

    def _in_the_way(self, holder: dict[str, Any]) -> str:
        name, other = self._task.args.get("name"), f"{holder['text']}, since {holder['taken']}"
        return (
            f"{name} is being changed by another run ({other}). "
            f"It has not ended within {self._timeout():.0f} s, and nothing was changed. Run this again when it has; if "
            f"that run is dead, its lock comes free within {max(holder['remaining'], 0):.0f} s."
        )
