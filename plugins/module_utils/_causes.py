# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""Why a server did not come up: one table of causes, and the rule that picks one. Pure.

Lines are those of SGLang 0.4.6 to 0.5.23, its libraries and systemd. The first line in time that names a cause wins:
what follows a cause is its noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._journal import Entry
from ansible_collections.gpufleet.sglang.plugins.module_utils._systemd import EXIT_NAMES, Unit

EVIDENCE_LINES = 12
"""Lines of the journal that a failure carries at most."""


@dataclass(frozen=True)
class Cause:
    """A code that stays the same from release to release, what happened, and what to change.

    A ``general`` cause is a frame around another one, which it gives way to wherever there is one.
    """

    code: str
    summary: str
    advice: str
    patterns: tuple[str, ...] = ()
    general: bool = False


CAUSES: tuple[Cause, ...] = (
    Cause(
        "bad_argument",
        "SGLang does not take an argument in server.yaml",
        "Correct it in sglang_server_args. Names and values are those of the installed release: "
        "'python -m sglang.launch_server --help' lists them.",
        (
            r"error: unrecognized arguments: ",
            r"error: ambiguous option: ",
            r"error: argument .+: (?:invalid|expected)",
            r"error: the following arguments are required: ",
            r"Unsupported config option '.+' with action ",
            r"pp_max_micro_batch_size must be a positive integer",
        ),
    ),
    Cause(
        "config_unreadable",
        "SGLang cannot read server.yaml",
        "Look at the owner and the mode of the file, and run the role again to write it anew.",
        (
            r"Config file not found: ",
            r"Config file must (?:be YAML|contain a dictionary)",
            r"Failed to read config file ",
            r"PermissionError: .*server\.yaml",
        ),
    ),
    Cause(
        "bad_layer_partition",
        "SGLANG_PP_LAYER_PARTITION does not fit the model and pp_size",
        "Give one number for each pipeline stage; their sum is the number of the model's layers.",
        (r"len\(partitions\)=\d+ does not match pp_size=", r"sum\(partitions\)=\d+ does not match num_hidden_layers="),
    ),
    Cause(
        "pp_unsupported",
        "this release of SGLang cannot serve this model with pipeline parallelism",
        "Set sglang_engine_version to a newer release, or pp_size to 1.",
        (
            r"Pipeline Parallel is not compatible with this model",
            r"Pipeline parallelism is not compatible with .*speculative",
        ),
    ),
    Cause(
        "model_unsupported",
        "this release of SGLang does not know this kind of model",
        "Set sglang_engine_version to a release that has it, or correct sglang_server_model_path.",
        (
            r"Model architectures .+ are not supported",
            r"does not recognize this architecture",
            r"Unrecognized model in ",
        ),
    ),
    Cause(
        "model_incomplete",
        "the model directory lacks weights",
        "Bring the missing files to sglang_server_model_path.",
        (
            r"Cannot find any model weights with ",
            r"SafetensorError|Error while deserializing header",
            r"No such file or directory: '[^']+\.safetensors",
            r"Missing .*shard|shards? .*(?:missing|not found)",
        ),
    ),
    Cause(
        "model_not_found",
        "SGLang finds no model at model-path",
        "Correct sglang_server_model_path: a directory with a config.json that the service user can read.",
        (
            r"does not appear to have a file named config\.json",
            r"Repo id must (?:be|use)",
            r"HFValidationError",
            r"LocalEntryNotFoundError",
            r"OfflineModeIsEnabled",
            r"is not a local folder and is not a valid model identifier",
            r"couldn't connect to .+ to load the files",
            r"Can't load (?:the )?(?:configuration|model|tokenizer)",
        ),
    ),
    Cause(
        "gpu_out_of_memory_at_load",
        "the weights leave no GPU memory for the KV cache",
        "Raise mem_fraction_static in sglang_server_args, or split the layers better (SGLANG_PP_LAYER_PARTITION).",
        (
            r"Not enough memory\. Please try to increase --mem-fraction-static",
            r"Loaded weights leave no GPU memory for the KV cache",
        ),
    ),
    Cause(
        "gpu_out_of_memory_at_runtime",
        "a GPU ran out of memory",
        "Lower mem_fraction_static in sglang_server_args, or see which other process holds memory of this GPU.",
        (r"OutOfMemoryError: .*CUDA out of memory", r"Capture cuda graph failed: "),
    ),
    Cause(
        "host_out_of_memory",
        "the kernel killed a process of the unit, since memory ran out",
        "Give the host more memory, or the unit a higher MemoryMax.",
        (r"A process of this unit has been killed by the OOM killer",),
    ),
    Cause(
        "no_kernel_image",
        "the installed libraries hold no code for this GPU",
        "Install a build for this GPU's architecture (sm_120 needs CUDA 12.8 or later): sglang_engine_requirements.",
        (r"no kernel image is available for execution on the device",),
    ),
    Cause(
        "kernel_shared_memory",
        "a kernel needs more shared memory than this GPU has",
        "Set another attention_backend in sglang_server_args (flashinfer on sm_120), or a newer sglang_engine_version.",
        (r"OutOfResources: out of resource: shared memory",),
    ),
    Cause(
        "jit_toolchain_missing",
        "a kernel has to be compiled, and a tool for it is missing",
        "Put ninja and nvcc on the PATH of the unit: sglang_server_environment.",
        (
            r"No such file or directory: '(?:ninja|nvcc)'",
            r"Ninja is required",
            r"nvcc(?:: command)? not found",
            r"Could not find nvcc",
        ),
    ),
    Cause(
        "nccl_timeout",
        "a collective operation between GPUs hung",
        "Try NCCL_P2P_DISABLE=1 in sglang_server_environment with disable_custom_all_reduce in sglang_server_args.",
        (r"Watchdog caught collective operation timeout",),
    ),
    Cause(
        "nccl_error",
        "the GPUs cannot talk to each other",
        "See the line for NCCL's reason; NCCL_DEBUG=INFO in sglang_server_environment tells more.",
        (r"DistBackendError: NCCL error",),
    ),
    Cause(
        "port_in_use",
        "another process holds a port that the server needs",
        "Stop that process, or choose another sglang_server_port (or nccl_port in sglang_server_args).",
        (
            r"error while attempting to bind on address .+ address already in use",
            r"Port is already in use\.",
            r"EADDRINUSE",
            r"[Pp]ort \d+ is (?:already in use|not available)",
        ),
    ),
    Cause(
        "warmup_failed",
        "the model was loaded, but its first generation failed",
        "See the lines for the failing kernel or backend.",
        (r"Initialization failed\. warmup error: ",),
        general=True,
    ),
    Cause(
        "watchdog",
        "SGLang's own watchdog found its scheduler hanging",
        "Raise watchdog_timeout in sglang_server_args if the work was only slow.",
        (r"[Ww]atchdog timeout \(self\.watchdog_timeout=",),
    ),
    Cause(
        "scheduler_died",
        "a scheduler process died",
        "See the lines before it for the reason.",
        (
            r"scheduler (?:is dead|died during initialization)",
            r"Scheduler hit an exception: ",
            r"Subprocess scheduler_\d+ .+ crashed with exit code ",
            r"It usually means (?:the|one) child failed",
        ),
        general=True,
    ),
)

BY_CODE = {
    cause.code: cause
    for cause in (
        *CAUSES,
        Cause("unit_missing", "systemd has no such unit", "Deploy the server with the role sglang_server."),
        Cause("unit_masked", "the unit is masked", "systemctl unmask the unit."),
        Cause("unit_inactive", "the unit is not running", "systemctl start the unit."),
        Cause("exec_failed", "systemd could not run the server's program", "Correct what the exit status names."),
        Cause("foreign_listener", "another process has the server's port", "Stop it, or change sglang_server_port."),
        Cause("unauthorized", "the server refuses the API key", "Give the api_key that the server was started with."),
        Cause("wrong_model", "the server serves another model", "Correct the expected name, or served_model_name."),
        Cause("generation_failed", "the server is up but does not generate", "Look at the server's journal."),
        Cause("stopped_by_someone", "the unit was stopped during the wait", "Start it again if that was not meant."),
        Cause("crash_loop", "the server starts and fails again and again", "See the lines of the journal."),
        Cause("timeout", "the server was not ready in time", "Raise timeout if it was still making progress."),
        Cause("unknown", "the server ended for a reason that is not in the catalogue", "See the lines of the journal."),
    )
}  # fmt: skip

_PATTERNS = tuple((re.compile("|".join(cause.patterns)), cause) for cause in CAUSES)
_SECRET = re.compile(
    r"""((?:api[-_]?key|password|(?:hf|access|auth|bearer)[-_]token|secret|authorization)["']?\s*[:=]\s*(?:Bearer\s+)?)(?:"[^"]*"|'[^']*'|[^\s,;)}\]]+)""",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Failure:
    """A failed wait: a cause's code, what was seen, the lines that show it, and what to change."""

    cause: str
    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The form in which a module returns it."""
        return {"cause": self.cause, "summary": self.summary, "evidence": list(self.evidence), "advice": self.advice}


def failure(code: str, seen: str = "", evidence: Sequence[str] = (), advice: str = "") -> Failure:
    """A Failure with the words of the catalogue; ``seen`` says what is special about this one."""
    cause = BY_CODE[code]
    return Failure(code, f"{cause.summary}: {seen}" if seen else cause.summary, tuple(evidence), advice or cause.advice)


def first_cause(entries: Iterable[Entry]) -> tuple[Cause, Entry] | None:
    """The first entry in time that names a cause, a general one only where no entry names another."""
    general = None
    for entry in entries:
        if entry.plain.startswith(" "):  # the source code in a traceback, not what it says
            continue
        for pattern, cause in _PATTERNS:
            if pattern.search(entry.plain):
                if not cause.general:
                    return cause, entry
                general = general or (cause, entry)
    return general


def explain_exit(unit: Unit, entries: Sequence[Entry], secrets: Sequence[str] = ()) -> Failure:
    """Why a unit's process ended, from how it ended and what it said."""
    texts = [redact(entry.text, secrets) for entry in entries]
    again = f" (started {unit.restarts + 1} times)" if unit.restarts else ""
    if unit.exec_code == "exited" and unit.exec_status in EXIT_NAMES:
        said = next((text for text in texts if unit.name in text), "")
        seen = f"{unit.exit_text}{': ' + said if said else ''}"
        return failure("exec_failed", seen, texts[-EVIDENCE_LINES:])
    found = first_cause(entries)
    if found is not None:
        cause, entry = found
        return failure(cause.code, redact(_said(entries, entry), secrets)[:300] + again, around(entries, entry, secrets))
    if unit.result == "oom-kill":
        return failure("host_out_of_memory", unit.exit_text + again, texts[-EVIDENCE_LINES:])
    if unit.exec_code == "exited" and unit.exec_status == 2:
        return failure("bad_argument", unit.exit_text + again, texts[-EVIDENCE_LINES:])
    if unit.restarts or unit.result == "start-limit-hit":
        return failure("crash_loop", unit.exit_text + again, texts[-EVIDENCE_LINES:])
    return failure("unknown", unit.exit_text, texts[-EVIDENCE_LINES:])


def _said(entries: Sequence[Entry], entry: Entry) -> str:
    """What an entry says; of one that begins a traceback, what the traceback ends with."""
    if entry.plain.rstrip().endswith("Traceback (most recent call last):"):
        behind = entries[_index(entries, entry) + 1 :]
        return next((line.plain for line in behind if not line.plain.startswith(" ")), entry.plain)
    return entry.plain


def _index(entries: Sequence[Entry], entry: Entry) -> int:
    return next(index for index, candidate in enumerate(entries) if candidate is entry)


def around(entries: Sequence[Entry], entry: Entry, secrets: Sequence[str] = ()) -> list[str]:
    """The line of a cause with a few before it and the rest behind it."""
    start = max(0, _index(entries, entry) - 4)
    return [redact(candidate.text, secrets) for candidate in entries[start : start + EVIDENCE_LINES]]


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """A line without what must not be shown: known secrets, and whatever follows a word like api_key."""
    for secret in sorted(secrets, key=len, reverse=True):
        if secret:
            text = text.replace(secret, "<secret>")
    return _SECRET.sub(r"\1<secret>", text)[:2000]
