# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""What a running server says of itself at /server_info, and how that differs from a plan. Pure, apart from `ask`.

SGLang tells its arguments twice: as the process that takes the requests has them, and, under ``internal_states``, as
each scheduler (one for each data-parallel rank) resolved them. The second is what is in force.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.client import Answer, Client
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import argument_name
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.names import canonical
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import is_secret_name, without_secrets

# The newer name first. Before 0.5.6 there is the second only.
ENDPOINTS = ("/server_info", "/get_server_info")

# What stands among the arguments and is none. The command line repeats them, with the keys in a shell's spelling.
_NO_ARGUMENTS = frozenset(
    {
        "frontend",
        "hicache_object_layout",
        "internal_states",
        "kv_events",
        "launch_command",
        "max_req_input_len",
        "max_total_num_tokens",
        "startup_time",
        "status",
        "version",
    }
)

# A name of the cap in the answers of some releases, which plans may have taken over.
_OTHER_NAMES: Mapping[str, str] = {"max_micro_batch_size": "pp_max_micro_batch_size"}


class InfoError(ValueError):
    """A server did not tell what it runs with."""


@dataclass(frozen=True)
class ServerInfo:
    """The arguments of a server, and what each of its schedulers made of them; without secrets."""

    endpoint: str
    version: str
    arguments: Mapping[str, Any]
    states: tuple[Mapping[str, Any], ...]
    max_total_num_tokens: int | None = None
    extras: tuple[Mapping[str, Any], ...] = field(default=())
    """For each scheduler, what it adds to the arguments or has otherwise."""

    @property
    def pp_size(self) -> int:
        """The number of pipeline stages."""
        return int(self.arguments.get("pp_size") or 1)

    @property
    def slots(self) -> int:
        """The number of micro-batches that the scheduler goes round."""
        return self.pp_size + int(self.arguments.get("pp_async_batch_depth") or 0)

    @property
    def caps(self) -> list[int | None]:
        """pp_max_micro_batch_size as each scheduler has it now; None where a release does not tell."""
        return [_micro_batch(state) for state in self.states]

    @property
    def limits(self) -> list[int | None]:
        """The requests that each scheduler lets run at once; None where a release does not tell."""
        return [_running_requests(state) for state in self.states]

    @property
    def auto_cap(self) -> int | None:
        """The cap that SGLang takes by itself, which is also the largest that can be set while it runs."""
        known = [limit for limit in self.limits if limit is not None]
        return max(min(known) // self.pp_size, 1) if known else None


@dataclass(frozen=True)
class Difference:
    """An argument of a plan that is not in force. ``actual`` is None where the server has no such argument."""

    name: str
    expected: Any
    actual: Any


def ask(client: Client, timeout: float, secrets: tuple[str, ...]) -> ServerInfo:
    """What the server behind *client* says; *timeout* in seconds. Raises InfoError with one line."""
    answer, endpoint = Answer(), ""
    for endpoint in ENDPOINTS:
        answer = client.get(endpoint, timeout)
        if answer.status != 404:
            break
    if answer.status != 200:
        raise InfoError(f"{client.base_url}{endpoint}: {without_secrets(answer.text, secrets)}. {_advice(answer)}")
    try:
        return read_info(endpoint, answer.json(), secrets)
    except InfoError as error:
        raise InfoError(f"{client.base_url}{endpoint}: {error}") from None


def read_info(endpoint: str, body: Any, secrets: tuple[str, ...] = ()) -> ServerInfo:
    """The answer of *endpoint*, as JSON gives it. Raises InfoError with one line for the answer of something else."""
    content = without_secrets(body, secrets)
    states = content.get("internal_states") if isinstance(content, Mapping) else None
    if not isinstance(states, list) or not states or not all(isinstance(state, Mapping) for state in states):
        raise InfoError(
            "expected the arguments of an SGLang server with their internal_states, found another answer; is it an "
            "SGLang server that listens there? Correct host and port"
        )
    arguments = {name: value for name, value in content.items() if name not in _NO_ARGUMENTS}
    return ServerInfo(
        endpoint=endpoint,
        version=str(content.get("version", "")),
        arguments=arguments,
        states=tuple(states),
        max_total_num_tokens=_whole(content.get("max_total_num_tokens")),
        extras=tuple(
            {
                name: value
                for name, value in state.items()
                if name not in arguments or not _same(arguments[name], value) or name in _ALWAYS
            }
            for state in states
        ),
    )


def model_ids(body: Any) -> list[str]:
    """The models in an answer of /v1/models. A LoRA adapter has the base model as its parent and does not count."""
    cards = body.get("data") if isinstance(body, Mapping) else None
    cards = [card for card in cards if isinstance(card, Mapping)] if isinstance(cards, list) else []
    return [str(card["id"]) for card in cards if "id" in card and not card.get("parent")]


def differences(info: ServerInfo, plan: Mapping[str, Any]) -> list[Difference]:
    """What the plan's arguments ask for and the server does not do, in the plan's order and under its names.

    An argument with the value None is left to SGLang, and secrets are not compared. Raises ConfigError for what cannot
    be the name of an argument.
    """
    found = []
    for given, expected in plan.items():
        name = canonical(argument_name(given)).replace("-", "_")
        name = _OTHER_NAMES.get(name, name)
        if expected is None or is_secret_name(name):
            continue
        others = [actual for actual in _in_force(info, name) if not _same(expected, actual)]
        if others:
            found.append(Difference(given, expected, others[0]))
    return found


def _in_force(info: ServerInfo, name: str) -> Iterator[Any]:
    """The values of the argument in the schedulers."""
    for state in info.states:
        resolve = _RESOLVED.get(name)
        yield resolve(info, state) if resolve else state.get(name, info.arguments.get(name))


def _micro_batch(state: Mapping[str, Any]) -> int | None:
    return _whole(state.get("pp_max_micro_batch_size", state.get("max_micro_batch_size")))


def _running_requests(state: Mapping[str, Any]) -> int | None:
    return _whole(state.get("effective_max_running_requests_per_dp", state.get("max_running_requests")))


def _all_running_requests(info: ServerInfo, state: Mapping[str, Any]) -> int | None:
    """The argument is for all data-parallel ranks together, what is in force is for each. A remainder is dropped."""
    each = _running_requests(state)
    ranks = int(info.arguments.get("attn_dp_size") or info.arguments.get("dp_size") or 1)
    asked = _whole(info.arguments.get("max_running_requests"))
    if each is None or (asked is not None and asked // ranks == each):
        return asked
    return each * ranks


def _graph_batch(info: ServerInfo, state: Mapping[str, Any]) -> Any:
    """The largest batch of the CUDA graphs for decoding, wherever the release keeps it."""
    for name in ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"):
        value = state.get(name, info.arguments.get(name))
        if value is not None:
            return value
    config = state.get("cuda_graph_config", info.arguments.get("cuda_graph_config"))
    decode = config.get("decode") if isinstance(config, Mapping) else None
    return decode.get("max_bs") if isinstance(decode, Mapping) else None


_RESOLVED: Mapping[str, Callable[[ServerInfo, Mapping[str, Any]], Any]] = {
    "cuda_graph_max_bs": _graph_batch,
    "cuda_graph_max_bs_decode": _graph_batch,
    "max_running_requests": _all_running_requests,
    "pp_max_micro_batch_size": lambda _info, state: _micro_batch(state),
}
_ALWAYS = frozenset({"effective_max_running_requests_per_dp", "max_running_requests", "pp_max_micro_batch_size"})


def _advice(answer: Answer) -> str:
    if answer.error:
        return "Expected a running SGLang server there: look at its unit, and at host and port"
    if answer.status in (401, 403):
        return "Expected that the server takes the API key: give the one it was started with as api_key or in config"
    return "Expected HTTP 200 from an SGLang server: look at its journal, and at host and port"


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _plain(value: Any) -> Any:
    """A value as it is meant: arguments may be given as the text that a command line has."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _same(expected: Any, actual: Any) -> bool:
    one, other = _plain(expected), _plain(actual)
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
