# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The collected excerpts are of their format, have a source, and tell nobody's name, address or key."""

from __future__ import annotations

import re
from collections import Counter
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.catalogue import BY_CODE
from ansible_collections.gpufleet.sglang.tests.support.failures import FAILURES, NONE, UNITS, Case, read_cases

# Asked for, and added to the catalogue one after the other.
TO_COME = {
    "disk_full", "driver_not_ready", "driver_too_old", "engine_error", "engine_mismatch", "jit_toolchain_too_old",
    "kernel_failed", "library_missing", "model_access_denied", "node_unreachable", "not_writable",
    "parallel_size_does_not_divide", "quantization_unsupported", "shared_memory_full", "too_many_open_files",
    "weights_do_not_match",
}  # fmt: skip
SOURCE = re.compile(r"[\w.-]+#\d+|\([\w.-]+/[\w.-]+|https?://")
SECRET = re.compile(
    r"\bhf_[A-Za-z]{8,}|\bsk-[A-Za-z0-9]{8,}|\bAKIA[A-Z0-9]{8,}|\bgh[pousr]_\w{8,}|\bBearer [A-Za-z0-9]"
    r"|[\w.+-]+@[\w-]+\.\w{2,}"
)
HOME = re.compile(r"/(?:home|Users)/")
ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)")
NOBODYS = [
    ip_network(text) for text in ("0.0.0.0/32", "127.0.0.0/8", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
]
FILES = sorted(FAILURES.glob("*.txt"))
CASES = [case for path in FILES for case in read_cases(path)]


def private(text: str) -> list[str]:
    """What in a text would lead to a person or a host."""
    found = SECRET.findall(text) + HOME.findall(text)
    for address in ADDRESS.findall(text):
        try:
            foreign = not any(ip_address(address) in network for network in NOBODYS)
        except ValueError:
            continue
        if foreign:
            found.append(address)
    return found


def test_numbers_are_unique() -> None:
    assert [number for number, count in Counter(case.number for case in CASES).items() if count > 1] == []


def test_no_excerpt_is_there_twice() -> None:
    assert [text for text, count in Counter(case.lines for case in CASES).items() if count > 1] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.number))
def test_case(case: Case) -> None:
    assert case.unit in UNITS
    assert case.cause in BY_CODE or case.cause in TO_COME or case.cause == NONE
    assert (case.cause == NONE) == (case.unit == "R")
    assert SOURCE.search(case.source), "where is it from?"
    assert 1 <= len(case.lines) <= 20
    assert any(line.strip() for line in case.lines)
    assert private("\n".join((case.source, *case.lines))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("POST from 10.2.17.101:60714", ["10.2.17.101"]),
        ("POST from 192.0.2.7:60714, bound to 0.0.0.0", []),
        ("NCCL version 2.27.5, flashinfer 0.2.0.post2", []),
        ("hf_abcdefghijk", ["hf_abcdefghijk"]),
        ("/home/jane/models", ["/home/"]),
        ("jane@example.org", ["jane@example.org"]),
    ],
)
def test_private(text: str, found: list[str]) -> None:
    assert private(text) == found


def test_a_line_that_is_not_of_the_format(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("#@ 1 | K | xid\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad\.txt:1: expected '#@ NUMBER"):
        read_cases(path)
