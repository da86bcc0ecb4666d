# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kills the ansible-playbook that it is loaded into, as a power cut or an impatient person does, when a task begins.

For tests only, by environment: ``ANSIBLE_CALLBACK_PLUGINS`` names this directory, ``ANSIBLE_CALLBACKS_ENABLED`` has
``interrupt``, ``INTERRUPT_AT`` is the name of a task or a handler without its role, and ``INTERRUPT_AFTER`` the seconds
that it may go on for (0). What runs on the hosts at that moment is not told, and goes on.
"""

from __future__ import annotations

import os
import signal
import threading

from ansible.playbook.task import Task
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: interrupt
type: aggregate
short_description: Kill this run when a task begins
description:
  - For tests of what the next run makes of it.
"""


class CallbackModule(CallbackBase):
    """Sees tasks begin, whether or not they are going to be skipped."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "interrupt"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_task_start(self, task: Task, is_conditional: bool) -> None:
        """Called by Ansible for each task."""
        if task.name == os.environ["INTERRUPT_AT"]:
            after = float(os.environ.get("INTERRUPT_AFTER") or 0)
            if after:
                threading.Timer(after, _end).start()
            else:
                _end()

    def v2_playbook_on_handler_task_start(self, task: Task) -> None:
        """Called by Ansible for each handler."""
        self.v2_playbook_on_task_start(task, is_conditional=False)


def _end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
