# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The table of faults, which faults are tried for some words, what fails a check, and how the guide gets its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.catalogue import BY_CODE
from ansible_collections.gpufleet.sglang.tests.bench.faults import (
    MARKS,
    Outcome,
    chosen,
    figures_of,
    markdown,
    publish,
)
from ansible_collections.gpufleet.sglang.tests.bench.faults_table import REAL, STANDIN, Fault

DOCS = Path(__file__).parents[3] / "docs" / "readiness.md"
TAKEN = Fault("port taken", "foreign_listener", "x", evidence="process 8")
RIGHT = Outcome(TAKEN, "foreign_listener", 0.4, "READY", -3.0, "another process has it: process 8", "", "")


def test_the_table_names_each_fault_once_and_expects_what_there_is() -> None:
    faults = (*STANDIN, *REAL)
    assert len({fault.name for fault in faults}) == len(faults)
    assert {fault.expected for fault in faults} <= {"ready", *BY_CODE}
    assert not any(table[0].follows for table in (STANDIN, REAL))
    assert all(bool(fault.evidence) is (fault.expected != "ready") for fault in faults)


def test_a_fault_is_tried_with_those_that_it_follows() -> None:
    base, other = Fault("base", "ready", "real"), Fault("other", "ready", "real")
    second, third = Fault("second", "ready", ":", follows=True), Fault("third", "ready", ":", follows=True)
    table = [other, base, second, third]
    assert chosen(["third"], table) == [base, second, third]
    assert chosen(["second"], table) == [base, second]
    assert chosen([], table) == table
    assert chosen(["nothing like it"], table) == []


@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        (RIGHT, ""),
        (replace(RIGHT, said="ready"), "expected foreign_listener"),
        (replace(RIGHT, late=2.1), "expected within 2 s"),
        (replace(RIGHT, summary="another process has it"), "expected evidence like 'process 8'"),
        (replace(RIGHT, summary="another process has it", evidence="a line\nprocess 8"), ""),
        (replace(RIGHT, left="812 journalctl --follow"), "left behind: 812"),
    ],
)
def test_what_fails_a_check(outcome: Outcome, problem: str) -> None:
    assert any(line.startswith(problem) for line in outcome.problems) is bool(problem)


def test_figures() -> None:
    wrong = replace(RIGHT, said="ready", late=3.0, left="something", loop_said="TIMEOUT", loop_late=890.0)
    good = replace(RIGHT, fault=Fault("good start", "ready", "x"), said="ready")
    assert figures_of([RIGHT, wrong, good]) == {
        "faults": 2, "good": 1, "false_ready": 1, "wrong_cause": 1, "late_max_s": 3.0, "left_behind": 1,
        "loop_false_ready": 1, "loop_late_max_s": 890.0,
    }  # fmt: skip


def test_the_guide_gets_the_table(tmp_path: Path) -> None:
    guide = tmp_path / "guide.md"
    guide.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nbehind\n")
    for _time in range(2):
        publish(markdown([RIGHT], figures_of([RIGHT])), guide)
        text = guide.read_text()
        assert text.startswith("before\n")
        assert text.endswith("behind\n")
        assert text.count("| port taken | stand-in | `foreign_listener` | 0.4 s | **ready** |") == 1
        assert "old" not in text
    guide.write_text("no marks")
    with pytest.raises(SystemExit, match="expected the lines"):
        publish("x", guide)


def test_the_guide_has_the_marks() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert text.index(MARKS[0]) < text.index(MARKS[1])
