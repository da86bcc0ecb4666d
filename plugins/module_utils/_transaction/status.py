# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What there is to know of a server at one look: its unit, its files, what it answers. Nothing is changed.

The server is asked for each thing once, in a bounded time. What is not known is None.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import PHASES, Journal
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Runner, SystemdError, Unit
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import Failure
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import (
    Probes,
    Verdict,
    Wait,
    Wanted,
    look,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.waiting import HostProbes
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.names import canonical_arguments
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import hide
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server import Server, ServerError, find_server
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import InfoError, ServerInfo, ask
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.gate import Seen, read_seen
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.generations import Generation, Store

PATTERN = "sglang-*.service"

_UNIT = re.compile(r"sglang-(?P<name>[A-Za-z0-9_.:-]+)\.service\Z")
_EXECUTABLE = re.compile(r"path=(\S+)")
_DIST_INFO = re.compile(r"sglang-(?P<version>\d[^-]*)\.dist-info\Z")
_STOPS = {
    "killed_itself": "Asked to stop, it killed itself, as releases up to 0.5.18 do",
    "timeout": "Asked to stop, it did not end in time and was killed by systemd",
}
_OPEN = PHASES.index("listening")
_FAR = 1e11  # seconds since the epoch that no calendar of ours ends before


@dataclass(frozen=True)
class Status:
    """One server, as the module server_status returns it."""

    name: str
    unit: str
    state: str
    since: str | None
    since_seconds: float | None
    restarts: int
    version: str | None
    model: str | None
    port: int | None
    pp_size: int | None
    pp_max_micro_batch_size: int | None
    ready: bool
    phase: str
    detail: str
    failure: dict[str, Any] | None
    restart_owed: bool | None
    generation: int | None
    promoted: str | None
    changed_files: list[str]
    watch: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """The form in which the module returns it."""
        return asdict(self)


@dataclass(frozen=True)
class Answers:
    """What a server is doing: what readiness makes of it, the models it lists, and what it runs with."""

    verdict: Verdict
    models: tuple[str, ...] = ()
    info: ServerInfo | None = None


class Host(Protocol):
    """The looks at a host. Each takes a bounded time."""

    def units(self) -> list[str]:
        """The units of servers, sorted. Raises SystemdError where systemd does not answer."""

    def show(self, unit: str) -> Mapping[str, str]:
        """What systemd tells of a unit. Raises SystemdError where it does not answer."""

    def server(self, name: str) -> Server | None:
        """What the server was configured with; None where there is no server.yaml. Raises ServerError."""

    def answers(self, unit: Unit, server: Server) -> Answers:
        """Look whether it is ready, and ask what it runs with."""

    def engine(self, python: str) -> str | None:
        """The release of SGLang that is installed for that Python."""

    def restart_owed(self, name: str) -> bool | None:
        """Whether the server was started with other files than there are now."""

    def newest(self, name: str) -> tuple[Generation, list[str]] | None:
        """The newest generation, and the files that differ from it."""

    def watched(self, name: str) -> Mapping[str, Any] | None:
        """What the watch of the server has noted, as it wrote it (roles/sglang_server/files/watch.py)."""

    def clocks(self) -> tuple[float, float]:
        """Seconds since the epoch, and since the host was booted."""


def status(host: Host, unit_name: str) -> Status:
    """Look at one server. Raises SystemdError where systemd does not answer."""
    match = _UNIT.match(unit_name)
    name = match["name"] if match else unit_name
    values = host.show(unit_name)
    seen = read_seen(unit_name, "".join(f"{key}={value}\n" for key, value in values.items()))
    unit = seen.unit
    server, answers = None, Answers(Verdict(""))
    try:
        server = host.server(name)
    except ServerError as error:
        answers = Answers(Verdict("", failure=Failure("config_unreadable", str(error))))
    if was_stopped(seen):
        answers = replace(
            answers, verdict=replace(answers.verdict, phase="stopped", detail=_STOPS.get(seen.stop.how, ""))
        )
    elif server is not None:
        answers = host.answers(unit, server)
    config: Mapping[str, Any] = server.config if server else {}
    watch = _watch(host.watched(name), unit, server.secrets if server else ())
    if watch and watch["healthy"] is False and answers.verdict.phase == "ready":
        answers = replace(answers, verdict=replace(answers.verdict, failure=_unhealthy(unit, watch)))
    info, verdict = answers.info, answers.verdict
    seconds = _age(values, unit, host.clocks()[1])
    newest = host.newest(name)
    executable = _EXECUTABLE.search(values.get("ExecStart", ""))
    secrets = server.secrets if server else ()
    return Status(
        name=name,
        unit=unit_name,
        state=_state(unit),
        since=None if seconds is None else utc(host.clocks()[0] - seconds),
        since_seconds=seconds,
        restarts=unit.restarts,
        version=info.version if info else host.engine(executable[1]) if executable else None,
        model=_model(answers, config),
        port=server.port if server else None,
        pp_size=info.pp_size if info else _whole(canonical_arguments(config).get("pp-size")),
        pp_max_micro_batch_size=info.caps[0] if info else None,
        ready=verdict.ready,
        phase=verdict.phase,
        detail=hide(verdict.detail, secrets),
        failure=verdict.failure.to_dict() if verdict.failure else None,
        restart_owed=host.restart_owed(name) if unit.active_state == "active" else None,
        generation=newest[0].number if newest else None,
        promoted=utc(newest[0].promoted) if newest else None,
        changed_files=newest[1] if newest else [],
        watch=watch,
    )


def was_stopped(seen: Seen) -> bool:
    """Whether somebody stopped the unit. systemd calls it failed where the server then did not end as it should."""
    unit = seen.unit
    orderly = unit.active_state == "inactive" and unit.load_state == "loaded" and not unit.job
    return orderly or (unit.active_state == "failed" and seen.stop.how in _STOPS)


def ask_server(unit: Unit, server: Server, probes: Probes, journal: Journal, timeout: float) -> Answers:
    """Look once whether a server is ready; one that loads, once more, with what its journal says of the phase.

    ``timeout`` in seconds is for the question what it runs with.
    """
    model = server.config.get("served-model-name") or server.config.get("model-path")
    wanted = Wanted((str(model),) if model else (), "health", secrets=server.secrets, stall_timeout=0)
    wait = Wait()
    verdict = look(wait, wanted, probes, 0.0)
    if verdict.failure is None and verdict.phase in PHASES[:_OPEN]:
        for entry in journal.last(unit.name, wait.invocation_id):
            wait.signs.read(entry)
        verdict = look(wait, wanted, probes, 0.0)
    models = tuple(wait.models)
    if not models:
        return Answers(verdict)
    try:
        return Answers(verdict, models, ask(server.client(), timeout, server.secrets))
    except InfoError as error:
        if not verdict.ready:
            return Answers(verdict, models)
        # That the process says it is ready is a flag; the scheduler behind it may hang all the same.
        silent = Failure(
            "no_server_info", str(error), advice="Its scheduler is busy with a long prefill, or hangs: look again."
        )
        return Answers(Verdict(verdict.phase, verdict.detail, silent), models)


def utc(seconds: float) -> str:
    """A moment since the epoch for people and machines."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat("T", "seconds")


def _watch(noted: Mapping[str, Any] | None, unit: Unit, secrets: Sequence[str]) -> dict[str, Any] | None:
    """What the watch says of the start that runs. The file is the service's own: it may hold anything."""
    if not noted or unit.active_state != "active" or noted.get("invocation_id") != unit.invocation_id:
        return None
    healthy, since = noted.get("healthy"), noted.get("since")
    return {
        "healthy": healthy if isinstance(healthy, bool) else None,
        "failures": _whole(noted.get("failures")) or 0,
        "since": utc(since) if isinstance(since, float) and 0 < since < _FAR else None,
        "last_error": hide(str(noted.get("last_error", "")), secrets)[:200],
    }


def _unhealthy(unit: Unit, watch: Mapping[str, Any]) -> Failure:
    seen = (
        f"it does not generate any more: {watch['failures']} looks in a row failed, the last with {watch['last_error']}"
    )
    return Failure(
        "unhealthy", seen, advice=f"See where it hangs (py-spy dump), and restart it: systemctl restart {unit.name}"
    )


def _state(unit: Unit) -> str:
    """One word for people, the most telling of the three that systemd has."""
    if unit.load_state not in ("loaded", ""):
        return unit.load_state
    return unit.sub_state if unit.sub_state.startswith("auto-restart") else unit.active_state


def _age(values: Mapping[str, str], unit: Unit, now: float) -> float | None:
    """Seconds since the unit came into its state; both clocks begin when the host is booted."""
    key = "ActiveEnterTimestampMonotonic" if unit.active_state == "active" else "StateChangeTimestampMonotonic"
    text = values.get(key, "")
    began = int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0
    return round(max(now - began, 0.0), 1) if began else None


def _model(answers: Answers, config: Mapping[str, Any]) -> str | None:
    """The model that is served, or the one that is going to be."""
    if answers.models:
        return answers.models[0]
    named = str(config.get("served-model-name") or "")
    path = str(config.get("model-path") or "").rstrip("/")
    return named or path.rpartition("/")[2] or None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- the host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealHost:
    """The host that this runs on. ``request_timeout`` is seconds; the other two are for servers with TLS."""

    run: Runner
    environment: Mapping[str, str]
    clock: tuple[float, float]
    request_timeout: float = 5.0
    ca_path: str | None = None
    validate_certs: bool = True
    etc: Path = Path("/etc/sglang")
    runtime: Path = Path("/run/sglang")

    def units(self) -> list[str]:
        """See `Host`."""
        found: set[str] = set()
        for command in (["list-units", "--all"], ["list-unit-files"]):
            status, output, error = self.run(["systemctl", *command, "--plain", "--no-legend", "--no-pager", PATTERN])
            if status != 0 and error.strip():
                raise SystemdError(f"systemctl {command[0]} failed ({status}): {error.strip()}")
            found |= {line.split()[0] for line in output.splitlines() if line.split()}
        return sorted(unit for unit in found if _UNIT.match(unit))

    def show(self, unit: str) -> Mapping[str, str]:
        """See `Host`."""
        status, output, error = self.run(["systemctl", "show", "--", unit])
        if status != 0:
            raise SystemdError(f"systemctl show {unit} failed ({status}): {error.strip() or 'no message'}")
        return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)

    def server(self, name: str) -> Server | None:
        """See `Host`."""
        path = self.etc / name / "server.yaml"
        try:
            path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ServerError(f"the configuration of the server cannot be read: {error}") from None
        options = {"ca_path": self.ca_path, "validate_certs": self.validate_certs}
        return find_server({"name": None, "config": str(path), "host": None, "port": None, "api_key": None, **options})

    def answers(self, unit: Unit, server: Server) -> Answers:
        """See `Host`."""
        journal = Journal(self.run, self.environment)
        client = server.client()
        probes = HostProbes(unit.name, server.host, server.port, client, journal, self.run, self.request_timeout)
        return ask_server(unit, server, probes, journal, self.request_timeout)

    def engine(self, python: str) -> str | None:
        """See `Host`."""
        libraries = Path(python).parent.parent.glob("lib/python*/site-packages/sglang-*.dist-info")
        found = (_DIST_INFO.match(path.name) for path in libraries)
        return next((match["version"] for match in found if match), None)

    def restart_owed(self, name: str) -> bool | None:
        """See `Host`."""
        started = self.runtime / name / "started"
        if not os.access(started, os.R_OK):
            return None
        return self.run(["sha256sum", "--check", "--status", str(started)])[0] != 0

    def newest(self, name: str) -> tuple[Generation, list[str]] | None:
        """See `Host`."""
        store = Store.of_server(name)
        try:
            known = store.generations()
            return (known[-1], [str(path) for path in store.differing(known[-1])]) if known else None
        except OSError:
            return None  # they are root's alone

    def watched(self, name: str) -> Mapping[str, Any] | None:
        """See `Host`."""
        # By a command that ends in time: the directory is the service's own, which may put anything there.
        try:
            noted = json.loads(self.run(["head", "--bytes=65536", str(self.runtime / name / "watch.json")])[1])
        except (ValueError, RecursionError):
            return None
        return noted if isinstance(noted, dict) else None

    def clocks(self) -> tuple[float, float]:
        """See `Host`."""
        return self.clock
