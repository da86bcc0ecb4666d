# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the client sends, and that it notices what does not come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Thread
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.tests.support.burst.send import main


class Server(ThreadingHTTPServer):
    """Answers like /generate, each single request only once as many as *company* are there; notes what it was asked."""

    daemon_threads = True

    def __init__(self, company: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.company = Barrier(company, timeout=20)
        self.missing = 0  # tokens of each answer that do not come

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, **body})
        if len(body["rid"]) == 1:
            self.server.company.wait()
        tokens = body["sampling_params"]["max_new_tokens"] - self.server.missing
        answer = json.dumps([{"meta_info": {"completion_tokens": tokens}} for _request in body["rid"]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(company=5) as serving:
        thread = Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def test_requests_come_at_once_and_then_in_one_message(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["send.py", server.url, "--requests=5", "--tokens=7"])
    main()
    single, whole = server.asked[:5], server.asked[5:]
    assert sorted(one["rid"] for one in single) == [[f"spread-{number}"] for number in range(5)]
    assert [one["rid"] for one in whole] == [[f"together-{number}" for number in range(5)]]
    assert {one["path"] for one in server.asked} == {"/generate"}
    assert {one["sampling_params"]["max_new_tokens"] for one in server.asked} == {7}
    assert all(one["sampling_params"]["ignore_eos"] for one in server.asked)


def test_no_prompt_begins_like_another(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["send.py", server.url, "--requests=5"])
    main()
    prompts = server.asked[-1]["input_ids"]
    assert len({prompt[0] for prompt in prompts}) == 5
    assert sorted(one["input_ids"][0] for one in server.asked[:5]) == sorted(prompts)


def test_short_answers_are_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.missing = 1
    monkeypatch.setattr("sys.argv", ["send.py", server.url, "--requests=5"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert capsys.readouterr().err == "spread: expected 5 answers in full, got 0\n"
