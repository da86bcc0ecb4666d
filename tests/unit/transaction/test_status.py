# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One look at a server: what the unit, the files and the answers make of it, and what stays unknown."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Journal
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Listener, Pulse
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import SystemdError, Unit
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import Failure
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import Verdict
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.waiting import HostProbes
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server import Server, ServerError
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.generations import Generation
from ansible_collections.gpufleet.sglang.plugins.module_utils._transaction.status import (
    Answers,
    RealHost,
    Status,
    ask_server,
    status,
)
from ansible_collections.gpufleet.sglang.roles.sglang_server.files.watch import State, write_state
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import Standin, pp8, serve
from ansible_collections.gpufleet.sglang.tests.unit.transaction.samples import FAILURE

NAME = "sglang-kimi.service"
ACTIVE = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "InvocationID": "abc",
    "ControlGroup": f"/system.slice/{NAME}",
    "MainPID": "5",
    "NRestarts": "2",
    "ActiveEnterTimestampMonotonic": "400000000",
    "StateChangeTimestampMonotonic": "450000000",
    "ExecStart": "{ path=/opt/sglang/0.5.23/bin/python ; argv[]=/opt/sglang/0.5.23/bin/python -m sglang }",
}
SELF_KILLED = {
    **ACTIVE,
    "ActiveState": "failed",
    "SubState": "failed",
    "Result": "signal",
    "ExecMainCode": "2",
    "ExecMainStatus": "9",
    "ActiveExitTimestampMonotonic": "440000000",
    "ExecMainExitTimestampMonotonic": "445000000",
}
CONFIG = {"served-model-name": "kimi-k2.6", "model-path": "/models/Kimi-K2.6", "pp-size": 8, "api-key": "hunter22"}
SERVER = Server("127.0.0.1", 30000, tls=False, api_key="hunter22", admin_api_key="", verify=True, config=CONFIG)


@dataclass
class Host:
    """A host of the test's own; what it answers is what it was given."""

    values: Mapping[str, str] = field(default_factory=lambda: ACTIVE)
    configured: Server | None = SERVER
    unreadable: str = ""
    answer: Answers = field(default_factory=lambda: Answers(Verdict("ready"), ("kimi-k2.6",)))
    asked: int = 0
    kept: tuple[Generation, list[str]] | None = None
    noted: Mapping[str, Any] | None = None

    def units(self) -> list[str]:
        return [NAME]

    def show(self, unit: str) -> Mapping[str, str]:
        return self.values

    def server(self, name: str) -> Server | None:
        assert name == "kimi"
        if self.unreadable:
            raise ServerError(self.unreadable)
        return self.configured

    def answers(self, unit: Unit, server: Server) -> Answers:
        self.asked += 1
        return self.answer

    def engine(self, python: str) -> str | None:
        return "0.5.22" if python == "/opt/sglang/0.5.23/bin/python" else None

    def restart_owed(self, name: str) -> bool | None:
        return True

    def newest(self, name: str) -> tuple[Generation, list[str]] | None:
        return self.kept

    def watched(self, name: str) -> Mapping[str, Any] | None:
        return self.noted

    def clocks(self) -> tuple[float, float]:
        return 1_795_996_900.0, 500.0


def at(host: Host) -> Status:
    return status(host, NAME)


def test_a_server_that_is_ready() -> None:
    seen = at(Host(kept=(Generation(7, 1_795_996_800.0, Path("/x")), ["/etc/sglang/kimi/server.yaml"])))
    assert (seen.name, seen.unit, seen.state, seen.ready, seen.phase) == ("kimi", NAME, "active", True, "ready")
    assert (seen.since, seen.since_seconds) == ("2026-11-30T00:00:00+00:00", 100.0)
    assert (seen.model, seen.port, seen.pp_size, seen.restarts) == ("kimi-k2.6", 30000, 8, 2)
    assert (seen.generation, seen.promoted) == (7, "2026-11-30T00:00:00+00:00")
    assert seen.changed_files == ["/etc/sglang/kimi/server.yaml"]
    assert seen.restart_owed is True


def test_the_installed_release_is_told_where_nothing_answers() -> None:
    host = Host(answer=Answers(Verdict("loading", "22 of 64 shards")))
    assert (at(host).version, at(host).model, at(host).pp_max_micro_batch_size) == ("0.5.22", "kimi-k2.6", None)
    assert (at(host).ready, at(host).phase, at(host).detail) == (False, "loading", "22 of 64 shards")


def test_a_failure_comes_through() -> None:
    failure = Failure(FAILURE["cause"], FAILURE["summary"], (), FAILURE["advice"])  # type: ignore[arg-type]
    seen = at(Host({**ACTIVE, "ActiveState": "failed"}, answer=Answers(Verdict("loading", failure=failure))))
    assert seen.failure == FAILURE
    assert (seen.ready, seen.state, seen.since_seconds) == (False, "failed", 50.0)
    assert seen.restart_owed is None


@pytest.mark.parametrize(
    ("values", "detail"),
    [
        ({**ACTIVE, "ActiveState": "inactive", "SubState": "dead"}, ""),
        (SELF_KILLED, "Asked to stop, it killed itself, as releases up to 0.5.18 do"),
        (
            {**SELF_KILLED, "Result": "timeout"},
            "Asked to stop, it did not end in time and was killed by systemd",
        ),
    ],
)
def test_a_server_that_was_stopped_is_no_failure_and_is_not_asked(values: dict[str, str], detail: str) -> None:
    host = Host(values)
    seen = at(host)
    assert (seen.phase, seen.failure, seen.ready, seen.detail, host.asked) == ("stopped", None, False, detail, 0)


def test_a_crash_is_not_taken_for_a_stop() -> None:
    crashed = {**SELF_KILLED, "ActiveExitTimestampMonotonic": "445000001"}
    host = Host(crashed, answer=Answers(Verdict("loading")))
    assert (at(host).phase, host.asked) == ("loading", 1)


def test_a_unit_without_a_configuration_is_not_asked() -> None:
    host = Host(configured=None)
    seen = at(host)
    assert (seen.ready, seen.phase, seen.port, seen.model, host.asked) == (False, "", None, None, 0)


def test_a_configuration_that_cannot_be_read_is_the_cause() -> None:
    seen = at(Host(unreadable="server.yaml is not YAML"))
    assert seen.failure is not None
    assert (seen.failure["cause"], seen.failure["summary"]) == ("config_unreadable", "server.yaml is not YAML")


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"LoadState": "not-found", "ActiveState": "inactive"}, "not-found"),
        ({**ACTIVE, "ActiveState": "activating", "SubState": "auto-restart"}, "auto-restart"),
        ({**ACTIVE, "ActiveState": "activating", "SubState": "start"}, "activating"),
        ({}, ""),
    ],
)
def test_states(values: dict[str, str], state: str) -> None:
    assert at(Host(values)).state == state


NOTED = {"invocation_id": "abc", "healthy": True, "failures": 0, "since": 1_795_996_800.0, "last_error": ""}
HUNG = {**NOTED, "healthy": False, "failures": 3, "last_error": "no answer to hunter22"}
SILENT = Verdict("ready", failure=Failure("no_server_info", "it may be busy"))


def test_what_its_watch_has_seen_is_told() -> None:
    seen = at(Host(noted=NOTED))
    assert (seen.ready, seen.failure) == (True, None)
    assert seen.watch == {"healthy": True, "failures": 0, "since": "2026-11-30T00:00:00+00:00", "last_error": ""}


@pytest.mark.parametrize("verdict", [Verdict("ready"), SILENT])
def test_a_server_that_its_watch_calls_unhealthy_is_not_ready(verdict: Verdict) -> None:
    seen = at(Host(answer=Answers(verdict, ("kimi-k2.6",)), noted=HUNG))
    assert seen.failure is not None
    assert (seen.ready, seen.phase, seen.failure["cause"]) == (False, "ready", "unhealthy")
    assert "3 looks in a row failed, the last with no answer to" in seen.failure["summary"]
    assert f"systemctl restart {NAME}" in seen.failure["advice"]
    assert "hunter22" not in json.dumps(seen.to_dict())


@pytest.mark.parametrize(
    ("values", "noted"),
    [
        (ACTIVE, {**HUNG, "invocation_id": "the one before"}),
        ({**ACTIVE, "ActiveState": "inactive"}, HUNG),
        (ACTIVE, {}),
    ],
)
def test_what_was_seen_of_another_start_says_nothing(values: dict[str, str], noted: dict[str, Any]) -> None:
    assert at(Host(values, noted=noted)).watch is None


def test_a_note_of_the_watch_may_hold_anything() -> None:
    noted = {"invocation_id": "abc", "healthy": "no", "failures": [], "since": 1e300, "last_error": {}}
    seen = at(Host(noted=noted))
    assert seen.watch == {"healthy": None, "failures": 0, "since": None, "last_error": "{}"}


def test_secrets_do_not_come_through() -> None:
    told = json.dumps(at(Host(answer=Answers(Verdict("listening", "answered hunter22")))).to_dict())
    assert "hunter22" not in told


# --- asking a server --------------------------------------------------------------------------------------------------


@dataclass
class Probed:
    """Runs commands that are not there, and counts them."""

    lines: tuple[str, ...] = ()
    commands: list[list[str]] = field(default_factory=list)

    def __call__(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        if command[0] == "journalctl" and "--sync" not in command:
            entries = [{"MESSAGE": line, "__REALTIME_TIMESTAMP": "1796000000000000"} for line in self.lines]
            return 0, "".join(json.dumps(entry) + "\n" for entry in entries), ""
        return 0, "".join(f"{key}={value}\n" for key, value in ACTIVE.items()), ""


class Probes(HostProbes):
    """The real ones, but for whose the port is."""

    def listener(self, unit: Unit) -> Listener | None:
        return Listener("unit", 5) if self.port else None

    def pulse(self, unit: Unit, besides: int) -> Pulse:
        return Pulse()


def asked(standin: Standin | None, run: Probed, key: str = "") -> Answers:
    port = standin.port if standin else 0
    config = {"served-model-name": "tiny", "pp-size": 8}
    server = replace(SERVER, port=port, api_key=key, config=config)
    journal = Journal(run, {})
    probes = Probes(NAME, "127.0.0.1", port, server.client(), journal, run, 2.0)
    return ask_server(probes.unit(), server, probes, journal, 2.0)


def test_a_running_server_tells_what_is_in_force() -> None:
    with serve(pp8(answers={"/ready": (200, b"")})) as standin:
        answers = asked(standin, Probed())
    assert answers.verdict.ready
    assert answers.models == ("tiny",)
    assert answers.info is not None
    assert (answers.info.version, answers.info.pp_size, answers.info.caps[0]) == ("0.5.23", 8, 64)


def test_a_release_without_ready_is_asked_for_its_health_once() -> None:
    paths = []

    @dataclass
    class Counting(Standin):
        def answer(self, path: str, key: str, body: bytes) -> tuple[int, bytes]:
            paths.append(path)
            return super().answer(path, key, body)

    with serve(Counting(pp8().info, answers={"/health": (503, b"")})) as standin:
        answers = asked(standin, Probed())
    assert (answers.verdict.phase, answers.verdict.failure) == ("warming_up", None)
    assert paths == ["/v1/models", "/ready", "/health", "/server_info"]


def test_a_scheduler_that_does_not_answer_is_not_ready() -> None:
    answers = {"/ready": (200, b""), "/server_info": (500, b"Internal Server Error")}
    with serve(pp8(answers=answers)) as standin:
        verdict = asked(standin, Probed()).verdict
    assert not verdict.ready
    assert verdict.failure is not None
    assert verdict.failure.cause == "no_server_info"


def test_a_key_that_is_refused_is_the_cause() -> None:
    with serve(pp8(api_key="right")) as standin:
        verdict = asked(standin, Probed(), "wrong").verdict
    assert verdict.failure is not None
    assert verdict.failure.cause == "unauthorized"


def test_a_server_that_loads_is_asked_for_nothing_and_its_journal_tells_the_phase() -> None:
    run = Probed(lines=("[2026-11-30 03:00:00 PP0] Load weight begin. avail mem=94.1 GB",))
    answers = asked(None, run)
    assert (answers.verdict.phase, answers.verdict.failure, answers.models) == ("loading", None, ())
    assert [command[0] for command in run.commands].count("journalctl") == 2


# --- the real host ----------------------------------------------------------------------------------------------------


def systemctl(command: list[str]) -> tuple[int, str, str]:
    printed = {
        "list-units": "sglang-b.service loaded active running SGLang server b\n",
        "list-unit-files": "sglang-a.service enabled\nsglang-b.service enabled\nsglang-@.service static\n"
        "sglang-watch@b.service static\n",
    }
    return 0, printed.get(command[1], "A=1\nB=x=y\nnonsense\n"), ""


def real(tmp_path: Path, run: Any = systemctl) -> RealHost:
    return RealHost(run, {}, (0.0, 0.0), etc=tmp_path, runtime=tmp_path)


def test_units_are_those_that_run_and_those_that_could(tmp_path: Path) -> None:
    assert real(tmp_path).units() == ["sglang-a.service", "sglang-b.service"]
    assert real(tmp_path).show("sglang-a.service") == {"A": "1", "B": "x=y"}


def test_a_host_without_systemd_is_said(tmp_path: Path) -> None:
    host = real(tmp_path, lambda command: (1, "", "System has not been booted with systemd\n"))
    with pytest.raises(SystemdError, match=r"list-units failed \(1\): System has not"):
        host.units()
    with pytest.raises(SystemdError, match=r"systemctl show x\.service failed"):
        host.show("x.service")


def test_a_configuration_is_read_where_there_is_one(tmp_path: Path) -> None:
    assert real(tmp_path).server("kimi") is None
    (tmp_path / "kimi").mkdir()
    (tmp_path / "kimi" / "server.yaml").write_text('port: 30001\napi-key: "k"\n')
    server = real(tmp_path).server("kimi")
    assert server is not None
    assert (server.port, server.api_key) == (30001, "k")
    (tmp_path / "kimi" / "server.yaml").write_text("port: 70000\n")
    with pytest.raises(ServerError, match="expected 1 to 65535"):
        real(tmp_path).server("kimi")


def test_the_installed_release_is_found_beside_its_python(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    packages.mkdir(parents=True)
    python = str(tmp_path / "bin" / "python")
    assert real(tmp_path).engine(python) is None
    (packages / "sglang-router.dist-info").mkdir()
    (packages / "sglang-0.5.15.post1.dist-info").mkdir()
    assert real(tmp_path).engine(python) == "0.5.15.post1"


def run(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_restart_is_owed_when_a_file_is_another_than_at_the_start(tmp_path: Path) -> None:
    host = real(tmp_path, run)
    assert host.restart_owed("kimi") is None
    file, started = tmp_path / "file", tmp_path / "kimi" / "started"
    started.parent.mkdir()
    file.write_text("one")
    started.write_text(run(["sha256sum", str(file)])[1])
    assert host.restart_owed("kimi") is False
    file.write_text("two")
    assert host.restart_owed("kimi") is True


@pytest.mark.parametrize(
    ("content", "noted"), [(None, None), ("", None), ("[1]", None), ('{"healthy": true}', {"healthy": True})]
)
def test_a_note_of_the_watch_is_read_where_there_is_one(tmp_path: Path, content: str | None, noted: Any) -> None:
    (tmp_path / "kimi").mkdir()
    if content is not None:
        (tmp_path / "kimi" / "watch.json").write_text(content)
    assert real(tmp_path, run).watched("kimi") == noted


def test_what_the_watch_writes_is_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "kimi").mkdir()
    written = State("abc", healthy=False, failures=3, since=1_795_996_800.0, last_error="no answer")
    write_state(tmp_path / "kimi" / "watch.json", written)
    seen = at(Host(noted=real(tmp_path, run).watched("kimi"))).watch
    assert seen == {"healthy": False, "failures": 3, "since": "2026-11-30T00:00:00+00:00", "last_error": "no answer"}
