# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models for the tests: configurations as published, and directories with true headers but no bodies."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Tensor = tuple[str, str, tuple[int, ...]]

KIMI: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "dtype": "bfloat16",
    "text_config": {
        "num_hidden_layers": 61,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "vocab_size": 163840,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "ignore": [
                "lm_head",
                "re:.*self_attn.*",
                "re:.*shared_experts.*",
                r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
            ],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"},
                }
            },
        },
    },
    "vision_config": {"vt_num_hidden_layers": 27, "vt_hidden_size": 1152, "vt_intermediate_size": 4304},
}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}

QWEN_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 94,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
}

DEEPSEEK_FP8: dict[str, Any] = {
    **{key: value for key, value in KIMI["text_config"].items() if key != "quantization_config"},
    "architectures": ["DeepseekV3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "first_k_dense_replace": 3,
    "num_attention_heads": 128,
    "n_routed_experts": 256,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}

QWEN_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "attn_output_gate": True,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 151936,
    "max_position_embeddings": 262144,
}

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "vocab_size": 32,
}
TINY_TENSORS: list[Tensor] = [
    ("model.embed_tokens.weight", "BF16", (32, 8)),
    ("model.layers.0.mlp.up_proj.weight", "BF16", (16, 8)),
    ("model.layers.1.mlp.up_proj.weight", "BF16", (16, 8)),
    ("model.layers.1.input_layernorm.weight", "BF16", (8,)),
    ("model.norm.weight", "BF16", (8,)),
    ("lm_head.weight", "BF16", (32, 8)),
]

_WIDTHS = {"BF16": 2, "I32": 4, "I64": 8, "F32": 4}


def kimi_tensors() -> Iterator[Tensor]:
    """Yield name, type and shape of each tensor of a checkpoint like Kimi K2.6."""
    prefix = "language_model.model"
    yield f"{prefix}.embed_tokens.weight", "BF16", (163840, 7168)
    for layer in range(61):
        here = f"{prefix}.layers.{layer}"
        for name, shape in (
            ("self_attn.q_a_proj.weight", (1536, 7168)),
            ("self_attn.q_a_layernorm.weight", (1536,)),
            ("self_attn.q_b_proj.weight", (64 * 192, 1536)),
            ("self_attn.kv_a_proj_with_mqa.weight", (576, 7168)),
            ("self_attn.kv_a_layernorm.weight", (512,)),
            ("self_attn.kv_b_proj.weight", (64 * 256, 512)),
            ("self_attn.o_proj.weight", (7168, 64 * 128)),
            ("input_layernorm.weight", (7168,)),
            ("post_attention_layernorm.weight", (7168,)),
        ):
            yield f"{here}.{name}", "BF16", shape
        inner = "shared_experts." if layer else ""
        width = 2048 if layer else 18432
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"{here}.mlp.{inner}{name}.weight", "BF16", (width, 7168)
        if not layer:
            continue
        yield f"{here}.mlp.gate.weight", "BF16", (384, 7168)
        yield f"{here}.mlp.gate.e_score_correction_bias", "F32", (384,)
        for expert in range(384):
            for name in ("gate_proj", "up_proj", "down_proj"):
                module = f"{here}.mlp.experts.{expert}.{name}"
                yield f"{module}.weight_packed", "I32", (2048, 7168 // 8)
                yield f"{module}.weight_scale", "BF16", (2048, 7168 // 32)
                yield f"{module}.weight_shape", "I64", (2,)
    yield f"{prefix}.norm.weight", "BF16", (7168,)
    yield "language_model.lm_head.weight", "BF16", (163840, 7168)
    for layer in range(27):
        here = f"vision_tower.encoder.blocks.{layer}"
        yield f"{here}.wqkv.weight", "BF16", (3 * 1152, 1152)
        yield f"{here}.wo.weight", "BF16", (1152, 1152)
        yield f"{here}.mlp.fc0.weight", "BF16", (4304, 1152)
        yield f"{here}.mlp.fc1.weight", "BF16", (1152, 4304)
    yield "mm_projector.proj.0.weight", "BF16", (4608, 4608)
    yield "mm_projector.proj.2.weight", "BF16", (7168, 4608)


def tensor_bytes(tensor: Tensor) -> int:
    _name, dtype, shape = tensor
    size = _WIDTHS[dtype]
    for extent in shape:
        size *= extent
    return size


def write_shard(path: Path, tensors: list[Tensor]) -> None:
    """Write a safetensors file whose header is true and whose body is a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor_bytes(tensor)
        header[tensor[0]] = {"dtype": tensor[1], "shape": list(tensor[2]), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)) + encoded)
        stream.truncate(8 + len(encoded) + end)


def write_model(directory: Path, config: dict[str, Any], tensors: list[Tensor], shards: int) -> int:
    """Write a model directory with an index, and return the bytes of all its tensors."""
    (directory / "config.json").write_text(json.dumps(config))
    weight_map = {}
    share = -(-len(tensors) // shards)
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = tensors[number * share : (number + 1) * share]
        write_shard(directory / name, part)
        weight_map.update({tensor[0]: name for tensor in part})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return sum(map(tensor_bytes, tensors))


def kimi_directory(directory: Path) -> int:
    """Write a directory shaped like Kimi K2.6: 64 files of 595 GB in all, which take next to nothing on disk."""
    return write_model(directory, KIMI, list(kimi_tensors()), 64)
