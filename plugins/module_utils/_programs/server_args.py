# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Asks the SGLang of the Python that runs this whether it takes a set of arguments.

This is a program of its own, which needs nothing but SGLang. It reads one JSON object, {"values": {argument: value}},
from its standard input, and prints one (see `result`). It starts no server, looks at no GPU (that is for who starts it:
CUDA_VISIBLE_DEVICES is empty) and opens no connection.

Three things are asked, each only where the one before went well. Is each argument known, and its value of the right
kind? Does SGLang take them together, as far as it can tell here? Can the model's class be split into stages?
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

# What SGLang says when it misses the GPU that this program keeps from it, or libraries that only work with one.
_ABOUT_HARDWARE = re.compile(
    r"(?i)cuda|\bgpus?\b|nvidia|accelerator|--device|\bdevices?\b|\bsm_?\d+|compute capability|hopper|blackwell|kernel"
)
# Arguments without which a model cannot be looked at: what they alone lead to is not the others' fault.
_BASE = frozenset(
    {
        "device",
        "json_model_override_args",
        "load_format",
        "model_path",
        "revision",
        "tokenizer_path",
        "trust_remote_code",
    }
)


class RefusedError(Exception):
    """What a parser said before it would have ended the program."""


class Parser(argparse.ArgumentParser):
    """A parser that says what is wrong to its caller."""

    def error(self, message: str) -> NoReturn:
        """Raise RefusedError."""
        raise RefusedError(message)


def finding(code: str, severity: str, message: str, advice: str, argument: str = "") -> dict[str, str]:
    """One thing to tell; *argument* is the name of the one that it is about, where it is about one."""
    return {"code": code, "severity": severity, "argument": argument, "message": message, "advice": advice}


def not_checked(message: str, advice: str) -> dict[str, str]:
    """What could not be found out is told, and is no reason to refuse anything."""
    return finding("not_checked", "info", message, advice)


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """All findings about *values*, a value for each argument by its name without dashes in front."""
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        advice = "name a virtual environment that has SGLang"
        missing = "there is no SGLang in this Python environment"
        if importlib.util.find_spec("sglang") is None:
            return result("", [finding("no_sglang", "error", missing, advice)], asked=False)
        return result("", [not_checked(f"{missing} that tells its version", advice)], asked=False)
    try:
        with contextlib.suppress(ImportError):
            # Plugins can add arguments and choices.
            importlib.import_module("sglang.srt.plugins").load_plugins()
        sglang = importlib.import_module("sglang.srt.server_args")
        parser = Parser(prog="sglang", add_help=False)
        sglang.ServerArgs.add_cli_args(parser)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever goes wrong there is the engine's
        advice = "the start of the server will tell; look whether the engine is installed completely"
        problem = not_checked(f"the parser of SGLang {version} does not load: {one_line(error)}", advice)
        return result(version, [problem], asked=False)
    findings = check_each(parser, values)
    if any(found["severity"] == "error" for found in findings):
        return result(version, findings)
    given = {action.dest: value for name, value in values.items() if (action := find(options(parser), name))}
    architecture = model_class(given)
    findings += check_together(sglang, parser, values, given)
    findings += check_pipeline(Path(str(sglang.__file__)).parent / "models", given, architecture)
    return result(version, findings, architecture)


def result(
    version: str, findings: list[dict[str, str]], architecture: str | None = None, asked: bool = True
) -> dict[str, Any]:
    """What is printed: the release, whether its parser could be *asked*, the model's class where it is known."""
    return {"version": version, "asked": asked, "architecture": architecture, "findings": findings}


# Each argument by itself


def check_each(parser: argparse.ArgumentParser, values: Mapping[str, Any]) -> list[dict[str, str]]:
    """Names, kinds and choices; all that is wrong, where the parser would stop at the first."""
    known = options(parser)
    required = [action for action in known.values() if action.required]
    for needed in required:
        needed.required = False
    findings, given = [], set()
    for name, value in values.items():
        action = find(known, name)
        if action is None:
            findings.append(unknown(name, known))
            continue
        if name not in known:
            full = action.option_strings[0][2:]
            advice = f"write {full}"
            message = f"{name}: this release takes it for {full}, another may not"
            findings.append(finding("abbreviated_argument", "warning", message, advice, name))
        findings += check_value(parser, action, name, value)
        if words(action, name, value):  # of an empty list nothing gets to the command line
            given.add(id(action))
        if is_deprecated(action) and value is not False:
            findings.append(deprecated(action, name))
    for needed in {id(action): action for action in required}.values():
        needed.required = True
        if id(needed) not in given:
            name = needed.option_strings[0][2:]
            findings.append(finding("missing_argument", "error", f"{name}: expected a value, found none", "give it"))
    return findings


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """What each long option does, by its name without dashes in front."""
    actions = parser._actions  # noqa: SLF001 - there is no other way to ask
    return {option[2:]: action for action in actions for option in action.option_strings if option.startswith("--")}


def find(known: Mapping[str, argparse.Action], name: str) -> argparse.Action | None:
    """The action that argparse takes a name for: it may be cut short where only one begins like that."""
    if name in known:
        return known[name]
    candidates = [action for option, action in known.items() if option.startswith(name)]
    return candidates[0] if len(candidates) == 1 else None


def unknown(name: str, known: Mapping[str, argparse.Action]) -> dict[str, str]:
    """An argument that the release does not have, and the ones that may be meant."""
    ambiguous = [option for option in known if option.startswith(name)]
    near = ambiguous or difflib.get_close_matches(name, known, n=3, cutoff=0.75)
    advice = f"write {' or '.join(near)}" if near else "leave it out"
    return finding("unknown_argument", "error", f"{name}: this release has no such argument", advice, name)


def words(action: argparse.Action, name: str, value: Any) -> list[str]:
    """The command line that SGLang makes of a line in its config file."""
    if isinstance(value, bool):
        if action.nargs == 0:
            return [f"--{name}"] if value else []
        return [f"--{name}", str(value).lower()]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)] if value else []
    return [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]


def check_value(
    parser: argparse.ArgumentParser, action: argparse.Action, name: str, value: Any
) -> list[dict[str, str]]:
    """What the parser says to one argument alone."""
    try:
        parser.parse_args(words(action, name, value))
    except RefusedError as error:
        # "argument --pp-size: invalid int value: 'x'", or "unrecognized arguments: x" for values too many.
        where, _colon, said = str(error).partition(": ")
        said = said if where.startswith("argument") else ""
    except Exception as error:  # noqa: BLE001 - an argument's own action raises what it likes
        said = one_line(error)
    else:
        return []
    if action.nargs == 0:
        expected, advice = "true or false", "give one of them"
    elif action.choices:
        choices = list(map(str, action.choices))
        near = difflib.get_close_matches(str(value), choices, n=1)
        expected, advice = f"one of {', '.join(choices)}", f"give {near[0]}" if near else "give one of them"
    else:
        expected, advice = kind(action), "correct it"
        expected += f" ({said})" if said else ""
    message = f"{name}: expected {expected}, found {json.dumps(value, ensure_ascii=False)}"
    return [finding("invalid_value", "error", message, advice, name)]


def kind(action: argparse.Action) -> str:
    """What an argument takes, in words."""
    kinds: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text", None: "a text"}
    one = kinds.get(action.type, "another value")
    return {"+": f"one or more times {one}", "*": f"any number of times {one}"}.get(str(action.nargs), one)


def is_deprecated(action: argparse.Action) -> bool:
    """Whether the release says so, by its action or at the beginning of its help."""
    return "Deprecated" in type(action).__name__ or (action.help or "").lower().lstrip("([ ").startswith("deprecated")


def deprecated(action: argparse.Action, name: str) -> dict[str, str]:
    """An argument that a later release will not have."""
    instead = getattr(action, "new_flag", None)
    advice = f"use {str(instead).lstrip('-')}" if instead else " ".join((action.help or "leave it out").split())
    message = f"{name}: deprecated, a later release will refuse it"
    return finding("deprecated_argument", "warning", message, advice, name)


# All arguments together


def check_together(
    sglang: Any, parser: argparse.ArgumentParser, values: Mapping[str, Any], given: Mapping[str, Any]
) -> list[dict[str, str]]:
    """What SGLang refuses in what it was given as a whole, as far as it can be known without its GPUs."""
    known = options(parser)
    if "config" not in known:
        advice = "install SGLang 0.5.3 or later, or start it with a command line"
        return [finding("no_config_file", "error", "this release cannot be started from a server.yaml", advice)]
    if not os.path.isdir(str(given.get("model_path"))):
        advice = "have the model on the host first; the start of the server will tell"
        return [not_checked("whether the arguments fit together: the model is not a directory on this host", advice)]
    # Without the GPUs in sight, it would not know for what to decide.
    whole = {"device": "cuda", **values} if "device" in known and "device" not in given else dict(values)
    problem = construct(sglang, whole)
    if problem is None:
        return []
    refusal = refused(problem)
    base = {name: value for name, value in whole.items() if (action := find(known, name)) and action.dest in _BASE}
    alone = construct(sglang, base) if refusal else None
    if refusal and (alone is None or refused(alone) != refusal):
        return [finding("refused", "error", f"SGLang refuses these arguments: {refusal}", "change what it names")]
    advice = "nothing, where the host is fine; the start of the server will tell"
    return [
        not_checked(f"whether the arguments fit together, since SGLang came only so far: {one_line(problem)}", advice)
    ]


def construct(sglang: Any, values: Mapping[str, Any]) -> BaseException | None:
    """Do what a start of the server does up to the point where it would make processes; give what stopped it."""
    with config_file(values) as path:
        try:
            arguments = sglang.prepare_server_args(["--config", path])
            # From 0.5.22 on the constructor leaves everything as it was given.
            getattr(arguments, "resolve_once", lambda: None)()
            getattr(arguments, "check_server_args", lambda: None)()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is judged by the caller
            return error
    return None


@contextlib.contextmanager
def config_file(values: Mapping[str, Any]) -> Iterator[str]:
    """The values as a file that SGLang reads (JSON is YAML), for this user only."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as stream:
        json.dump(values, stream)
        stream.flush()
        yield stream.name


def refused(error: BaseException) -> str:
    """What SGLang said, where it was SGLang that refused, and not the host that has no GPU for it; else nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = "sglang" in Path(frames[-1].filename).parts or isinstance(error, (json.JSONDecodeError, RefusedError))
    said = one_line(error)
    if isinstance(error, (AssertionError, ValueError, NotImplementedError, RefusedError)) and own:
        return "" if _ABOUT_HARDWARE.search(said) else said
    return ""


def one_line(error: BaseException) -> str:
    """What an exception says. One without words is told by the line that raised it."""
    said = " ".join(str(error).split())
    if not said:
        frames = traceback.extract_tb(error.__traceback__)
        said = f"{type(error).__name__} at: {frames[-1].line}" if frames else type(error).__name__
    elif not isinstance(error, (AssertionError, ValueError, RefusedError)):
        said = f"{type(error).__name__}: {said}"
    return said[:600]


# The model's class


def model_class(given: Mapping[str, Any]) -> str | None:
    """The class of the model as its config.json names it; None where there is no such file."""
    try:
        config = json.loads((Path(str(given.get("model_path"))) / "config.json").read_text(encoding="utf-8"))
        return str(config["architectures"][0])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def check_pipeline(models: Path, given: Mapping[str, Any], architecture: str | None) -> list[dict[str, str]]:
    """Whether the model's class can be split into stages, where it is to be. SGLang looks after loading the weights."""
    stages = int(given.get("pp_size", 1))
    if stages < 2 or str(given.get("model_impl", "auto")) not in ("auto", "sglang"):
        return []
    takes = takes_proxy_tensors(models, architecture) if architecture else None
    if takes is None:
        advice = "the start of the server will tell, after the weights are loaded"
        reason = f"the source of {architecture} does not tell" if architecture else "no config.json tells its class"
        return [not_checked(f"whether the model can be split into stages: {reason}", advice)]
    if takes:
        return []
    message = f"pp-size {stages}: this release cannot split {architecture} into stages"
    advice = "use a release that can, or set pp-size to 1 and tp-size to the number of GPUs"
    return [finding("no_pipeline_support", "error", message, advice, "pp-size")]


def takes_proxy_tensors(models: Path, architecture: str) -> bool | None:
    """Whether ``forward`` of that class takes ``pp_proxy_tensors``, from the sources; None where they do not tell."""
    defines = re.compile(rf"^class {re.escape(architecture)}\b", re.MULTILINE)
    # Some names are used in several files; the file that offers the class to SGLang is the one that counts.
    offers = re.compile(rf"^EntryClass\b[^\]]*\b{re.escape(architecture)}\b", re.MULTILINE)
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(models.rglob("*.py"))}
    defining = [path for path, text in sources.items() if defines.search(text)]
    offering = [path for path in defining if offers.search(sources[path])] or defining
    return _class_takes(offering[0], architecture, depth=10) if len(offering) == 1 else None


def _class_takes(path: Path, name: str, depth: int) -> bool | None:
    """The same for a class in a file, or in what that file imports it from."""
    if depth == 0 or not path.is_file():
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _class_takes(path.parent / f"{(node.module or '').split('.')[-1]}.py", alias.name, depth - 1)
    definition = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if definition is None:
        return None
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == "forward":
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            return any(argument.arg == "pp_proxy_tensors" for argument in arguments)
    found = [_class_takes(path, base.id, depth - 1) for base in definition.bases if isinstance(base, ast.Name)]
    return next((takes for takes in found if takes is not None), None)


def forbid_connections() -> None:
    """Whatever would look for something elsewhere is told that there is no network."""

    def judge(event: str, _arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo"):
            raise OSError("no connections are made while arguments are checked")

    sys.addaudithook(judge)


def main() -> None:
    """Answer on what was the standard output; what SGLang prints goes to the standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    forbid_connections()
    setattr(argparse.ArgumentParser, "error", Parser.error)  # noqa: B010 - also of the parser that SGLang makes
    logging.disable(logging.CRITICAL)
    result = check(request["values"])
    with os.fdopen(answer, "w", encoding="utf-8") as stream:
        json.dump(result, stream)


if __name__ == "__main__":
    main()
