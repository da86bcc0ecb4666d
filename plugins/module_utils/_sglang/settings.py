# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What the user asked for: the variables of an inventory become arguments, environment, secrets and options of a plan.

What the user names wins over the plan, and the plan wins over SGLang's own values. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import (
    ConfigError,
    is_secret_argument,
    is_secret_variable,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import (
    argument_name as spelled,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.names import canonical

PREFIX = "sglang_server_"
PARTITION_VARIABLE = "SGLANG_PP_LAYER_PARTITION"

# Options of pp_plan that are arguments of SGLang, under its names.
PLAN_ARGUMENTS = (
    "nnodes",
    "pp_size",
    "tp_size",
    "dp_size",
    "max_running_requests",
    "pp_max_micro_batch_size",
    "pp_async_batch_depth",
    "mem_fraction_static",
    "kv_cache_dtype",
    "context_length",
    "chunked_prefill_size",
)
# Options of pp_plan that are variables of the inventory.
PLAN_VARIABLES: Mapping[str, str] = {
    "gpus": "sglang_server_gpus",
    "target_concurrency": "sglang_server_target_concurrency",
    "strategy": "sglang_server_plan_strategy",
    "layer_balance": "sglang_server_plan_layer_balance",
    "sglang_version": "sglang_engine_version",
}
# Arguments that have a variable of their own. Those below "sglang_server_args" win.
ARGUMENT_VARIABLES: Mapping[str, str] = {
    "model-path": "sglang_server_model_path",
    "served-model-name": "sglang_server_served_model_name",
    "host": "sglang_server_host",
    "port": "sglang_server_port",
}
SECRET_VARIABLES: Mapping[str, str] = {
    "api-key": "sglang_server_api_key",
    "admin-api-key": "sglang_server_admin_api_key",
}


def argument_name(name: str) -> str:
    """The one name of an argument. Raises ConfigError for what cannot be one."""
    return canonical(spelled(name))


class SettingsError(ValueError):
    """What the user asked for contradicts itself, or cannot be asked for in this way. One line, without a secret."""


@dataclass(frozen=True)
class Settings:
    """What a server is started with, and what its plan is made from.

    ``arguments`` have the names of server.yaml (``pp-size``); a null leaves the argument to SGLang. ``plan`` has the
    options of the module pp_plan that were given. ``sources`` says where each of the four has each of its names from:
    ``{"arguments": {"tp-size": "sglang_server_args.tensor_parallel_size"}, ...}``.
    """

    arguments: dict[str, Any]
    environment: dict[str, Any]
    secret_arguments: dict[str, Any]
    secret_environment: dict[str, Any]
    plan: dict[str, Any]
    pp_size: int
    sources: dict[str, dict[str, str]]

    def to_dict(self) -> dict[str, Any]:
        """The form in which the filter returns it."""
        return asdict(self)


def settings(
    given: Mapping[str, Any], planned: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
) -> Settings:
    """Say what the variables *given* ask for, by their names; those that are not there or empty ask for nothing.

    ``planned`` is what pp_plan returned (``args`` and ``environment``), and ``options`` are options for pp_plan that
    win over those of the variables. Raises SettingsError.
    """
    variables = {name: value for name, value in given.items() if value not in (None, "", {})}
    plan_made = planned or {}
    own = _own_arguments(_mapping(variables, PREFIX + "args"))
    environment = _mapping(variables, PREFIX + "environment")

    arguments: dict[str, tuple[Any, str]] = {
        name: (variables[variable], variable) for name, variable in ARGUMENT_VARIABLES.items() if variable in variables
    }
    if "port" in arguments:
        arguments["port"] = (_whole(*arguments["port"]), arguments["port"][1])
    arguments.update({argument_name(name): (value, "the plan") for name, value in plan_made.get("args", {}).items()})
    arguments.update(own)
    secrets = {
        name: (variables[variable], variable) for name, variable in SECRET_VARIABLES.items() if variable in variables
    }
    secrets.update({name: arguments.pop(name) for name in list(arguments) if is_secret_argument(name)})

    variables_set = {name: (value, "the plan") for name, value in plan_made.get("environment", {}).items()}
    variables_set.update({str(name): (value, f"{PREFIX}environment.{name}") for name, value in environment.items()})
    hidden = {name: variables_set.pop(name) for name in list(variables_set) if is_secret_variable(name)}

    plan = _plan_options(variables, own, environment)
    plan.update({name: (value, f"sglang_plan_{name}") for name, value in (options or {}).items()})
    parts = {
        "arguments": arguments,
        "environment": variables_set,
        "secret_arguments": secrets,
        "secret_environment": hidden,
        "plan": plan,
    }
    values = {part: {name: pair[0] for name, pair in found.items()} for part, found in parts.items()}
    sources = {part: {name: pair[1] for name, pair in found.items()} for part, found in parts.items()}
    pp_size = _whole(*plan["pp_size"]) if plan.get("pp_size") else 1
    return Settings(**values, pp_size=pp_size, sources=sources)


def _own_arguments(asked: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """The arguments in sglang_server_args under one spelling, each with the one that was given."""
    found: dict[str, tuple[Any, str]] = {}
    for given, value in asked.items():
        source = f"{PREFIX}args.{given}"
        try:
            name = argument_name(given)
        except ConfigError as error:
            raise SettingsError(f"{PREFIX}args: {error}") from None
        if name in SECRET_VARIABLES:
            raise SettingsError(f"{source}: keys belong into {SECRET_VARIABLES[name]}, where no output shows them")
        if name == "config":
            raise SettingsError(f"{source}: there is one config file only, the one that the role writes")
        if name in found and not _same(found[name][0], value):
            told = "" if is_secret_argument(name) else f" ({found[name][0]!r} and {value!r})"
            raise SettingsError(
                f"{found[name][1]} and {source} are the same argument with different values{told}: give one of them"
            )
        found.setdefault(name, (value, source))
    return found


def _plan_options(
    variables: Mapping[str, Any], own: Mapping[str, tuple[Any, str]], environment: Mapping[str, Any]
) -> dict[str, tuple[Any, str]]:
    """What pp_plan has to know. On a CPU memory is not divided as on GPUs: there, only the scheduler is planned."""
    model = own.get("model-path") or (variables.get(PREFIX + "model_path"), PREFIX + "model_path")
    on_cpu = own.get("device", (None, ""))[0] == "cpu"
    plan = {"model_path": model} if model[0] and not on_cpu else {}
    for option, variable in PLAN_VARIABLES.items():
        if variables.get(variable) not in (None, 0, "0"):
            plan[option] = (variables[variable], variable)
    for option in PLAN_ARGUMENTS:
        asked = own.get(argument_name(option))
        if asked is not None and asked[0] is not None:
            plan[option] = asked
    if environment.get(PARTITION_VARIABLE):
        plan["layer_partition"] = (environment[PARTITION_VARIABLE], f"{PREFIX}environment.{PARTITION_VARIABLE}")
    return plan


def _mapping(variables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = variables.get(name, {})
    if not isinstance(value, Mapping):
        raise SettingsError(f"{name}: expected a mapping of names to values, found {type(value).__name__}")
    return value


def _whole(value: Any, source: str) -> int:
    text = "" if isinstance(value, bool) else str(value).strip()
    if not (text.isascii() and text.isdigit()):
        raise SettingsError(f"{source}: expected a whole number, found {value!r}")
    return int(text)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one for SGLang, which reads text: 4 and '4' are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other) or str(one) == str(other)
