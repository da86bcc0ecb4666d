# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Looks once whether an SGLang server that has generated still does, and counts the looks in a row where it does not.

A timer runs it; what has to outlast a look is in a JSON file beside the server's own runtime files, which ends with
the start of the server that it tells of. The program needs no rights but to read: it ends with `UNHEALTHY` where the
server is to be called so, and whoever started it does what is to be done about that. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Callable, Protocol

UNHEALTHY = 69
"""The exit status for an unhealthy server: EX_UNAVAILABLE, which systemd knows by name."""
TIMEOUT = 30.0
"""Seconds for a completion. Whether a server that takes longer is busy or hangs is what its journal tells."""
PROMPT = "1 2 3 4"

_YAML_LINE = re.compile(r"(?P<key>[A-Za-z][A-Za-z0-9-]*): (?P<value>.+)\Z")
_BATCH = r"\[[^\]]*\] (?:{})\ batch[.,] "
_MAX_BODY = 1 << 16
_EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - a client cannot ask those

_KILLED = "It is killed, and systemd starts it again."
_UNPROVEN = "failures count from its first token on"
_REFUSED = "see whether it is asked for the right model, with the right key"

GENERATING, WORKING = "Decode", "Decode|Prefill"
"""The kinds of batches that bring forth tokens, and all of them."""


@dataclass(frozen=True)
class State:
    """What is known of one start of the server. Times are seconds since the epoch.

    ``healthy`` is None until this start has generated once; it has been what it is ``since`` then. ``failures`` are
    those in a row by the last look, ``last_error`` is what the last of them saw.
    """

    invocation_id: str = ""
    healthy: bool | None = None
    failures: int = 0
    since: float = 0.0
    looked_at: float = 0.0
    last_error: str = ""


@dataclass(frozen=True)
class Answer:
    """What a request came to: an HTTP status with a body, or an ``error`` in their place."""

    status: int = 0
    body: bytes = b""
    error: str = ""

    @property
    def has_token(self) -> bool:
        """Whether it is a completion with a token in it."""
        try:
            return self.status == 200 and json.loads(self.body)["usage"]["completion_tokens"] >= 1
        except (ValueError, LookupError, TypeError, RecursionError):
            return False

    @property
    def is_refusal(self) -> bool:
        """Whether the request is what was wrong, by its key or its model: that tells nothing of the server's life."""
        return 400 <= self.status < 500

    @property
    def text(self) -> str:
        """One short line for people."""
        words = " ".join(self.body[:500].decode("utf-8", "replace").split())
        return self.error or f"HTTP {self.status}" + (f": {words[:160]}" if words else "")


class Host(Protocol):
    """The looks at a server. Each takes a bounded time, and none raises for what it sees."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def running(self) -> str:
        """The id of the start that runs; empty where none does, or systemd is about to stop or start it."""

    def is_warm(self) -> bool:
        """Whether it makes sense to ask for a completion: the port is open, and the warm-up is not said to go on."""

    def ask(self) -> Answer:
        """Ask for one token."""

    def told_of(self, kinds: str, invocation_id: str, since: float) -> bool:
        """Whether the journal of that start has a batch of one of these kinds, since that time."""


def look(earlier: State, host: Host, limit: int) -> State:
    """Look once, and ask for one token at most. ``limit`` failures in a row make a server unhealthy.

    Nothing counts before the first token of a start, since a server that loads must be left alone; and nothing that was
    seen while somebody stopped or restarted the server.
    """
    start = host.running()
    if not start:
        return earlier
    began = host.now()
    state = earlier if earlier.invocation_id == start else State(start, since=began, looked_at=began)
    # A server that has decoded for others since the last look has proven its life. With a long queue, it could do that
    # for minutes before it came to a request of ours.
    if host.told_of(GENERATING, start, state.looked_at):
        return _alive(state, began)
    if state.healthy is None and not host.is_warm():
        return replace(state, looked_at=began)
    answer, ended = host.ask(), host.now()
    # One that hangs may still tell of the batches that it had room for, ours among them, but soon falls silent.
    if answer.has_token or host.told_of(WORKING, start, began + (ended - began) / 2):
        seen = _alive(state, ended)
    elif answer.is_refusal or state.healthy is None:
        seen = replace(state, looked_at=ended, last_error=answer.text)
    else:
        seen = _failed(state, ended, answer.text, limit)
    return seen if host.running() == start else earlier


def _alive(state: State, now: float) -> State:
    since = state.since if state.healthy else now
    return replace(state, healthy=True, failures=0, since=since, looked_at=now, last_error="")


def _failed(state: State, now: float, error: str, limit: int) -> State:
    failures = state.failures + 1
    healthy = failures < limit and state.healthy
    since = state.since if healthy == state.healthy else now
    return replace(state, healthy=healthy, failures=failures, since=since, looked_at=now, last_error=error)


def tell(unit: str, earlier: State, state: State, limit: int, restarts: bool) -> str:
    """The line for the journal about what a look has changed, with its priority in front; empty where nothing has."""
    if state == earlier:
        return ""
    before = earlier if earlier.invocation_id == state.invocation_id else State(state.invocation_id)
    seen = f"expected a token within {TIMEOUT:g} s, saw {state.last_error}"
    if state.failures > before.failures and state.healthy:
        return f"<4>{unit}: {seen} (failure {state.failures} of {limit} in a row; then it is called unhealthy)"
    if state.failures > before.failures:
        count = f"{state.failures} failures in a row; sglang_server_watch_failures is {limit}"
        what = _KILLED if restarts else f"See where it hangs (py-spy dump), and: systemctl restart {unit}"
        return f"<3>{unit} is unhealthy: {seen} ({count}). {what}"
    if state.healthy and before.healthy is None:
        return f"<5>{unit} generates, and is watched from now on"
    if before.failures and not state.failures:
        return f"<5>{unit} generates again, after {before.failures} failures"
    if state.last_error and state.last_error != before.last_error:
        why = _UNPROVEN if state.healthy is None else _REFUSED
        return f"<4>{unit} cannot be judged: {seen}. That is not counted: {why}."
    return ""


# --- the host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealHost:
    """The host that this runs on. ``config`` is what is in server.yaml; ``run`` gives the lines of a command."""

    unit: str
    config: Mapping[str, Any]
    run: Callable[[list[str]], Iterator[str]]
    now: Callable[[], float] = time.time
    timeout: float = TIMEOUT

    def running(self) -> str:
        """See `Host`."""
        properties = "--property=ActiveState,InvocationID,Job"
        shown = dict(
            line.split("=", 1) for line in self.run(["systemctl", "show", properties, self.unit]) if "=" in line
        )
        undisturbed = shown.get("ActiveState") == "active" and shown.get("Job", "0") in ("", "0")
        return shown.get("InvocationID", "") if undisturbed else ""

    def is_warm(self) -> bool:
        """See `Host`. Before 0.5.20 there is no /ready; whether it is warm is then what the completion shows."""
        return self._request("GET", "/ready", None).status in (200, 404, 405)

    def ask(self) -> Answer:
        """See `Host`."""
        model = self.config.get("served-model-name") or self.config.get("model-path")
        return self._request("POST", "/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 1})

    def told_of(self, kinds: str, invocation_id: str, since: float) -> bool:
        """See `Host`. The newest line is looked at first: with a busy server, it is among the first."""
        match = f"_SYSTEMD_INVOCATION_ID={invocation_id}"
        command = ["journalctl", "--quiet", "--reverse", "--output=cat", f"--since=@{since:.6f}", match]
        pattern = re.compile(_BATCH.format(kinds))
        return any(pattern.match(line) for line in self.run(command))

    def _request(self, method: str, path: str, content: Any) -> Answer:
        headers = {"Content-Type": "application/json"}
        key = str(self.config.get("api-key") or "")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        connection = self._connection()
        try:
            with _bounded(self.timeout):
                connection.request(method, path, None if content is None else json.dumps(content), headers)
                response = connection.getresponse()
                return Answer(response.status, response.read(_MAX_BODY))
        except TimeoutError:
            return Answer(error=f"no answer within {self.timeout:g} s")
        except (OSError, http.client.HTTPException, ValueError) as problem:
            return Answer(error=f"{type(problem).__name__}: {problem}"[:200])
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        bare = str(self.config.get("host", "127.0.0.1")).strip("[]")
        host, port = _EVERYWHERE.get(bare, bare), int(self.config.get("port", 30000))
        if not self.config.get("ssl-certfile"):
            return http.client.HTTPConnection(host, port, timeout=self.timeout)
        # An address of this host, which a certificate need not name; and one that has run out is no hang.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(host, port, timeout=self.timeout, context=context)


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after some time; the timeout of a socket is for each of its reads only."""

    def too_late(*_signal: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def lines_of(command: list[str]) -> Iterator[str]:
    """The lines that a command prints, as it prints them; a reader that has seen enough ends the command."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_PAGER": ""}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, errors="replace")  # noqa: S603
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        yield from (line.rstrip("\n") for line in process.stdout)
    finally:
        process.kill()
        process.communicate()


def read_config(path: Path) -> dict[str, Any]:
    """The arguments in a server.yaml that the role wrote: a JSON value a line. Raises ValueError for another one."""
    arguments = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line or line.startswith("#"):
            continue
        match = _YAML_LINE.match(line)
        try:
            arguments[match["key"]] = json.loads(match["value"])  # type: ignore[index]
        except (TypeError, ValueError):
            raise ValueError(f"{path} is not as the role sglang_server writes it: run the role again") from None
    return arguments


def read_state(path: Path) -> State:
    """The state that `write_state` left; a new one where there is none that can be read."""
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return State()


def write_state(path: Path, state: State) -> None:
    """Replace the state in one step."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
    temporary.replace(path)


def main() -> int:
    """One look; prints a line where there is something to tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("unit")
    parser.add_argument("--config", type=Path, required=True, help="the server.yaml that the server was started with")
    parser.add_argument("--state", type=Path, required=True, help="a file that lives as long as a start of the server")
    parser.add_argument("--failures", type=int, required=True, help="so many in a row make the server unhealthy")
    parser.add_argument("--restarts", action="store_true", help="tell that an unhealthy server is killed and restarted")
    arguments = parser.parse_args()

    try:
        config = read_config(arguments.config)
    except (OSError, ValueError) as error:
        sys.exit(f"<3>{arguments.unit} cannot be watched: {error}")
    host = RealHost(arguments.unit, config, lines_of)
    earlier = read_state(arguments.state)
    state = look(earlier, host, arguments.failures)
    if state == earlier:
        return 0
    write_state(arguments.state, state)
    line = tell(arguments.unit, earlier, state, arguments.failures, arguments.restarts)
    if line:
        sys.stdout.write(f"{line}\n")
    return UNHEALTHY if state.healthy is False else 0


if __name__ == "__main__":
    sys.exit(main())
