# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""When a server is ready: seven facts in a fixed order, judged one by one. Pure: clock and probes are handed in.

Ready means: the unit runs this start (1), the port is open (2), the listener belongs to the unit (3), the key is taken
(4), the model is the one asked for (5), warm-up is over (6), and a completion comes back (7). Facts 1, 3, 4 and 5 fail
at once; the others are waited for until the deadline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Protocol

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import PHASES, Entry, Signs, is_echo
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.processes import Listener, Pulse
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Unit
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.causes import (
    Failure,
    explain_exit,
    explain_wait,
    failure,
    redact,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.life import Life
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer

GENERATION_TIMEOUT = 30.0
"""Seconds for /health, which SGLang itself gives up after 20, and for the completion."""
TRIES_OF_COMPLETION = 2
"""A completion that comes back without a token is asked for again before it counts: the first one may be cut short."""


class Probes(Protocol):
    """The looks at the host and the server. None raises for what it sees; each takes a bounded time."""

    def unit(self) -> Unit:
        """The unit as systemd tells it."""

    def listener(self, unit: Unit) -> Listener | None:
        """Who listens on the server's port."""

    def pulse(self, unit: Unit, besides: int) -> Pulse:
        """What the unit's processes, ``besides`` one, have done so far."""

    def gpu_memory(self) -> list[int]:
        """MiB in use of each GPU of the host; empty where that is not known."""

    def models(self) -> Answer:
        """GET /v1/models."""

    def ready(self) -> Answer:
        """GET /ready: 0.5.20 and later; free of cost."""

    def health(self) -> Answer:
        """GET /health: makes a token."""

    def completion(self, model: str, prompt: str, max_tokens: int) -> Answer:
        """POST /v1/completions."""

    def age(self, entry: Entry) -> float:
        """Seconds since an entry was written."""

    def last_entries(self, invocation_id: str) -> list[Entry]:
        """The newest lines of the journal of one start."""


@dataclass(frozen=True)
class Wanted:
    """What is waited for. ``models`` are ids that must be served; ``probe`` is the fact to stop behind.

    A completion is of ``prompt``, has 1 to ``max_tokens`` tokens, and matches the pattern ``expect`` if there is one.
    ``stall_timeout`` is seconds without a sign of life, 0 for any number of them; ``health_interval`` is seconds
    between two requests that make SGLang generate.
    """

    models: tuple[str, ...] = ()
    probe: str = "completion"
    prompt: str = "1 2 3 4"
    max_tokens: int = 1
    expect: str = ""
    secrets: tuple[str, ...] = ()
    stall_timeout: float = 600.0
    health_interval: float = 5.0


@dataclass
class Wait:
    """One wait, over all its slices. Times are seconds since the wait began.

    ``front`` is the process that takes the requests, once there is one; 0 where the kernel does not tell which.
    """

    phase: str = ""
    phase_since: float = 0.0
    timeline: dict[str, float] = field(default_factory=dict)
    invocation_id: str = ""
    restarts: int = 0
    front: int | None = None
    attempts: int = 0
    tolerated: int = 0
    has_ready_endpoint: bool = True
    health_at: float | None = None
    rang: bool = False
    completions: int = 0
    empty_completions: int = 0
    completion_at: float | None = None
    strange: bool = False
    models: list[str] = field(default_factory=list)
    detail: str = ""
    cursor: str = ""
    signs: Signs = field(default_factory=Signs)
    life: Life = field(default_factory=Life)
    read_before: int = 0

    def enter(self, phase: str, now: float) -> None:
        """Note the phase that was seen at ``now``; the time since the last look goes to the phase that was left."""
        if phase == self.phase:
            return
        if self.phase:
            self.timeline[self.phase] = round(self.timeline.get(self.phase, 0.0) + now - self.phase_since, 3)
        self.phase, self.phase_since, self.read_before = phase, now, self.life.read_bytes

    def begin(self, unit: Unit, now: float) -> None:
        """A start that was not known before: its journal is read from its beginning."""
        self.invocation_id, self.restarts = unit.invocation_id, unit.restarts
        self.cursor, self.signs, self.life = "", Signs(), Life(at=now, felt=now)
        self.front, self.health_at, self.rang = None, None, False
        self.completion_at, self.completions, self.empty_completions = None, 0, 0

    def read(self, entry: Entry, at: float) -> None:
        """Take in a line of the journal that was written at ``at``."""
        self.signs.read(entry)
        self.cursor = entry.cursor or self.cursor
        self.hear(entry, at)

    def hear(self, entry: Entry, at: float) -> None:
        """A line is a sign of life, unless a request may have made it: then it is our own voice that comes back."""
        from_front = bool(self.front) and entry.pid == self.front
        if not from_front and not is_echo(entry):
            self.life.hear(at)

    def to_dict(self) -> dict[str, Any]:
        """A form that passes through JSON, for `from_dict`."""
        return {**vars(self), "signs": self.signs.to_dict(), "life": dict(vars(self.life))}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Wait:
        """The Wait that `to_dict` described; keys that are not known are left out."""
        known = {key: value for key, value in content.items() if key in cls.__dataclass_fields__}
        known["signs"] = Signs.from_dict(content.get("signs") or {})
        known["life"] = Life.from_dict(content.get("life") or {})
        return cls(**known)


@dataclass(frozen=True)
class Verdict:
    """One look: ready, failed with a cause, or waiting in a phase for what ``detail`` says."""

    phase: str
    detail: str = ""
    failure: Failure | None = None

    @property
    def ready(self) -> bool:
        """Whether all facts hold."""
        return self.phase == "ready" and self.failure is None


@dataclass
class Look:
    """One look, as the judges hand it on."""

    wait: Wait
    wanted: Wanted
    probes: Probes
    now: float
    unit: Unit


Judge = Callable[[Look], "Verdict | None"]


def look(wait: Wait, wanted: Wanted, probes: Probes, now: float) -> Verdict:
    """Go through the facts until one does not hold. A fact that holds lets the next one be looked at."""
    wait.attempts += 1
    this = Look(wait, wanted, probes, now, probes.unit())
    verdict = Verdict("ready")
    for judge in FACTS[wanted.probe]:
        held_up = judge(this)
        if held_up is not None:
            verdict = held_up
            break
    wait.enter(verdict.phase, now)
    wait.detail = verdict.detail
    return verdict


def out_of_time(wait: Wait, wanted: Wanted, probes: Probes, timeout: float) -> Failure:
    """The failure of a wait whose time is over: what the journal gives as a reason, or how far it came."""
    code = "generation_failed" if wait.completions else "bad_answer" if wait.strange else "timeout"
    seen = f"still {wait.phase.replace('_', ' ')} after {timeout:g} s" + (f" ({wait.detail})" if wait.detail else "")
    return explain_wait(code, seen, probes.last_entries(wait.invocation_id), wanted.secrets)


def _unit_runs(this: Look) -> Verdict | None:
    wait, unit = this.wait, this.unit
    phase = wait.phase or "starting"
    absent = {"not-found": "unit_missing", "masked": "unit_masked"}.get(unit.load_state)
    if absent:
        left = "" if unit.active_state in ("inactive", "failed") else ", though its processes still run"
        return Verdict(phase, failure=failure(absent, unit.name + left))
    seen_before = bool(wait.invocation_id)
    if not seen_before:
        wait.begin(unit, this.now)
    if unit.host_is_stopping:
        return Verdict(phase, "the host is going down")  # a reboot stops units, too: they may come again
    if unit.is_failing or unit.restarts > wait.restarts:
        entries = this.probes.last_entries(wait.invocation_id)
        return Verdict(phase, failure=explain_exit(unit, entries, this.wanted.secrets))
    if unit.active_state in ("inactive", "failed") and not unit.job:  # failed here is a stop that ended badly
        return Verdict(phase, failure=failure("stopped_by_someone" if seen_before else "unit_inactive", unit.name))
    if unit.invocation_id and unit.invocation_id != wait.invocation_id:
        # Started anew by a person or by a reboot: that is no failure, but what the old start said is void.
        wait.begin(unit, this.now)
    return None


def _gives_signs_of_life(this: Look) -> Verdict | None:
    """Call a server that has given none for too long a hang, whatever it answers."""
    wait, limit, life = this.wait, this.wanted.stall_timeout, this.wait.life
    _feel(this)
    if limit and life.wants_gpu(this.now):
        life.feel_gpu(this.probes.gpu_memory(), this.now)
    if not limit or this.now - life.at < limit:
        return None
    # While an answer was waited for, nobody read the journal. Of the kernel's lines no process has written any.
    entries = this.probes.last_entries(wait.invocation_id)
    for entry in entries:
        if entry.pid:
            wait.hear(entry, this.now - max(this.probes.age(entry), 0.0))
    silent = this.now - life.at
    if silent < limit:
        return None
    phase = wait.phase or "starting"
    seen = f"{phase.replace('_', ' ')}, and no sign of life for {silent:.0f} s"
    seen += f" ({wait.detail})" if wait.detail else ""
    return Verdict(phase, wait.detail, explain_wait("stalled", seen, entries, this.wanted.secrets))


def _feel(this: Look) -> None:
    """Look what the processes do, besides the one that has to take our requests."""
    front = this.wait.front
    this.wait.life.feel(this.probes.pulse(this.unit, front or 0), this.now, front is not None)


def _unit_is_active(this: Look) -> Verdict | None:
    return None if this.unit.active_state == "active" else Verdict("starting", this.unit.sub_state)


def _port_belongs_to_unit(this: Look) -> Verdict | None:
    signs = this.wait.signs
    listener = this.probes.listener(this.unit)
    if listener is None:
        return Verdict(min(signs.phase, "capturing", key=PHASES.index), _progress(this))
    stranger = f"process {listener.pid} ({redact(listener.command, this.wanted.secrets)})"
    if listener.owner == "foreign":
        return Verdict(signs.phase, failure=failure("foreign_listener", stranger))
    if listener.owner == "stale":
        return Verdict(signs.phase, failure=failure("foreign_listener", f"{stranger}, left over by an earlier start"))
    if this.wait.front != listener.pid:
        this.wait.front = listener.pid
        _feel(this)
    return None


def _progress(this: Look) -> str:
    """What is known of a load: what the ranks say, and what their processes have read since it began."""
    wait = this.wait
    words = [wait.signs.detail] if wait.signs.detail else []
    read, seconds = wait.life.read_bytes - wait.read_before, this.now - wait.phase_since
    if wait.phase == "loading" and read > 0 and seconds > 0:
        words.append(f"{read / 1e9:.1f} GB read, {read / 1e6 / seconds:.0f} MB/s")
    return ", ".join(words)


def _model_is_served(this: Look) -> Verdict | None:
    answer = this.probes.models()
    if answer.status in (401, 403):
        return Verdict("listening", failure=failure("unauthorized", f"/v1/models answered {answer.text}"))
    if answer.untrusted:
        return Verdict("listening", failure=failure("certificate_refused", answer.text))
    served = served_models(answer)
    this.wait.strange = not (served or answer.status >= 500 or answer.late)
    if served is None:
        return _tolerated(this, "listening", f"/v1/models: {answer.text}")
    this.wait.models = served
    missing = [model for model in this.wanted.models if model not in served]
    if missing:
        seen = f"expected {_listed(missing)}, /v1/models lists {_listed(served)}"
        return Verdict("listening", failure=failure("wrong_model", seen))
    return None


def _is_warm(this: Look) -> Verdict | None:
    wait = this.wait
    if wait.has_ready_endpoint:
        answer = this.probes.ready()
        if answer.status not in (404, 405):
            return None if answer.status == 200 else _tolerated(this, "warming_up", f"/ready: {answer.text}")
        wait.has_ready_endpoint = False
    news = wait.signs.fired_up is not None and not wait.rang
    if not news and _too_early(wait.health_at, this):
        return Verdict("warming_up", wait.detail)
    wait.health_at, wait.rang = this.now, wait.rang or news
    answer = this.probes.health()
    return None if answer.status == 200 else _tolerated(this, "warming_up", f"/health: {answer.text}")


def _generates(this: Look) -> Verdict | None:
    wait, wanted = this.wait, this.wanted
    if _too_early(wait.completion_at, this):
        return Verdict("warming_up", wait.detail)
    wait.completions += 1
    model = wanted.models[0] if wanted.models else wait.models[0]
    answer = this.probes.completion(model, wanted.prompt, wanted.max_tokens)
    if answer.status != 200:
        wait.completion_at = this.now
        return _tolerated(this, "warming_up", f"completion: {answer.text}")
    problem = completion_problem(answer.json(), wanted.max_tokens, wanted.expect)
    if not problem:
        return None
    seen = f"{problem}; the answer was {answer.text}"
    wait.empty_completions += 1
    if wait.empty_completions < TRIES_OF_COMPLETION:
        return _tolerated(this, "warming_up", seen)
    return Verdict("warming_up", failure=failure("generation_failed", seen))


def _too_early(at: float | None, this: Look) -> bool:
    """Whether a request that makes SGLang generate, last sent at ``at``, has to wait."""
    return at is not None and this.now - at < this.wanted.health_interval


def _tolerated(this: Look, phase: str, seen: str) -> Verdict:
    """An answer that may be of the moment: it is waited for a better one."""
    this.wait.tolerated += 1
    return Verdict(phase, seen)


_TO_MODELS: tuple[Judge, ...] = (
    _unit_runs,
    _gives_signs_of_life,
    _unit_is_active,
    _port_belongs_to_unit,
    _model_is_served,
)
FACTS: dict[str, tuple[Judge, ...]] = {
    "models": _TO_MODELS,
    "health": (*_TO_MODELS, _is_warm),
    "completion": (*_TO_MODELS, _is_warm, _generates),
}
"""The judges in their order, by the value of the option ``probe``."""


def served_models(answer: Answer) -> list[str] | None:
    """The ids of base models in an answer of /v1/models; None where it is not such an answer.

    A LoRA adapter has the base model as its parent and does not count.
    """
    content = answer.json() if answer.status == 200 else None
    cards = content.get("data") if isinstance(content, dict) else None
    if not isinstance(cards, list):
        return None
    models = [card for card in cards if isinstance(card, dict) and isinstance(card.get("id"), str)]
    return [card["id"] for card in models if not card.get("parent")] or None


def completion_problem(content: Any, max_tokens: int = 1, expect: str = "") -> str:
    """What is wrong with the answer to a completion; empty where nothing is."""
    try:
        text = content["choices"][0]["text"]
        tokens = content["usage"]["completion_tokens"]
    except (KeyError, IndexError, TypeError):
        return "expected a completion with choices and usage"
    if not isinstance(tokens, int) or not 1 <= tokens <= max_tokens:
        return f"expected 1 to {max_tokens} tokens, got {tokens!r}"
    if not isinstance(text, str) or not text:
        return f"expected text, got {text!r}"
    if len(text) >= 4 and set(text) == {"!"}:
        return f"expected text, got {text[:20]!r}, which is what SGLang makes of numbers that are none (NaN)"
    if expect and not re.search(expect, text):
        return f"expected text that matches {expect!r}, got {text[:100]!r}"
    return ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
