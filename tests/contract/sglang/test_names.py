# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The spellings of arguments against the parsers of SGLang's releases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.names import ALIASES, canonical

FLAGS = sorted((Path(__file__).parents[1] / "data" / "flags").glob("*.json"))


def spellings(path: Path) -> list[list[str]]:
    """The names of each argument that stores a value or sets a flag, without those that negate one."""
    listed = json.loads(path.read_text(encoding="utf-8"))["flags"]
    return [
        [flag.removeprefix("--") for flag in entry["flags"] if flag.startswith("--")]
        for entry in listed
        if entry["action"] in ("_StoreAction", "_StoreTrueAction")
    ]


@pytest.mark.parametrize("path", FLAGS, ids=lambda path: path.stem)
def test_all_names_of_an_argument_are_one(path: Path) -> None:
    for names in spellings(path):
        assert len({canonical(name) for name in names}) == 1, names


@pytest.mark.parametrize("path", FLAGS, ids=lambda path: path.stem)
def test_the_name_that_is_written_is_one_that_the_release_takes(path: Path) -> None:
    for names in spellings(path):
        assert {canonical(name) for name in names if name in ALIASES} <= set(names)
