# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""The catalogue of causes: each reason why a server is not ready, by which lines it is known, and what to change. Data.

Lines are those of SGLang 0.4.6 to 0.5.23, its libraries, systemd and the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass


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


# Known by a line of the journal.
CAUSES: tuple[Cause, ...] = (
    Cause(
        "exec_failed",
        "systemd could not run the server's program",
        "Correct what the line names. A missing program: run the role sglang_engine.",
        (r"Failed at step [A-Z_]+ spawning ", r"(?:Main|Control) process exited, code=exited, status=2\d\d/[A-Z_]+"),
    ),
    Cause(
        "engine_incomplete",
        "the virtual environment of the server has no SGLang",
        "Run the role sglang_engine, or set sglang_server_engine to a virtual environment that has SGLang.",
        (r"No module named '?sglang(?:\.launch_server)?'?(?:\)|$)",),
    ),
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
            r"ValueError: Unsupported .*(?:model|architecture|kimi_k25)",
        ),
    ),
    Cause(
        "remote_code_not_trusted",
        "the model brings code of its own, which SGLang was not allowed to run",
        "Set trust_remote_code: true in sglang_server_args, if you trust where the model comes from.",
        (r"(?:set|pass|option|argument) `?trust_remote_code=True`?", r"contains custom code which must be executed"),
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
            r"Unrecognized model in .+config\.json",
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
        "gpu_busy",
        "other processes hold memory of the GPUs",
        "Stop them (nvidia-smi lists them), or wait until the memory of an earlier start is given back.",
        (r"The memory capacity is unbalanced\. Some GPUs may be occupied",),
    ),
    Cause(
        "host_out_of_memory",
        "the kernel killed a process of the unit, since memory ran out",
        "Give the host more memory, or the unit a higher MemoryMax.",
        (
            r"A process of this unit has been killed by the OOM killer",
            r"oom-kill:.*,task_memcg=/[^,]*sglang",
            r"(?:Out of memory|out of memory): Killed process \d+ \((?:sglang|python|pt_main)",
        ),
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
            r"nvcc:?(?: command)? not found",
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
        "kv_pool_leak",
        "SGLang lost count of its KV cache, and ended itself",
        "The next start needs no change. If it happens again, set sglang_engine_version to a newer release.",
        (r"token_to_kv_pool_allocator memory leak detected",),
    ),
    Cause(
        "xid",
        "the NVIDIA driver reported a fault of a GPU",
        "Look the Xid up in NVIDIA's list. 79, 119 and 120 need a reset of the GPU or the host; 13 and 31 come from "
        "software.",
        (r"NVRM: Xid \(",),
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
        "stalled",
        "the server hangs",
        "See what its processes wait for (py-spy dump --pid PID), and restart it. NCCL_DEBUG=INFO in "
        "sglang_server_environment tells more of the next start. Raise stall_timeout if it was only slow.",
        (r"Health check failed\. Server couldn't get a response from detokenizer",),
        general=True,
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
            r"Scheduler or DataParallelController \d+ terminated with ",
            r"Initialization failed\. Please see the error messages above",
        ),
        general=True,
    ),
)

# Known by what systemd, the kernel or the server answers, or does not.
SEEN: tuple[Cause, ...] = (
    Cause("unit_missing", "systemd has no such unit", "Deploy the server with the role sglang_server."),
    Cause("unit_masked", "the unit is masked", "systemctl unmask the unit."),
    Cause("unit_inactive", "the unit is not running", "systemctl start the unit."),
    Cause("foreign_listener", "another process has the server's port", "Stop it, or change sglang_server_port."),
    Cause(
        "certificate_refused", "the server's certificate is not trusted", "Give ca_path, or a certificate that holds."
    ),
    Cause("unauthorized", "the server refuses the API key", "Give the api_key that the server was started with."),
    Cause("wrong_model", "the server serves another model", "Correct the expected name, or served_model_name."),
    Cause("bad_answer", "what answers does not answer like SGLang", "See what is between, or which program this is."),
    Cause("generation_failed", "the server is up but does not generate", "Look at the server's journal."),
    Cause("stopped_by_someone", "the unit was stopped during the wait", "Start it again if that was not meant."),
    Cause("crash_loop", "the server starts and fails again and again", "See the lines of the journal."),
    Cause("killed", "the server was killed by a signal, and had no word to say", "See who or what killed it."),
    Cause("timeout", "the server was not ready in time", "Raise timeout if it was still making progress."),
    Cause("unknown", "the server ended for a reason that is not in the catalogue", "See the lines of the journal."),
)

BY_CODE = {cause.code: cause for cause in (*CAUSES, *SEEN)}
