# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The module as Ansible runs it, and its documentation."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.outcome import result
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.plan import make_plan
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.request import Wishes
from ansible_collections.gpufleet.sglang.plugins.modules import pp_plan
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import KIMI, LLAMA, TINY, TINY_TENSORS, write_model

FIRST_USER = {
    "model_config": KIMI,
    "gpus": {"count": 8, "memory_mib": 97887, "memory_bandwidth_gbs": 1792},
    "pp_size": 8,
    "target_concurrency": 32,
    "max_running_requests": 64,
    "measured": [
        {"concurrency": 1, "output_tokens_per_second": 34},
        {"concurrency": 32, "output_tokens_per_second": 248, "pp_max_micro_batch_size": 8},
    ],
}
SCHEDULER_ONLY = {"pp_size": 8, "target_concurrency": 32}


class Runs:
    """Runs the module in this process, and gives what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        with patch_module_args(arguments), pytest.raises(SystemExit) as left:
            pp_plan.main()
        printed: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        assert left.value.code == (1 if printed.get("failed") else 0)
        return printed


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runs:
    return Runs(capsys)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all there is to PATH, for an nvidia-smi of the test's own."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


@pytest.mark.parametrize("check_mode", [False, True])
def test_first_user(run: Runs, check_mode: bool) -> None:
    plan = run({**FIRST_USER, "_ansible_check_mode": check_mode})
    assert plan["changed"] is False
    assert plan["works"] is True
    assert plan["args"]["pp_max_micro_batch_size"] == 4
    assert plan["memory"]["kv_tokens"] == 793_392
    assert plan["throughput"]["output_tokens_per_second"] == pytest.approx(433, abs=2)


def test_what_cannot_work_fails_with_the_whole_plan(run: Runs) -> None:
    plan = run({**FIRST_USER, "sglang_version": "0.5.9", "layer_partition": [8] * 8})
    assert plan["failed"] is True
    assert plan["msg"].startswith("This plan cannot work: ")
    assert "the numbers add up to 64" in plan["msg"]
    assert "refuses to split it into stages" in plan["msg"]
    errors = {finding["code"] for finding in plan["findings"] if finding["severity"] == "error"}
    assert errors == {"release_too_old", "partition_invalid"}
    assert plan["args"]["pp_size"] == 8


def test_what_cannot_work_is_reported(run: Runs) -> None:
    plan = run({**FIRST_USER, "sglang_version": "0.5.9", "on_error": "report"})
    assert "failed" not in plan
    assert plan["works"] is False


def test_model_directory(run: Runs, tmp_path: Path) -> None:
    write_model(tmp_path, TINY, TINY_TENSORS, 2)
    plan = run({"model_path": str(tmp_path), "gpus": {"count": 2, "memory_mib": 8192}, "target_concurrency": 4})
    assert plan["memory"]["weights_from"] == "files"
    assert plan["scheduler"]["pp_size"] == 2


def test_gpus_are_asked_for(run: Runs, nvidia_smi: Path) -> None:
    script(nvidia_smi, 'echo "NVIDIA H100 80GB HBM3, 81559"; echo "NVIDIA H100 80GB HBM3, 81559"')
    plan = run({"model_config": LLAMA, "target_concurrency": 4})
    assert plan["scheduler"]["pp_size"] == 2
    assert plan["memory"]["gpu_name"] == "NVIDIA H100 80GB HBM3"


def test_gpus_that_cannot_be_asked_for(run: Runs, nvidia_smi: Path) -> None:
    missing = run({"model_config": LLAMA, "pp_size": 2, "target_concurrency": 4})
    assert "there is no nvidia-smi on this host to ask; give gpus with count and memory_mib" in missing["msg"]
    script(nvidia_smi, "echo NVIDIA-SMI has failed >&2; exit 9")
    failing = run({"model_config": LLAMA, "pp_size": 2, "target_concurrency": 4})
    assert failing["msg"] == "gpus: left out, and nvidia-smi failed: NVIDIA-SMI has failed"
    assert run(SCHEDULER_ONLY)["memory"] is None, "no model, no need to ask"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pp_size": "eight"}, "argument 'pp_size' is of type str and we were unable to convert to int"),
        ({"gpus": {"count": 8}}, "missing required arguments: memory_mib found in gpus"),
        ({"measured": [{"concurrency": 1}]}, "missing required arguments: output_tokens_per_second found in measured"),
        ({"measured": "fast"}, "dictionary requested, could not parse JSON or key=value"),
        ({"model_config": [1]}, "argument 'model_config' is of type list and we were unable to convert to dict"),
        ({"strategy": "magic"}, "value of strategy must be one of: balanced, sglang_auto, uncapped, got: magic"),
        ({"model_config": {}, "model_path": "/x"}, "parameters are mutually exclusive: model_path|model_config"),
        ({"weight_bytes": 1}, "missing parameter(s) required by 'weight_bytes': model_config"),
        ({"model_config": {}}, "config.json: num_hidden_layers is missing"),
        ({"model_path": "/nowhere"}, "model_path: expected a directory on this host, /nowhere is none"),
        ({"pp_size": 0}, "pp_size: expected 1 to 4096, got 0"),
    ],
)
def test_one_clear_line(run: Runs, change: dict[str, Any], message: str) -> None:
    said = run({**SCHEDULER_ONLY, "gpus": {"count": 8, "memory_mib": 97887}, **change})
    assert said["failed"] is True
    assert message in said["msg"]
    assert "\n" not in said["msg"]
    assert "exception" not in said


# --- documentation ----------------------------------------------------------------------------------------------------

DOCUMENTATION = yaml.safe_load(pp_plan.DOCUMENTATION)
RETURN = yaml.safe_load(pp_plan.RETURN)


def options(documented: dict[str, Any]) -> dict[str, Any]:
    """Return documented options in the form of an argument spec."""
    spec: dict[str, Any] = {}
    for name, option in documented.items():
        entry = {key: value for key, value in option.items() if key in ("type", "default", "required", "elements")}
        if "choices" in option:
            entry["choices"] = list(option["choices"])
        if "suboptions" in option:
            entry["options"] = options(option["suboptions"])
        spec[name] = entry
    return spec


def without_no_log(spec: dict[str, Any]) -> dict[str, Any]:
    plain = {name: {key: value for key, value in entry.items() if key != "no_log"} for name, entry in spec.items()}
    return {
        name: {**entry, "options": without_no_log(entry["options"])} if "options" in entry else entry
        for name, entry in plain.items()
    }


def test_options_are_documented_as_they_are() -> None:
    assert options(DOCUMENTATION["options"]) == without_no_log(pp_plan.ARGUMENT_SPEC)


def test_documented_choices_of_the_cache_are_the_known_ones(run: Runs) -> None:
    for dtype in DOCUMENTATION["options"]["kv_cache_dtype"]["choices"]:
        assert run({**FIRST_USER, "kv_cache_dtype": dtype})["works"]


def compare(documented: dict[str, Any], returned: dict[str, Any], where: str = "") -> None:
    """Compare what is documented with what came back: keys, types, and whether null is spoken of."""
    kinds: dict[str, tuple[type, ...]] = {
        **{kind.__name__: (kind,) for kind in (dict, list, str, int, bool)},
        "float": (int, float),
    }
    assert set(documented) == set(returned), where
    for name, entry in documented.items():
        value: Any = returned[name]
        assert {"description", "returned", "type", "sample"} <= set(entry) or "contains" in entry, f"{where}{name}"
        if value is None:
            assert "null" in str(entry["description"]) or where, f"{where}{name}"
            continue
        assert isinstance(value, kinds[entry["type"]]), f"{where}{name}"
        if "contains" in entry:
            items: list[Any] = value if isinstance(value, list) else [value]
            for item in items:
                compare(entry["contains"], item, f"{where}{name}.")


@pytest.mark.parametrize("config", [KIMI, None])
def test_each_key_that_is_returned_is_documented(run: Runs, config: dict[str, Any] | None) -> None:
    plan = run({key: value for key, value in {**FIRST_USER, "model_config": config}.items() if value is not None})
    del plan["changed"]
    plan.pop("invocation", None)  # ansible-core 2.21 adds it on the other side
    compare(RETURN, plan)


def test_samples_are_those_of_the_first_user(run: Runs) -> None:
    plan = run(FIRST_USER)
    assert RETURN["args"]["sample"] == plan["args"]
    assert RETURN["environment"]["sample"] == plan["environment"]
    for section in ("scheduler", "memory", "throughput"):
        samples = {key: entry["sample"] for key, entry in RETURN[section]["contains"].items() if "sample" in entry}
        different = {key for key, value in samples.items() if plan[section][key] != value}
        assert different <= {"gpu_name", "weights_from", "measured", "left_out_error_percent"}, section


def test_examples_are_accepted(run: Runs) -> None:
    for task in yaml.safe_load(pp_plan.EXAMPLES):
        arguments = task.get("gpufleet.sglang.pp_plan")
        if arguments is None:
            continue
        arguments.pop("model_path", None)
        arguments.pop("model_config", None)
        assert run(arguments)["works"], task["name"]


def test_findings_are_documented() -> None:
    documented = str(RETURN["findings"]["contains"]["code"]["description"])
    plan = make_plan(Wishes(target_concurrency=60, pp_size=8, max_running_requests=60, strategy="sglang_auto"))
    for finding in result(plan)["findings"]:
        assert f"V({finding['code']})" in documented
