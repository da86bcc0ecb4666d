# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What happens from one look to the next: stalls, restarts, strangers, retries, and how far a wait came at its end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Listener, Pulse
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Unit
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import Verdict, Wait, look
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.waiting import Pace, run_slice
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer
from ansible_collections.gpufleet.sglang.tests.unit.readiness.test_readiness import (
    DIED,
    KILLED_ITSELF,
    REFUSED,
    RUNNING,
    STARTING,
    WANTED,
    Clock,
    Host,
    Script,
)

IMPATIENT = replace(WANTED, stall_timeout=60.0)


def cause_of(verdict: Verdict) -> str:
    return verdict.failure.cause if verdict.failure else ""


def wait_to_the_end(
    host: Host, steps: dict[float, dict[str, object]], timeout: float = 3600.0
) -> tuple[Verdict, float]:
    clock = Clock()
    verdict = run_slice(Wait(), IMPATIENT, host, Script(clock, host, steps), Pace(1.0, timeout), clock)
    return verdict, clock.now


def test_a_load_that_stops_moving_is_a_hang() -> None:
    host = Host(listens=None)
    verdict, now = wait_to_the_end(host, {5.0: {"says": " PP0] Load weight begin. avail mem=94.20 GB"}})
    assert cause_of(verdict) == "stalled"
    assert verdict.failure is not None
    assert "loading, and no sign of life for 60 s" in verdict.failure.summary
    assert 65.0 <= now <= 67.0


def test_a_load_that_moves_for_hours_is_left_alone() -> None:
    """The clock is the test's own: 3 hours, a read each minute less one second."""
    steps: dict[float, dict[str, object]] = {
        59.0 * number: {"life": Pulse(4, 1.0, number << 20)} for number in range(1, 184)
    }
    steps[10_850.0] = {"listens": Listener("unit", 100)}
    verdict, now = wait_to_the_end(Host(listens=None), steps, timeout=20_000.0)
    assert verdict.ready
    assert now >= 10_850.0


def test_gpu_memory_that_grows_is_a_sign_of_life() -> None:
    steps: dict[float, dict[str, object]] = {float(second): {"gpus": [second]} for second in range(1, 300, 20)}
    steps[310.0] = {"listens": Listener("unit", 100)}
    assert wait_to_the_end(Host(listens=None), steps)[0].ready


def test_a_warm_up_that_never_ends_is_a_hang() -> None:
    """Our own requests in the journal are no life."""
    request = '] INFO:     127.0.0.1:1 - "GET /ready HTTP/1.1" 503'
    steps: dict[float, dict[str, object]] = {float(second): {"says": request} for second in range(1, 300)}
    verdict, now = wait_to_the_end(Host(ready_answer=STARTING), steps)
    assert cause_of(verdict) == "stalled"
    assert now < 63.0


@dataclass
class Answering(Host):
    """Process 100 takes the requests: each of ours makes it work, read, and say something, all in vain."""

    requests: int = 0

    def pulse(self, unit: Unit, besides: int) -> Pulse:
        if besides == 100:
            return Pulse(4, 1.0, 1)
        return Pulse(4, 1.0 + 10.0 * self.requests, 1 + (self.requests << 20))

    def completion(self, model: str, prompt: str, max_tokens: int) -> Answer:
        self.requests += 1
        return super().completion(model, prompt, max_tokens)


ECHOES: tuple[dict[str, object], ...] = (
    {"says": '] INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500', "pid": 100},
    {"says": " PP0] Prefill batch, #new-seq: 1, #new-token: 4", "pid": 101},
    {"says": "] http_server.py:489: FastAPIDeprecationWarning: ORJSONResponse is deprecated", "pid": 100},
    {"says": "] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds", "pid": 100},
)


def test_what_our_requests_cause_is_no_sign_of_life() -> None:
    host = Answering(completion_answer=Answer(error="no whole answer within 30 s", late=True))
    steps = {float(second): ECHOES[second % len(ECHOES)] for second in range(1, 300)}
    verdict, now = wait_to_the_end(host, steps)
    assert cause_of(verdict) == "stalled"
    assert now < 62.0
    assert host.requests > 5


def test_what_a_scheduler_says_of_its_own_accord_is_one() -> None:
    host = Answering(completion_answer=Answer(error="no whole answer within 30 s", late=True))
    steps: dict[float, dict[str, object]] = {
        float(second): {"says": " PP0] Compiling kernels", "pid": 101} for second in range(1, 300, 50)
    }
    verdict, now = wait_to_the_end(host, steps)
    assert cause_of(verdict) == "stalled"
    assert 311.0 <= now < 313.0


@dataclass
class Blocking(Answering):
    """Each completion takes half a minute in vain."""

    clock: Clock = field(default_factory=Clock)

    def completion(self, model: str, prompt: str, max_tokens: int) -> Answer:
        self.clock.now += 30.0
        return Answer(error="no whole answer within 30 s", late=True)


class Backlog(Script):
    """A journal that has lines from before the wait."""

    def __init__(self, clock: Clock, host: Host, written: list[Entry]) -> None:
        super().__init__(clock, host, {})
        self.written = written

    def wait(self, seconds: float) -> list[Entry]:
        written, self.written = self.written, []
        return written or super().wait(seconds)


def test_lines_that_are_read_late_count_from_when_they_were_written() -> None:
    """The first look is before the journal is read, and it may be a long one."""
    host = Blocking()
    before = Backlog(host.clock, host, [Entry.of("[2026-11-01 10:00:00 PP0] KV Cache is allocated.", -5.0, "c", 101)])
    verdict = run_slice(Wait(), IMPATIENT, host, before, Pace(1.0, 3600.0), host.clock)
    assert cause_of(verdict) == "stalled"
    assert host.clock.now < 62.0


def test_schedulers_that_hang_behind_a_good_front_are_a_hang() -> None:
    host = Host(completion_answer=Answer(error="no whole answer within 30 s", late=True))
    verdict, now = wait_to_the_end(host, {})
    assert cause_of(verdict) == "stalled"
    assert now < 63.0
    assert host.asked.count("completion of kimi") <= 13  # every 5 s


def test_a_reason_in_the_journal_is_told_for_a_hang_and_for_a_timeout() -> None:
    says = [Entry.of("[rank3]: Watchdog caught collective operation timeout: WorkNCCL()")]
    verdict, _now = wait_to_the_end(Host(listens=None, entries=says), {})
    assert cause_of(verdict) == "nccl_timeout"
    verdict, _now = wait_to_the_end(Host(listens=None, entries=says), {}, timeout=30.0)
    assert cause_of(verdict) == "nccl_timeout"
    assert verdict.failure is not None
    assert "still starting after 30 s" in verdict.failure.summary


def test_without_a_stall_timeout_nothing_is_a_hang() -> None:
    clock, host = Clock(), Host(listens=None)
    wanted = replace(WANTED, stall_timeout=0.0)
    verdict = run_slice(Wait(), wanted, host, Script(clock, host, {}), Pace(1.0, 5000.0), clock)
    assert cause_of(verdict) == "timeout"
    assert "gpu" not in host.asked


def test_a_new_start_gets_its_own_time() -> None:
    steps: dict[float, dict[str, object]] = {
        50.0: {"unit_facts": replace(RUNNING, invocation_id="second")},
        100.0: {"listens": Listener("unit", 100)},
    }
    assert wait_to_the_end(Host(listens=None), steps)[0].ready


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        (Listener("foreign", 7, "nginx"), "process 7 (nginx)"),
        (Listener("stale", 7, "python"), "process 7 (python), left over by an earlier start"),
        (Listener("foreign", 7, "python x.py --api-key=abc"), "process 7 (python x.py --api-key=<secret>)"),
    ],
)
def test_somebody_else_takes_the_port_while_we_load(listener: Listener, said: str) -> None:
    verdict, now = wait_to_the_end(Host(listens=None), {3.0: {"listens": listener}})
    assert cause_of(verdict) == "foreign_listener"
    assert verdict.failure is not None
    assert said in verdict.failure.summary
    assert now <= 4.0


@pytest.mark.parametrize(
    ("unit", "cause"),
    [
        (DIED, "unknown"),
        (replace(DIED, sub_state="auto-restart-queued"), "unknown"),
        (
            replace(RUNNING, active_state="deactivating", result="exit-code", exec_code="exited", exec_status=1),
            "unknown",
        ),
        (replace(RUNNING, active_state="deactivating", result="signal", exec_code="killed", exec_status=9), "killed"),
        (replace(RUNNING, active_state="inactive", sub_state="dead"), "stopped_by_someone"),
        (replace(RUNNING, load_state="not-found"), "unit_missing"),
        (replace(RUNNING, load_state="masked", active_state="inactive"), "unit_masked"),
        (replace(RUNNING, restarts=1, invocation_id="second"), "crash_loop"),
    ],
)
def test_ends_in_the_middle(unit: Unit, cause: str) -> None:
    verdict, now = wait_to_the_end(Host(listens=None), {3.0: {"unit_facts": unit}})
    assert cause_of(verdict) == cause
    assert now <= 4.0


@pytest.mark.parametrize(
    "unit",
    [
        replace(RUNNING, active_state="inactive", sub_state="dead", invocation_id="", job=12),
        replace(RUNNING, active_state="deactivating", sub_state="stop-sigterm"),
        replace(KILLED_ITSELF, active_state="deactivating", sub_state="final-sigterm"),
        replace(KILLED_ITSELF, job=12),
        replace(RUNNING, active_state="inactive", sub_state="dead", host_is_stopping=True),
        replace(RUNNING, active_state="deactivating", result="signal", host_is_stopping=True),
        replace(RUNNING, active_state="activating", sub_state="start-pre", invocation_id="second"),
    ],
)
def test_a_restart_by_a_person_or_of_the_host_is_waited_for(unit: Unit) -> None:
    again = replace(RUNNING, invocation_id="second")
    steps: dict[float, dict[str, object]] = {
        3.0: {"unit_facts": unit},
        6.0: {"unit_facts": again, "listens": Listener("unit", 100)},
    }
    assert wait_to_the_end(Host(listens=None), steps)[0].ready


def test_a_certificate_that_is_not_trusted_fails_at_once() -> None:
    host = Host(models_answer=Answer(error="TLS: [SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired"))
    assert cause_of(look(Wait(), WANTED, host, 0)) == "certificate_refused"


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Answer(200, b"<html>"), "bad_answer"),
        (Answer(302), "bad_answer"),
        (Answer(error="an answer of more than 1048576 bytes"), "bad_answer"),
        (Answer(503), "timeout"),
        (Answer(error="no whole answer within 5 s", late=True), "timeout"),
    ],
)
def test_answers_that_are_not_those_of_sglang_at_the_end_of_the_time(answer: Answer, cause: str) -> None:
    verdict, now = wait_to_the_end(Host(models_answer=answer), {}, timeout=20.0)
    assert cause_of(verdict) == cause
    assert now == 20.0


def test_what_was_waited_out_is_counted() -> None:
    wait, host = Wait(), Host(models_answer=REFUSED)
    for second in range(4):
        look(wait, WANTED, host, float(second))
    host.models_answer, host.ready_answer = Host().models_answer, STARTING
    look(wait, WANTED, host, 4.0)
    assert wait.tolerated == 5


def test_health_is_asked_at_once_when_the_server_says_that_it_is_up() -> None:
    """But only once out of turn."""
    host = Host(ready_answer=Answer(404), health_answer=STARTING)
    wait = Wait()
    look(wait, WANTED, host, 0.0)
    wait.signs.read(Entry.of("[2026-11-01 10:06:39] The server is fired up and ready to roll!", 5.0))
    for second in (1.0, 2.0, 3.0):
        look(wait, WANTED, host, second)
    assert host.asked.count("health") == 2


def test_a_completion_that_gets_no_answer_is_asked_for_again_where_there_is_only_health() -> None:
    host = Host(ready_answer=Answer(404), completion_answer=Answer(500))
    wait = Wait()
    for second in range(6):
        look(wait, WANTED, host, float(second))
    host.completion_answer = Host().completion_answer
    assert [look(wait, WANTED, host, float(second)).ready for second in range(6, 11)].count(True) >= 1


def test_progress_of_a_load_in_words() -> None:
    host, wait = Host(listens=None), Wait()
    look(wait, WANTED, host, 0.0)
    wait.signs.read(Entry.of("[2026-11-01 10:00:27] Load weight begin. avail mem=94.20 GB"))
    look(wait, WANTED, host, 1.0)
    wait.signs.read(Entry.of("Multi-thread loading shards:  34% Completed | 22/64 [00:17<00:35]"))
    host.life = Pulse(4, 9.0, 20_000_000_001)
    look(wait, WANTED, host, 10.0)
    assert look(wait, WANTED, host, 11.0).detail == "22 of 64 shards, 20.0 GB read, 2000 MB/s"


@dataclass
class Crowded(Host):
    """Others are served all the while; a request of ours waits behind theirs until its time is over."""

    clock: Clock = field(default_factory=Clock)

    def completion(self, model: str, prompt: str, max_tokens: int) -> Answer:
        self.clock.now += 30.0
        line = "[2026-11-01 10:00:00 PP0] Decode batch, #running-req: 4, #token: 298, #queue-req: 13"
        self.entries = [Entry.of(line, self.clock.now - 1.0, "", 101)]
        return Answer(error="no whole answer within 30 s", late=True)

    def age(self, entry: Entry) -> float:
        return self.clock.now - entry.time


def test_a_server_that_serves_others_is_no_hang_however_long_our_request_takes() -> None:
    host = Crowded()
    wanted, pace = replace(WANTED, stall_timeout=20.0), Pace(1.0, 300.0)
    verdict = run_slice(Wait(), wanted, host, Script(host.clock, host, {}), pace, host.clock)
    assert (cause_of(verdict), host.clock.now >= 300.0) == ("generation_failed", True)
