# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wheel directory: real SGLang for CPUs, as files, so that a host can install it without an index.

Inputs are in tests/support/sglang-cpu: requirements.in and requirements-nodeps.in say what is wanted, requirements.lock
(written by `lock`) pins the closed set. pip is used as it is configured on this machine, whatever its index is.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path

from .cache import Cache, appearing, digest
from .shell import TestHostsError, run, say

INPUTS = Path(__file__).resolve().parents[1] / "sglang-cpu"
LOCK = "requirements.lock"
SHIM = ("shim/pyproject.toml", "shim/torchvision_schemas.py")
PYTHON = (3, 11)
_GLIBC_MINOR = 36  # bookworm's glibc is 2.36

_LOCK_HEADER = """\
# Real SGLang on a CPU with everything that it needs: a closed set, to be installed with --no-deps.
# Written by `tests/support/testhosts lock` from requirements.in and requirements-nodeps.in.
"""


def key() -> str:
    """Changes with everything that the wheel directory is made from."""
    return digest((INPUTS / name).read_bytes() for name in (LOCK, *SHIM))


def directory(cache: Cache) -> Path:
    """Where the wheels are, or would be."""
    return cache.wheels(key())


def target_arguments() -> list[str]:
    """pip's arguments for wheels of the hosts' Python and C library, whatever this machine has."""
    tag = f"cp{PYTHON[0]}{PYTHON[1]}"
    # pip takes a newer manylinux tag literally; it does not know that the older ones fit, too.
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC_MINOR, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64", "any"]
    return [
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={PYTHON[0]}.{PYTHON[1]}",
        *(f"--abi={abi}" for abi in (tag, "abi3", "none")),
        *(f"--platform={platform}" for platform in platforms),
    ]


def pin(name: str, version: str) -> str:
    """`name==version`, the name as indexes write it; the local part of a version (`+cpu`) is left out."""
    return f"{re.sub('[-_.]+', '-', name).lower()}=={version.split('+')[0]}"


def pins(wheels: Iterable[str]) -> list[str]:
    """The pins of wheels with these file names."""
    return sorted(pin(*wheel.split("-")[:2]) for wheel in wheels)


def not_locked(requirements: Iterable[str], locked: Iterable[str]) -> list[str]:
    """The requirements of a wheel (values of Requires-Dist) for other packages than the locked ones (pins).

    Markers are dropped, extras left out: this is for requirements that hold on Linux.
    """
    names = {line.partition("==")[0] for line in locked}
    found = []
    for requirement in requirements:
        wanted, _semicolon, marker = requirement.partition(";")
        name = re.match(r"[\w.-]+", wanted)
        if name and pin(name[0], "").rstrip("=") not in names and "extra ==" not in marker:
            found.append(wanted.strip())
    return found


def _cuda_requirements(wheels: Path) -> list[str]:
    """What the general build of torch needs to be imported, GPU or not; nothing for a CPU build."""
    (torch,) = wheels.glob("torch-*.whl")
    with zipfile.ZipFile(torch) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        requirements = HeaderParser().parsestr(wheel.read(metadata).decode()).get_all("Requires-Dist", [])
    return not_locked(requirements, pins(path.name for path in wheels.glob("*.whl")))


def fill(cache: Cache) -> Path:
    """Download what is missing; returns the complete directory."""
    target = directory(cache)
    with cache.locked("wheels"):
        if target.is_dir():
            return target
        say(f"filling the wheel directory {target} (0.6 GB)")
        with _pip() as pip, appearing(target) as draft:
            download = [*pip, "download", "--quiet", f"--dest={draft}", *target_arguments()]
            run([*download, "--no-deps", f"--requirement={INPUTS / LOCK}"])
            cuda = _cuda_requirements(draft)
            if cuda:
                say("pip's index has the general build of torch: its CUDA libraries come, too (2 GB more)")
                run([*download, f"--constraint={INPUTS / LOCK}", *cuda])
            _build_shim(pip, draft)
            complete = pins(path.name for path in draft.glob("*.whl"))
            (draft / LOCK).write_text(_LOCK_HEADER + "\n".join(complete) + "\n")
    return target


def _build_shim(pip: Sequence[str], target: Path) -> None:
    # From a copy: building leaves files beside the source.
    with tempfile.TemporaryDirectory(prefix="testhosts-") as room:
        for name in SHIM:
            shutil.copy(INPUTS / name, room)
        run([*pip, "wheel", "--quiet", "--no-deps", f"--wheel-dir={target}", room])


def lock() -> Path:
    """Resolve the requirements anew and write the lock file. Markers are judged by the Python that runs this."""
    if sys.version_info[:2] != PYTHON:
        raise TestHostsError(f"`testhosts lock` has to run with Python {PYTHON[0]}.{PYTHON[1]}, as the hosts do")
    resolve = ["install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--report=-"]
    found: list[str] = []
    with _pip() as pip:
        for arguments in (["requirements.in"], ["requirements-nodeps.in", "--no-deps"]):
            name, *options = arguments
            report = json.loads(run([*pip, *resolve, *options, f"--requirement={INPUTS / name}"]))
            found += [pin(item["metadata"]["name"], item["metadata"]["version"]) for item in report["install"]]
    path = INPUTS / LOCK
    path.write_text(_LOCK_HEADER + "\n".join(sorted(found)) + "\n")
    return path


@contextmanager
def _pip() -> Iterator[list[str]]:
    """pip of a virtual environment that is thrown away: this machine's Python may have none, or may not lend it."""
    with tempfile.TemporaryDirectory(prefix="testhosts-") as room:
        run([sys.executable, "-m", "venv", room])
        yield [str(Path(room, "bin/python")), "-m", "pip", "--disable-pip-version-check"]
