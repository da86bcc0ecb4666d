# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A stand-in for an SGLang server: it logs, answers, hangs and dies as a script says. See README.md beside it.

Needs Python 3.9 or later and nothing else; PyYAML where the script is not JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Callable, TextIO

JSON = "application/json"
EXEMPT = ("/health", "/health_generate", "/ready", "/metrics")
"""Paths that SGLang answers without a key."""
STATES = ("starting", "ready", "hung")
HEALTH_CHECK_TIMEOUT = 20.0
"""Seconds after which SGLang gives up on a token that /health waits for."""


class Script:
    """What the server is, and the steps that it goes through."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.host: str = content.get("host", "127.0.0.1")
        self.port: int = int(content.get("port", 30000))
        self.models: list[dict[str, Any]] = [
            {"id": model, "parent": None} if isinstance(model, str) else dict(model)
            for model in content.get("models", ["tiny"])
        ]
        self.api_key: str = content.get("api_key", "")
        self.release = tuple(int(part) for part in str(content.get("release", "0.5.23")).split(".")[:3])
        self.completion: str = content.get("completion", " 5")
        self.tls: Mapping[str, str] | None = content.get("tls")
        self.answers: dict[str, Mapping[str, Any]] = dict(content.get("answers", {}))
        self.steps: list[tuple[str, Any]] = [self._step(step) for step in content.get("steps", ["listen", "ready"])]

    @staticmethod
    def _step(step: Any) -> tuple[str, Any]:
        name, value = (step, None) if isinstance(step, str) else next(iter(dict(step).items()))
        if name not in STEPS:
            raise SystemExit(f"standin: no such step: {name!r}; there are {', '.join(sorted(STEPS))}")
        return name, value


class Standin:
    """A server that plays a script. In tests: ``with Standin({"port": 0, ...}) as server: server.url``."""

    def __init__(self, content: Mapping[str, Any], log: TextIO | None = None) -> None:
        self.script = Script(content)
        self.state = "starting"
        self.requests: list[tuple[float, str]] = []
        self.port = 0
        self._log: TextIO = log or sys.stdout
        self._over = threading.Event()
        self._http: ThreadingHTTPServer | None = None
        self._player: threading.Thread | None = None

    def __enter__(self) -> Standin:
        self._player = threading.Thread(target=self.play, daemon=True)
        self._player.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        deadline = time.monotonic() + 10
        while not self.port and time.monotonic() < deadline:
            time.sleep(0.005)
        return f"{'https' if self.script.tls else 'http'}://{self.script.host}:{self.port}"

    def play(self) -> None:
        """Go through the steps; then serve on."""
        for name, value in self.script.steps:
            STEPS[name](self, value)
            if self._over.is_set():
                return

    # Steps

    def log(self, lines: Any) -> None:
        """Print a line or several; ``{now}`` becomes the time as SGLang writes it."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        for line in [lines] if isinstance(lines, str) else lines:
            self.write(line.replace("{now}", now) + "\n")

    def write(self, text: str) -> None:
        """Print a text as it is, without an end of line, as progress bars do."""
        self._log.write(text)
        self._log.flush()

    def wait(self, seconds: float) -> None:
        """Do nothing for some time."""
        self._over.wait(float(seconds))

    def work(self, seconds: float) -> None:
        """Read for some time, as a load does, and say nothing."""
        until = time.monotonic() + float(seconds)
        with open("/dev/zero", "rb") as stream:
            while time.monotonic() < until and not self._over.is_set():
                stream.read(1 << 20)
                time.sleep(0.05)

    def load(self, how: Any) -> None:
        """Say what the ranks of SGLang say from their beginning to the moment before the port opens."""
        how = {"ranks": 1, "seconds": 1.0, "shards": 4, **(how or {})}
        ranks = [f" PP{rank}" for rank in range(how["ranks"])] if how["ranks"] > 1 else [""]

        def each(line: str) -> None:
            self.log([f"[{{now}}{rank}] {line}" for rank in ranks])

        each("Init parallel begin.")
        each("Load weight begin. avail mem=94.20 GB")
        for shard in range(how["shards"]):
            self.work(how["seconds"] / how["shards"])
            done = shard + 1
            self.write(
                f"\rMulti-thread loading shards: {100 * done // how['shards']:3d}% Completed | {done}/{how['shards']}"
            )
        self.write("\n")
        each("Load weight end. elapsed=74.12 s, type=TinyForCausalLM, avail mem=19.90 GB, mem usage=74.30 GB.")
        each("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 8192, KV size: 6.82 GB")
        each("max_total_num_tokens=8192, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=16")

    def listen(self, _nothing: Any = None) -> None:
        """Open the port: /v1/models answers, warm-up goes on."""
        http = _Http((self.script.host, self.script.port), _handler_of(self))
        http.daemon_threads = True
        if self.script.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.script.tls["certfile"], self.script.tls["keyfile"])
            http.socket = context.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
        self._http, self.port = http, http.server_address[1]
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.log(f"[{{now}}] INFO:     Uvicorn running on http://{self.script.host}:{self.port} (Press CTRL+C to quit)")

    def ready(self, _nothing: Any = None) -> None:
        """The warm-up is over: say so, and generate from now on."""
        self.state = "ready"
        self.log("[{now}] The server is fired up and ready to roll!")

    def become(self, state: str) -> None:
        """Change the state without a word: starting, ready or hung."""
        if state not in STATES:
            raise SystemExit(f"standin: no such state: {state!r}; there are {', '.join(STATES)}")
        self.state = state

    def answer(self, answers: Mapping[str, Mapping[str, Any]]) -> None:
        """Answer some paths otherwise from now on."""
        self.script.answers.update(answers)

    def flood(self, how: Mapping[str, Any]) -> None:
        """Print as many lines a second as asked for."""
        until = time.monotonic() + float(how["seconds"])
        while time.monotonic() < until and not self._over.is_set():
            began = time.monotonic()
            lines = int(how["lines_per_second"]) // 20
            self.log([how.get("line", "[{now} PP0] a line among many")] * lines)
            self._over.wait(max(0.0, 0.05 - (time.monotonic() - began)))

    def hang(self, _nothing: Any = None) -> None:
        """Do nothing any more; what listens goes on listening."""
        self._over.wait()

    def exit(self, status: int) -> None:
        """End at once."""
        self._log.flush()
        os._exit(int(status or 0))

    def kill(self, name: str) -> None:
        """End by a signal, as SGLang does after a crash (KILL)."""
        self._log.flush()
        os.kill(os.getpid(), signal.Signals[f"SIG{name or 'KILL'}"])

    def stop(self) -> None:
        """End as SIGTERM ends SGLang; releases before 0.5.19 have no orderly end once they listen."""
        if self.port:
            self.log(
                [
                    "[{now}] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
                    "[{now}] Gracefully exiting... Remaining number of requests 0.",
                ]
            )
            if self.script.release < (0, 5, 19):
                self.kill("KILL")
        sys.exit(0)

    # What it answers in its state

    def usual_answer(self, path: str) -> Mapping[str, Any]:
        """What SGLang answers in this state."""
        if path in ("/v1/models", "/model_info", "/get_model_info"):
            return {"body": {"object": "list", "data": self.script.models}}
        if path == "/ready" and self.script.release >= (0, 5, 20):
            return {"status": 503 if self.state == "starting" else 200}
        if path in ("/health", "/health_generate"):
            static = path == "/health" and self.script.release < (0, 5, 0)
            if self.state == "hung" and not static:
                return {"status": 503, "delay": HEALTH_CHECK_TIMEOUT}
            return {"status": 200 if static or self.state == "ready" else 503}
        if path in ("/v1/completions", "/v1/chat/completions"):
            if self.state == "hung":
                return {"delay": 86400}
            text = {"index": 0, "text": self.script.completion, "finish_reason": "length"}
            return {
                "body": {"choices": [text], "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}}
            }
        return {"status": 404, "body": {"detail": "Not Found"}}

    def answer_to(self, path: str, key: str) -> Mapping[str, Any]:
        """The answer to a request, as the script or SGLang has it."""
        if path in self.script.answers:
            return self.script.answers[path]
        if self.script.api_key and path not in EXEMPT and key != f"Bearer {self.script.api_key}":
            return {"status": 401, "body": {"error": "Unauthorized"}}
        return self.usual_answer(path)

    def pause(self, seconds: float) -> None:
        """Wait inside an answer."""
        self._over.wait(seconds)

    @property
    def is_over(self) -> bool:
        """Whether it has been told to end."""
        return self._over.is_set()


STEPS: dict[str, Callable[[Standin, Any], None]] = {
    "log": Standin.log,
    "write": Standin.write,
    "wait": Standin.wait,
    "work": Standin.work,
    "load": Standin.load,
    "listen": Standin.listen,
    "ready": Standin.ready,
    "become": Standin.become,
    "answer": Standin.answer,
    "flood": Standin.flood,
    "hang": Standin.hang,
    "exit": Standin.exit,
    "kill": Standin.kill,
}


class _Http(ThreadingHTTPServer):
    """Says nothing of clients that go away."""

    def handle_error(self, *_request: object) -> None:
        """Theirs to report."""


def _handler_of(standin: Standin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Sends answers byte by byte, so that it can send bad ones."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer()

        def log_message(self, *_words: Any) -> None:
            """SGLang's own form of it."""

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            standin.requests.append((time.monotonic(), path))
            with contextlib.suppress(OSError):
                status = self._send(standin.answer_to(path, self.headers.get("Authorization", "")))
                client = ":".join(str(part) for part in self.client_address[:2])
                standin.log(f'[{{now}}] INFO:     {client} - "{self.command} {path} HTTP/1.1" {status}')

        def _send(self, how: Mapping[str, Any]) -> int:
            standin.pause(float(how.get("delay", 0)))
            status, body = int(how.get("status", 200)), how.get("body", "")
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            size = int(how.get("size", len(content)))
            headers = {
                "Content-Type": "text/plain" if isinstance(body, str) else JSON,
                "Content-Length": str(size),
                **how.get("headers", {}),
            }
            self.wfile.write(f"HTTP/1.1 {status} {self.responses.get(status, ('Status',))[0]}\r\n".encode())
            if "endless_headers" in how:
                self._drip(b"X-More: and more\r\n", float(how["endless_headers"]))
            if "endless_header" in how:
                self._drip(b"X" * 1000, float(how["endless_header"]))
            self.wfile.write("".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n")
            if "drip" in how:
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    standin.pause(float(how["drip"]))
            self._fill(content if "drip" not in how else b"", int(how.get("cut", size)), "drip" in how)
            self.close_connection = "cut" in how
            return status

        def _fill(self, content: bytes, size: int, done: bool) -> None:
            """The content, repeated up to some size where it is shorter."""
            if done:
                return
            left = size
            block = content * max(1, (1 << 16) // max(1, len(content))) if size > len(content) else content
            while left > 0 and block:
                self.wfile.write(block[:left])
                left -= len(block)

        def _drip(self, piece: bytes, pause: float) -> None:
            while not standin.is_over:
                self.wfile.write(piece)
                self.wfile.flush()
                standin.pause(pause)

    return Handler


def read(text: str) -> Mapping[str, Any]:
    """A script from JSON or, where PyYAML is there, YAML."""
    with contextlib.suppress(ValueError):
        return dict(json.loads(text))
    import yaml  # only where it is needed: a test host may have none

    return dict(yaml.safe_load(text))


def main() -> None:
    """Play a script until it ends, or until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--port", type=int, help="in place of the script's")
    arguments = parser.parse_args()
    content = dict(read(arguments.script.read_text(encoding="utf-8")))
    if arguments.port is not None:
        content["port"] = arguments.port
    standin = Standin(content)
    signal.signal(signal.SIGTERM, lambda *_signal: standin.stop())
    with standin:
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
