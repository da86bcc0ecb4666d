# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The seven facts, judged against made-up hosts: every transition, with a clock of the test's own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Listener, Pulse
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Unit
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import (
    Wait,
    Wanted,
    completion_problem,
    look,
    served_models,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.waiting import Pace, run_slice
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer

RUNNING = Unit(
    name="sglang-kimi.service",
    load_state="loaded",
    active_state="active",
    sub_state="running",
    result="success",
    invocation_id="first",
    control_group="/system.slice/sglang-kimi.service",
    main_pid=100,
    exec_code="",
    exec_status=0,
    restarts=0,
)
DIED = replace(
    RUNNING, active_state="activating", sub_state="auto-restart", result="exit-code", exec_code="exited", exec_status=1
)
KILLED_ITSELF = replace(
    RUNNING, active_state="failed", sub_state="failed", result="signal", exec_code="killed", exec_status=9,
    began=10, left_active=20, ended=30,
)  # fmt: skip
MODELS = Answer(
    200, json.dumps({"data": [{"id": "kimi", "parent": None}, {"id": "kimi:lora", "parent": "kimi"}]}).encode()
)
TOKEN = Answer(200, json.dumps({"choices": [{"text": " 5"}], "usage": {"completion_tokens": 1}}).encode())
OK = Answer(200)
STARTING = Answer(503)
REFUSED = Answer(error="Connection refused")
WANTED = Wanted(models=("kimi",))


@dataclass
class Host:
    """A host that answers what the test says, and notes what it was asked."""

    unit_facts: Unit = RUNNING
    listens: Listener | None = field(default_factory=lambda: Listener("unit", 100))
    models_answer: Answer = MODELS
    ready_answer: Answer = OK
    health_answer: Answer = OK
    completion_answer: Answer = TOKEN
    entries: list[Entry] = field(default_factory=list)
    life: Pulse = field(default_factory=lambda: Pulse(4, 1.0, 1))
    gpus: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def unit(self) -> Unit:
        return self.unit_facts

    def listener(self, unit: Unit) -> Listener | None:
        return self.listens

    def pulse(self, unit: Unit, besides: int) -> Pulse:
        return self.life

    def gpu_memory(self) -> list[int]:
        self.asked.append("gpu")
        return self.gpus

    def models(self) -> Answer:
        self.asked.append("models")
        return self.models_answer

    def ready(self) -> Answer:
        self.asked.append("ready")
        return self.ready_answer

    def health(self) -> Answer:
        self.asked.append("health")
        return self.health_answer

    def completion(self, model: str, prompt: str, max_tokens: int) -> Answer:
        self.asked.append(f"completion of {model}")
        return self.completion_answer

    def age(self, entry: Entry) -> float:
        return 0.0

    def last_entries(self, invocation_id: str) -> list[Entry]:
        return self.entries


def test_ready_when_all_facts_hold() -> None:
    host = Host()
    wait = Wait()
    assert look(wait, WANTED, host, 1.0).ready
    assert host.asked == ["models", "ready", "completion of kimi"]
    assert wait.models == ["kimi"]


@pytest.mark.parametrize(("probe", "asked"), [("models", ["models"]), ("health", ["models", "ready"])])
def test_probe_says_how_far_to_go(probe: str, asked: list[str]) -> None:
    host = Host(completion_answer=REFUSED)
    assert look(Wait(), replace(WANTED, probe=probe), host, 0).ready
    assert host.asked == asked


@pytest.mark.parametrize(
    ("host", "cause", "said"),
    [
        (Host(replace(RUNNING, load_state="not-found", active_state="inactive")), "unit_missing", "sglang-kimi"),
        (Host(replace(RUNNING, load_state="not-found")), "unit_missing", "its processes still run"),
        (Host(replace(RUNNING, load_state="masked", active_state="inactive")), "unit_masked", "sglang-kimi"),
        (Host(replace(RUNNING, active_state="inactive", sub_state="dead")), "unit_inactive", "sglang-kimi"),
        (Host(KILLED_ITSELF), "unit_inactive", "sglang-kimi"),
        (Host(listens=Listener("foreign", 7, "nginx")), "foreign_listener", "process 7 (nginx)"),
        (Host(models_answer=Answer(401, b'{"error":"Unauthorized"}')), "unauthorized", "401"),
        (Host(models_answer=Answer(403)), "unauthorized", "403"),
        (Host(models_answer=Answer(200, b'{"data": [{"id": "llama"}]}')), "wrong_model", "'llama'"),
    ],
)
def test_facts_that_fail_at_once(host: Host, cause: str, said: str) -> None:
    verdict = look(Wait(), WANTED, host, 0)
    assert verdict.failure is not None
    assert verdict.failure.cause == cause
    assert said in verdict.failure.summary
    assert verdict.failure.advice


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        ({"unit_facts": replace(RUNNING, active_state="activating", sub_state="start-pre")}, "starting"),
        ({"unit_facts": replace(RUNNING, active_state="deactivating", sub_state="stop-sigterm")}, "starting"),
        ({"listens": None}, "starting"),
        ({"models_answer": REFUSED}, "listening"),
        ({"models_answer": Answer(502, b"<html>Bad gateway</html>")}, "listening"),
        ({"models_answer": Answer(200, b"<html>")}, "listening"),
        ({"models_answer": Answer(200, b'{"data": {}}')}, "listening"),
        ({"models_answer": Answer(302)}, "listening"),
        ({"ready_answer": STARTING}, "warming_up"),
        ({"completion_answer": Answer(error="no answer within 30 s")}, "warming_up"),
        ({"completion_answer": Answer(500)}, "warming_up"),
    ],
)
def test_facts_that_are_waited_for(change: dict[str, Any], phase: str) -> None:
    verdict = look(Wait(), WANTED, replace(Host(), **change), 0)
    assert verdict.failure is None
    assert not verdict.ready
    assert verdict.phase == phase


def test_a_listener_that_the_kernel_does_not_tell_is_taken() -> None:
    assert look(Wait(), WANTED, Host(listens=Listener("unknown")), 0).ready


def test_health_is_asked_for_where_ready_is_missing_and_then_seldom() -> None:
    """Releases before 0.5.20 answer 404 to /ready; /health makes SGLang generate, so it is not for every second."""
    host = Host(ready_answer=Answer(404), health_answer=STARTING)
    wait = Wait()
    for second in range(12):
        assert look(wait, WANTED, host, float(second)).phase == "warming_up"
    assert host.asked.count("ready") == 1
    assert host.asked.count("health") == 3
    host.health_answer = OK
    wait.signs.read(Entry.of("[2026-11-01 10:06:39] The server is fired up and ready to roll!", 5.0))
    assert look(wait, WANTED, host, 12.0).ready


@pytest.mark.parametrize("probe", ["unit", "restarts", "failed"])
def test_a_start_that_died_fails_with_the_reason_it_gave(probe: str) -> None:
    host = Host(listens=None)
    wait = Wait()
    assert look(wait, WANTED, host, 0).failure is None
    host.unit_facts = {
        "unit": DIED,
        "restarts": replace(RUNNING, invocation_id="second", restarts=1, exec_code="exited", exec_status=1),
        "failed": replace(DIED, active_state="failed", sub_state="failed"),
    }[probe]
    host.entries = [
        Entry.of("[2026-11-01 10:00:05] something before"),
        Entry.of("[2026-11-01 10:00:06 PP1] RuntimeError: Cannot find any model weights with `/models/x`"),
        Entry.of("[2026-11-01 10:00:07] Received sigquit from a child process. It usually means the child failed."),
    ]
    verdict = look(wait, WANTED, host, 1)
    assert verdict.failure is not None
    assert verdict.failure.cause == "model_incomplete"
    assert "/models/x" in verdict.failure.summary
    assert any("something before" in line for line in verdict.failure.evidence)


@pytest.mark.parametrize(
    ("unit", "cause"),
    [
        (replace(DIED, exec_status=203), "exec_failed"),
        (replace(DIED, exec_status=217), "exec_failed"),
        (replace(DIED, exec_status=2, active_state="failed"), "bad_argument"),
        (replace(DIED, restarts=3), "crash_loop"),
        (replace(DIED, active_state="failed", result="start-limit-hit"), "crash_loop"),
        (replace(DIED, result="oom-kill", exec_code="killed", exec_status=9), "host_out_of_memory"),
        (replace(DIED, result="signal", exec_code="killed", exec_status=9), "killed"),
    ],
)
def test_a_silent_death_is_told_by_its_exit_status(unit: Unit, cause: str) -> None:
    verdict = look(Wait(), WANTED, Host(unit_facts=unit), 0)
    assert verdict.failure is not None
    assert verdict.failure.cause == cause
    assert unit.exit_text in verdict.failure.summary


def test_a_start_by_somebody_else_is_followed_and_not_called_a_crash() -> None:
    """A person or a reboot starts the unit anew: NRestarts does not grow, and the old journal is void."""
    wait, host = Wait(), Host(listens=None)
    look(wait, WANTED, host, 0)
    wait.cursor = "old"
    host.unit_facts = replace(RUNNING, invocation_id="second")
    assert look(wait, WANTED, host, 1).failure is None
    assert (wait.invocation_id, wait.cursor) == ("second", "")


@pytest.mark.parametrize(
    "unit", [replace(RUNNING, active_state="inactive", sub_state="dead", invocation_id=""), KILLED_ITSELF]
)
def test_a_stop_in_the_middle_is_told_as_such(unit: Unit) -> None:
    """Also where a release up to 0.5.18 kills itself at its end, which systemd calls a failure."""
    wait, host = Wait(), Host(listens=None)
    look(wait, WANTED, host, 0)
    host.unit_facts = unit
    failure = look(wait, WANTED, host, 1).failure
    assert failure is not None
    assert failure.cause == "stopped_by_someone"


def test_a_server_that_makes_no_tokens_fails_after_some_tries() -> None:
    host = Host(completion_answer=Answer(200, b'{"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}'))
    wait = Wait()
    verdicts = [look(wait, WANTED, host, float(second)) for second in range(2)]
    assert [verdict.failure is None for verdict in verdicts] == [True, False]
    failure = verdicts[-1].failure
    assert failure is not None
    assert failure.cause == "generation_failed"
    assert "completion_tokens" in failure.summary


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}, ""),
        ({"choices": [{"text": "a b c"}], "usage": {"completion_tokens": 3}}, "1 to 1 tokens"),
        ({"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}, "expected text"),
        ({"choices": [], "usage": {"completion_tokens": 1}}, "choices"),
        ({"choices": [{"text": "a"}], "usage": None}, "usage"),
        ([], "choices"),
        (None, "choices"),
        ("text", "choices"),
    ],
)
def test_completions(content: Any, problem: str) -> None:
    assert problem in completion_problem(content)
    assert bool(problem) is bool(completion_problem(content))


def test_a_completion_must_match_where_a_pattern_is_given() -> None:
    content = {"choices": [{"text": " Lyon"}], "usage": {"completion_tokens": 2}}
    assert "matches 'Paris'" in completion_problem(content, 64, "Paris")
    assert not completion_problem(content, 64, "^ Ly")


def test_served_models_leaves_out_adapters_and_nonsense() -> None:
    assert served_models(MODELS) == ["kimi"]
    assert served_models(Answer(200, b'{"data": [1, {"id": 2}, {"id": "x"}]}')) == ["x"]
    assert served_models(Answer(500, MODELS.body)) is None


class Clock:
    """Seconds that pass only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Script:
    """A follower and a host in one: at each second, one step of a story."""

    def __init__(self, clock: Clock, host: Host, steps: dict[float, dict[str, object]]) -> None:
        self.clock, self.host, self.steps = clock, host, dict(steps)
        self.followed: list[tuple[str, str]] = []

    def follow(self, invocation_id: str, cursor: str) -> None:
        self.followed.append((invocation_id, cursor))

    def wait(self, seconds: float) -> list[Entry]:
        until = self.clock.now + seconds
        due = [at for at in sorted(self.steps) if at <= until]
        if not due:
            self.clock.now = until
            return []
        self.clock.now = max(self.clock.now, due[0])
        step = self.steps.pop(due[0])
        for name, value in step.items():
            if name not in ("says", "pid"):
                setattr(self.host, name, value)
        says, pid = step.get("says"), int(str(step.get("pid", 101)))
        at = self.clock.now
        return [Entry.of(f"[2026-11-01 10:00:00{says}", at, f"c{at}", pid)] if says else []

    def age(self, entry: Entry) -> float:
        return self.clock.now - entry.time

    def close(self) -> None:
        pass


def test_a_whole_start_in_slices() -> None:
    """Slices end at new phases of loading; the timeline adds up to the time that passed."""
    clock, host = Clock(), Host(listens=None, ready_answer=STARTING)
    script = Script(
        clock,
        host,
        {
            6.0: {"says": " PP0] Load weight begin. avail mem=94.20 GB"},
            6.5: {"says": " PP1] Load weight begin. avail mem=94.20 GB"},
            40.2: {"says": " PP0] Load weight end. elapsed=34 s, mem usage=74.30 GB."},
            80.0: {"says": " PP1] Load weight end. elapsed=74 s, mem usage=74.30 GB."},
            80.5: {"says": " PP0] Capture cuda graph begin."},
            81.0: {"says": " PP1] Capture cuda graph begin."},
            108.0: {"listens": Listener("unit", 100)},
            120.25: {"says": "] The server is fired up and ready to roll!", "ready_answer": OK},
        },
    )
    wait, pace = Wait(), Pace(1.0, 3600.0, 15.0)
    ends: list[tuple[float, str]] = []
    while True:
        verdict = run_slice(wait, WANTED, host, script, pace, clock)
        ends.append((clock.now, verdict.phase))
        wait = Wait.from_dict(json.loads(json.dumps(wait.to_dict())))
        if verdict.ready:
            break
    assert clock.now == 120.25
    assert (6.0, "loading") in ends
    assert (81.0, "capturing") in ends
    assert sum(wait.timeline.values()) == pytest.approx(120.25)
    assert wait.timeline["loading"] == pytest.approx(74.0, abs=1.1)
    assert "health" not in host.asked
    assert script.followed[-1][0] == "first"


def test_the_timeout_says_how_far_it_came() -> None:
    clock, host = Clock(), Host(listens=None)
    verdict = run_slice(Wait(), WANTED, host, Script(clock, host, {}), Pace(1.0, 60.0), clock)
    assert verdict.failure is not None
    assert verdict.failure.cause == "timeout"
    assert "still starting after 60 s" in verdict.failure.summary
    assert clock.now == 60.0


def test_a_timeout_among_completions_is_told_as_such() -> None:
    clock, host = Clock(), Host(completion_answer=Answer(error="no answer within 30 s"))
    verdict = run_slice(Wait(), WANTED, host, Script(clock, host, {}), Pace(1.0, 9.0), clock)
    assert verdict.failure is not None
    assert verdict.failure.cause == "generation_failed"
    assert "no answer within 30 s" in verdict.failure.summary


def test_a_death_is_seen_when_the_journal_tells_it() -> None:
    """Not a poll_interval later."""
    clock, host = Clock(), Host(listens=None)
    script = Script(clock, host, {3.3: {"says": "] sglang-kimi.service: Main process exited", "unit_facts": DIED}})
    verdict = run_slice(Wait(), WANTED, host, script, Pace(1.0, 60.0), clock)
    assert verdict.failure is not None
    assert clock.now == 3.3


def test_before_the_port_opens_no_request_is_sent() -> None:
    clock, host = Clock(), Host(listens=None)
    run_slice(Wait(), WANTED, host, Script(clock, host, {}), Pace(1.0, 60.0, 30.0), clock)
    assert host.asked == []
