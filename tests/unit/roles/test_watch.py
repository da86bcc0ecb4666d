# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The watch: what a look makes of what it sees, what it asks a real server for, and what it leaves behind."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import dump_server_yaml
from ansible_collections.gpufleet.sglang.roles.sglang_server.files import watch
from ansible_collections.gpufleet.sglang.roles.sglang_server.files.watch import Answer, RealHost, State, look, tell
from ansible_collections.gpufleet.sglang.tests.contract.readiness.test_client import Authority
from ansible_collections.gpufleet.sglang.tests.support.standin.standin import Standin

UNIT = "sglang-kimi.service"
LIMIT = 3
TOKEN = Answer(200, json.dumps({"choices": [{"text": " 5"}], "usage": {"completion_tokens": 1}}).encode())
LATE = Answer(error="no answer within 30 s")
REFUSED = Answer(401, b'{"error":"Unauthorized"}')


@dataclass
class Host:
    """A host of the test's own, where an answer that is late takes its time."""

    start: str = "one"
    warm: bool = True
    answer: Answer = TOKEN
    batches: list[tuple[float, str]] = field(default_factory=list)
    """When the journal told of which kind; of this start only."""
    during: str | None = None
    """The start that runs after the request, where that is another one."""
    clock: float = 1000.0
    asked: int = 0

    def now(self) -> float:
        return self.clock

    def running(self) -> str:
        return self.start

    def is_warm(self) -> bool:
        return self.warm

    def ask(self) -> Answer:
        self.asked += 1
        self.clock += 30 if self.answer.error else 0.1
        self.start = self.start if self.during is None else self.during
        return self.answer

    def told_of(self, kinds: str, invocation_id: str, since: float) -> bool:
        return any(since <= at <= self.clock and kind in kinds.split("|") for at, kind in self.batches)


def looks(host: Host, number: int = 1, state: State | None = None) -> State:
    """The state after so many looks, a minute apart."""
    state = state or State()
    for _look in range(number):
        state = look(state, host, LIMIT)
        host.clock += 60
    return state


PROVEN = State("one", healthy=True, since=900.0, looked_at=940.0)


def test_a_server_that_generates_is_healthy_since_its_first_token() -> None:
    host = Host()
    assert looks(host) == State("one", healthy=True, since=1000.1, looked_at=1000.1)
    state = looks(host, 5, PROVEN)
    assert (state.healthy, state.since, host.asked) == (True, 900.0, 6)


def test_so_many_failures_in_a_row_make_it_unhealthy() -> None:
    host = Host(answer=LATE)
    seen = looks(host, LIMIT - 1, PROVEN)
    assert (seen.healthy, seen.failures, seen.since) == (True, 2, 900.0)
    seen = looks(host, 1, seen)
    assert (seen.healthy, seen.failures, seen.since, seen.last_error) == (False, 3, 1210.0, "no answer within 30 s")
    assert looks(host, 1, seen).since == 1210.0
    host.answer = TOKEN
    assert looks(host, 1, seen) == State("one", healthy=True, since=1360.1, looked_at=1360.1)


def test_failures_that_are_not_in_a_row_do_not_add_up() -> None:
    host, state = Host(), PROVEN
    for answer in (LATE, LATE, TOKEN, LATE, LATE):
        host.answer = answer
        state = looks(host, 1, state)
    assert (state.healthy, state.failures) == (True, 2)


@pytest.mark.parametrize("host", [Host(start=""), Host(warm=False), Host(answer=LATE), Host(answer=REFUSED)])
def test_nothing_counts_before_the_first_token(host: Host) -> None:
    seen = looks(host, 10)
    assert (seen.healthy, seen.failures) == (None, 0)


def test_a_server_that_is_not_warm_or_does_not_run_is_not_asked() -> None:
    for host in (Host(start=""), Host(warm=False)):
        looks(host, 10)
        assert host.asked == 0


def test_the_start_after_a_restart_is_judged_anew() -> None:
    unhealthy = State("one", healthy=False, failures=7, since=900.0, looked_at=940.0, last_error="x")
    assert looks(Host("two", warm=False), 1, unhealthy) == State("two", since=1000.0, looked_at=1000.0)


@pytest.mark.parametrize("during", ["", "two"])
@pytest.mark.parametrize("answer", [LATE, TOKEN, Answer(503), Answer(error="ConnectionRefusedError")])
def test_what_was_seen_while_somebody_stopped_or_restarted_it_is_thrown_away(during: str, answer: Answer) -> None:
    assert looks(Host(during=during, answer=answer), 1, PROVEN) == PROVEN


def test_a_server_that_has_decoded_for_others_since_the_last_look_is_not_asked() -> None:
    host = Host(answer=LATE, batches=[(950.0, "Decode")])
    assert looks(host, 1, PROVEN) == State("one", healthy=True, since=900.0, looked_at=1000.0)
    assert host.asked == 0


@pytest.mark.parametrize("batches", [[(930.0, "Decode")], [(950.0, "Prefill")]])
def test_what_it_did_before_or_only_began_proves_nothing(batches: list[tuple[float, str]]) -> None:
    host = Host(answer=LATE, batches=batches)
    assert (looks(host, 1, PROVEN).failures, host.asked) == (1, 1)


@pytest.mark.parametrize("kind", ["Decode", "Prefill"])
def test_a_server_that_works_on_while_a_request_waits_is_busy(kind: str) -> None:
    assert looks(Host(answer=LATE, batches=[(1020.0, kind)]), 1, PROVEN).failures == 0


def test_the_batch_of_the_request_itself_proves_nothing() -> None:
    # The first stages take in what they have room for; nothing comes out at the end.
    assert looks(Host(answer=LATE, batches=[(1000.1, "Prefill"), (1005.0, "Prefill")]), 1, PROVEN).failures == 1


def test_a_request_that_is_refused_neither_counts_nor_heals() -> None:
    state = State("one", healthy=True, failures=2, since=900.0, looked_at=940.0, last_error="x")
    seen = looks(Host(answer=REFUSED), 1, state)
    assert (seen.healthy, seen.failures) == (True, 2)
    assert seen.last_error == 'HTTP 401: {"error":"Unauthorized"}'


@pytest.mark.parametrize(
    ("answer", "token"),
    [
        (TOKEN, True),
        (Answer(500, TOKEN.body), False),
        (Answer(200, b'{"usage": {"completion_tokens": 0}}'), False),
        (Answer(200, b'{"usage": {"completion_tokens": null}}'), False),
        (Answer(200, b"[1]"), False),
        (Answer(200, b"<html>"), False),
        (LATE, False),
    ],
)
def test_what_counts_as_a_token(answer: Answer, token: bool) -> None:
    assert answer.has_token is token


# --- the lines --------------------------------------------------------------------------------------------------------


def told(host: Host, state: State = PROVEN, restarts: bool = False) -> str:
    return tell(UNIT, state, looks(host, 1, state), LIMIT, restarts)


def test_nothing_is_said_while_nothing_changes() -> None:
    assert told(Host()) == told(Host(start="")) == told(Host("two", warm=False)) == ""


def test_the_first_token_of_each_start_is_told() -> None:
    line = f"<5>{UNIT} generates, and is watched from now on"
    assert told(Host(), State()) == told(Host("two")) == line


def test_each_failure_says_what_was_expected_and_seen() -> None:
    assert told(Host(answer=LATE)) == (
        f"<4>{UNIT}: expected a token within 30 s, saw no answer within 30 s (failure 1 of 3 in a row; then it is "
        "called unhealthy)"
    )


@pytest.mark.parametrize(
    ("restarts", "what"), [(True, "It is killed, and systemd starts it again."), (False, f"systemctl restart {UNIT}")]
)
def test_an_unhealthy_server_is_told_with_what_to_do(restarts: bool, what: str) -> None:
    line = told(Host(answer=LATE), State("one", healthy=True, failures=2), restarts)
    assert line.startswith(f"<3>{UNIT} is unhealthy: expected a token within 30 s, saw no answer within 30 s (3 f")
    assert line.endswith(what)


def test_a_recovery_is_told() -> None:
    assert told(Host(), State("one", healthy=False, failures=3)) == f"<5>{UNIT} generates again, after 3 failures"


@pytest.mark.parametrize("healthy", [True, False])
def test_a_refusal_between_failures_is_not_told_as_one(healthy: bool) -> None:
    line = told(Host(answer=REFUSED), State("one", healthy=healthy, failures=2, last_error="no answer"))
    assert line.startswith(f"<4>{UNIT} cannot be judged: expected a token within 30 s, saw HTTP 401")


def test_a_server_that_cannot_be_judged_is_told_once() -> None:
    host = Host(answer=REFUSED)
    assert "HTTP 401" in told(host)
    assert "not counted" in told(host)
    assert told(host, looks(host, 1, PROVEN)) == ""
    assert "from its first token on" in told(Host(answer=LATE), State())


# --- the host ---------------------------------------------------------------------------------------------------------


def real(config: dict[str, Any], timeout: float = 5.0, printed: dict[str, list[str]] | None = None) -> RealHost:
    return RealHost(UNIT, config, lambda command: iter((printed or {})[command[0]]), timeout=timeout)


def serving(**script: Any) -> Standin:
    return Standin({"port": 0, "steps": ["listen", {"become": "ready"}], **script}, io.StringIO())


def port(server: Standin) -> int:
    found = int(server.url.rpartition(":")[2])
    while server.state == "starting" and not server.script.answers:
        time.sleep(0.001)
    return found


def test_a_real_request_is_one_token_with_the_key_and_the_name_of_the_model() -> None:
    with serving(api_key="hunter22", models=["tiny"]) as server:
        host = real({"port": port(server), "host": "0.0.0.0", "api-key": "hunter22", "served-model-name": "tiny"})
        assert host.is_warm()
        assert host.ask().has_token
        assert real({"port": port(server)}).ask().is_refusal
    assert [path for _at, path in server.requests] == ["/ready", "/v1/completions", "/v1/completions"]


def test_a_server_that_hangs_or_drips_ends_the_wait_in_time() -> None:
    slow = {"/v1/completions": {"body": "x" * 100, "drip": 0.05}}
    for script in ({"steps": ["listen", {"become": "hung"}]}, {"answers": slow}):
        with serving(**script) as server:
            began = time.monotonic()
            assert real({"port": port(server)}, 0.3).ask().error == "no answer within 0.3 s"
            assert time.monotonic() - began < 3


def test_a_closed_port_and_nonsense_are_answers_without_a_token() -> None:
    with serving(answers={"/v1/completions": {"body": "<html>", "status": 502}}) as server:
        closed = port(server)
        assert real({"port": closed}).ask().text == "HTTP 502: <html>"
    assert "ConnectionRefusedError" in real({"port": closed}).ask().text
    assert not real({"port": closed}).is_warm()


@pytest.mark.parametrize(("status", "warm"), [(200, True), (503, False), (404, True)])
def test_warm_is_what_ready_says_where_it_is_there(status: int, warm: bool) -> None:
    with serving(answers={"/ready": {"status": status}}) as server:
        assert real({"port": port(server)}).is_warm() is warm


def test_tls_whatever_the_certificate_names(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    tls = Authority(tmp_path, ec.generate_private_key(ec.SECP256R1()), name).sign("x", "sglang.example", 30)
    with serving(tls=tls) as server:
        assert real({"port": port(server), "ssl-certfile": "x"}).ask().has_token
        assert "HTTP" not in real({"port": port(server)}).ask().text


@pytest.mark.parametrize(
    ("shown", "start"),
    [
        (["ActiveState=active", "Job=", "InvocationID=abc"], "abc"),
        (["ActiveState=active", "Job=0", "InvocationID=abc"], "abc"),
        (["ActiveState=active", "Job=7", "InvocationID=abc"], ""),
        (["ActiveState=deactivating", "Job=", "InvocationID=abc"], ""),
        (["ActiveState=failed", "InvocationID=abc"], ""),
        ([], ""),
    ],
)
def test_a_start_runs_when_nobody_is_about_to_end_it(shown: list[str], start: str) -> None:
    assert real({}, printed={"systemctl": shown}).running() == start


DECODE = (
    "[2026-11-30 06:49:53 PP0] Decode batch, #running-req: 1, #token: 9, gen throughput (token/s): 3.1, #queue-req: 0"
)
OLD_DECODE = "[2025-01-30 06:49:53 TP0] Decode batch. #running-req: 1, #token: 9, gen throughput (token/s): 3.1"
PREFILL = "[2026-11-30 06:49:53 PP1] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 3, #queue-req: 0"


@pytest.mark.parametrize(
    ("line", "generating", "working"),
    [
        (DECODE, True, True),
        (OLD_DECODE, True, True),
        (PREFILL, False, True),
        ("[2026-11-30 06:49:53] Receive: obj=GenerateReqInput(text='] Decode batch, ')", False, False),
    ],
)
def test_lines_that_tell_of_work(line: str, generating: bool, working: bool) -> None:
    host = real({}, printed={"journalctl": ["INFO", line]})
    assert host.told_of(watch.GENERATING, "abc", 0.0) is generating
    assert host.told_of(watch.WORKING, "abc", 0.0) is working


def test_a_reader_that_has_seen_enough_ends_the_command() -> None:
    endless: Iterator[str] = watch.lines_of([sys.executable, "-u", "-c", "while True: print('a line')"])
    assert next(endless) == "a line"
    endless.close()  # type: ignore[attr-defined]
    assert list(watch.lines_of(["printf", r"one\ntwo\xff\n"])) == ["one", "two\ufffd"]


# --- the files and the program ----------------------------------------------------------------------------------------


def test_it_reads_what_the_role_writes(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    values = {"port": 30001, "api-key": 'a "b"', "model-path": "/m", "host": "::", "trust-remote-code": True}
    path.write_text(dump_server_yaml(values))
    assert watch.read_config(path) == values


@pytest.mark.parametrize("line", ["port: 30001 # by hand", "- port"])
def test_a_file_that_the_role_has_not_written_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(line)
    monkeypatch.setattr(sys, "argv", ["watch.py", UNIT, f"--config={path}", "--state=/none", "--failures=1"])
    with pytest.raises(SystemExit, match=f"^<3>{UNIT} cannot be watched: .*: run the role again$"):
        watch.main()


@pytest.mark.parametrize("content", [None, "", "[]", '{"other": 1}', json.dumps({"failures": 1})[:-1]])
def test_a_state_that_cannot_be_read_is_a_new_one(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "watch.json"
    if content is not None:
        path.write_text(content)
    assert watch.read_state(path) == State()


def test_a_state_survives_from_look_to_look(tmp_path: Path) -> None:
    watch.write_state(tmp_path / "watch.json", PROVEN)
    assert watch.read_state(tmp_path / "watch.json") == PROVEN
    assert [path.name for path in tmp_path.iterdir()] == ["watch.json"]


def test_the_program_asks_once_and_ends_as_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a healthy state to an unhealthy one and back, with commands of the test's own."""
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho ActiveState=active; echo InvocationID=one\n")
    (tmp_path / "journalctl").write_text("#!/bin/sh\n")
    for command in tmp_path.iterdir():
        command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    config, state = tmp_path / "server.yaml", tmp_path / "watch.json"
    arguments = ["watch.py", UNIT, f"--config={config}", f"--state={state}", "--failures=1"]
    monkeypatch.setattr(sys, "argv", arguments)
    with serving(api_key="hunter22") as server:
        config.write_text(dump_server_yaml({"port": port(server), "api-key": "hunter22"}))
        assert watch.main() == 0
        assert json.loads(state.read_text())["healthy"] is True
        server.script.answers["/v1/completions"] = {"status": 500}
        assert watch.main() == watch.UNHEALTHY
        assert json.loads(state.read_text())["healthy"] is False
        del server.script.answers["/v1/completions"]
        assert watch.main() == 0
        assert len([path for _at, path in server.requests if path == "/v1/completions"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in lines] == ["<5>", "<3>", "<5>"]
    assert "hunter22" not in "".join(lines) + state.read_text()
