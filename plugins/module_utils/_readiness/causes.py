# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Why a server did not come up: the rule that picks a cause of the catalogue, and the evidence for it. Pure.

The first line in time that names a cause wins: what follows a cause is its noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import EXIT_NAMES, Unit
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.catalogue import BY_CODE, CAUSES, Cause
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import HIDDEN
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import hide

EVIDENCE_LINES = 12
"""Lines of the journal that a failure carries at most."""
MAX_SHOWN = 2000
"""Characters of such a line."""
AFTERMATH = 300.0
"""Seconds before the last line in which the cause of an end is looked for: a server may have run for months."""

_PATTERNS = tuple((re.compile("|".join(cause.patterns)), cause) for cause in CAUSES)
_ASSIGNED = re.compile(
    r"""((?:api[-_]?key|passw(?:or)?d|passphrase|(?:hf|access|auth|bearer)[-_]token|secret|authorization)["']?\s*[:=]\s*)"""
    r"""(?:"[^"]*"|'[^']*'|[^\s,;)}\]]+)""",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\b(?:hf|sk|nvapi)[-_][A-Za-z0-9_-]{16,}")


@dataclass(frozen=True)
class Failure:
    """A failed wait: a cause's code, what was seen, the lines that show it, and what to change."""

    cause: str
    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The form in which a module returns it."""
        return {"cause": self.cause, "summary": self.summary, "evidence": list(self.evidence), "advice": self.advice}


def failure(code: str, seen: str = "", evidence: Sequence[str] = (), advice: str = "") -> Failure:
    """A Failure with the words of the catalogue; ``seen`` says what is special about this one."""
    cause = BY_CODE[code]
    return Failure(code, f"{cause.summary}: {seen}" if seen else cause.summary, tuple(evidence), advice or cause.advice)


def first_cause(entries: Iterable[Entry]) -> tuple[Cause, Entry] | None:
    """The first entry in time that names a cause, a general one only where no entry names another."""
    general = None
    for entry in entries:
        if entry.plain.startswith(" "):  # the source code in a traceback, not what it says
            continue
        for pattern, cause in _PATTERNS:
            if pattern.search(entry.plain):
                if not cause.general:
                    return cause, entry
                general = general or (cause, entry)
    return general


def explain_exit(unit: Unit, entries: Sequence[Entry], secrets: Sequence[str] = ()) -> Failure:
    """Why a unit's process ended, from how it ended and what it said."""
    again = f" (started {unit.restarts + 1} times)" if unit.restarts else ""
    found = first_cause(entry for entry in entries if entry.time >= entries[-1].time - AFTERMATH)
    if found is not None:
        return _told(*found, entries, secrets, again)
    code = next(code for code, holds in _BY_EXIT if holds(unit))
    return failure(code, unit.exit_text + again, _newest(entries, secrets))


def explain_wait(code: str, seen: str, entries: Sequence[Entry], secrets: Sequence[str] = ()) -> Failure:
    """Why a server that still runs is not ready: what its journal gives as a reason, or else ``code``."""
    found = first_cause(entries)
    if found is not None and not found[0].general:
        return _told(*found, entries, secrets, f" ({seen})")
    return failure(code, seen, _newest(entries, secrets))


# How a process ended tells most where it said nothing. The first that holds is meant.
_BY_EXIT: tuple[tuple[str, Callable[[Unit], bool]], ...] = (
    ("exec_failed", lambda unit: unit.exec_code == "exited" and unit.exec_status in EXIT_NAMES),
    ("host_out_of_memory", lambda unit: unit.result == "oom-kill"),
    ("bad_argument", lambda unit: unit.exec_code == "exited" and unit.exec_status == 2),
    ("crash_loop", lambda unit: unit.restarts > 0 or unit.result == "start-limit-hit"),
    ("killed", lambda unit: unit.exec_code in ("killed", "dumped")),
    ("unknown", lambda _unit: True),
)


def _told(cause: Cause, entry: Entry, entries: Sequence[Entry], secrets: Sequence[str], also: str) -> Failure:
    said = redact(_said(entries, entry), secrets)[:300].rstrip(". ")  # the advice is a sentence of its own
    return failure(cause.code, said + also, around(entries, entry, secrets))


def _newest(entries: Sequence[Entry], secrets: Sequence[str]) -> list[str]:
    return [redact(entry.text, secrets) for entry in entries[-EVIDENCE_LINES:]]


def _said(entries: Sequence[Entry], entry: Entry) -> str:
    """What an entry says; of one that begins a traceback, what the traceback ends with."""
    if entry.plain.rstrip().endswith("Traceback (most recent call last):"):
        behind = entries[_index(entries, entry) + 1 :]
        return next((line.plain for line in behind if not line.plain.startswith(" ")), entry.plain)
    return entry.plain


def _index(entries: Sequence[Entry], entry: Entry) -> int:
    return next(index for index, candidate in enumerate(entries) if candidate is entry)


def around(entries: Sequence[Entry], entry: Entry, secrets: Sequence[str] = ()) -> list[str]:
    """The line of a cause with a few before it and the rest behind it."""
    start = max(0, _index(entries, entry) - 4)
    return [redact(candidate.text, secrets) for candidate in entries[start : start + EVIDENCE_LINES]]


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """A line without what must not be shown: secrets that are known, called like one, or look like a token."""
    text = _ASSIGNED.sub(rf"\1{HIDDEN}", hide(text, secrets))
    return _TOKEN.sub(HIDDEN, text)[:MAX_SHOWN]
