# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The GPUs of a host and who holds their memory, as ``nvidia-smi -q -x`` tells it. Pure, apart from `ask`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ansible_collections.gpufleet.sglang.plugins.module_utils._host.systemd import Runner

COMMAND = ("nvidia-smi", "-q", "-x")
NO_COMMAND = 127

_SIZE = re.compile(r"(\d{1,15})(?:\s*(B|KiB|MiB|GiB))?\Z")
_MIB = {"B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 2**10}


class GpuError(RuntimeError):
    """nvidia-smi is there and does not tell."""


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU; ``used_mib`` is None where the driver does not tell it, as for a process in a container."""

    pid: int
    used_mib: int | None
    command: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU; ``index`` is nvidia-smi's. What the driver does not tell is None or empty."""

    index: int
    uuid: str
    name: str
    total_mib: int | None
    used_mib: int | None
    processes: tuple[GpuProcess, ...] = ()


def ask(run: Runner) -> list[Gpu]:
    """The GPUs of the host; none where there is no nvidia-smi. Raises GpuError where it is there and fails."""
    status, output, error = run(list(COMMAND))
    # What the command is run with to bound its time says the same of a missing command as a shell does.
    if status == NO_COMMAND:
        return []
    if status != 0:
        said = (error.strip() or output.strip() or "no message").splitlines()[0]
        raise GpuError(f"{' '.join(COMMAND)} failed ({status}): {said[:200]}")
    return parse(output)


def parse(text: str) -> list[Gpu]:
    """The GPUs in what ``nvidia-smi -q -x`` printed. Raises GpuError for anything else."""
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - the driver's own words, not those of a stranger
    except (ElementTree.ParseError, ValueError) as error:
        raise GpuError(f"expected XML from {' '.join(COMMAND)}: {error}; it began with {text[:80]!r}") from None
    if root.tag != "nvidia_smi_log":
        raise GpuError(f"expected a nvidia_smi_log from {' '.join(COMMAND)}, found {root.tag[:80]!r}")
    return [_gpu(index, element) for index, element in enumerate(root.findall("gpu"))]


def visible(gpus: Sequence[Gpu], devices: str) -> list[Gpu]:
    """The GPUs that a process with that CUDA_VISIBLE_DEVICES has, in its order.

    As in CUDA, a UUID may be cut short, and what names no GPU ends the list.
    """
    chosen: list[Gpu] = []
    for word in (part.strip() for part in devices.split(",")):
        found = [gpu for gpu in gpus if _is_named(gpu, word)]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return chosen


def _is_named(gpu: Gpu, word: str) -> bool:
    if word.isascii() and word.isdigit():
        return gpu.index == int(word)
    return word.startswith("GPU-") and gpu.uuid.startswith(word)


def _gpu(index: int, element: ElementTree.Element) -> Gpu:
    processes = (_process(entry) for entry in element.findall("processes/process_info"))
    return Gpu(
        index=index,
        uuid=_text(element, "uuid"),
        name=_text(element, "product_name"),
        total_mib=_mib(_text(element, "fb_memory_usage/total")),
        used_mib=_mib(_text(element, "fb_memory_usage/used")),
        processes=tuple(process for process in processes if process is not None),
    )


def _process(element: ElementTree.Element) -> GpuProcess | None:
    pid = _text(element, "pid")
    if not (pid.isascii() and pid.isdigit() and len(pid) < 10):
        return None
    return GpuProcess(int(pid), _mib(_text(element, "used_memory")), _text(element, "process_name"))


def _text(element: ElementTree.Element, path: str) -> str:
    return " ".join((element.findtext(path) or "").split())


def _mib(text: str) -> int | None:
    """A size in MiB; None for ``N/A``, ``[Insufficient Permissions]`` and whatever else stands in its place."""
    match = _SIZE.match(text)
    return int(int(match[1]) * _MIB[match[2] or "MiB"]) if match else None
