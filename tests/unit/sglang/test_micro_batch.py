# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cap that is changed while a server runs: what it may be, who may do it, and that it is true."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.micro_batch import (
    Change,
    MicroBatchError,
    check_answer,
    plan_change,
    request,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import ServerInfo, read_info
from ansible_collections.gpufleet.sglang.plugins.modules import micro_batch
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import Standin, pp8, run_module, serve
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.integers(1, 300)


def server_info(pp_size: int, *ranks: tuple[int | None, int | None], version: str = "0.5.23") -> ServerInfo:
    """A server whose ranks have these caps and limits."""
    states = [{"pp_max_micro_batch_size": cap, "effective_max_running_requests_per_dp": limit} for cap, limit in ranks]
    return read_info("/server_info", {"pp_size": pp_size, "internal_states": states, "version": version})


@given(COUNTS, COUNTS, COUNTS, st.integers(-5, 300))
def test_what_a_running_server_takes(pp_size: int, limit: int, cap: int, wanted: int) -> None:
    """1 up to R // P, and what it has already."""
    info = server_info(pp_size, (cap, limit))
    if wanted == cap or 1 <= wanted <= limit // pp_size:
        assert plan_change(info, wanted) == Change(cap, wanted, limit // pp_size)
        assert plan_change(info, wanted).needed is (wanted != cap)
    else:
        with pytest.raises(MicroBatchError, match=rf"max_running_requests {limit} // pp_size {pp_size}\), found"):
            plan_change(info, wanted)


def test_one_rank_that_differs_is_a_change() -> None:
    """And the smallest limit is the limit."""
    assert plan_change(server_info(2, (4, 16), (3, 12)), 4) == Change(before=3, wanted=4, limit=6)


@pytest.mark.parametrize("rank", [(None, 16), (4, None)])
def test_a_release_that_does_not_tell(rank: tuple[int | None, int | None]) -> None:
    """What cannot be read back is not changed."""
    with pytest.raises(MicroBatchError, match=r"SGLang 0\.5\.1 does not tell"):
        plan_change(server_info(2, rank, version="0.5.1"), 2)


@pytest.mark.parametrize(
    ("version", "name"),
    [("0.5.23", "pp_max_micro_batch_size"), ("0.4.9", "max_micro_batch_size"), ("own", "pp_max_micro_batch_size")],
)
def test_the_name_is_the_release_s_own(version: str, name: str) -> None:
    """It was renamed."""
    assert request(server_info(2, (8, 16), version=version), Change(8, 4, 8)) == {"server_args": {name: 4}}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(200, b"[true, false]"), "the server refused"),
        (Answer(200, b"[]"), "the server refused"),
        (Answer(200, b"hello"), "the server refused"),
        (Answer(404, b"Not Found"), "HTTP 404: Not Found"),
        (Answer(401, b'{"error":"Unauthorized"}'), "takes the admin key"),
        (Answer(error="no answer within 20 s"), "no answer within 20 s"),
    ],
)
def test_answers(answer: Answer, said: str) -> None:
    """Only true from each scheduler is a yes."""
    with pytest.raises(MicroBatchError, match=said):
        check_answer(answer)
    check_answer(Answer(200, b"[true, true]"))


def run(capsys: pytest.CaptureFixture[str], server: Standin, cap: int, **options: Any) -> dict[str, Any]:
    return run_module(micro_batch, capsys, {"port": server.port, "pp_max_micro_batch_size": cap, **options})


def test_changed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Check mode predicts it, the second run changes nothing."""
    with serve(pp8()) as server:
        predicted = run(capsys, server, 4, _ansible_check_mode=True, _ansible_diff=True)
        assert server.posted == []
        first = run(capsys, server, 4, _ansible_diff=True)
        second = run(capsys, server, 4)
    assert server.posted == [{"server_args": {"pp_max_micro_batch_size": 4}}]
    assert {key: first[key] for key in ("changed", "before", "after", "limit")} == {
        "changed": True,
        "before": 64,
        "after": 4,
        "limit": 8,
    }
    assert first["diff"] == {"before": "pp_max_micro_batch_size: 64\n", "after": "pp_max_micro_batch_size: 4\n"}
    assert predicted == first
    assert (second["changed"], second["before"], second["after"]) == (False, 4, 4)


def test_a_cap_out_of_range_is_refused_before_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Also in check mode; the cap of the start, which is larger, is no reason to fail."""
    with serve(pp8()) as server:
        for options in ({}, {"_ansible_check_mode": True}):
            result = run(capsys, server, 9, **options)
            assert result["failed"]
            assert "expected 1 to 8 (max_running_requests 64 // pp_size 8), found 9" in result["msg"]
        assert run(capsys, server, 64)["changed"] is False
    assert server.posted == []


def test_every_rank_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    """One answer from each."""
    server = pp8()
    server.info["internal_states"].append(copy.deepcopy(server.info["internal_states"][0]))
    with serve(server):
        assert run(capsys, server, 2)["changed"]
    assert [state["pp_max_micro_batch_size"] for state in server.info["internal_states"]] == [2, 2]


def test_a_true_that_is_not_true(capsys: pytest.CaptureFixture[str]) -> None:
    """Releases up to 0.5.19 say true even when they refused."""
    with serve(pp8(deaf=True)) as server:
        result = run(capsys, server, 4)
    assert "expected pp_max_micro_batch_size 4, read back 64" in result["msg"]
    assert result["before"] == 64


def test_the_admin_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The API key does not do where there is an admin key; neither shows."""
    keys = {"api_key": "sk-first", "admin_api_key": "sk-second"}
    with serve(pp8(**keys)) as server:
        refused = run(capsys, server, 4, api_key="sk-first")
        given = run(capsys, server, 4, **keys)
        config = tmp_path / "server.yaml"
        config.write_text(f'admin-api-key: "sk-second"\napi-key: "sk-first"\nport: {server.port}\n')
        configured = run_module(micro_batch, capsys, {"config": str(config), "pp_max_micro_batch_size": 5})
    assert "401" in refused["msg"]
    assert "as admin_api_key or in config" in refused["msg"]
    assert (given["changed"], configured["changed"]) == (True, True)
    assert "sk-" not in json.dumps([refused, given, configured])


def test_an_answer_that_repeats_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A proxy's error page may show the request."""
    config = tmp_path / "server.yaml"
    with serve(pp8(answers={"/set_internal_state": (502, b"cannot forward 'Bearer sk-second'")})) as server:
        config.write_text(f'admin-api-key: "sk-second"\nport: {server.port}\n')
        result = run_module(micro_batch, capsys, {"config": str(config), "pp_max_micro_batch_size": 4})
    assert "cannot forward" in result["msg"]
    assert "sk-second" not in json.dumps(result)
