# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes down what the tasks of a run came to, for tests and benchmarks that ask what a run did.

By environment: ``ANSIBLE_CALLBACK_PLUGINS`` names this directory, ``ANSIBLE_CALLBACKS_ENABLED`` has ``record``, and
``RECORD_TO`` is the file. Each line is the JSON of one task on one host: ``task`` (without its role), ``host``, ``at``
(its end, in seconds since the epoch), ``outcome`` (ok, failed, rescued or not, or skipped), ``changed``, ``msg``, and
``diff``, a list of what Ansible showed: before and after, or as the module prepared it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: record
type: aggregate
short_description: Write down what tasks came to
description:
  - For tests that compare what a run foretold with what it did.
"""


class CallbackModule(CallbackBase):
    """One line for each end of a task."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "record"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_on_ok(self, result: Any) -> None:
        """Called by Ansible."""
        self._write("ok", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Called by Ansible."""
        self._write("skipped", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Called by Ansible."""
        self._write("failed", result)

    def _write(self, outcome: str, result: Any) -> None:
        content = result.result
        parts = [content, *content.get("results", [])]
        found = (part.get("diff") for part in parts if isinstance(part, dict))
        diffs = [diff for entry in found if entry for diff in (entry if isinstance(entry, list) else [entry])]
        line = {
            "task": result.task.name,
            "host": result.host.get_name(),
            "at": time.time(),
            "outcome": outcome,
            "changed": bool(content.get("changed")),
            "msg": str(content.get("msg", "")),
            "diff": [
                {key: diff[key] for key in ("before", "after", "prepared") if diff.get(key) is not None}
                for diff in diffs
            ],
        }
        with Path(os.environ["RECORD_TO"]).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, default=str) + "\n")
