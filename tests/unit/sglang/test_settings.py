# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the variables of an inventory ask for, in whichever spelling."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.names import ALIASES
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.settings import SettingsError, settings


def asked(args: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"sglang_server_args": args, **{f"sglang_server_{name}": value for name, value in more.items()}}


def test_aliases_reach_the_plan_and_win_over_it() -> None:
    given = asked({"pipeline_parallel_size": 4, "tensor_parallel_size": 2})
    plan = settings(given).plan
    assert (plan["pp_size"], plan["tp_size"]) == (4, 2)
    result = settings(given, {"args": {"pp_size": 4, "tp_size": 1}, "environment": {}})
    assert result.arguments == {"pp-size": 4, "tp-size": 2}
    assert result.sources["arguments"]["tp-size"] == "sglang_server_args.tensor_parallel_size"


def test_dashes_reach_the_plan() -> None:
    plan = settings(asked({"pp-size": 4, "tp-size": 2, "kv-cache-dtype": "fp8_e4m3"})).plan
    assert plan == {"pp_size": 4, "tp_size": 2, "kv_cache_dtype": "fp8_e4m3"}


def test_variables_reach_the_plan() -> None:
    given = asked({}, plan_strategy="uncapped", plan_layer_balance="latency", gpus={"count": 2}, target_concurrency=0)
    assert settings(given).plan == {"strategy": "uncapped", "layer_balance": "latency", "gpus": {"count": 2}}


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_two_spellings_with_different_values_are_an_error_that_names_both(alias: str, name: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings(asked({alias: 4, name.replace("-", "_"): 8}))
    assert f"sglang_server_args.{alias} " in str(error.value)
    assert f"sglang_server_args.{name.replace('-', '_')} " in str(error.value)
    assert settings(asked({alias: 4, name: "4"})).arguments == {name: 4}


def test_secrets_stay_apart() -> None:
    given = asked(
        {"ssl_keyfile_password": "one"}, api_key="two", environment={"HF_TOKEN": "three", "CUDA_VISIBLE_DEVICES": "0"}
    )
    result = settings(given)
    assert result.secret_arguments == {"api-key": "two", "ssl-keyfile-password": "one"}
    assert result.secret_environment == {"HF_TOKEN": "three"}
    assert (result.arguments, result.environment) == ({}, {"CUDA_VISIBLE_DEVICES": "0"})
    assert not {"one", "two", "three"} & {text for part in result.sources.values() for text in part.values()}


@pytest.mark.parametrize("name", ["api_key", "--api-key", "admin-api-key"])
def test_a_key_among_the_arguments_is_refused_without_showing_it(name: str) -> None:
    with pytest.raises(SettingsError, match="keys belong into sglang_server_") as error:
        settings(asked({name: "hunter2"}))
    assert "hunter2" not in str(error.value)


def test_different_secrets_are_not_shown() -> None:
    with pytest.raises(SettingsError) as error:
        settings(asked({"ssl_keyfile_password": "hunter2", "ssl-keyfile-password": "other3"}))
    assert "hunter2" not in str(error.value)
    assert "other3" not in str(error.value)


def test_null_leaves_an_argument_to_sglang_whatever_is_planned() -> None:
    result = settings(asked({"mem-fraction-static": None}), {"args": {"mem_fraction_static": 0.9}})
    assert result.arguments == {"mem-fraction-static": None}


def test_on_a_cpu_memory_is_not_planned() -> None:
    assert "model_path" not in settings(asked({"device": "cpu"}, model_path="/models/tiny")).plan
