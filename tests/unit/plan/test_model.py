# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Models: from a configuration, from files, and what is refused with which words."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import (
    INDEX_NAME,
    MAX_HEADER_BYTES,
    ModelError,
    read_config,
    read_directory,
)
from ansible_collections.gpufleet.sglang.tests.unit.plan.models import (
    DEEPSEEK_FP8,
    KIMI,
    LLAMA,
    QWEN_MOE,
    QWEN_NEXT,
    TINY,
    TINY_TENSORS,
    Tensor,
    kimi_directory,
    write_model,
    write_shard,
)

# --- configurations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "attention", "quantization", "experts", "gigabytes"),
    [
        (LLAMA, "GQA", "bf16", 0, 141.1),
        (QWEN_MOE, "GQA", "bf16", 128, 470.2),
        (DEEPSEEK_FP8, "MLA", "fp8", 256, 672.9),
        (KIMI, "MLA", "int4", 384, 595.1),
        (QWEN_NEXT, "GQA", "bf16", 512, 159.3),
    ],
)
def test_shapes(config: dict[str, Any], attention: str, quantization: str, experts: int, gigabytes: float) -> None:
    """The sizes are those of the published checkpoints, draft layers left out."""
    shape = read_config(config)
    assert (shape.attention_kind, shape.quantization, shape.experts) == (attention, quantization, experts)
    assert shape.weights.total / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_kimi_in_parts() -> None:
    """A MoE layer is 9.81 GB, the dense one 0.99, embedding and head 2.35 each, the vision tower 0.93."""
    weights = read_config(KIMI).weights
    sizes = (weights.layers[1], weights.layers[0], weights.first, weights.last, weights.everywhere)
    assert [size / 1e9 for size in sizes] == pytest.approx([9.81, 0.995, 2.349, 2.349, 0.931], abs=0.002)
    assert (weights.layers[1] - weights.routed[1]) / 1e6 == pytest.approx(290, abs=6)
    assert weights.routed[1] / 384 / 1e6 == pytest.approx(24.8, abs=0.05)


def test_given_size_wins() -> None:
    shape = read_config(KIMI, weight_bytes=300 * 10**9)
    assert shape.weights.total == pytest.approx(300e9, rel=1e-6)
    assert shape.weights.source == "weight_bytes"


def test_tied_embeddings_are_held_twice() -> None:
    weights = read_config({**LLAMA, "tie_word_embeddings": True}).weights
    assert weights.tied == weights.first == 128256 * 8192 * 2
    assert weights.last == 8192 * 2


def test_a_plain_mlp_has_no_gate() -> None:
    """OPT-13B: 40 layers of 12 * 5120 * 5120 numbers, tied embeddings."""
    shape = read_config(
        {
            "num_hidden_layers": 40,
            "hidden_size": 5120,
            "ffn_dim": 20480,
            "activation_function": "relu",
            "num_attention_heads": 40,
            "vocab_size": 50272,
            "torch_dtype": "float16",
            "tie_word_embeddings": True,
        }
    )
    assert shape.weights.total == pytest.approx((40 * 12 * 5120 * 5120 + 50272 * 5120) * 2, rel=1e-3)


def test_hybrid_layers() -> None:
    shape = read_config(QWEN_NEXT)
    assert shape.cached == (False, False, False, True) * 12
    kinds = ["linear_attention", "full_attention"] * 24
    named = {**QWEN_NEXT, "layer_types": kinds}
    assert read_config(named).cached == (False, True) * 24
    assert all(read_config({**LLAMA, "layer_types": ["sliding_attention"] * 80}).cached)


@pytest.mark.parametrize(
    ("quantization", "name", "bytes_per_number"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 1 + 4 / 16384),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4 (gptq)", 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4 (awq)", 0.5 + 2.5 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "nvfp4", 0.5 + 1 / 16),
        ({"quant_algo": "FP8"}, "fp8", 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
            },
            "nvfp4",
            0.5 + 1 / 16,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "int"}}}},
            "int8",
            1.0,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            "fp8",
            1.0,
        ),
    ],
)
def test_quantizations(quantization: dict[str, Any], name: str, bytes_per_number: float) -> None:
    shape = read_config({**LLAMA, "quantization_config": quantization})
    numbers = 3 * 8192 * 28672 + 2 * 8192 * 64 * 128 + 2 * 8192 * 8 * 128
    assert shape.quantization == name
    assert shape.weights.layers[0] == pytest.approx(numbers * bytes_per_number + 2 * 8192 * 2, rel=1e-6)
    assert shape.weights.last == (128256 + 1) * 8192 * 2, "the output head stays as it is"


def test_only_the_experts_are_quantized() -> None:
    plain, packed = (
        read_config({**QWEN_MOE, "quantization_config": quantization}).weights
        for quantization in ({}, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    )
    assert packed.routed[0] / plain.routed[0] == pytest.approx((0.5 + 1 / 32) / 2)
    assert packed.layers[0] - packed.routed[0] == plain.layers[0] - plain.routed[0]


@pytest.mark.parametrize(
    "ignored",
    ["self_attn", "model.layers.0.self_attn", "re:.*self_attn", "*self_attn*", "language_model.model.layers.0"],
)
def test_what_is_not_quantized(ignored: str) -> None:
    quantization = {"quant_method": "fp8", "ignore": [ignored]}
    some = read_config({**LLAMA, "quantization_config": quantization}).weights
    all_of_it = read_config({**LLAMA, "quantization_config": {"quant_method": "fp8"}}).weights
    assert some.layers[0] > all_of_it.layers[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": "80"}, "num_hidden_layers: expected a whole number of at least 0, got '80'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected at least 1, got 0"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers: expected at most 4096"),
        ({"hidden_size": True}, "hidden_size: expected a whole number"),
        ({"hidden_size": 10**30}, "hidden_size: expected a whole number"),
        ({"text_config": [1]}, "text_config: expected a dictionary"),
        ({"layer_types": ["full_attention"]}, "layer_types: expected 80 entries"),
        ({"layer_types": ["telepathy"] * 80}, "'telepathy' is a kind of layer this planner does not know"),
        ({"layer_types": 5}, "layer_types: expected a list of strings"),
        ({"num_experts": 8}, "num_experts_per_tok is missing"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok: expected 1 to 8, got 9"),
        ({"quantization_config": {"quant_method": "magic"}}, "how large 'magic' weights are; give model_path"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "without config_groups"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0]}}, "weight_block_size: expected"),
        ({"quantization_config": {"quant_method": "fp8", "ignore": ["re:("]}}, "is no regular expression"),
        ({"index_topk": 2048}, "sparse attention with an index cache"),
        ({"hybrid_override_pattern": "M*M"}, "state-space layers"),
        ({"intermediate_size_mlp": 16384}, "does not know which layers have that size; give model_path"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "linear attention of another kind"),
        ({"layer_types": ["linear_attention"] * 80}, "no layer with attention"),
        ({"mlp_only_layers": 3, "num_experts": 8, "num_experts_per_tok": 2}, "mlp_only_layers: expected a list"),
    ],
)
def test_what_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_config({**LLAMA, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_size_that_is_none() -> None:
    with pytest.raises(ModelError, match="weight_bytes: expected the size of the model in bytes, got 0"):
        read_config(LLAMA, weight_bytes=0)


# --- files ------------------------------------------------------------------------------------------------------------


def test_tiny_directory(tmp_path: Path) -> None:
    total = write_model(tmp_path, TINY, TINY_TENSORS, 3)
    weights = read_directory(str(tmp_path)).weights
    assert weights.layers == (256, 272)
    assert weights.replicated == (0, 16)
    assert (weights.first, weights.last, weights.everywhere) == (512, 528, 0)
    assert (weights.total, weights.source) == (total, "files")


def test_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "tie_word_embeddings": True}))
    write_shard(tmp_path / "model.safetensors", TINY_TENSORS[:-1])
    write_shard(tmp_path / "consolidated.safetensors", TINY_TENSORS)
    weights = read_directory(str(tmp_path)).weights
    assert (weights.first, weights.tied, weights.last) == (512, 512, 16)


def test_draft_layers_and_towers(tmp_path: Path) -> None:
    more: list[Tensor] = [
        ("model.layers.2.eh_proj.weight", "BF16", (10,)),
        ("mtp.layers.0.mlp.up_proj.weight", "BF16", (10,)),
        ("vision_tower.encoder.blocks.0.wo.weight", "BF16", (7,)),
        ("model.visual.blocks.1.attn.weight", "BF16", (7,)),
        ("model.layers.1.mlp.experts.gate_up_proj", "BF16", (100,)),
        ("model.layers.1.mlp.shared_experts.up_proj.weight", "BF16", (50,)),
    ]
    write_model(tmp_path, TINY, TINY_TENSORS + more, 2)
    weights = read_directory(str(tmp_path)).weights
    assert (weights.unused, weights.everywhere) == (40, 28)
    assert weights.routed == (0, 200)
    assert weights.layers == (256, 572)


def test_hugging_face_snapshot(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    write_model(blobs, TINY, TINY_TENSORS, 2)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    assert read_directory(str(snapshot)).layers == 2


def _index(directory: Path, name: str) -> None:
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", ".", "", "a/../b.safetensors", "a\0b"])
def test_an_index_that_leads_out(tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_shard(tmp_path / "secret.safetensors", TINY_TENSORS)
    write_model(model, TINY, TINY_TENSORS, 1)
    _index(model, name)
    with pytest.raises(ModelError, match=r"leads out of|has no|cannot be opened|not a regular file"):
        read_directory(str(model))


def test_a_link_that_leads_out(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_model(model, TINY, TINY_TENSORS, 1)
    write_shard(tmp_path / "elsewhere.safetensors", TINY_TENSORS)
    (model / "link.safetensors").symlink_to("../elsewhere.safetensors")
    _index(model, "link.safetensors")
    with pytest.raises(ModelError, match=r"'link.safetensors' leads out of"):
        read_directory(str(model))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    write_model(tmp_path, TINY, TINY_TENSORS, 1)
    os.mkfifo(tmp_path / "pipe.safetensors")
    _index(tmp_path, "pipe.safetensors")
    with pytest.raises(ModelError, match="is not a regular file"):
        read_directory(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends inside its header"),
        (b"\x10", "ends inside its header"),
        (struct.pack("<Q", 100) + b"{}", "ends inside its header"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1), "is this safetensors"),
        (struct.pack("<Q", 2) + b"xx", "not valid JSON"),
        (struct.pack("<Q", 2) + b"[]", "expected a JSON object, got list"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "not valid JSON"),
        (struct.pack("<Q", 12) + b'{"a":[1, 2]}', "expected data_offsets"),
        (struct.pack("<Q", 28) + b'{"a":{"data_offsets":[4,2]}}', "expected data_offsets"),
        (struct.pack("<Q", 30) + b'{"a":{"data_offsets":["0","1"]}'[:30], "not valid JSON"),
        (struct.pack("<Q", 32) + b'{"a":{"data_offsets":["0","1"]}}', "expected data_offsets"),
        (struct.pack("<Q", 29) + b'{"a":{"data_offsets":[0,99]}}', "99 bytes are missing at its end"),
        (struct.pack("<Q", 28) + b'{"a":{"data_offsets":[2,4]}}' + b"1234", "overlap or leave gaps"),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_directory(str(tmp_path))
    assert message in str(caught.value)
    assert str(caught.value).startswith("model.safetensors: ")
    assert "\n" not in str(caught.value)


def test_incomplete_downloads(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected a directory on this host"):
        read_directory(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"has no 'config.json': the download is not complete"):
        read_directory(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config.json: not valid JSON"):
        read_directory(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(ModelError, match=r"has no \*\.safetensors file"):
        read_directory(str(tmp_path))
    write_shard(tmp_path / "model.safetensors", TINY_TENSORS[:2])
    with pytest.raises(ModelError, match="hold nothing for layer 1 of 2"):
        read_directory(str(tmp_path))
    write_model(tmp_path, TINY, TINY_TENSORS, 2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no 'model-00002-of-00002.safetensors'"):
        read_directory(str(tmp_path))
    (tmp_path / INDEX_NAME).write_text('{"weight_map": [1]}')
    with pytest.raises(ModelError, match="weight_map: expected a dictionary of file names"):
        read_directory(str(tmp_path))


# VmHWM, not getrusage: the latter also counts the process that this one was started from.
MEASURE = """
import re, sys, time
from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.model import read_directory
began = time.perf_counter()
shape = read_directory(sys.argv[1])
kibibytes = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(time.perf_counter() - began, kibibytes / 1024, shape.weights.total)
print(*shape.weights.layers[:2], shape.weights.first, shape.weights.last, shape.weights.everywhere)
"""


def test_595_gigabytes_in_64_files(tmp_path: Path) -> None:
    """Exact bytes, in little time and memory; the limits leave room for a busy machine."""
    total = kimi_directory(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)],
        env={"PYTHONPATH": ".collections"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    figures, parts = run.stdout.splitlines()
    seconds, mebibytes, found = figures.split()
    assert int(found) == total
    assert total / 1e9 == pytest.approx(595.1, abs=0.1)
    assert float(mebibytes) < 200
    assert float(seconds) < 10
    moe = 202_244_096 + 4096 + 28_672 + 88_080_384 + 5_505_024 + 1536 + 384 * 3 * (7_340_032 + 917_504 + 16)
    dense = 202_244_096 + 4096 + 28_672 + 3 * 18432 * 7168 * 2
    table = 163840 * 7168 * 2
    vision = 27 * (4 * 1152 * 1152 + 2 * 4304 * 1152) * 2 + (4608 * 4608 + 7168 * 4608) * 2
    assert [int(part) for part in parts.split()] == [dense, moe, table, table + 14_336, vision]
