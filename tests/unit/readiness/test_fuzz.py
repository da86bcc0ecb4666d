# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever a host or a server says, it is judged without a traceback. GPUFLEET_FUZZ: how many examples a test."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._diagnosis.batches import batch_of
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import (
    MAX_LINE,
    PHASES,
    Entry,
    Signs,
    parse_json,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Listener, Pulse
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import parse_show
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.catalogue import BY_CODE
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import MAX_SHOWN, explain_exit, redact
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import Wait, look
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer
from ansible_collections.gpufleet.sglang.tests.unit.readiness.test_readiness import DIED, RUNNING, WANTED, Host
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = settings(max_examples=int(os.environ.get("GPUFLEET_FUZZ", "100")))

# Pieces that mean something, in any order and with anything between them.
WORDS = st.sampled_from(
    [
        "[2026-11-01 10:00:26", " PP3", " TP1", "] ", "Load weight begin", "Load weight end.", "Uvicorn running on ",
        "The server is fired up and ready to roll!", "34% Completed | 22/64", "% Completed | ", "Decode batch, ",
        "#running-req: ", "#queue-req: 7", "token usage: ", "gen throughput (token/s): 1.", "error: argument ",
        ": invalid", "api_key='", "'", '"', "\r", "\n", "\x1b[33m", "\x1b[", "Traceback (most recent call last):",
        "CUDA out of memory", "NVRM: Xid (", "Capture ", "cuda graph begin", "Bearer ", "=", "999999999999999999999",
    ]
)  # fmt: skip
TEXT = st.lists(WORDS | st.text(max_size=30), max_size=12).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["data", "id", "parent", "choices", "text", "usage", "completion_tokens", "MESSAGE"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
BODY = st.binary(max_size=200) | JSON.map(lambda content: json.dumps(content).encode())


@EXAMPLES
@given(TEXT)
def test_lines(text: str) -> None:
    entry, signs = Entry.of(text), Signs()
    signs.read(entry)
    assert signs.phase in PHASES
    assert len(entry.text) <= MAX_LINE
    batch_of(entry)
    found = explain_exit(DIED, [entry])
    assert found.cause in BY_CODE
    assert all(len(line) <= MAX_SHOWN for line in found.evidence)


@EXAMPLES
@given(TEXT, st.text(min_size=8, max_size=20))
def test_secrets(text: str, secret: str) -> None:
    assert secret not in redact(text + secret + text, (secret,)).replace("<secret>", "")


@EXAMPLES
@given(BODY, JSON, st.dictionaries(st.text(max_size=10), JSON, max_size=3))
def test_entries(line: bytes, message: Any, fields: dict[str, Any]) -> None:
    parse_json(line)
    for entry in parse_json(json.dumps({**fields, "MESSAGE": message})):
        assert entry.text.strip()


@EXAMPLES
@given(st.integers(0, 999), BODY, BODY, BODY)
def test_answers(status: int, models: bytes, ready: bytes, completion: bytes) -> None:
    host = Host(
        models_answer=Answer(200, models), ready_answer=Answer(status, ready), completion_answer=Answer(200, completion)
    )
    for answers in (
        host,
        Host(models_answer=Answer(status, models)),
        Host(completion_answer=Answer(status, completion)),
    ):
        wait = Wait()
        for second in range(3):
            verdict = look(wait, WANTED, answers, float(second))
            assert verdict.phase in PHASES
        assert Wait.from_dict(json.loads(json.dumps(wait.to_dict()))) == wait


KEYS = (
    "LoadState", "ActiveState", "SubState", "Result", "InvocationID", "ExecMainCode", "ExecMainStatus", "NRestarts",
    "Job", "MainPID",
)  # fmt: skip
VALUES = (
    "active", "failed", "inactive", "loaded", "masked", "auto-restart", "1", "2", "203", "-1", "",
)  # fmt: skip


@EXAMPLES
@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES) | TEXT)),
    st.none() | st.builds(Listener, st.sampled_from(["unit", "foreign", "stale", "unknown"]), st.integers(), TEXT),
    st.builds(Pulse, st.integers(0, 99), st.floats(0, 1e9), st.integers(0, 1 << 50)),
)
def test_units(lines: list[tuple[str, str]], listener: Listener | None, life: Pulse) -> None:
    unit = parse_show("x.service", "\n".join("=".join(line) for line in lines))
    wait, host = Wait(), Host(RUNNING, listener, life=life)
    for second in range(3):
        verdict = look(wait, WANTED, host, float(second))
        assert verdict.failure is None or verdict.failure.cause in BY_CODE
        host.unit_facts = unit
