# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which cause wins, what is shown for it, and what is never shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import (
    EVIDENCE_LINES,
    explain_exit,
    explain_wait,
    redact,
)
from ansible_collections.gpufleet.sglang.tests.unit.readiness.test_readiness import DIED

NOISE = "[2026-11-01 10:00:07] Received sigquit from a child process. It usually means the child failed."
NCCL = "torch.distributed.DistBackendError: NCCL error in: x"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB."


def entries_of(*lines: str) -> list[Entry]:
    return [Entry.of(line, float(number)) for number, line in enumerate(lines)]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((OOM, NCCL, NOISE), "gpu_out_of_memory_at_runtime"),
        ((NCCL, OOM, NOISE), "nccl_error"),
        ((NOISE, OOM), "gpu_out_of_memory_at_runtime"),
        (("[2026-11-01 10:00:07] Initialization failed. warmup error: Traceback", NOISE), "warmup_failed"),
        (("NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.", NCCL), "xid"),
        (("    raise RuntimeError('NCCL error in: ')", OOM), "gpu_out_of_memory_at_runtime"),
        ((NOISE,), "scheduler_died"),
        (("nothing of interest",), "unknown"),
        ((), "unknown"),
    ],
)
def test_the_first_cause_in_time_wins_over_its_noise(lines: tuple[str, ...], cause: str) -> None:
    assert explain_exit(DIED, entries_of(*lines)).cause == cause


def test_evidence_is_the_line_with_what_is_around_it() -> None:
    lines = [f"line {number}" for number in range(50)]
    lines[25] = OOM
    found = explain_exit(DIED, entries_of(*lines))
    assert len(found.evidence) == EVIDENCE_LINES
    assert found.evidence[4] == OOM
    assert found.summary.endswith("448.00 MiB"), "the advice follows as a sentence of its own"
    assert "mem_fraction_static" in found.advice


def test_a_traceback_is_told_by_its_last_line() -> None:
    lines = (
        "[2026-11-01 10:00:07] Initialization failed. warmup error: Traceback (most recent call last):",
        '  File "x"',
        "KeyError: 'a'",
    )
    assert explain_exit(DIED, entries_of(*lines)).summary.endswith("KeyError: 'a'")


def test_what_is_unknown_has_the_last_lines_and_the_exit_status() -> None:
    found = explain_exit(DIED, entries_of(*[f"line {number}" for number in range(50)]))
    assert found.cause == "unknown"
    assert found.evidence[-1] == "line 49"
    assert "exit status 1" in found.summary


def test_a_loop_is_told_with_its_reason() -> None:
    assert "(started 4 times)" in explain_exit(replace(DIED, restarts=3), entries_of(OOM)).summary


def test_what_was_long_before_the_end_did_not_cause_it() -> None:
    entries = [Entry.of(OOM, 1000.0), Entry.of(NOISE, 90_000.0)]
    assert explain_exit(DIED, entries).cause == "scheduler_died"


def test_a_general_cause_does_not_explain_why_it_takes_long() -> None:
    assert explain_wait("timeout", "still loading", entries_of(NOISE)).cause == "timeout"
    assert explain_wait("timeout", "still loading", entries_of(OOM)).cause == "gpu_out_of_memory_at_runtime"


@pytest.mark.parametrize(
    "line",
    [
        "server_args={'api_key': 'very secret', 'admin_api_key': None}",
        'server_args=ServerArgs(api_key="very secret", port=1)',
        "api-key: very-secret",
        "Authorization: Bearer very-secret",
        "HF_TOKEN=very-secret",
        "--api-key=very-secret --port 1",
        "token hf_verysecretverysecret",
        "{'ssl_keyfile_password': 'very secret'}",
        "https://user:verysecret@example.org/x",
        "a line with the key k3y in it",
    ],
)
def test_secrets_do_not_show(line: str) -> None:
    shown = redact(line, ("k3y",))
    assert "very" not in shown
    assert "k3y" not in shown
    assert "<secret>" in shown
    assert explain_exit(DIED, entries_of(line), ("k3y",)).evidence == (shown,)


@pytest.mark.parametrize(
    "line", ["#token: 1234, token usage: 0.01", "max_total_num_tokens=795000", "tokenizer_path='/models/x'", "monkey=1"]
)
def test_what_is_no_secret_shows(line: str) -> None:
    assert redact(line) == line
