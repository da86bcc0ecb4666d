# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Has the SGLang that is installed judge arguments, in its own Python (see _programs/server_args.py), and remembers it.

The keys of the server never leave this process: the program gets a word in their place.
"""

from __future__ import annotations

import glob
import grp
import hashlib
import importlib.util
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._programs import server_args as program
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.config import argument_name, is_secret_argument
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.releases import (
    ARGUMENTS,
    MODEL_CLASSES,
    Release,
    ReleaseError,
    parse_release,
)
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.releases import argument_name as name_in_release
from ansible_collections.gpufleet.sglang.plugins.module_utils._sglang.secrets import hide

PLACEHOLDER = "secret"
_KEPT = 100
_TIMED_OUT = 124
_TOP_LEVEL_KEY = re.compile(r"^(?P<key>(?:--)?[A-Za-z][A-Za-z0-9_-]*)[ \t]*:", re.MULTILINE)

# No GPU is in sight, nothing is fetched, and the cores stay with the server that runs.
_ENVIRONMENT: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


class EngineError(ValueError):
    """The program cannot be run."""


@dataclass(frozen=True)
class Finding:
    """One thing to tell of the arguments. ``argument`` is empty where it is about all of them."""

    code: str
    severity: str
    argument: str
    message: str
    advice: str


@dataclass(frozen=True)
class Judgement:
    """What SGLang says. ``asked`` is false where it could not be asked at all."""

    version: str
    findings: tuple[Finding, ...]
    asked: bool = True
    cached: bool = False

    @property
    def errors(self) -> list[Finding]:
        """What a start would fail of."""
        return [finding for finding in self.findings if finding.severity == "error"]


@dataclass(frozen=True)
class Question:
    """Arguments for an engine: a virtual environment, who runs it, with which variables, for how many seconds."""

    engine: str
    values: Mapping[str, Any]
    environment: Mapping[str, str]
    user: str | None = None
    timeout: float = 180


def masked(values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* with a word in the place of each of the server's keys."""
    return {
        name: ([PLACEHOLDER] * len(value) if isinstance(value, list) else PLACEHOLDER)
        if is_secret_argument(name)
        else value
        for name, value in values.items()
    }


def as_written(text: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """*values* under the names that a file has for them: SGLang takes pp-size there, and does not know pp_size."""
    written = {argument_name(key): key for key in _TOP_LEVEL_KEY.findall(text)}
    return {written.get(name, name): value for name, value in values.items()}


def judge(question: Question, secrets: Iterable[str]) -> Judgement:
    """Ask the engine. *secrets* appear in no finding. Raises EngineError with one line where there is no engine."""
    python = os.path.join(question.engine, "bin", "python")
    if not os.access(python, os.X_OK):
        raise EngineError(
            f"expected a virtual environment with SGLang, found no {python}; install it with the role "
            "gpufleet.sglang.sglang_engine, or correct engine"
        )
    said = _run(python, question)
    hidden = tuple(secrets)
    findings = tuple(
        Finding(**{key: hide(str(value), hidden) for key, value in finding.items()}) for finding in said["findings"]
    )
    version = str(said["version"])
    return Judgement(version, tuple(with_history(findings, version, said["architecture"])), bool(said["asked"]))


def _run(python: str, question: Question) -> dict[str, Any]:
    """What the program prints; where it does not come to that, the reason as a finding."""
    account = _account(question.user)
    directory = tempfile.mkdtemp(prefix="gpufleet-sglang-")
    try:
        source = os.path.join(directory, "server_args.py")
        with open(source, "w", encoding="utf-8") as stream:
            stream.write(program_source())
        if account:
            os.chown(directory, account["user"], account["group"])
            os.chown(source, account["user"], account["group"])
        # run_command knows no other user; timeout(1) also ends what the parser has started.
        ended = subprocess.run(  # pylint: disable=ansible-bad-function
            ["timeout", "--kill-after=5", f"{question.timeout:f}", python, "-s", source],  # noqa: S607 - by PATH
            input=json.dumps({"values": question.values}),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env=_environment(question.environment, directory),
            encoding="utf-8",
            check=False,
            **account,
        )
        said: dict[str, Any] = json.loads(ended.stdout)
    except OSError as error:
        reason = f"its Python does not run: {error}"
    except ValueError:
        if ended.returncode == _TIMED_OUT:
            reason = f"its parser did not answer within {question.timeout:g} s"
        else:
            reason = f"its parser ended with status {ended.returncode} and without an answer"
    else:
        return said
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    advice = f"run {python} -c 'import sglang.srt.server_args' to see more; the start of the server will tell"
    return program.result("", [program.not_checked(f"SGLang could not be asked: {reason}", advice)], asked=False)


def _account(user: str | None) -> dict[str, Any]:
    """The arguments of subprocess.run for another user than the one that runs this."""
    if user is None:
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise EngineError(f"user: expected a user of this host, found {user!r}") from None
    if entry.pw_uid == os.geteuid():
        return {}
    if os.geteuid() != 0:
        raise EngineError(f"user: expected to be root to run the parser as {user}; become root, or leave user out")
    groups = [group.gr_gid for group in grp.getgrall() if user in group.gr_mem]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


def _environment(own: Mapping[str, str], directory: str) -> dict[str, str]:
    """What the server will have, as far as it is given, in a place where nothing that is written stays."""
    places = dict.fromkeys(("HOME", "HF_HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TMPDIR"), directory)
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {"PATH": path, "LANG": "C.UTF-8", **own, **places, **_ENVIRONMENT}


def program_source() -> str:
    """The text of the program, also where Ansible has packed it into a zip file."""
    spec = importlib.util.find_spec(program.__name__)
    loader: Any = spec.loader if spec else None
    return str(loader.get_source(program.__name__))


# What the parser cannot know


def with_history(findings: Iterable[Finding], version: str, architecture: str | None) -> list[Finding]:
    """The findings, with what is known of other releases: since when, until when, under which name."""
    try:
        release = parse_release(version)
    except ReleaseError:
        return list(findings)
    return [_with_history(finding, release, architecture) for finding in findings]


def _with_history(finding: Finding, release: Release, architecture: str | None) -> Finding:
    if finding.code == "unknown_argument":
        return _renamed(finding, release)
    if finding.code == "no_pipeline_support" and architecture and architecture in MODEL_CLASSES:
        since = MODEL_CLASSES[architecture].pipeline_since
        return replace(finding, advice=f"install SGLang {since} or later, which can, or set pp-size to 1")
    return finding


def _renamed(finding: Finding, release: Release) -> Finding:
    name = finding.argument.replace("-", "_")
    for newest, entries in ARGUMENTS.items():
        for span in (entry.span for entry in entries if entry.name == name):
            now = (name_in_release(newest, release) or "").replace("_", "-")
            advice = f"write {now}" if now else "leave it out"
            if now and span.before and release >= parse_release(span.before):
                return replace(finding, message=f"{finding.message}, it is {now} since {span.before}", advice=advice)
            if span.since and release < parse_release(span.since):
                return replace(finding, message=f"{finding.message}, it came with {span.since}", advice=advice)
    return finding


# What was judged before


def fingerprint(question: Question) -> str:
    """The same for the same question to the same engine about the same model, and for no other."""
    sites = sorted(glob.glob(os.path.join(question.engine, "lib", "python3*", "site-packages")))
    records = [path for site in sites for path in sorted(glob.glob(os.path.join(site, "sglang-*.dist-info", "RECORD")))]
    asked = [
        program_source(),
        os.path.realpath(question.engine),
        # The directory changes with each package that comes or goes.
        [(path, os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in (*sites, *records)],
        question.values,
        question.environment,
        question.user,
        _model_config(question.values),
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _model_config(values: Mapping[str, Any]) -> str:
    path = str(values.get("model-path", values.get("model", "")))
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as stream:
            return stream.read()
    except (OSError, ValueError):
        return str(os.path.isdir(path))


def recall(cache: str, key: str) -> Judgement | None:
    """What was said to the same question before."""
    try:
        with open(os.path.join(cache, f"{key}.json"), encoding="utf-8") as stream:
            said = json.load(stream)
        return Judgement(said["version"], tuple(Finding(**finding) for finding in said["findings"]), cached=True)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def remember(cache: str, key: str, judgement: Judgement) -> None:
    """Keep what was said, where SGLang was asked and has nothing against it; what cannot be kept is asked again."""
    if not judgement.asked or judgement.errors:
        return
    try:
        os.makedirs(cache, mode=0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache, delete=False, encoding="utf-8") as stream:
            json.dump({"version": judgement.version, "findings": list(map(asdict, judgement.findings))}, stream)
        os.replace(stream.name, os.path.join(cache, f"{key}.json"))
        kept = sorted(glob.glob(os.path.join(cache, "*.json")), key=os.path.getmtime, reverse=True)
        for path in kept[_KEPT:]:
            os.unlink(path)
    except OSError:
        return
