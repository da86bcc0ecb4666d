# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the module pp_plan, and shows its plan on the controller where that is asked for."""

from __future__ import annotations

import sys
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.render import render

display = Display()


class ActionModule(ActionBase):
    """The module does the work where the model and the GPUs are; drawing is for the controller."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module returns, a plan that cannot work included."""
        super().run(tmp, task_vars)
        task_vars = dict(task_vars or {})
        if self._connection.transport == "local":
            # With -c local it is about a host that is not there yet; what is there is the Python that runs this.
            task_vars.setdefault("ansible_python_interpreter", sys.executable)
        result = dict(self._execute_module(task_vars=task_vars))
        shown = self._task.args.get("show", "none")
        if shown in ("short", "full") and "scheduler" in result:
            host = str(task_vars.get("inventory_hostname", "localhost"))
            display.display("\n".join([f"\n{host}", *render(result, short=shown == "short")]))
        return result
