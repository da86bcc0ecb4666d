# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module with an engine of the test's own: what is asked, what is kept, and what shows."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.server_args import (
    PLACEHOLDER,
    Finding,
    masked,
    with_history,
)
from ansible_collections.gpufleet.sglang.plugins.modules import server_args
from ansible_collections.gpufleet.sglang.tests.unit.sglang.engine import (
    SERVER_ARGS,
    make_engine,
    make_model,
    set_python,
)
from ansible_collections.gpufleet.sglang.tests.unit.sglang.standin import run_module

KEY = "sk-first quote'd"


class Host:
    """A host with an engine and a model, on which the module is run."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.engine = make_engine(directory / "engine")
        self.model = make_model(directory / "model")
        self.cache = directory / "cache" / "server_args"
        self.seen = directory / "seen"
        self.capsys = capsys

    def run(self, values: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        arguments = {
            "engine": str(self.engine),
            "cache": str(self.cache),
            "environment": {"SEEN": str(self.seen)},
            **({} if "config" in options else {"values": {"model_path": str(self.model), **(values or {})}}),
        }
        return run_module(server_args, self.capsys, {**arguments, **options})

    def asked(self) -> list[dict[str, Any]]:
        """What the engine was asked, each time."""
        return list(map(json.loads, self.seen.read_text().splitlines())) if self.seen.exists() else []


@pytest.fixture(name="host")
def _host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Host:
    return Host(tmp_path, capsys)


def codes(result: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in result["findings"]]


def test_arguments_that_are_fine(host: Host) -> None:
    """Asked once, then remembered; without GPUs, without a network, and nothing is left behind."""
    first = host.run({"pp_size": 2, "pp_max_micro_batch_size": 4})
    second = host.run({"pp-size": 2, "pp-max-micro-batch-size": 4})
    assert {name: first[name] for name in ("changed", "valid", "version", "cached", "findings")} == {
        "changed": False,
        "valid": True,
        "version": "0.5.23",
        "cached": False,
        "findings": [],
    }
    for answer in (first, second):
        answer.pop("invocation", None)  # ansible-core 2.21 adds it on the other side
    assert second == {**first, "cached": True}
    (seen,) = host.asked()
    assert seen["given"] == {
        "device": "cuda",
        "model-path": str(host.model),
        "pp-size": 2,
        "pp-max-micro-batch-size": 4,
    }
    assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["environment"]["HF_HUB_OFFLINE"] == "1"
    assert not os.path.exists(seen["cwd"])


def test_another_question_is_asked(host: Host) -> None:
    """Other values, another environment, another model, another engine."""
    host.run()
    assert not host.run({"pp_size": 2})["cached"]
    assert not host.run(environment={"SEEN": str(host.seen), "SGLANG_X": "1"})["cached"]
    (host.model / "config.json").write_text("{}")
    assert not host.run()["cached"]
    (record,) = host.engine.rglob("RECORD")
    record.write_text("sglang/version.py,,\n")
    assert not host.run()["cached"]
    assert host.run()["cached"]
    assert len(host.asked()) == 5


def test_an_answer_that_cannot_be_read_is_asked_for_again(host: Host) -> None:
    """Somebody may have had a full disk."""
    host.run()
    (kept,) = host.cache.glob("*.json")
    kept.write_text('{"version"')
    assert not host.run()["cached"]
    assert host.cache.stat().st_mode & 0o777 == 0o700


def test_answers_are_not_kept_for_ever(host: Host) -> None:
    """Only the newest hundred."""
    host.cache.mkdir(parents=True)
    for number in range(120):
        old = host.cache / f"{number:03}.json"
        old.write_text("{}")
        os.utime(old, (number, number))
    host.run()
    assert len(list(host.cache.iterdir())) == 100
    assert not (host.cache / "020.json").exists()
    assert host.run()["cached"]


def test_check_mode_keeps_nothing(host: Host) -> None:
    """It asks, though."""
    assert host.run(_ansible_check_mode=True)["valid"]
    assert not host.cache.exists()


def test_what_is_wrong_with_each_argument(host: Host) -> None:
    """All of it in one line, with what is known of other releases; not remembered."""
    values = {"cuda_graph_max_bs": 8, "pp_sise": 2, "attention_backend": "flashinfre", "old_way": "x"}
    result = host.run(values)
    assert result["failed"]
    assert codes(result) == ["unknown_argument", "unknown_argument", "invalid_value", "deprecated_argument"] or sorted(
        codes(result)
    ) == ["deprecated_argument", "invalid_value", "unknown_argument", "unknown_argument"]
    assert result["msg"].startswith("SGLang 0.5.23 would not start with these arguments: ")
    assert "it is cuda-graph-max-bs-decode since 0.5.15 (write cuda-graph-max-bs-decode)" in result["msg"]
    assert "(write pp-size)" in result["msg"]
    assert "(give flashinfer)" in result["msg"]
    assert "\n" not in result["msg"]
    assert host.asked() == []
    reported = host.run(values, on_error="report")
    assert (reported["valid"], reported["cached"], reported["findings"]) == (False, False, result["findings"])


def test_arguments_that_do_not_fit_together(host: Host) -> None:
    """SGLang's own words; a check without words is told by its source."""
    assert "pp_max_micro_batch_size must be positive" in host.run({"pp_max_micro_batch_size": 0})["msg"]
    assert 'assert self.given.get("tp-size") != 3' in host.run({"tp_size": 3})["msg"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"attention_backend": "triton"}, "triton needs a GPU with compute capability 8.0"),
        ({"tp_size": 5}, "no connections are made while arguments are checked"),
        ({"model_path": "/nowhere"}, "the model is not a directory on this host"),
    ],
)
def test_what_cannot_be_found_out_here(host: Host, values: dict[str, Any], said: str) -> None:
    """Is told, and is no reason to fail."""
    result = host.run(values)
    assert (result["valid"], codes(result)) == (True, ["not_checked"])
    assert said in result["findings"][0]["message"]


def test_a_refusal_that_the_model_alone_leads_to(host: Host) -> None:
    """It is not the arguments' fault: nobody knows here what SGLang would say with its GPUs."""
    model = make_model(host.model.parent / "broken")
    result = host.run({"model_path": str(model), "tp_size": 2})
    assert codes(result) == ["not_checked"]
    assert [seen["given"].get("tp-size") for seen in host.asked()] == [2, None]


@pytest.mark.parametrize(
    ("architecture", "stages", "found"),
    [
        ("StagesForCausalLM", 2, []),
        ("WholeForCausalLM", 1, []),
        ("WholeForCausalLM", 2, ["no_pipeline_support"]),
        ("OtherForCausalLM", 2, ["not_checked"]),
    ],
)
def test_a_model_that_cannot_be_split(host: Host, architecture: str, stages: int, found: list[str]) -> None:
    """SGLang itself would tell after it has loaded the weights."""
    model = make_model(host.model.parent / "other", architecture)
    result = host.run({"model_path": str(model), "pipeline_parallel_size": stages})
    assert codes(result) == found
    assert result.get("failed", False) is (found == ["no_pipeline_support"])


def test_the_keys_are_not_even_given_to_the_program(host: Host) -> None:
    """And other secrets show in no message."""
    secrets = {"api_key": KEY, "extra_config": {"password": "geheim-1234"}, "pp_size": "geheim-5678"}
    result = host.run({"tp_size": 1}, secrets=secrets, on_error="report")
    assert codes(result) == ["invalid_value"]
    fine = host.run(secrets={"api_key": KEY, "extra_config": {"password": "geheim-1234"}})
    assert fine["valid"]
    (seen,) = host.asked()
    assert seen["given"]["api-key"] == PLACEHOLDER
    assert "geheim-1234" in seen["given"]["extra-config"]
    shown = json.dumps([result, fine, seen["argv"], seen["environment"]])
    shown += "".join(path.read_text() for path in host.cache.iterdir())
    for secret in (KEY, "quote'd", "geheim"):
        assert secret not in shown


def test_a_key_of_another_kind_stays_a_secret() -> None:
    """A list is as wrong as before."""
    assert masked({"api-key": ["a", "b"], "admin-api-key": 5, "pp-size": 8}) == {
        "api-key": [PLACEHOLDER, PLACEHOLDER],
        "admin-api-key": PLACEHOLDER,
        "pp-size": 8,
    }


def test_a_file(host: Host, tmp_path: Path) -> None:
    """Its names are taken as they are: SGLang does not know pp_size there."""
    config = tmp_path / "server.yaml"
    config.write_text(f'api-key: "{KEY}"\nmodel-path: "{host.model}"\npp-size: 2\n')
    assert host.run(config=str(config))["valid"]
    config.write_text(f"# by hand\nmodel-path: {host.model}\npp_size:   2\napi_key: {KEY}\n")
    result = host.run(config=str(config))
    assert [(finding["argument"], finding["advice"]) for finding in result["findings"]] == [
        ("api_key", "write api-key"),
        ("pp_size", "write pp-size"),
    ]
    assert "quote'd" not in json.dumps(result)


@pytest.mark.parametrize(
    ("text", "said"), [("a: [", "server.yaml is not YAML"), (None, "No such file"), ("- a", "expected a mapping")]
)
def test_a_file_that_cannot_be_read(host: Host, tmp_path: Path, text: str | None, said: str) -> None:
    """One line."""
    config = tmp_path / "server.yaml"
    if text is not None:
        config.write_text(text)
    result = host.run(config=str(config))
    assert result["msg"].startswith("the arguments cannot be checked: ")
    assert said in result["msg"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("exit 3", "its parser ended with status 3 and without an answer"),
        ("sleep 60", "its parser did not answer within 0.5 s"),
        ("echo hello", "without an answer"),
        ("kill -9 $$", "its parser ended with status -9"),
    ],
)
def test_a_python_that_does_not_answer(host: Host, command: str, said: str) -> None:
    """The engine's trouble is not the arguments'; it is not remembered, and nothing of it is left running."""
    set_python(host.engine, command)
    began = time.monotonic()
    result = host.run(timeout=0.5)
    assert time.monotonic() - began < 20
    assert (result["valid"], result["version"], codes(result)) == (True, "", ["not_checked"])
    assert said in result["findings"][0]["message"]
    assert not host.cache.exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_library", "the parser of SGLang 0.5.99 does not load: ModuleNotFoundError"),
        ("raise SystemExit(3)", "the parser of SGLang 0.5.99 does not load: SystemExit: 3"),
        ("class ServerArgs: pass", "the parser of SGLang 0.5.99 does not load: AttributeError"),
    ],
)
def test_a_release_that_does_not_load(host: Host, tmp_path: Path, source: str, said: str) -> None:
    """Told with the release, and not remembered."""
    host.engine = make_engine(tmp_path / "next", "0.5.99", source)
    result = host.run()
    assert (result["valid"], result["version"], codes(result)) == (True, "0.5.99", ["not_checked"])
    assert said in result["findings"][0]["message"]
    assert not host.cache.exists()


def test_a_release_that_reads_no_file(host: Host, tmp_path: Path) -> None:
    """Before 0.5.3."""
    host.engine = make_engine(tmp_path / "old", "0.4.9", SERVER_ARGS.replace('parser.add_argument("--config")', ""))
    assert codes(host.run(on_error="report")) == ["no_config_file"]


def test_no_engine(host: Host, tmp_path: Path) -> None:
    """In check mode an earlier task would have installed it."""
    result = host.run(engine=str(tmp_path / "none"))
    assert f"found no {tmp_path}/none/bin/python; install it with the role gpufleet.sglang" in result["msg"]
    assert codes(host.run(engine=str(tmp_path / "none"), _ansible_check_mode=True)) == ["not_checked"]


def test_an_engine_without_sglang(host: Host) -> None:
    """An environment of something else: what is sure to fail is refused before a server is stopped for it."""
    set_python(host.engine, 'exec /usr/bin/env python3 -I "$2"')
    result = host.run()
    assert result["failed"]
    assert codes(result) == ["no_sglang"]
    assert "SGLang would not start with these arguments: there is no SGLang in this Python environment" in result["msg"]


def test_users(host: Host) -> None:
    """The user of the service runs the parser, where root asks for that."""
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert host.run(user=me)["valid"]
    assert "user: expected a user of this host, found 'nobody-there'" in host.run(user="nobody-there")["msg"]


@pytest.mark.parametrize(
    ("argument", "version", "message", "advice"),
    [
        (
            "cuda-graph-max-bs",
            "0.5.23",
            "it is cuda-graph-max-bs-decode since 0.5.15",
            "write cuda-graph-max-bs-decode",
        ),
        ("cuda-graph-max-bs-decode", "0.5.10", "it came with 0.5.15", "write cuda-graph-max-bs"),
        ("max-micro-batch-size", "0.5.5", "it is pp-max-micro-batch-size since 0.5.3", "write pp-max-micro-batch-size"),
        ("pp-async-batch-depth", "0.5.6", "it came with 0.5.7", "leave it out"),
        ("pp-sise", "0.5.23", "no such argument", "write pp-size"),
        ("cuda-graph-max-bs", "own build", "no such argument", "write pp-size"),
    ],
)
def test_history(argument: str, version: str, message: str, advice: str) -> None:
    """What is known of other releases says more than a name that looks alike."""
    finding = Finding("unknown_argument", "error", argument, f"{argument}: no such argument", "write pp-size")
    (told,) = with_history([finding], version, None)
    assert told.message.endswith(message)
    assert told.advice == advice


def test_history_of_a_model() -> None:
    """Since when it can be split."""
    finding = Finding("no_pipeline_support", "error", "pp-size", "cannot split", "use another release")
    (told,) = with_history([finding], "0.5.9", "KimiK25ForConditionalGeneration")
    assert told.advice == "install SGLang 0.5.10 or later, which can, or set pp-size to 1"
    assert with_history([finding], "0.5.9", "OtherForCausalLM") == [finding]
