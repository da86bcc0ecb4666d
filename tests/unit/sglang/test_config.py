# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""server.yaml and the environment file: what goes in comes out unchanged, and no secret shows."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import (
    FORMATS,
    HIDDEN,
    HIDDEN_CHANGED,
    ConfigError,
    dump_environment,
    dump_server_yaml,
    is_secret_variable,
    load_environment,
    load_server_yaml,
    public_diff,
    server_arguments,
)
from hypothesis import given
from hypothesis import strategies as st

YAML_WORDS = ("yes", "no", "on", "off", "true", "false", "null")
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(?:-[a-z0-9]{1,5}){0,2}", fullmatch=True).filter(
    lambda name: name not in YAML_WORDS
)
# A surrogate is no character, a value with a leading '-' cannot pass through SGLang's command line.
TEXT = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: not text.startswith("-"))
SCALARS = st.one_of(
    TEXT,
    st.integers(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
JSON = st.recursive(SCALARS, lambda inner: st.dictionaries(TEXT, inner, max_size=3), max_leaves=4)
ARGUMENTS = st.dictionaries(NAMES, st.one_of(SCALARS, st.lists(SCALARS, max_size=3)))
VARIABLES = st.dictionaries(
    st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n")),
)


@given(ARGUMENTS)
def test_yaml_reads_what_was_written(arguments: dict[str, object]) -> None:
    """SGLang reads the file with PyYAML: every value keeps its type and its every character."""
    text = dump_server_yaml(arguments)
    assert yaml.safe_load(text) == arguments
    assert load_server_yaml(text) == arguments


@pytest.mark.parametrize("name", [*YAML_WORDS, "NO", "--off", "True"])
def test_a_word_that_yaml_takes_for_something_else_is_no_argument(name: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of an SGLang argument"):
        dump_server_yaml({name: 1})


@given(st.dictionaries(TEXT, JSON))
def test_a_mapping_arrives_as_json(mapping: dict[str, object]) -> None:
    """Arguments that take a mapping take it as JSON, in each release."""
    assert json.loads(yaml.safe_load(dump_server_yaml({"x": mapping}))["x"]) == mapping


@given(VARIABLES)
def test_environment_reads_what_was_written(variables: dict[str, str]) -> None:
    """One variable a line, whatever is in it."""
    text = dump_environment(variables)
    assert load_environment(text) == variables
    assert text.count("\n") == len(variables)


def test_server_yaml_is_one_sorted_line_per_argument() -> None:
    """A diff of two such files reads per key."""
    text = dump_server_yaml(
        {"pp_size": 8, "--model-path": "/models/Kimi K2.6", "trust-remote-code": True, "seed": None}
    )
    assert text == 'model-path: "/models/Kimi K2.6"\npp-size: 8\ntrust-remote-code: true\n'


@pytest.mark.parametrize(
    "value",
    [
        "a b",
        "it's",
        'say "hi"',
        "100%",
        "$HOME",
        "# no comment",
        "größe",
        "\U0001f680",
        "a: b",
        "yes",
        "0x1F",
        "\x85",
        "",
    ],
)
def test_awkward_texts_arrive_as_given(value: str) -> None:
    """Quotes, blanks, specifiers and signs mean nothing in either file."""
    assert yaml.safe_load(dump_server_yaml({"name": value})) == {"name": value}
    assert load_environment(dump_environment({"NAME": value})) == {"NAME": value}


@pytest.mark.parametrize("number", [1e-05, 1e22, 5e-324, -1.5, 0.85, -7])
def test_numbers_stay_numbers(number: float) -> None:
    """YAML 1.1 takes 1e-05 for a text."""
    assert yaml.safe_load(dump_server_yaml({"x": number})) == {"x": number}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pp_size": 1, "pp-size": 2}, "the same SGLang argument"),
        ({"two words": 1}, "not the name of an SGLang argument"),
        ({"x": "-rf"}, "begins with '-'"),
        ({"x": ["--flag"]}, "begins with '-'"),
        ({"x": [[1]]}, "found a list"),
        ({"x": float("nan")}, "a finite number"),
        ({"x": b"bytes"}, "found a value of type bytes"),
        ({"x": {"a": float("nan")}}, "cannot be written as JSON"),
        ({"x": "\ud800"}, "surrogate"),
    ],
)
def test_refused_arguments(values: dict[str, object], said: str) -> None:
    """What would not arrive as given is refused in one line."""
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        dump_server_yaml(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [({"A B": 1}, "not the name"), ({"A": "x\ny"}, "of one line"), ({"A": [1]}, "found a list")],
)
def test_refused_variables(values: dict[str, object], said: str) -> None:
    """The same for variables."""
    with pytest.raises(ConfigError, match=said):
        dump_environment(values)


def test_negative_numbers_pass_as_texts_and_numbers() -> None:
    """argparse takes -1 for a value, not for an option."""
    assert server_arguments({"a": "-1", "b": -1})
    assert yaml.safe_load(dump_server_yaml({"a": "-1", "b": -1})) == {"a": "-1", "b": -1}


def test_a_file_written_by_hand_is_read_by_a_yaml_library() -> None:
    """Somebody may have edited the file; the probes still find the port."""
    assert load_server_yaml("# mine\nport:   30001\nhost: 'x'\nstop_words:\n  - a\n") == {
        "port": 30001,
        "host": "x",
        "stop-words": ["a"],
    }


@pytest.mark.parametrize("text", ["a: [", "- a\n- b\n", "just words", "a: !!python/object:os.system {}\n"])
def test_a_broken_file_is_one_clear_line(text: str) -> None:
    """No traceback for a file that is not YAML, or not a mapping."""
    with pytest.raises(ConfigError, match=r"server\.yaml"):
        load_server_yaml(text)


@given(ARGUMENTS, ARGUMENTS, st.text(st.characters(categories=["Lu"]), min_size=12, max_size=12))
def test_secrets_do_not_show_in_a_diff(before: dict[str, object], after: dict[str, object], secret: str) -> None:
    """Neither the old key nor the new one, whatever else changes."""
    before = {**before, "api-key": secret}
    after = {**after, "api-key": secret + "B", "kept": secret}
    shown = public_diff(FORMATS["server_yaml"], before, after, frozenset({"kept"}))
    assert secret not in "".join(shown)
    assert json.dumps(HIDDEN) in shown[0]
    assert json.dumps(HIDDEN_CHANGED) in shown[1]


def test_a_diff_shows_what_is_no_secret() -> None:
    """One line for each key that changes."""
    before, after = public_diff(
        FORMATS["environment"], {"HF_TOKEN": "a", "X": "1"}, {"HF_TOKEN": "a", "X": "2"}, frozenset()
    )
    assert before == f'HF_TOKEN="{HIDDEN}"\nX="1"\n'
    assert after == f'HF_TOKEN="{HIDDEN}"\nX="2"\n'


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("OPENAI_API_KEY", True),
        ("PGPASSWORD", False),
        ("DB_PASSWORD", True),
        ("SGLANG_TOKENIZER", False),
        ("MAX_TOKENS", False),
        ("KEYBOARD", False),
    ],
)
def test_names_of_secret_variables(name: str, secret: bool) -> None:
    """By whole words of the name."""
    assert is_secret_variable(name) is secret
