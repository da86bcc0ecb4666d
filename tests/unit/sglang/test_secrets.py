# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Nothing that is a secret by its name or its value is left, and nothing else is lost."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import (
    hide,
    is_secret_name,
    without_secrets,
)
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import recorded
from hypothesis import given
from hypothesis import strategies as st

SECRET = st.text(st.characters(categories=("Lu", "Nd", "Po", "Zs")), min_size=12, max_size=16).filter(
    lambda text: text == text.strip()
)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("admin-api-key", True),
        ("ssl_keyfile_password", True),
        ("ssl_keyfile", False),
        ("watermark_key_b", True),
        ("access_token", True),
        ("HF_TOKEN", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("PATH", False),
        ("tokenizer_path", False),
        ("token_capacity", False),
        ("max_total_tokens", False),
        ("num_reserved_decode_tokens", False),
        ("speculative_num_draft_tokens", False),
        ("speculative_token_map", False),
        ("piecewise_cuda_graph_max_tokens", False),
    ],
)
def test_names(name: str, secret: bool) -> None:
    """By the last word, since many arguments have tokens and keys in their names."""
    assert is_secret_name(name) is secret


def test_real_arguments_lose_their_secrets_only() -> None:
    """Of the 540 arguments of a real release, those that hold keys."""
    info = recorded("pp1-opt")
    del info["internal_states"]
    assert set(info) - set(without_secrets(info)) == {
        "admin_api_key",
        "api_key",
        "ssl_keyfile_password",
        "watermark_key",
        "watermark_key_b",
    }


@given(SECRET, st.sampled_from([str, repr, json.dumps, shlex.quote]))
def test_a_known_secret_shows_in_no_spelling(secret: str, spell: Any) -> None:
    """Python, JSON and a shell write some characters differently."""
    value = without_secrets({"text": f"--key {spell(secret)} end", "list": [secret, {secret: 1}]}, (secret,))
    assert secret not in json.dumps(value, ensure_ascii=False)
    assert spell(secret) not in value["text"]
    assert value["text"].endswith("end")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:word@host/x", "http://<secret>@host/x"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer <secret>"),
        ("http://host:8000/a@b", "http://host:8000/a@b"),
    ],
)
def test_unknown_secrets_in_texts(text: str, shown: str) -> None:
    """Where a text has a form that is known to hold one."""
    assert hide(text, ()) == shown


def test_json_in_a_text_is_looked_into() -> None:
    """Arguments like --hicache-storage-backend-extra-config hold credentials of a store."""
    given = {"extra": '{"url": "s3://x", "secret_key": "abc", "deep": [{"password": "def"}]}', "kept": '{"a":1}'}
    assert without_secrets(given) == {"extra": '{"url": "s3://x", "deep": [{}]}', "kept": '{"a":1}'}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(categories=["Ll"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["pp_size", "model", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_what_is_no_secret_stays(value: Any) -> None:
    """Whatever its type."""
    assert without_secrets(value, ("SECRET-VALUE",)) == value
