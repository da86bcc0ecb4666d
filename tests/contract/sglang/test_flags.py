# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Arguments against the parsers of real releases, as data/flags has them: what is told leads to a name there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._programs.server_args import Parser, check_each, options
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.releases import ARGUMENTS, parse_release
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_args import Finding, with_history

FLAGS = sorted((Path(__file__).parents[1] / "data" / "flags").glob("*.json"), key=lambda path: parse_release(path.stem))
NAMES = sorted({entry.name.replace("_", "-") for entries in ARGUMENTS.values() for entry in entries})
TYPES: dict[str | None, Any] = {"int": int, "float": float}


def parser_of(path: Path) -> Parser:
    """A parser that takes what that of the release takes."""
    parser = Parser(add_help=False)
    for flag in json.loads(path.read_text())["flags"]:
        names = [name for name in flag["flags"] if name.startswith("--") and name != "--help"]
        if not names:
            continue
        if flag["action"] == "_StoreTrueAction":
            parser.add_argument(*names, dest=flag["dest"], action="store_true")
        else:
            parser.add_argument(
                *names,
                dest=flag["dest"],
                type=TYPES.get(flag.get("type"), str),
                choices=flag.get("choices"),
                nargs=flag.get("nargs"),
                required=flag.get("required", False),
            )
    return parser


@pytest.mark.parametrize("path", FLAGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", NAMES)
def test_an_argument_of_another_release(path: Path, name: str) -> None:
    """Where the release lacks it, the advice names one that the release has, or to leave it out."""
    parser = parser_of(path)
    known = options(parser)
    findings = check_each(parser, {"model-path": "/m", name: 4})
    if name in known:
        assert findings == []
        return
    (told,) = with_history([Finding(**finding) for finding in findings], path.stem, None)
    assert (told.code, told.argument) == ("unknown_argument", name)
    assert told.advice == "leave it out" or told.advice.removeprefix("write ") in known
    assert " since " in told.message or " it came with " in told.message


@pytest.mark.parametrize("path", FLAGS, ids=lambda path: path.stem)
def test_every_argument_of_a_release(path: Path) -> None:
    """None is taken for unknown, whatever its alias; a letter too many leads back to it."""
    parser = parser_of(path)
    known = options(parser)
    values = {"model-path": "/m", **{name: True for name, action in known.items() if action.nargs == 0}}
    assert check_each(parser, values) == []
    for name in sorted(known)[::20]:
        (found,) = check_each(parser, {"model-path": "/m", f"{name}x": 1})
        assert found["code"] == "unknown_argument"
        assert name in found["advice"].removeprefix("write ").split(" or ")
