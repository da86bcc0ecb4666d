# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the log of a real server tells about its slots, and what is refused because the log does not tell.

recordings/: SGLang 0.5.23 on a CPU, the bursts of send.py.
two_stages: pp_size 2, max_running_requests 15, SGLang's own cap (7); 15 requests of 14 tokens.
eight_stages: pp_size 8, max_running_requests 64, pp_max_micro_batch_size 5; 33 requests of 8 tokens.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.tests.support.burst.observe import (
    Observation,
    ObservationError,
    Pass,
    main,
    observe,
    read_passes,
)

RECORDINGS = Path(__file__).parent / "recordings"


def recorded(name: str) -> list[str]:
    """Return the lines of a recording."""
    return (RECORDINGS / f"{name}.log").read_text(encoding="utf-8").splitlines()


def steps(*texts: str) -> list[Pass]:
    """Return passes from texts like "b-0 b-1 | b-2": what is in the slot, what waits."""
    return [Pass(*(frozenset(part.split()) for part in f"{text}|".split("|")[:2])) for text in texts]


@pytest.mark.parametrize(
    ("recording", "burst", "expected"),
    [
        ("two_stages", "spread", Observation(15, 7, (7, 7), 14, 1, 12)),
        ("two_stages", "together", Observation(15, 7, (7, 7), 14, 1, 12)),
        # Requests that come one by one find room in the slot that has its turn, and so fill more slots.
        ("eight_stages", "spread", Observation(33, 5, (5, 5, 5, 5, 5, 3, 3, 2), 33, 0, 5)),
        ("eight_stages", "together", Observation(33, 5, (5, 5, 5, 5, 5, 5, 3), 33, 0, 5)),
    ],
)
def test_recorded_bursts(recording: str, burst: str, expected: Observation) -> None:
    assert observe(read_passes(recorded(recording)), burst) == expected


# The first token of an answer comes from the prefill, each other one from a pass of its slot. In two_stages the request
# that waits has a slot of its own in the end.
@pytest.mark.parametrize(
    ("recording", "passes"), [("two_stages", (14 - 1) * (3 + 3)), ("eight_stages", (8 - 1) * (8 + 7))]
)
def test_every_pass_is_read(recording: str, passes: int) -> None:
    assert len(read_passes(recorded(recording))) == passes


def test_other_ranks_and_other_lines_are_passed_over() -> None:
    lines = recorded("two_stages")
    of_rank_1 = [line.replace('"rank": 0', '"rank": 1').replace(" PP0]", " PP1]") for line in lines]
    others = ["[2026-11-30 03:13:06 PP0] Prefill batch, #new-seq: 1, #running-req: 0, #queue-req: 0", "", "{"]
    assert read_passes(of_rank_1 + others) == []
    assert read_passes([line for pair in zip(lines, of_rank_1) for line in pair]) == read_passes(lines)


def one_more(match: re.Match[str]) -> str:
    return str(int(match.group()) + 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda line: re.sub(r"(?<=#running-req: )\d+", one_more, line),
        lambda line: re.sub(r"(?<=#queue-req: )\d+", one_more, line),
        lambda line: "" if "scheduler.status" in line else line,
    ],
    ids=["running", "queued", "no names"],
)
def test_numbers_without_the_same_number_of_names_are_refused(change: Callable[[str], str]) -> None:
    lines = recorded("two_stages")
    with pytest.raises(ObservationError, match=r"expected one scheduler\.status .*: \[2026.* PP0\] Decode batch"):
        read_passes([*lines[:20], *map(change, lines[20:22]), *lines[22:]])


def test_only_the_steady_time_counts() -> None:
    passes = steps(
        "b-0",
        "b-1",  # the first slot has room for one more, which has not come yet
        "b-0 b-2 | b-3",
        "b-1 | b-3",  # steady from the pass before to the next one, where b-0 and b-2 have their last token
        "b-0 b-2 | b-3",
        "b-1",
        "b-3",
        "b-1 ",
    )
    assert observe(passes, "b") == Observation(4, 2, (2, 1), 3, 1, 1)


def test_slots_of_other_bursts_do_not_count() -> None:
    passes = steps("a-0 a-1 a-2", "b-0", "b-0", "a-0")
    assert observe(passes, "b") == Observation(1, 1, (1,), 1, 0, 2)


def test_the_last_to_wait_may_come_after_the_last_to_start() -> None:
    assert observe(steps("b-0", "b-0 | b-1", "b-0 | b-1", "b-1"), "b") == Observation(2, 1, (1,), 1, 1, 2)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "none of its requests is in the log"),
        (["a-0"], "none of its requests is in the log"),
        (["b-0 x | b-1", "b-0 | b-1"], "other requests ran at the same time: x"),
        (["b-0", "x y", "b-0"], "other requests ran at the same time: x, y"),
        (["b-0", "b-0 | b-1", "b-1 b-0", "b-0 | b-1", "b-1"], "requests moved from slot to slot"),
        (
            ["b-0", "b-1", "b-1"],
            "the first answer was complete before",
        ),  # it never waited, nor did it run with the other
        (["b-0 | b-1", "b-0", "b-0 | b-1", "b-1"], "the queue changed while no request started or finished"),
    ],
)
def test_what_the_log_does_not_tell(texts: list[str], message: str) -> None:
    with pytest.raises(ObservationError, match=f"^b: {message}"):
        observe(steps(*texts), "b")


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["observe.py", "spread", "together"])
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(recorded("two_stages"))))
    main()
    seen = json.loads(capsys.readouterr().out)
    assert {burst: (seen[burst]["occupancy"], seen[burst]["queued"]) for burst in seen} == {
        "spread": ([7, 7], 1),
        "together": ([7, 7], 1),
    }


def test_command_fails_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["observe.py", "spread"])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr() == ("", "spread: none of its requests is in the log\n")
