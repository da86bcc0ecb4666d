# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The journal as journalctl prints it, and the reader, with a journalctl of the test's own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import (
    MAX_LINE,
    Entry,
    Journal,
    Signs,
    parse_json,
)


def object_of(message: Any, **fields: Any) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": "1795990000500000", "__CURSOR": "s=1;i=2", "MESSAGE": message, **fields})


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ("a line", ["a line"]),
        (list(b"a\rb\r\nc"), ["a", "b", "c"]),
        (list(b"\x1b[33mold\x1b[0m and \x1b[1;31mred\x1b[0m"), ["old and red"]),
        (list("für ".encode() + b"\xff\xfe"), ["für \ufffd\ufffd"]),
        ("", []),
        (None, []),
        ({"a": 1}, []),
        ([300], []),
        (["a"], []),
        (17, []),
    ],
)
def test_messages(message: Any, texts: list[str]) -> None:
    entries = parse_json(object_of(message))
    assert [entry.text for entry in entries] == texts
    assert all((entry.time, entry.cursor) == (1795990000.5, "s=1;i=2") for entry in entries)


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "7", "null", "-- No entries --", '{"MESSAGE": "a", "__REALTIME_TIMESTAMP": "x"}']
)
def test_what_is_no_entry(line: str) -> None:
    assert parse_json(line) == []


def test_long_lines_are_cut() -> None:
    assert len(Entry.of("x" * 1_000_000).text) == MAX_LINE


def test_interleaved_ranks() -> None:
    """The slowest rank is what the server is in; how many are ahead is told."""
    signs = Signs()
    for rank, text in [
        (0, "Load weight begin."), (1, "Load weight begin."), (2, "Load weight begin."), (1, "Load weight end. x"),
        (1, "Capture cuda graph begin."), (0, "Load weight end. x"),
    ]:  # fmt: skip
        signs.read(Entry.of(f"[2026-11-01 10:00:26 PP{rank}] {text}"))
    assert (signs.phase, signs.detail) == ("loading", "2 of 3 ranks are past it")
    signs.read(Entry.of("[2026-11-01 10:00:26 PP2] Load weight end. x"))
    assert (signs.phase, signs.detail) == ("allocating", "1 of 3 ranks are past it")
    assert Signs.from_dict(json.loads(json.dumps(signs.to_dict()))) == signs


FAKE = """#!/bin/sh
echo "$*" >>{log}
case "$*" in
    *--follow*) cat {output}; {then} ;;
    *) cat {output} ;;
esac
"""


class Fake:
    """A journalctl that prints a file, and notes how it was called."""

    def __init__(self, directory: Path, then: str = "exec sleep 600") -> None:
        self.log, self.output = directory / "log", directory / "output"
        self.output.write_text("")
        program = directory / "journalctl"
        program.write_text(FAKE.format(log=self.log, output=self.output, then=then))
        program.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}

    def run(self, command: list[str]) -> tuple[int, str, str]:
        with self.log.open("a") as stream:
            stream.write(" ".join(command[1:]) + "\n")
        return 0, self.output.read_text(), ""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path)
    monkeypatch.setenv("PATH", made.environment["PATH"])
    return made


def test_following(fake: Fake) -> None:
    fake.output.write_text(object_of("one") + "\n" + object_of("two") + "\n")
    journal = Journal(fake.run, fake.environment)
    journal.follow("abc", "s=1;i=1")
    assert [entry.text for entry in journal.wait(10)] == ["one", "two"]
    process = journal._process
    assert process is not None
    assert journal.wait(0.05) == []
    journal.close()
    assert process.poll() is not None
    words = fake.log.read_text()
    assert "--after-cursor=s=1;i=1" in words
    assert "_SYSTEMD_INVOCATION_ID=abc + INVOCATION_ID=abc" in words


def test_a_start_that_is_new_is_read_from_its_beginning(fake: Fake) -> None:
    journal = Journal(fake.run, fake.environment)
    journal.follow("abc", "")
    journal.wait(0.2)
    journal.close()
    assert "--lines=2000" in fake.log.read_text()
    assert "cursor" not in fake.log.read_text()


def test_a_flood_is_taken_in_pieces(fake: Fake) -> None:
    line = object_of("x" * 500) + "\n"
    fake.output.write_text(line * 20_000)
    journal = Journal(fake.run, fake.environment)
    journal.follow("abc", "")
    seen, calls, until = 0, 0, time.monotonic() + 60
    while seen < 20_000 and time.monotonic() < until:
        entries = journal.wait(1)
        assert len(entries) <= Journal.MAX_BYTES / len(line) + 200
        seen, calls = seen + len(entries), calls + 1
    journal.close()
    assert seen == 20_000
    assert calls >= 2


def test_a_journalctl_that_ends_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Fake(tmp_path, then="exit 1")
    monkeypatch.setenv("PATH", made.environment["PATH"])
    journal = Journal(made.run, made.environment)
    journal.follow("abc", "")
    for _time in range(3):
        assert journal.wait(0.05) == []


def test_a_host_without_a_journal(tmp_path: Path) -> None:
    journal = Journal(lambda _command: (127, "", "not there"), {"PATH": str(tmp_path)})
    journal.follow("abc", "")
    assert journal.wait(0.01) == []
    assert journal.last("sglang-kimi.service", "abc") == []
    assert journal.kernel(0.0) == []


def test_looking_back(fake: Fake) -> None:
    fake.output.write_text(object_of("one") + "\nnonsense\n" + object_of(list(b"two\rthree")) + "\n")
    journal = Journal(fake.run, fake.environment)
    assert [entry.text for entry in journal.last("sglang-kimi.service", "")] == ["one", "two", "three"]
    assert [entry.text for entry in journal.kernel(1795990000.2)] == ["one", "two", "three"]
    words = fake.log.read_text()
    assert "--unit sglang-kimi.service" in words
    # Everything that writes to /dev/kmsg is in --dmesg: journald itself, systemd of each container of the machine.
    assert "--dmesg --identifier=kernel --lines=400 --since=@1795990000" in words
