# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the module server_status, or draws on the controller what it returned for many hosts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

WIDTH = 100
"""Columns at most; a table of short names is narrower."""
NARROWEST = 8
"""Columns that are left of a name when a table is too wide."""

HEADINGS = ("host", "server", "unit", "since", "SGLang", "model", "pp", "cap", "ready", "last deploy")
_NAMES = (0, 1, 5, 8)  # what may be cut
_NUMBERS = (6, 7)  # what is set to the right
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))
# What Ansible says around the reason.
_WRAPPING = re.compile(r"\A(?:Task failed: |Module failed: |Data could not be sent to remote host .*? over ssh: )+")
_READY, _WAITING, _STOPPED, _FAILED, _NOTE, _UNKNOWN = "✓…·✗!?"


class ActionModule(ActionBase):
    """The module looks where the servers are; drawing is for the controller."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the module returns, or the lines of the table."""
        super().run(tmp, task_vars)
        table = self._task.args.get("table")
        if table is None:
            return dict(self._execute_module(task_vars=task_vars))
        if not isinstance(table, Mapping) or not all(isinstance(result, Mapping) for result in table.values()):
            raise AnsibleActionFail("table: expected what this module returned for each host, by the host's name")
        lines = render(table, datetime.now(timezone.utc))
        display.display("\n".join(["", *lines, ""]))
        return {"changed": False, "lines": lines}


@dataclass(frozen=True)
class Row:
    """A line of the table, and what has to be said beneath it."""

    mark: str
    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()
    cause: str = ""


def render(results: Mapping[str, Mapping[str, Any]], now: datetime) -> list[str]:
    """The lines of a table of *results*, by host."""
    rows = [row for host, result in results.items() for row in _rows(host, result)]
    widths = [*map(len, HEADINGS)]
    for row in rows:
        cells = row.cells if len(row.cells) > 2 else row.cells[:1]
        widths = [*map(max, widths, map(len, cells)), *widths[len(cells) :]]
    widths = _widths(widths)
    lines = [_line(row.mark, row.cells, widths) for row in rows]
    heading, clock = _summary(results), f"{now:%Y-%m-%d %H:%M} UTC"
    wide = max(len(heading) + 2 + len(clock), 2 + sum(widths) + 2 * (len(widths) - 1), *map(len, lines), 0)
    wide = min(wide, WIDTH)
    notes = [line for row in rows for line in _noted(row, wide)]
    rule = "━" * wide
    return [
        f"{heading:<{wide - len(clock)}}{clock}",
        rule,
        _line(" ", tuple(name if name == "SGLang" else name.upper() for name in HEADINGS), widths),
        *lines,
        rule,
        *notes,
    ]


def _summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    servers = [server for result in results.values() for server in result.get("servers", [])]
    missing = sum(1 for result in results.values() if "servers" not in result)
    ready = sum(1 for server in servers if _mark(server) == _READY)
    words = [
        "SGLang",
        _count(len(results), "host"),
        f"{ready} of {_count(len(servers), 'server')} ready",
        f"{missing} not seen" if missing else "",
    ]
    return " · ".join(word for word in words if word)


def _rows(host: str, result: Mapping[str, Any]) -> Iterator[Row]:
    host = _printable(host)
    if "servers" not in result:
        said = "unreachable" if result.get("unreachable") else "cannot be looked at"
        yield Row(_UNKNOWN, (host, said), (_WRAPPING.sub("", str(result.get("msg", "")).partition("\n")[0]),))
        return
    if not result["servers"]:
        yield Row(_STOPPED, (host, "no server"))
    for server in result["servers"]:
        cells = (
            host,
            server["name"],
            server["state"] or "unknown",
            _age(server["since_seconds"]),
            _known(server["version"]),
            _known(server["model"]),
            _known(server["pp_size"]),
            _known(server["pp_max_micro_batch_size"]),
            _readiness(server),
            _proven(server),
        )
        cause = _printable(server["failure"]["cause"]) if server["failure"] else ""
        yield Row(_mark(server), tuple(map(_printable, cells)), tuple(_notes(server)), cause)


def _mark(server: Mapping[str, Any]) -> str:
    if server["ready"]:
        return _READY
    if server["failure"]:
        return _FAILED
    return {"stopped": _STOPPED, "": _UNKNOWN}.get(server["phase"], _WAITING)


def _readiness(server: Mapping[str, Any]) -> str:
    if server["ready"]:
        return "yes"
    if server["failure"]:
        return str(server["failure"]["cause"]).replace("_", " ")
    return server["phase"].replace("_", " ") or "-"


def _proven(server: Mapping[str, Any]) -> str:
    """The newest proven generation and when it was proven, with a star where that is not what is configured."""
    if server["generation"] is None:
        return "-"
    at = datetime.fromisoformat(server["promoted"]).astimezone(timezone.utc)
    star = "*" if server["changed_files"] else ""
    return f"#{server['generation']}{star} {_MONTHS[at.month - 1]} {at.day} {at:%H:%M}"


def _notes(server: Mapping[str, Any]) -> Iterator[str]:
    failure = server["failure"]
    if failure:
        yield f"{failure['summary'][:1].upper()}{failure['summary'][1:]}."
        if failure["advice"]:
            yield f"→ {failure['advice']}"
    elif server["detail"]:
        yield server["detail"]
    if server["restarts"]:
        yield f"systemd has started it again by itself ({_count(server['restarts'], 'time')})."
    if server["restart_owed"]:
        yield "It runs with other files than there are now: it is owed a restart."
    if server["changed_files"]:
        names = ", ".join(path.rpartition("/")[2] for path in server["changed_files"])
        yield f"* configured otherwise than in generation {server['generation']}: {names}"


def _noted(row: Row, wide: int) -> Iterator[str]:
    """What is said of a server, under its name."""
    if not any(row.notes):
        return
    mark = _NOTE if row.mark == _READY else row.mark
    yield _fit(" ".join(filter(None, (mark, *row.cells[:2], row.cause))), wide)
    for note in row.notes:
        hanging = 6 if note.startswith(("→ ", "* ")) else 4
        yield from textwrap.wrap(
            _printable(note), wide, initial_indent=" " * 4, subsequent_indent=" " * hanging, break_on_hyphens=False
        )


def _widths(widths: Sequence[int]) -> list[int]:
    """Widths of columns that fit: the widest names are cut first."""
    fitted = list(widths)
    while 2 + sum(fitted) + 2 * (len(fitted) - 1) > WIDTH:
        widest = max(_NAMES, key=lambda column: fitted[column])
        if fitted[widest] <= NARROWEST:
            break
        fitted[widest] -= 1
    return fitted


def _line(mark: str, cells: Sequence[str], widths: Sequence[int]) -> str:
    if len(cells) == 2:  # of a host, not of a server
        return _fit(f"{mark} {_fit(cells[0], widths[0]):<{widths[0]}}  {cells[1]}")
    drawn = (
        f"{_fit(cell, width):>{width}}" if column in _NUMBERS else f"{_fit(cell, width):<{width}}"
        for column, (cell, width) in enumerate(zip(cells, widths))
    )
    return _fit(f"{mark} {'  '.join(drawn)}".rstrip())


def _age(seconds: float | None) -> str:
    """A time in whole units, of which there are two at least."""
    if seconds is None:
        return "-"
    size, unit = next((known for known in _UNITS if seconds >= 2 * known[0]), (1, "s"))
    return f"{int(seconds // size)} {unit}"


def _known(value: Any) -> str:
    return "-" if value is None else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _fit(text: str, columns: int = WIDTH) -> str:
    return text if len(text) <= columns else text[: columns - 1] + "…"


def _printable(text: str) -> str:
    """Keep what a host or a model calls itself from moving the cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
