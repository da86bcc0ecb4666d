# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The cap on micro-batches of a running server: what it may be, and what came of changing it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.releases import (
    ReleaseError,
    argument_name,
    parse_release,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import ServerInfo

ENDPOINT = "/set_internal_state"
ARGUMENT = "pp_max_micro_batch_size"


class MicroBatchError(ValueError):
    """The cap cannot be what was asked for."""


@dataclass(frozen=True)
class Change:
    """The cap before, the cap asked for, and the largest that a running server takes: ``max_running_requests // P``.

    Where data-parallel ranks have different caps, ``before`` is the first that is not the one asked for.
    """

    before: int
    wanted: int
    limit: int

    @property
    def needed(self) -> bool:
        """Whether any rank has another cap than the one asked for."""
        return self.before != self.wanted


def plan_change(info: ServerInfo, wanted: int) -> Change:
    """What has to be done. Raises MicroBatchError with one line for a cap that a running server does not take.

    A cap that is in force already is fine, even one that can only be set at a start.
    """
    caps = [cap for cap in info.caps if cap is not None]
    limits = [limit for limit in info.limits if limit is not None]
    if not caps or not limits:
        raise MicroBatchError(
            f"SGLang {info.version} does not tell its {ARGUMENT} or its max_running_requests, so that a change could "
            f"not be proven; set {ARGUMENT} among its arguments and restart it"
        )
    change = Change(
        before=next((cap for cap in caps if cap != wanted), wanted), wanted=wanted, limit=min(limits) // info.pp_size
    )
    if change.needed and not 1 <= wanted <= change.limit:
        expected = f"1 to {change.limit}" if change.limit else "no change, since there are fewer requests than stages"
        raise MicroBatchError(
            f"{ARGUMENT}: expected {expected} (max_running_requests {min(limits)} // pp_size {info.pp_size}), found "
            f"{wanted}; a running server takes no other, so restart it with this one, or with a larger "
            "max_running_requests"
        )
    return change


def request(info: ServerInfo, change: Change) -> dict[str, Any]:
    """What is posted to ENDPOINT."""
    try:
        name = argument_name(ARGUMENT, parse_release(info.version))
    except ReleaseError:
        name = ARGUMENT
    return {"server_args": {name: change.wanted}}


def check_answer(answer: Answer) -> None:
    """Raise MicroBatchError with one line where the server refused. Up to 0.5.19 it says true even then."""
    if answer.status in (401, 403):
        raise MicroBatchError(
            f"{answer.text}. Expected that the server takes the admin key, or the API key where it has no other: give "
            "the one it was started with as admin_api_key or in config"
        )
    updated = answer.json()
    if answer.status != 200:
        raise MicroBatchError(f"{answer.text}. Expected that the server changes its {ARGUMENT}: look at its journal")
    if not isinstance(updated, list) or not updated or not all(item is True for item in updated):
        raise MicroBatchError(f"the server refused: {answer.text}. The reason is in its journal")


def check_effect(info: ServerInfo, change: Change) -> None:
    """Raise MicroBatchError with one line where the cap that is read back is not the one asked for."""
    if set(info.caps) != {change.wanted}:
        raise MicroBatchError(
            f"the server said that it is done, expected {ARGUMENT} {change.wanted}, read back "
            f"{', '.join(map(str, info.caps))}; look at its journal, or restart it with this value"
        )
