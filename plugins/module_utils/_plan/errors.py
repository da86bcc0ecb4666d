# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What planning reports: an error where nothing can be planned, findings where something can. Pure."""

from __future__ import annotations

from dataclasses import dataclass


class PlanError(ValueError):
    """What was asked for cannot be planned; the text is one line for the user."""


@dataclass(frozen=True)
class Finding:
    """Something the user should know. *code* is stable; *advice* names the option to change."""

    code: str
    severity: str
    message: str
    advice: str = ""
