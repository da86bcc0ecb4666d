# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is read out of the answers of real servers, over HTTP."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_info import (
    Difference,
    InfoError,
    differences,
    read_info,
)
from ansible_collections.gpufleet.sglang.plugins.modules import server_info
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import pp8, recorded, run_module, serve
from hypothesis import given
from hypothesis import strategies as st

KEY = 'sk-first $"quote\'d"'
ADMIN_KEY = "sk-second"


def info_with(**state: Any) -> Any:
    """What a server of two stages says, with other values in its scheduler."""
    body = recorded("pp2-llama-auto-cap")
    body["internal_states"][0].update(state)
    return body


def test_the_cap_that_sglang_took_by_itself() -> None:
    """It stands in the internal states only."""
    info = read_info("/server_info", recorded("pp2-llama-auto-cap"))
    assert info.arguments["pp_max_micro_batch_size"] is None
    assert (info.caps, info.limits, info.auto_cap, info.slots) == ([8], [16], 8, 2)
    assert info.max_total_num_tokens == 16384


def test_slots_beyond_the_stages() -> None:
    """pp_async_batch_depth adds slots, and does not count in the limit of a live change."""
    info = read_info("/server_info", recorded("pp8-llama-cap64-depth8"))
    assert (info.slots, info.caps, info.auto_cap) == (16, [64], 8)


def test_internal_states_show_what_the_arguments_do_not() -> None:
    """Some 500 arguments stand in both; a few matter enough to be repeated."""
    extra = read_info("/server_info", recorded("pp2-llama-cap16")).extras[0]
    assert extra["memory_usage"]["token_capacity"] == 16384
    assert extra["pp_max_micro_batch_size"] == 16
    assert len(extra) < 20


@pytest.mark.parametrize(
    ("plan", "found"),
    [
        ({"pp-max-micro-batch-size": 8, "max-running-requests": 16, "pp-size": 2}, []),
        ({"pp_max_micro_batch_size": "8", "--pp-size": "2", "trust_remote_code": "false"}, []),
        ({"pipeline_parallel_size": 4}, [Difference("pipeline_parallel_size", 4, 2)]),
        ({"pp-max-micro-batch-size": 4}, [Difference("pp-max-micro-batch-size", 4, 8)]),
        ({"mem-fraction-static": 0.95, "mm-process-config": "{}", "encoder-urls": []}, []),
        ({"mem-fraction-static": 0.85}, [Difference("mem-fraction-static", 0.85, 0.95)]),
        ({"cuda_graph_max_bs_decode": 8}, [Difference("cuda_graph_max_bs_decode", 8, 32)]),
        ({"cuda_graph_max_bs": 32}, []),
        ({"no_such_argument": 1}, [Difference("no_such_argument", 1, None)]),
        ({"trust_remote_code": 0}, [Difference("trust_remote_code", 0, actual=False)]),
        ({"max_queued_requests": None, "api-key": "anything"}, []),
    ],
)
def test_differences(plan: dict[str, Any], found: list[Difference]) -> None:
    """Values are compared by what they mean to SGLang, under any of their names."""
    assert differences(read_info("/server_info", info_with()), plan) == found


def test_a_limit_that_the_memory_lowered() -> None:
    """The argument is as it was given, what is in force is not."""
    info = read_info("/server_info", info_with(effective_max_running_requests_per_dp=10, pp_max_micro_batch_size=5))
    plan = {"max-running-requests": 16, "pp-max-micro-batch-size": 8}
    assert differences(info, plan) == [
        Difference("max-running-requests", 16, 10),
        Difference("pp-max-micro-batch-size", 8, 5),
    ]


def test_each_data_parallel_rank_counts() -> None:
    """The argument is divided by the ranks, and one rank that differs is enough."""
    body = info_with(effective_max_running_requests_per_dp=5)
    body.update(max_running_requests=16, attn_dp_size=3)
    body["internal_states"] = [{**body["internal_states"][0], "pp_max_micro_batch_size": cap} for cap in (2, 2, 1)]
    info = read_info("/server_info", body)
    assert (info.caps, info.auto_cap) == ([2, 2, 1], 2)
    assert differences(info, {"max_running_requests": 16, "pp_max_micro_batch_size": 2}) == [
        Difference("pp_max_micro_batch_size", 2, 1)
    ]


def test_an_old_release_tells_less() -> None:
    """Names and values that it lacks are not made up."""
    info = read_info(
        "/get_server_info", {"pp_size": 2, "internal_states": [{"max_micro_batch_size": 4}], "version": "0.4.9"}
    )
    assert (info.caps, info.limits, info.auto_cap, info.max_total_num_tokens) == ([4], [None], None, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["internal_states", "version", "pp_max_micro_batch_size", "max_running_requests"]),
                inner,
            )
        ),
    )
)
def test_any_other_answer_is_one_line(body: Any) -> None:
    """Something else may listen there."""
    states = body.get("internal_states") if isinstance(body, dict) else None
    if isinstance(states, list) and states and all(isinstance(state, dict) for state in states):
        assert len(read_info("/server_info", body).caps) == len(states)
    else:
        with pytest.raises(InfoError, match=r"\Aexpected the arguments of an SGLang server[^\n]+\Z"):
            read_info("/server_info", body)


def test_module(capsys: pytest.CaptureFixture[str]) -> None:
    """All that it returns, from a server without keys."""
    with serve(pp8()) as server:
        result = run_module(
            server_info, capsys, {"port": server.port, "plan": {"pp-max-micro-batch-size": 4, "tp-size": 1}}
        )
        again = run_module(server_info, capsys, {"port": server.port}, _ansible_check_mode=True)
    assert result["changed"] is False
    assert result["url"] == f"http://127.0.0.1:{server.port}"
    assert (result["endpoint"], result["version"], result["models"]) == ("/server_info", "0.5.23", ["tiny"])
    assert result["scheduler"] == {
        "pp_size": 8,
        "slots": 16,
        "pp_max_micro_batch_size": 64,
        "sglang_auto_micro_batch_size": 8,
        "max_running_requests": 64,
        "max_total_num_tokens": 16384,
    }
    assert result["differences"] == [{"name": "pp-max-micro-batch-size", "expected": 4, "actual": 64}]
    assert result["arguments"]["model_path"] == "model-tiny"
    assert result["internal_states"][0]["memory_usage"]["token_capacity"] == 16384
    assert (again["arguments"], again["differences"]) == (result["arguments"], [])


def test_the_older_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    """Before 0.5.6 there was no other."""
    with serve(pp8(old_names=True)) as server:
        assert run_module(server_info, capsys, {"port": server.port})["endpoint"] == "/get_server_info"


def test_keys_are_taken_from_the_config_and_shown_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server repeats them in its arguments, in its command line, and, as here, elsewhere."""
    server = pp8(api_key=KEY, admin_api_key=ADMIN_KEY)
    for part in (server.info, server.info["internal_states"][0]):
        part.update(api_key=KEY, admin_api_key=ADMIN_KEY, chat_template=f"with {KEY}", forward_hooks=[{"x": ADMIN_KEY}])
    server.info["launch_command"] = f"--api-key '{KEY}'"
    config = tmp_path / "server.yaml"
    with serve(server):
        text = {"port": server.port, "api-key": KEY, "admin-api-key": ADMIN_KEY, "host": "0.0.0.0"}
        config.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in text.items()))
        result = run_module(
            server_info, capsys, {"config": str(config), "plan": {"chat_template": "x", "api-key": "y"}}
        )
    assert result["url"] == f"http://127.0.0.1:{server.port}"
    printed = json.dumps(result)
    for secret in (KEY, ADMIN_KEY, "sk-first", "quote'd"):
        assert secret not in printed
    assert [difference["actual"] for difference in result["differences"]] == ["with <secret>"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, b'{"error":"Unauthorized"}'), "Expected that the server takes the API key"),
        ((500, b"Internal Server Error with sk-first"), "HTTP 500: Internal Server Error with <secret>"),
        ((200, b"hello"), "is it an SGLang server that listens there?"),
        ((200, b'{"internal_states": []}'), "is it an SGLang server that listens there?"),
        ((302, b""), "Expected HTTP 200"),
    ],
)
def test_refused(answer: tuple[int, bytes], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line: what was expected, what was seen, what to change."""
    with serve(pp8(answers={"/server_info": answer})) as server:
        result = run_module(server_info, capsys, {"port": server.port, "api_key": "sk-first"})
    assert result["failed"]
    assert f"http://127.0.0.1:{server.port}/server_info" in result["msg"]
    assert said in result["msg"].replace("********", "<secret>")
    assert "\n" not in result["msg"]


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """A port that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = run_module(server_info, capsys, {"port": taken.getsockname()[1]})
    assert "Connection refused" in result["msg"]
    assert "look at its unit" in result["msg"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"config": "/nowhere/server.yaml"}, "config cannot be read"),
        ({"port": 70000}, "port: expected 1 to 65535, found 70000"),
    ],
)
def test_where_the_server_is_cannot_be_told(
    options: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input is one line."""
    assert said in run_module(server_info, capsys, options)["msg"]


def test_a_plan_with_what_is_no_argument(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error is named."""
    with serve(pp8()) as server:
        result = run_module(server_info, capsys, {"port": server.port, "plan": {"pp size": 8}})
    assert result["msg"].startswith("plan: 'pp size' is not the name of an SGLang argument")
