# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The stand-in server does what its script says, and answers as SGLang does."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._host.journal import Entry, Signs, split
from ansible_collections.gpufleet.sglang.plugins.module_utils._readiness.readiness import (
    completion_problem,
    served_models,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Client
from ansible_collections.gpufleet.sglang.tests.support.standin.standin import STEPS, Standin, read

PROGRAM = Path(__file__).parents[2] / "support" / "standin" / "standin.py"
README = PROGRAM.with_name("README.md")


def statuses(server: Standin, *paths: str) -> list[int]:
    return [Client(server.url).get(path, 2).status for path in paths]


@pytest.mark.parametrize(
    ("steps", "release", "expected"),
    [
        (["listen"], "0.5.23", [200, 503, 503]),
        (["listen"], "0.5.9", [200, 404, 503]),
        (["listen"], "0.4.9", [200, 404, 200]),
        ([{"become": "ready"}, "listen"], "0.5.23", [200, 200, 200]),
        ([{"become": "ready"}, "listen"], "0.5.9", [200, 404, 200]),
    ],
)
def test_answers_of_each_state_and_release(steps: list[Any], release: str, expected: list[int]) -> None:
    with Standin({"port": 0, "steps": steps, "release": release}, io.StringIO()) as server:
        assert statuses(server, "/v1/models", "/ready", "/health") == expected


def test_a_completion_and_a_list_of_models_are_those_of_sglang() -> None:
    with Standin({"port": 0, "models": ["a", {"id": "b", "parent": "a"}]}, io.StringIO()) as server:
        client = Client(server.url)
        assert served_models(client.get("/v1/models", 2)) == ["a"]
        assert completion_problem(client.post("/v1/completions", {"model": "a"}, 2).json()) == ""
        assert client.get("/nothing", 2).status == 404


def test_a_hung_server_lists_models_and_makes_no_tokens() -> None:
    with Standin({"port": 0, "steps": ["listen", {"become": "hung"}]}, io.StringIO()) as server:
        client = Client(server.url)
        assert client.get("/v1/models", 2).status == 200
        time.sleep(0.05)
        assert client.post("/v1/completions", {}, 0.2).late
        assert client.get("/health", 0.2).late


def test_a_load_says_what_sglang_says() -> None:
    log = io.StringIO()
    script = {"port": 0, "steps": [{"load": {"ranks": 2, "seconds": 0.1, "shards": 2}}, "listen", "ready"]}
    with Standin(script, log) as server:
        assert server.url
        time.sleep(0.1)
    signs, phases = Signs(), ["starting"]
    for line in split(log.getvalue()):
        signs.read(Entry.of(line))
        if signs.phase != phases[-1]:
            phases.append(signs.phase)
    assert phases == ["starting", "loading", "allocating", "capturing", "listening", "ready"]
    assert signs.shards == (2, 2)


@pytest.mark.parametrize(("step", "status"), [({"exit": 3}, 3), ({"kill": "KILL"}, -9), ({"kill": "TERM"}, 0)])
def test_how_it_ends(tmp_path: Path, step: dict[str, Any], status: int) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"port": 0, "steps": [{"log": "[{now}] hello"}, step]}))
    done = subprocess.run(
        [sys.executable, PROGRAM, script],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == status
    assert done.stdout.endswith("] hello\n")
    assert done.stderr == ""


@pytest.mark.parametrize(("release", "status"), [("0.5.9", -9), ("0.5.23", 0)])
def test_how_releases_end_when_they_are_stopped(tmp_path: Path, release: str, status: int) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"port": 0, "release": release, "steps": ["listen", {"kill": "TERM"}]}))
    done = subprocess.run([sys.executable, PROGRAM, script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == status
    assert "Gracefully exiting..." in done.stdout.splitlines()[-1]


def test_a_flood_has_as_many_lines_as_asked_for() -> None:
    log = io.StringIO()
    standin = Standin({"steps": [{"flood": {"seconds": 0.5, "lines_per_second": 2000}}]}, log)
    standin.play()
    assert 300 <= log.getvalue().count("\n") <= 1200


def test_scripts_in_yaml() -> None:
    assert read("port: 0\nsteps: [listen, {wait: 1}]") == {"port": 0, "steps": ["listen", {"wait": 1}]}


@pytest.mark.parametrize("steps", [[{"dance": 1}], ["dance"]])
def test_steps_that_do_not_exist(steps: list[Any]) -> None:
    with pytest.raises(SystemExit, match="no such step: 'dance'"):
        Standin({"steps": steps})


def test_every_step_is_documented() -> None:
    text = README.read_text(encoding="utf-8")
    assert all(f"`{step}" in text for step in STEPS)


def test_it_is_quiet_about_clients_that_go_away(capfd: pytest.CaptureFixture[str]) -> None:
    answers = {"/v1/models": {"body": "x" * 1000, "size": 1 << 26}}
    with Standin({"port": 0, "answers": answers}, io.StringIO()) as server:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\n\r\n")
            client.recv(100)
        assert statuses(server, "/ready") in ([200], [503])
    assert capfd.readouterr().err == ""
