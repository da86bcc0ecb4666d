# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Excerpts of how real servers failed: reads the files under tests/contract/data/failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FAILURES = Path(__file__).parents[1] / "contract" / "data" / "failures"
UNITS = {"K": "killed", "E": "exited with status 1", "W": "runs, and nothing moves", "R": "runs and serves"}
NONE = "none"
"""The cause of an excerpt in which nothing is wrong."""


@dataclass(frozen=True)
class Case:
    """An excerpt: how its unit ended (a key of UNITS), the right cause, and the lines of the journal, oldest first."""

    number: int
    unit: str
    cause: str
    source: str
    lines: tuple[str, ...]


def read_cases(path: Path) -> list[Case]:
    """The cases of a file, in its order. ValueError names the line that is not of the format."""
    cases: list[Case] = []
    for count, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("#@ "):
            fields = [field.strip() for field in line[3:].split("|", 3)]
            if len(fields) != 4 or not fields[0].isdigit():
                raise ValueError(f"{path.name}:{count}: expected '#@ NUMBER | UNIT | CAUSE | SOURCE', got {line!r}")
            cases.append(Case(int(fields[0]), fields[1], fields[2], fields[3], ()))
        elif cases:
            last = cases[-1]
            cases[-1] = Case(last.number, last.unit, last.cause, last.source, (*last.lines, line))
        elif not line.startswith("#"):
            raise ValueError(f"{path.name}:{count}: a line before the first case: {line!r}")
    return cases
