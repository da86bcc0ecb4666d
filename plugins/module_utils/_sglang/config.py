# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The two files that an SGLang server is started with: server.yaml (``--config``) and the environment file.

Both are written with one value a line, so that a diff reads per key, and both can be read back.
server.yaml holds JSON values behind plain keys: each such line is YAML, and reading it needs no YAML library.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

HIDDEN = "<secret>"
HIDDEN_CHANGED = "<secret, changed>"

# YAML takes some words as a boolean or as nothing, and SGLang has no argument of such a name.
_ARGUMENT = re.compile(r"(?!(?:yes|no|on|off|true|false|null)\Z)[a-z][a-z0-9_-]*\Z", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_YAML_LINE = re.compile(r"(?P<key>[A-Za-z][A-Za-z0-9-]*): (?P<value>.+)\Z")
_ENVIRONMENT_LINE = re.compile(r'(?P<key>[A-Za-z_][A-Za-z0-9_]*)="(?P<value>(?:[^"\\]|\\.)*)"\Z', re.DOTALL)
_NEGATIVE_NUMBER = re.compile(r"-\d+\Z|-\d*\.\d+\Z")
# What YAML does not take as it is inside a quoted string, although JSON does.
_NOT_PRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SECRET_VARIABLE = re.compile(r"(?:\A|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|\Z)", re.IGNORECASE)
_SECRET_ARGUMENTS = frozenset({"api-key", "admin-api-key", "ssl-keyfile-password"})


class ConfigError(ValueError):
    """A value that SGLang or systemd would not read back as it was given, or a file that cannot be read."""


@dataclass(frozen=True)
class Format:
    """How one kind of file is written, read, and which of its keys are secrets whoever gives them."""

    dump: Callable[[Mapping[str, Any]], str]
    load: Callable[[str], dict[str, Any]]
    normalize: Callable[[Mapping[str, Any]], dict[str, Any]]
    is_secret: Callable[[str], bool]


def argument_name(name: str) -> str:
    """The spelling of an argument in server.yaml; ``pp_size``, ``pp-size`` and ``--pp-size`` are one argument."""
    key = str(name)
    key = (key.removeprefix("--")).replace("_", "-")
    if not _ARGUMENT.match(key):
        raise ConfigError(
            f"{name!r} is not the name of an SGLang argument: expected letters, digits, '-' and '_', as in pp_size"
        )
    return key


def server_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under one spelling, sorted. A null leaves the argument out, that is, to SGLang."""
    arguments: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name in values:
        key = argument_name(name)
        if key in spelled:
            raise ConfigError(f"{spelled[key]!r} and {name!r} are the same SGLang argument: give one of them")
        spelled[key] = name
        # Before 0.5.23 a mapping would arrive as Python prints it; arguments that take one take JSON.
        arguments[key] = _as_json_text(key, values[name]) if isinstance(values[name], dict) else values[name]
    return {key: arguments[key] for key in sorted(arguments) if arguments[key] is not None}


def dump_server_yaml(values: Mapping[str, Any]) -> str:
    """The text of server.yaml: sorted, an argument a line, its value as JSON."""
    arguments = server_arguments(values)
    for key, value in arguments.items():
        _check_argument(key, value)
    text = "".join(f"{key}: {_as_json(value)}\n" for key, value in arguments.items()) or "{}\n"
    if _SURROGATE.search(text):
        raise ConfigError("a value holds half of a surrogate pair, which no file can hold")
    return text


def load_server_yaml(text: str) -> dict[str, Any]:
    """The arguments in a server.yaml that `dump_server_yaml` wrote; one written by hand needs PyYAML to be read."""
    try:
        return _load_lines(text)
    except ValueError:
        return _load_by_library(text)


def environment_variables(values: Mapping[str, Any]) -> dict[str, Any]:
    """The variables as text, sorted. A null leaves the variable out; true and false become ``1`` and ``0``."""
    variables = {}
    for name in sorted(values, key=str):
        value = values[name]
        if value is None:
            continue
        if not _VARIABLE.match(str(name)):
            raise ConfigError(f"{name!r} is not the name of an environment variable")
        if isinstance(value, bool):
            value = int(value)
        elif not isinstance(value, (str, int, float)):
            raise ConfigError(f"environment variable {name}: expected text or a number, found {_kind(value)}")
        text = str(value)
        if "\0" in text or "\n" in text:
            raise ConfigError(f"environment variable {name}: a value of one line is needed")
        variables[str(name)] = text
    return variables


def dump_environment(values: Mapping[str, Any]) -> str:
    """The text of an ``EnvironmentFile=``: sorted, a variable a line, quoted so that systemd takes it literally."""
    return "".join(
        '{}="{}"\n'.format(name, re.sub(r'(["\\`$])', r"\\\1", text))
        for name, text in environment_variables(values).items()
    )


def load_environment(text: str) -> dict[str, Any]:
    """The variables in a file that `dump_environment` wrote."""
    variables = {}
    for line in text.split("\n")[:-1]:
        match = _ENVIRONMENT_LINE.match(line)
        if not match:
            raise ConfigError("the environment file was not written by this collection")
        variables[match["key"]] = re.sub(r"\\(.)", r"\1", match["value"])
    return variables


def is_secret_argument(name: str) -> bool:
    """Whether an argument in server.yaml is a secret whoever gives it (0.4.6 to 0.5.23)."""
    return name in _SECRET_ARGUMENTS


def is_secret_variable(name: str) -> bool:
    """Whether a variable holds a secret, by its name: HF_TOKEN, AWS_SECRET_ACCESS_KEY, ..."""
    return bool(_SECRET_VARIABLE.search(name))


FORMATS: dict[str, Format] = {
    "server_yaml": Format(dump_server_yaml, load_server_yaml, server_arguments, is_secret_argument),
    "environment": Format(dump_environment, load_environment, environment_variables, is_secret_variable),
}


def public_diff(
    form: Format, before: Mapping[str, Any], after: Mapping[str, Any], secret_keys: frozenset[str]
) -> tuple[str, str]:
    """Both sides of a diff without the secrets; a secret that changed shows that it changed."""

    def hidden(key: str) -> bool:
        return key in secret_keys or form.is_secret(key)

    shown_before = {key: HIDDEN if hidden(key) else value for key, value in before.items()}
    shown_after = dict(after)
    for key in filter(hidden, after):
        shown_after[key] = HIDDEN_CHANGED if key in before and before[key] != after[key] else HIDDEN
    return form.dump(shown_before), form.dump(shown_after)


def _check_argument(key: str, value: Any) -> None:
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, (str, int, float)):
            raise ConfigError(f"{key}: expected text, a number, true or false, found {_kind(item)}")
        # SGLang hands the file to argparse as a command line, where such a word is taken for the next option.
        if isinstance(item, str) and item.startswith("-") and " " not in item and not _NEGATIVE_NUMBER.match(item):
            raise ConfigError(f"{key}: a value that begins with '-' cannot pass through SGLang's --config")
        if isinstance(item, float) and not math.isfinite(item):
            raise ConfigError(f"{key}: expected a finite number, found {item}")


def _as_json(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_as_json(item) for item in value) + "]"
    if isinstance(value, float):
        # YAML 1.1 takes an exponent for a number only behind a decimal point.
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_PRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _as_json_text(key: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: cannot be written as JSON: {error}") from None


def _load_lines(text: str) -> dict[str, Any]:
    if text == "{}\n":
        return {}
    arguments: dict[str, Any] = {}
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        match = _YAML_LINE.match(line)
        if not match or match["key"] in arguments:
            raise ValueError(line)
        arguments[match["key"]] = json.loads(match["value"])
    return arguments


def _load_by_library(text: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            "server.yaml was not written by this collection, and reading it needs the Python library PyYAML"
        ) from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"server.yaml is not YAML: {str(error).splitlines()[0]}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"server.yaml: expected a mapping of arguments, found {_kind(content)}")
    return server_arguments(content)


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", bool: "true or false", type(None): "nothing"}.get(
        type(value), f"a value of type {type(value).__name__}"
    )
