# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A server on a port of its own that answers what a real one answered, and a way to run a module against it."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

RECORDED = Path(__file__).parents[2] / "contract" / "data" / "server_info"
MODELS = {"object": "list", "data": [{"id": "tiny", "parent": None}, {"id": "tiny:adapter", "parent": "tiny"}]}


def recorded(run: str) -> Any:
    """The answer of /server_info in that run of real SGLang."""
    return json.loads((RECORDED / f"{run}.json").read_text())


@dataclass
class Standin:
    """What it answers: a status and a body for each path, to whom has the key. Notes the requests."""

    info: dict[str, Any]
    api_key: str = ""
    admin_api_key: str = ""
    old_names: bool = False
    """Has /get_server_info only, as before 0.5.6."""
    deaf: bool = False
    """Says true and changes nothing, as up to 0.5.19 where the cap is out of range."""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """What it answers in place of all that."""
    posted: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def answer(self, path: str, key: str, body: bytes) -> tuple[int, bytes]:
        if path in self.answers:
            return self.answers[path]
        changes = path == "/set_internal_state"
        wanted = self.admin_api_key if changes and self.admin_api_key else self.api_key
        if wanted and key != wanted:
            return 401, b'{"error":"Unauthorized"}'
        if changes:
            self.posted.append(json.loads(body))
            return 200, json.dumps(self.change(self.posted[-1]["server_args"])).encode()
        if path == ("/get_server_info" if self.old_names else "/server_info"):
            return 200, json.dumps(self.info).encode()
        if path == "/v1/models":
            return 200, json.dumps(MODELS).encode()
        return 404, b'{"detail":"Not Found"}'

    def change(self, arguments: dict[str, int]) -> list[bool]:
        """SGLang's own rule for the cap, one answer for each scheduler."""
        updated = []
        for state in self.info["internal_states"]:
            limit = state["effective_max_running_requests_per_dp"] // self.info["pp_size"]
            fits = all(1 <= value <= limit for value in arguments.values())
            if fits and not self.deaf:
                state.update(arguments)
            updated.append(fits)
        return updated


@contextmanager
def serve(standin: Standin) -> Iterator[Standin]:
    """*standin* behind a port, which it then knows."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            key = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            status, text = standin.answer(self.path, key, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = respond  # noqa: N815 - names that http.server looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the overridden method has it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        standin.port = server.server_port
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield standin
        server.shutdown()


def pp8(**options: Any) -> Standin:
    """Eight stages and eight slots beyond them, 64 requests, a cap of 64."""
    return Standin(copy.deepcopy(recorded("pp8-llama-cap64-depth8")), **options)


def run_module(
    module: ModuleType, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Run the module in this process, and give what it prints."""
    with patch_module_args({**arguments, **options}), pytest.raises(SystemExit) as left:
        module.main()
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert left.value.code == (1 if printed.get("failed") else 0)
    return printed
