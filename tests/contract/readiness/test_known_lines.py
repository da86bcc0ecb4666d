# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lines of SGLang from 0.4.6 to 0.5.23, as their format strings give them, and what each has to be taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._batches import batch_of
from ansible_collections.gpufleet.sglang.plugins.module_utils._catalogue import BY_CODE
from ansible_collections.gpufleet.sglang.plugins.module_utils._causes import first_cause
from ansible_collections.gpufleet.sglang.plugins.module_utils._journal import Entry, Signs, parse_json, phase_of

DOCS = Path(__file__).parents[3] / "docs" / "readiness.md"
AT = "[2026-11-01 10:00:26 PP3] "

PHASES = [
    (AT + "Init torch distributed begin.", "starting"),
    (AT + "Init torch distributed ends. mem usage=0.62 GB", ""),
    (AT + "Init torch distributed ends. elapsed=4.81 s, mem usage=0.62 GB", ""),
    (AT + "Init parallel begin.", "starting"),
    (AT + "Init parallel ends. elapsed=4.81 s", ""),
    (AT + "Memory baseline taken. mem usage=0.62 GB", ""),
    (AT + "Load weight begin. avail mem=94.20 GB", "loading"),
    (AT + "Using CompressedTensorsWNA16MarlinMoEMethod", ""),
    (
        AT
        + "Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16, avail mem=19.90 GB, mem usage=74.30 GB.",
        "allocating",
    ),
    (
        AT
        + "Load weight end. elapsed=335.12 s, type=KimiK25ForConditionalGeneration, quant=compressed-tensors, bits=4, "
        "avail mem=19.90 GB, mem usage=74.30 GB.",
        "allocating",
    ),
    (AT + "KV Cache is allocated. #tokens: 795000, KV size: 6.82 GB", ""),
    (AT + "Memory pool end. avail mem=12.88 GB", ""),
    (AT + "Capture cuda graph begin. This can take up to several minutes. avail mem=12.40 GB", "capturing"),
    (AT + "Capture cuda graph end. Time elapsed: 27.10 s. mem usage=0.61 GB. avail mem=11.79 GB.", ""),
    (
        AT + "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=12.40 GB",
        "capturing",
    ),
    (AT + "Capture target decode CUDA graph end. bs=[1, 2, 4, 8], elapsed=27.10 s, mem usage=0.61 GB", ""),
    (AT + "max_total_num_tokens=795000, chunked_prefill_size=8192, max_running_requests=64", "capturing"),
    ("[2026-11-01 10:06:36] INFO:     Application startup complete.", ""),
    ("[2026-11-01 10:06:36] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)", "listening"),
    ("[2026-11-01 10:06:39.123] The server is fired up and ready to roll!", "ready"),
]


@pytest.mark.parametrize(("line", "phase"), PHASES)
def test_phases(line: str, phase: str) -> None:
    assert phase_of(Entry.of(line)) == phase


@pytest.mark.parametrize(
    ("line", "rank", "plain"),
    [
        ("[2026-11-01 10:00:26 PP3] a", "PP3", "a"),
        ("[2026-11-01 10:00:26 DP1 PP3 TP1 EP2] a", "DP1 PP3 TP1 EP2", "a"),
        ("[2026-11-01 10:00:26.123 ATTN_CP0 MOE_DP1] a", "ATTN_CP0 MOE_DP1", "a"),
        ("[2026-11-01 10:00:26] a", "", "a"),
        (
            "Pipeline parallelism is incompatible with overlap schedule.",
            "",
            "Pipeline parallelism is incompatible with overlap schedule.",
        ),
        ("Multi-thread loading shards:   0% Completed | 0/1 [00:00<?, ?it/s][2026-11-01 10:00:26 PP0] a", "PP0", "a"),
        ("[rank3]:[E1101 10:00:26 ProcessGroupNCCL.cpp:1] x", "", "[rank3]:[E1101 10:00:26 ProcessGroupNCCL.cpp:1] x"),
    ],
)
def test_prefixes(line: str, rank: str, plain: str) -> None:
    entry = Entry.of(line)
    assert (entry.rank, entry.plain) == (rank, plain)


@pytest.mark.parametrize(
    "line",
    [
        "Loading safetensors checkpoint shards:  34% Completed | 22/64 [00:17<00:35,  3.02it/s]",
        "Multi-thread loading shards:  34% Completed | 22/64 [00:17<00:35,  1.21it/s]",
        "Multi-thread loading shards:  34% Completed | 22/64 [00:17<00:35][2026-11-01 10:00:26 PP0] something else",
    ],
)
def test_progress(line: str) -> None:
    signs = Signs()
    signs.read(Entry.of(AT + "Load weight begin. avail mem=94.20 GB"))
    signs.read(Entry.of(line))
    assert signs.shards == (22, 64)
    assert signs.detail == "22 of 64 shards"


@pytest.mark.parametrize(
    "message",
    ["\r  1% Completed | 1/64\r 34% Completed | 22/64 [00:17<\x1b[A", "\x1b[33m 34% Completed | 22/64\x1b[0m"],
)
def test_progress_bars_as_the_journal_has_them(message: str) -> None:
    """Carriage returns and colours make journald keep a message as bytes."""
    signs = Signs()
    for entry in parse_json(
        json.dumps({"MESSAGE": list(message.encode()), "__REALTIME_TIMESTAMP": "1795990000000000"})
    ):
        signs.read(entry)
    assert signs.shards == (22, 64)


@pytest.mark.parametrize(
    ("line", "kind", "running", "queued", "throughput"),
    [
        ("Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 3, #queue-req: 2, ", "prefill", 3, 2, 0.0),
        ("Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 3, #queue-req: 2, "
         "#pending-token: 0, cuda graph: False, input throughput (token/s): 9.00", "prefill", 3, 2, 0.0),
        ("Decode batch. #running-req: 8, #token: 1234, token usage: 0.01, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 4, ", "decode", 8, 4, 123.45),
        ("Decode batch, #running-req: 8, #token: 1234, token usage: 0.01, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 4", "decode", 8, 4, 123.45),
    ],
)  # fmt: skip
def test_batches(line: str, kind: str, running: int, queued: int, throughput: float) -> None:
    batch = batch_of(Entry.of("[2026-11-01 10:07:12 PP0] " + line))
    assert batch is not None
    assert (batch.kind, batch.rank, batch.running, batch.queued, batch.throughput) == (
        kind, "PP0", running, queued, throughput,
    )  # fmt: skip


CAUSES = [
    ("sglang serve: error: unrecognized arguments: --max-running-requets 16", "bad_argument"),
    ("launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode", "bad_argument"),
    ("Unsupported config option 'foo' with action '_AppendAction'", "bad_argument"),
    ("AssertionError: pp_max_micro_batch_size must be a positive integer or None (for auto-compute). Got: 0", "bad_argument"),
    ("OSError: /models/x does not appear to have a file named config.json.", "model_not_found"),
    ("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'", "model_not_found"),
    ("huggingface_hub.errors.LocalEntryNotFoundError: An error happened", "model_not_found"),
    ("RuntimeError: Cannot find any model weights with `/models/x`", "model_incomplete"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "model_incomplete"),
    ("AssertionError: Pipeline Parallel is not compatible with this model.", "pp_unsupported"),
    ("ValueError: Model architectures ['KimiK25ForConditionalGeneration'] are not supported for now.", "model_unsupported"),
    ("ValueError: Unsupported model type kimi_k25", "model_unsupported"),
    ("ValueError: Please pass the argument `trust_remote_code=True` to allow custom code to be run.", "remote_code_not_trusted"),
    ("ValueError: len(partitions)=7 does not match pp_size=8.", "bad_layer_partition"),
    ("ValueError: sum(partitions)=60 does not match num_hidden_layers=61.", "bad_layer_partition"),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. [Current value: self.server_args.mem_fraction_static=0.777]", "gpu_out_of_memory_at_load"),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. [Current value: mem_fraction_static=0.777]", "gpu_out_of_memory_at_load"),
    ("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.777. Raise --mem-fraction-static above 0.812", "gpu_out_of_memory_at_load"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 7 has a total capacity of 94.97 GiB", "gpu_out_of_memory_at_runtime"),
    ("Exception: Capture cuda graph failed: CUDA out of memory", "gpu_out_of_memory_at_runtime"),
    ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=90", "gpu_busy"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496, Hardware limit: 101376.", "kernel_shared_memory"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "no_kernel_image"),
    ("RMSNorm failed with error code no kernel image is available for execution on the device", "no_kernel_image"),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "jit_toolchain_missing"),
    ("RuntimeError: Ninja is required to load C++ extensions", "jit_toolchain_missing"),
    ("/bin/sh: 1: nvcc: not found", "jit_toolchain_missing"),
    ("[rank3]:[E1101 10:00:26.1 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1) ran for 600012 milliseconds before timing out.", "nccl_timeout"),
    ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error", "nccl_error"),
    ("ValueError: Port is already in use. dist_init_port=25001", "port_in_use"),
    ("torch.distributed.DistNetworkError: EADDRINUSE", "port_in_use"),
    ("[2026-11-01 10:00:26] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use", "port_in_use"),
    (AT + "Scheduler hit an exception: Traceback (most recent call last):", "scheduler_died"),
    ("[2026-11-01 10:00:26] Received sigquit from a child process. It usually means the child failed.", "scheduler_died"),
    ("[2026-11-01 10:00:26] SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "scheduler_died"),
    ("[2026-11-01 10:00:26] Rank 3 scheduler is dead. Please check if there are relevant logs.", "scheduler_died"),
    ("[2026-11-01 10:00:26] Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.", "scheduler_died"),
    ("[2026-11-01 10:00:26] Scheduler or DataParallelController 4712 terminated with 1", "scheduler_died"),
    ("[2026-11-01 10:00:26] Subprocess scheduler_0 (pid=4712) crashed with exit code -6. Triggering SIGQUIT for cleanup...", "scheduler_died"),
    ("[2026-11-01 10:00:26] Initialization failed. Please see the error messages above.", "scheduler_died"),
    ("[2026-11-01 10:00:26] Initialization failed. warmup error: Traceback (most recent call last):", "warmup_failed"),
    (AT + "Watchdog timeout (self.watchdog_timeout=300)", "watchdog"),
    (AT + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog"),
    ("[2026-11-01 10:00:26] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 10:12:01.", "stalled"),
    ("ValueError: token_to_kv_pool_allocator memory leak detected! available_size=1", "kv_pool_leak"),
    ("NVRM: Xid (PCI:0000:41:00): 79, pid=4711, GPU has fallen off the bus.", "xid"),
    ("Out of memory: Killed process 4711 (sglang::schedul) total-vm:1kB", "host_out_of_memory"),
    ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/system.slice/sglang-kimi.service,task=python,pid=1", "host_out_of_memory"),
    ("sglang-kimi.service: A process of this unit has been killed by the OOM killer.", "host_out_of_memory"),
    ("sglang-kimi.service: Failed at step EXEC spawning /opt/sglang/bin/python: No such file or directory", "exec_failed"),
    ("sglang-kimi.service: Control process exited, code=exited, status=217/USER", "exec_failed"),
    ("FileNotFoundError: Config file not found: /etc/sglang/kimi/server.yaml", "config_unreadable"),
    ("PermissionError: [Errno 13] Permission denied: '/etc/sglang/kimi/server.yaml'", "config_unreadable"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code"), CAUSES)
def test_causes(line: str, code: str) -> None:
    found = first_cause([Entry.of(line)])
    assert found is not None
    assert found[0].code == code


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-01 10:00:26] CustomAllReduceV2 is disabled because this process group spans across more than two PCIe-only GPUs",
        "\x1b[33m--disable-cuda-graph is deprecated and will be removed in a future release. Use 'x' instead.\x1b[0m",
        "[2026-11-01 10:00:26] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        "[2026-11-01 10:00:26] Gracefully exiting... Remaining number of requests 3. Remaining requests remaining_rids=['a'].",
        "[2026-11-01 10:00:26 PP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 4096",
        "[2026-11-01 10:00:26] max_running_requests was reduced from the requested 64 to 40 (per dp worker) due to KV cache",
        "[2026-11-01 10:00:26] The request queue is full.",
        '[2026-11-01 10:00:26] INFO:     10.0.0.5:51002 - "GET /health HTTP/1.1" 503 Service Unavailable',
        "sglang-kimi.service: Main process exited, code=exited, status=1/FAILURE",
        "sglang-kimi.service: Main process exited, code=killed, status=9/KILL",
        "    raise ValueError('Model architectures X are not supported for now.')",
    ],
)
def test_lines_that_are_no_cause(line: str) -> None:
    assert first_cause([Entry.of(line)]) is None


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_cause_is_documented(code: str) -> None:
    assert f"`{code}`" in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_cause_says_what_to_do(code: str) -> None:
    cause = BY_CODE[code]
    assert cause.summary
    assert cause.advice.endswith((".", "'"))
