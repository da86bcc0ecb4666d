# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The arguments of a plan against the parsers of real releases: data/flags has what each of them accepts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.arguments import arguments
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.memory import KV_NUMBER_BYTES, Gpus
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_config
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import Plan, make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import STRATEGIES, Wishes
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.releases import NEWEST_KNOWN, parse_release
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import LLAMA

FLAGS = sorted(
    (Path(__file__).parents[1] / "data" / "flags").glob("*.json"),
    key=lambda path: parse_release(path.stem),
)
TYPES = {"int": int, "float": float, "str": str, "human_readable_int": int, None: str}


class RefusedError(Exception):
    """What the parser said."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that does not end the tests."""

    def error(self, message: str) -> NoReturn:
        raise RefusedError(message)


def parser_of(path: Path) -> Parser:
    """Return a parser with the flags, types, choices and arities of a release, abbreviations allowed as there."""
    parser = Parser(add_help=False)
    for flag in json.loads(path.read_text())["flags"]:
        if flag["action"] == "_HelpAction":
            continue
        if "True" in flag["action"] or "Const" in flag["action"]:
            parser.add_argument(*flag["flags"], dest=flag["dest"], action="store_true")
            continue
        parser.add_argument(
            *flag["flags"],
            dest=flag["dest"],
            type=TYPES.get(flag.get("type"), str),
            choices=flag.get("choices"),
            nargs=flag.get("nargs"),
            default=flag.get("default"),
        )
    return parser


def command_line(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def plan(release: str, **wishes: Any) -> Plan:
    everything = {
        "target_concurrency": 64,
        "pp_size": 4,
        "tp_size": 2,
        "dp_size": 2,
        "context_length": 32768,
        "chunked_prefill_size": 4096,
        "max_running_requests": 128,
        "pp_async_batch_depth": 1,
        "sglang_version": release,
    }
    return make_plan(Wishes(**{**everything, **wishes}), read_config(LLAMA), Gpus(16, 81559))


@pytest.fixture(params=FLAGS, ids=lambda path: str(path.stem))
def flags(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_all_releases_are_here() -> None:
    assert len(FLAGS) == 8
    assert FLAGS[-1].stem == NEWEST_KNOWN


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", sorted(KV_NUMBER_BYTES))
def test_arguments_are_accepted(flags: Path, strategy: str, dtype: str) -> None:
    planned = plan(flags.stem, strategy=strategy, kv_cache_dtype=dtype)
    values = arguments(planned)
    parsed = vars(parser_of(flags).parse_args(command_line(values)))
    accepted = set(parsed.values())
    assert {value for value in values.values() if value != "auto"} <= accepted
    # A flag that is there counts under its own name, not as the beginning of another.
    known = {name for flag in json.loads(flags.read_text())["flags"] for name in flag["flags"]}
    assert set(command_line(values)[::2]) <= known


def test_several_nodes(flags: Path) -> None:
    values = arguments(plan(flags.stem, dp_size=1, nnodes=2))
    assert values["nnodes"] == 2
    assert vars(parser_of(flags).parse_args(command_line(values)))["nnodes"] == 2


def test_a_plan_says_or_sets_what_was_asked_for(flags: Path) -> None:
    """The cap, the graphs and the depth reach the parser under some name, or a finding says that they cannot."""
    planned = plan(flags.stem, pp_max_micro_batch_size=13)
    parsed = vars(parser_of(flags).parse_args(command_line(arguments(planned))))
    cap = parsed.get("pp_max_micro_batch_size", parsed.get("max_micro_batch_size"))
    graphs = parsed.get("cuda_graph_max_bs_decode", parsed.get("cuda_graph_max_bs"))
    assert (cap, graphs) == (13, 16)
    depth = parsed.get("pp_async_batch_depth")
    too_old = [finding for finding in planned.findings if finding.code == "release_too_old"]
    assert (depth == 1) != any("pp_async_batch_depth" in finding.message for finding in too_old)


def test_the_parser_of_the_tests_refuses_what_the_release_refuses() -> None:
    newest = parser_of(FLAGS[-1])
    with pytest.raises(RefusedError, match="ambiguous option: --cuda-graph-max-bs"):
        newest.parse_args(["--cuda-graph-max-bs", "8"])
    with pytest.raises(RefusedError, match="invalid choice"):
        newest.parse_args(["--kv-cache-dtype", "int3"])
    with pytest.raises(RefusedError, match="invalid int value"):
        newest.parse_args(["--pp-size", "4.5"])
