# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the program in the engine's Python finds, with parsers and sources of the test's own."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._programs.server_args import (
    Parser,
    check_each,
    find,
    is_deprecated,
    options,
    takes_proxy_tensors,
    words,
)
from hypothesis import example, given
from hypothesis import strategies as st


@pytest.fixture(name="parser")
def _parser() -> Parser:
    return make_parser()


def make_parser() -> Parser:
    parser = Parser(add_help=False)
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--pp-size", "--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8_e4m3", "bf16"], default="auto")
    parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
    parser.add_argument("--stop-words", nargs="*")
    parser.add_argument("--extra", type=json.loads)
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--enable-old", action="store_true", help="(Deprecated: use --enable-new) Something.")
    parser.add_argument("--graph-max-decode", type=int)
    parser.add_argument("--graph-max-prefill", type=int)
    return parser


@pytest.mark.parametrize(
    ("values", "code", "message", "advice"),
    [
        ({"pp-sise": 8}, "unknown_argument", "pp-sise: this release has no such argument", "write pp-size"),
        ({"pp_size": 8}, "unknown_argument", "pp_size: this release has no such argument", "write pp-size"),
        ({"graph-max": 8}, "unknown_argument", "no such argument", "write graph-max-decode or graph-max-prefill"),
        ({"zzz": 8}, "unknown_argument", "zzz: this release has no such argument", "leave it out"),
        ({"pp-size": "eight"}, "invalid_value", "pp-size: expected a whole number (invalid int value: 'eight')", ""),
        ({"pp-size": True}, "invalid_value", "pp-size: expected a whole number", "correct it"),
        ({"pp-size": [1, 2]}, "invalid_value", "pp-size: expected a whole number, found [1, 2]", "correct it"),
        ({"mem-fraction-static": "most"}, "invalid_value", "expected a number", "correct it"),
        ({"cuda-graph-bs": [1, "b"]}, "invalid_value", "expected one or more times a whole number", "correct it"),
        ({"extra": "{"}, "invalid_value", "extra: expected another value (invalid loads value: '{')", "correct it"),
        ({"kv-cache-dtype": "fp8_e4m2"}, "invalid_value", "expected one of auto, fp8_e4m3, bf16", "give fp8_e4m3"),
        ({"trust-remote-code": "yes"}, "invalid_value", 'expected true or false, found "yes"', "give one of them"),
        ({"pp": 8}, "abbreviated_argument", "pp: this release takes it for pp-size", "write pp-size"),
        ({"enable-old": True}, "deprecated_argument", "enable-old: deprecated", "use --enable-new"),
    ],
)
def test_one_argument(parser: Parser, values: dict[str, Any], code: str, message: str, advice: str) -> None:
    """Each is told with what was expected, what was seen, and what to change."""
    (found,) = check_each(parser, {"model-path": "/m", **values})
    assert (found["code"], found["argument"]) == (code, next(iter(values)))
    assert message in found["message"]
    assert advice in found["advice"]


def test_all_that_is_wrong_is_told_at_once(parser: Parser) -> None:
    """The parser itself would stop at the first."""
    found = check_each(parser, {"pp-sise": 8, "kv-cache-dtype": "x", "pp-size": 1.5})
    assert [finding["code"] for finding in found] == [
        "unknown_argument",
        "invalid_value",
        "invalid_value",
        "missing_argument",
    ]
    assert found[-1]["message"] == "model-path: expected a value, found none"


@pytest.mark.parametrize("name", ["model-path", "model", "model-p"])
def test_a_required_argument_by_any_name(parser: Parser, name: str) -> None:
    """An alias will do."""
    assert not [finding for finding in check_each(parser, {name: "/m"}) if finding["severity"] == "error"]


def test_what_is_given_right_is_not_mentioned(parser: Parser) -> None:
    """Each kind of value, as config files have them."""
    values = {
        "model-path": "/a b/m",
        "pipeline-parallel-size": "8",
        "mem-fraction-static": 0.85,
        "cuda-graph-bs": [1, 2],
        "stop-words": [],
        "extra": {"a": 1},
        "trust-remote-code": False,
        "enable-old": False,
        "kv-cache-dtype": "bf16",
    }
    assert check_each(parser, values) == []


NAMES = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
KNOWN = st.sampled_from(["model", "pp-size", "pipeline", "trust-remote-code", "stop-words", "extra", "cuda"])
VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.text(), st.lists(st.text(), max_size=2), st.just({})
)


@given(st.dictionaries(st.one_of(KNOWN, NAMES), VALUES), st.booleans())
@example(values={"model": []}, complete=False)
def test_nothing_but_findings(values: dict[str, Any], complete: bool) -> None:
    """One line each, whatever is given; and where none is an error, argparse takes it all together."""
    parser = make_parser()
    values = {**values, "model": "/m"} if complete else values
    findings = check_each(parser, values)
    assert all("\n" not in finding["message"] for finding in findings)
    if not any(finding["severity"] == "error" for finding in findings):
        found = {name: find(options(parser), name) for name in values}
        parser.parse_args(
            [word for name, action in found.items() if action for word in words(action, name, values[name])]
        )


def test_names_cut_short_are_found_as_argparse_finds_them(parser: Parser) -> None:
    """Every beginning of every name."""
    known = options(parser)
    for option in known:
        for length in range(1, len(option) + 1):
            cut = option[:length]
            action = find(known, cut)
            seen = [name for name in known if name.startswith(cut)]
            assert (action is not None) == (cut in known or len(seen) == 1)
            if action is not None and action.nargs is None and action.type is int:
                assert getattr(parser.parse_args(["--model", "x", f"--{cut}", "5"]), action.dest) == 5


def test_help_that_speaks_of_something_else_is_not_deprecated() -> None:
    """Only the beginning counts."""
    action = argparse.Action(["--x"], "x", help="Replaces the deprecated --y.")
    assert not is_deprecated(action)


SOURCES = {
    "tiny.py": "class Yes:\n def forward(self, x, *, pp_proxy_tensors=None): pass\n"
    "class No:\n def forward(self, x, **kwargs): pass\n"
    "class Child(No, Yes):\n pass\n"
    "class Alien(nn.Module):\n pass\n"
    "class Odd:\n forward = other\n"
    "class Loop(Loop):\n pass\n",
    "imported.py": "from sglang.srt.models.tiny import Yes\nfrom .tiny import No as Other\n"
    "class FromElsewhere(Yes):\n pass\nclass FromBeside(Other):\n pass\n"
    "class Twice:\n def forward(self, x): pass\nclass Everywhere:\n def forward(self, x): pass\n",
    "zz.py": "class Twice:\n def forward(self, x, pp_proxy_tensors): pass\n"
    "class Everywhere:\n def forward(self, x): pass\nEntryClass = [\n    Twice,\n]\nOthers = [Everywhere]\n",
}


@pytest.mark.parametrize(
    ("architecture", "takes"),
    [
        ("Yes", True),
        ("No", False),
        ("Child", False),
        ("FromElsewhere", True),
        ("FromBeside", False),
        ("Alien", None),
        ("Odd", None),
        ("Loop", None),
        ("Unknown", None),
        ("Twice", True),
        ("Everywhere", None),
    ],
)
def test_whether_a_class_can_be_split(tmp_path: Path, architecture: str, takes: bool | None) -> None:
    """As Python would look for forward: in the class, then in its bases, from left to right."""
    for name, source in SOURCES.items():
        (tmp_path / name).write_text(source)
    assert takes_proxy_tensors(tmp_path, architecture) is takes
