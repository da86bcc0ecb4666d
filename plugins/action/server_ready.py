# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the module server_ready in slices, and shows on the controller what each slice saw."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpufleet.sglang.plugins.plugin_utils._run import current_run

display = Display()

DEFAULTS = {"timeout": 3600.0, "progress_interval": 15.0, "poll_interval": 1.0}
QUIET_SLICE = 60.0
"""Seconds of a slice that nothing is shown of at its end."""


class ActionModule(ActionBase):
    """Waits on the target, in slices; a lost connection costs a slice, not the wait."""

    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run slices until the module says that the server is ready or failed."""
        super().run(tmp, task_vars)
        self._host = str((task_vars or {}).get("inventory_hostname", "localhost"))
        arguments = dict(self._task.args)
        if self._task.check_mode or self._task.async_val or arguments.get("slice"):
            return dict(self._execute_module(task_vars=task_vars, wrap_async=bool(self._task.async_val)))
        timeout, interval, pause = (self._seconds(name) for name in DEFAULTS)
        self._quiet = str(arguments.get("progress", True)).lower() in ("false", "no", "off", "0")
        length = max(interval, QUIET_SLICE) if self._quiet else interval
        resume: dict[str, Any] = {}
        began, lost = time.monotonic(), 0
        while True:
            slice_args = {
                **arguments,
                "slice": length,
                "resume": {**resume, "elapsed": time.monotonic() - began},
                "run": current_run().id,
            }
            try:
                result = dict(self._execute_module(module_args=slice_args, task_vars=task_vars))
                if _was_cut_short(result):
                    raise AnsibleConnectionFailure(f"the module was ended from outside (status {result.get('rc')})")
            except AnsibleConnectionFailure as error:
                if time.monotonic() - began > timeout:
                    raise
                lost += 1
                self._show(began, f"connection lost, trying again ({str(error).splitlines()[0][:120]})")
                time.sleep(pause)
                self._reconnect()
                continue
            resume = result.pop("resume", {})
            if result.get("failed") or result.get("ready") or not resume:
                break
            self._show(began, _progress(result))
        result["connections_lost"] = lost
        if result.get("ready"):
            self._show(began, f"READY{_timeline(result['timeline'])}", "green")
        # The arguments of a slice are not those of the task.
        result.pop("invocation", None)
        return result

    def _seconds(self, name: str) -> float:
        try:
            return float(self._task.args[name])
        except (KeyError, TypeError, ValueError):
            return DEFAULTS[name]  # what is no number is refused by the module itself

    def _show(self, began: float, text: str, color: str | None = None) -> None:
        if not self._quiet:
            elapsed = f"{time.monotonic() - began:5.0f} s"
            display.display(f"{self._host} | {self._task.args.get('name')} | {elapsed} | {text}", color)

    def _reconnect(self) -> None:
        with contextlib.suppress(AnsibleConnectionFailure, AttributeError, NotImplementedError):
            self._connection.reset()


def _was_cut_short(result: dict[str, Any]) -> bool:
    """Whether a signal ended the module before it said anything, as it does when the host goes down."""
    return not str(result.get("module_stdout", "x")).strip() and int(result.get("rc") or 0) > 128


def _progress(result: dict[str, Any]) -> str:
    phase = str(result["phase"]).replace("_", " ")
    return f"{phase}: {result['detail']}" if result["detail"] else phase


def _timeline(timeline: dict[str, float]) -> str:
    parts = ", ".join(f"{phase.replace('_', ' ')} {seconds:.1f}" for phase, seconds in timeline.items())
    return f" ({parts})" if parts else ""
