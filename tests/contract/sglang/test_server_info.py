# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What real servers said of themselves, against the command lines that they were started with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import (
    Difference,
    differences,
    read_info,
)

RECORDED = Path(__file__).parents[1] / "data" / "server_info"
RUNS = sorted(path.stem for path in RECORDED.glob("*.json"))


def words(command: str) -> dict[str, Any]:
    """The arguments of a command line, each with its value as text, or true."""
    return {
        name: value.strip() or True for name, _blank, value in (part.partition(" ") for part in command.split(" --"))
    }


@pytest.mark.parametrize("run", RUNS)
def test_a_server_does_what_its_command_line_says(run: str) -> None:
    """Each argument is found in force, whatever SGLang resolved; one that is not, is told."""
    body = json.loads((RECORDED / f"{run}.json").read_text())
    plan = words(body["launch_command"].removeprefix("--"))
    info = read_info("/server_info", body)
    assert differences(info, plan) == []
    limit = int(plan["max-running-requests"])
    assert differences(info, {**plan, "max-running-requests": limit + 1}) == [
        Difference("max-running-requests", limit + 1, limit)
    ]
    pp_size = int(plan.get("pp-size", 1))
    assert info.caps == [int(plan.get("pp-max-micro-batch-size", limit // pp_size))]
    assert info.auto_cap == limit // pp_size
    assert info.slots == pp_size + int(plan.get("pp-async-batch-depth", 0))
    assert info.max_total_num_tokens == int(plan["max-total-tokens"])
