# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file is private to the collection: it may change without notice.

"""A model as a planner sees it: how many bytes each layer weighs, and what each layer keeps in the cache for a token.

The weights are summed from the headers of the safetensors files where there is a directory, and worked out component by
component from the configuration where there is none. What is not understood is refused with a reason, never guessed.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gpufleet.sglang.plugins.module_utils._plan.errors import PlanError

# Bounds on what is read, so that a damaged or hostile directory costs neither memory nor time.
MAX_CONFIG_BYTES = 16 * 2**20
MAX_INDEX_BYTES = 128 * 2**20
MAX_HEADER_BYTES = 32 * 2**20
MAX_SHARDS = 4096
MAX_LAYERS = 4096
MAX_NUMBER = 2**50

INDEX_NAME = "model.safetensors.index.json"


class ModelError(PlanError):
    """The model cannot be read or is not understood; the text is one line for the user."""


@dataclass(frozen=True)
class Attention:
    """What one attention layer caches for one token.

    *shared* numbers are the same on every tensor-parallel rank (the latent of MLA); *per_head* numbers exist for each
    of the *kv_heads* key-value heads, which are spread over the ranks.
    """

    shared: int = 0
    kv_heads: int = 0
    per_head: int = 0

    def bytes_per_token(self, number_bytes: float, tp_size: int = 1, dcp_size: int = 1) -> int:
        """Return the bytes for one token in one layer on one rank; *dcp_size* ranks share the tokens among them."""
        heads = max(1, self.kv_heads // tp_size) if self.kv_heads else 0
        return math.ceil((self.shared + heads * self.per_head) * number_bytes / dcp_size)


@dataclass(frozen=True)
class Weights:
    """The bytes of a model's weights by the place they go to.

    *layers* are whole layers; *routed* is the part of each that is routed experts, *replicated* the part that every
    tensor-parallel rank holds in full. *first* goes to the first stage (embedding), *last* to the last (final norm,
    output head, a copy of a tied embedding), *everywhere* to each stage (vision tower). *unused* is not loaded (draft
    layers).
    """

    layers: tuple[int, ...]
    routed: tuple[int, ...]
    replicated: tuple[int, ...]
    first: int = 0
    last: int = 0
    everywhere: int = 0
    unused: int = 0
    tied: int = 0
    source: str = "config"

    @property
    def total(self) -> int:
        """The bytes of the checkpoint: each tensor once."""
        return sum(self.layers) + self.first + self.last + self.everywhere + self.unused


@dataclass(frozen=True)
class ModelShape:
    """What has to be known of a model to plan a server for it.

    *cached* tells for each layer whether it keeps keys and values; *state_bytes* is what each of the other layers keeps
    for a request (linear attention), 0 where it keeps nothing. *vision* is (layers, hidden size) of a vision tower.
    """

    architecture: str
    layers: int
    hidden_size: int
    context_length: int | None
    attention: Attention
    cached: tuple[bool, ...]
    state_bytes: int
    experts: int
    experts_per_token: int
    vision: tuple[int, int] | None
    quantization: str
    weights: Weights
    # What has to be divided among tensor-parallel ranks, 0 where the configuration does not say: attention heads, the
    # intermediate size of a routed expert, the block of a block-wise quantization.
    attention_heads: int = 0
    expert_width: int = 0
    block_size: int = 0

    @property
    def attention_kind(self) -> str:
        return "MLA" if self.attention.shared else "GQA"


# --- configuration ----------------------------------------------------------------------------------------------------


class _Config:
    """A configuration dictionary whose values are checked where they are read."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        return self.values.get(key) not in (None, False, 0, "", [], {})

    def number(self, *keys: str, default: int | None = None) -> int:
        """Return the first of *keys* that is there as a whole number of at least 0."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
                raise ModelError(
                    f"config.json: {self.where}{key}: expected a whole number of at least 0, got {str(value)[:40]!r}"
                )
            return value
        if default is None:
            raise ModelError(
                f"config.json: {self.where}{keys[0]} is missing: cannot tell the shape of this model; leave out "
                "model_path and model_config to plan the scheduler without it"
            )
        return default

    def positive(self, *keys: str, default: int | None = None) -> int:
        value = self.number(*keys, default=default)
        if value < 1:
            raise ModelError(f"config.json: {self.where}{keys[0]}: expected at least 1, got {value}")
        return value

    def section(self, key: str) -> _Config | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ModelError(f"config.json: {self.where}{key}: expected a dictionary, got {str(value)[:40]!r}")
        return _Config(value, f"{self.where}{key}.")

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def strings(self, key: str) -> list[str]:
        value = self.values.get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            raise ModelError(f"config.json: {self.where}{key}: expected a list of strings, got {str(value)[:40]!r}")
        return list(value)


# Keys that tell of a cache or a state this file does not know how to count.
_NOT_UNDERSTOOD = {
    "index_topk": "sparse attention with an index cache",
    "index_head_dim": "sparse attention with an index cache",
    "compress_ratios": "compressed attention",
    "linear_attn_config": "linear attention of another kind",
    "hybrid_override_pattern": "state-space layers",
    "layers_block_type": "state-space layers",
    "mamba_d_state": "state-space layers",
    "ssm_state_size": "state-space layers",
    "state_size": "state-space layers",
    "conv_L_cache": "convolution layers with a cache",
    "attn_type_list": "lightning attention",
    "cross_attention_layers": "cross-attention layers",
    "block_types": "recurrent layers",
    "is_encoder_decoder": "an encoder with a decoder",
}
_LAYER_KINDS = {"full_attention": True, "sliding_attention": True, "chunked_attention": True, "linear_attention": False}


def read_config(
    config: Mapping[str, Any], weights: Weights | None = None, weight_bytes: int | None = None
) -> ModelShape:
    """Return the shape of the model that *config* (the content of config.json) describes.

    *weights* come from the files; without them they are worked out from *config*, scaled to *weight_bytes* where that
    is given. Raises ModelError where *config* is wrong or describes something that is not understood.
    """
    if not isinstance(config, Mapping):
        raise ModelError(f"config.json: expected a dictionary, got {str(config)[:40]!r}")
    outer = _Config(config)
    text = _text_section(outer)
    layers = _layer_count(text)
    cached, state_bytes = _layer_kinds(text, layers)
    experts = text.number("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", default=0)
    per_token = text.number(
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_topk",
        "moe_k",
        "top_k_experts",
        default=0 if not experts else None,
    )
    if experts and not 1 <= per_token <= experts:
        raise ModelError(f"config.json: {text.where}num_experts_per_tok: expected 1 to {experts}, got {per_token}")
    scheme = _quantization(text if text.has("quantization_config") else outer)
    if weights is None:
        weights = _estimate(outer, text, layers, cached, scheme, weight_bytes)
    architectures = outer.strings("architectures") or text.strings("architectures")
    return ModelShape(
        architecture=architectures[0] if architectures else "",
        layers=layers,
        hidden_size=text.positive("hidden_size", "n_embd"),
        context_length=text.number("max_position_embeddings", "n_positions", default=0) or None,
        attention=_attention(text),
        cached=cached,
        state_bytes=state_bytes,
        experts=experts,
        experts_per_token=per_token if experts else 0,
        vision=_vision(outer),
        quantization=scheme.name,
        weights=weights,
        attention_heads=text.number("num_attention_heads", "n_head", default=0),
        expert_width=text.number("moe_intermediate_size", default=0) if experts else 0,
        block_size=_block_size(text if text.has("quantization_config") else outer),
    )


def _text_section(outer: _Config) -> _Config:
    """Return the part of a configuration that describes the language model; refuse what is not understood."""
    sections = (outer.section(key) for key in ("text_config", "llm_config", "language_config"))
    text = next((section for section in sections if section), outer)
    for key, what in _NOT_UNDERSTOOD.items():
        if text.has(key):
            raise ModelError(
                f"config.json: {text.where}{key} tells of {what}, whose memory this planner does not know how to "
                "count; leave out model_path and model_config to plan the scheduler without it"
            )
    return text


def _layer_count(text: _Config) -> int:
    layers = text.positive("num_hidden_layers", "n_layer")
    if layers > MAX_LAYERS:
        raise ModelError(f"config.json: {text.where}num_hidden_layers: expected at most {MAX_LAYERS}, got {layers}")
    return layers


def _layer_kinds(text: _Config, layers: int) -> tuple[tuple[bool, ...], int]:
    """Return which layers cache keys and values, and the bytes of state the others keep for each request."""
    kinds = text.strings("layer_types")
    interval = text.number("full_attention_interval", default=0)
    if kinds:
        if len(kinds) != layers:
            raise ModelError(
                f"config.json: {text.where}layer_types: expected {layers} entries (num_hidden_layers), got {len(kinds)}"
            )
        unknown = sorted(set(kinds) - set(_LAYER_KINDS))
        if unknown:
            raise ModelError(
                f"config.json: {text.where}layer_types: {unknown[0]!r} is a kind of layer this planner does not know; "
                "leave out model_path and model_config to plan the scheduler without it"
            )
        cached = tuple(_LAYER_KINDS[kind] for kind in kinds)
    elif interval:
        cached = tuple((index + 1) % interval == 0 for index in range(layers))
    else:
        cached = (True,) * layers
    if all(cached):
        return cached, 0
    if not any(cached):
        raise ModelError(
            f"config.json: {text.where}layer_types: no layer with attention: nothing to plan a KV cache for"
        )
    key_heads = text.positive("linear_num_key_heads")
    value_heads = text.positive("linear_num_value_heads")
    key_dim = text.positive("linear_key_head_dim")
    value_dim = text.positive("linear_value_head_dim")
    kernel = text.positive("linear_conv_kernel_dim")
    # The recurrent state is kept in 32 bits, the last inputs of the convolution in 16.
    state = value_heads * key_dim * value_dim * 4
    return cached, state + (2 * key_heads * key_dim + value_heads * value_dim) * (kernel - 1) * 2


def _attention(text: _Config) -> Attention:
    if text.has("kv_lora_rank"):
        return Attention(shared=text.positive("kv_lora_rank") + text.positive("qk_rope_head_dim"))
    heads = text.positive("num_attention_heads", "n_head")
    head_dim = text.positive("head_dim", default=max(1, text.positive("hidden_size", "n_embd") // heads))
    value_dim = text.positive("v_head_dim", default=head_dim)
    return Attention(kv_heads=text.positive("num_key_value_heads", default=heads), per_head=head_dim + value_dim)


def _block_size(config: _Config) -> int:
    """Return the block of a block-wise quantization (weight_block_size of FP8 checkpoints), 0 where there is none."""
    section = config.section("quantization_config")
    blocks = section.values.get("weight_block_size") if section is not None else None
    return max((size for size in blocks if isinstance(size, int)), default=0) if isinstance(blocks, list) else 0


def _vision(outer: _Config) -> tuple[int, int] | None:
    vision = outer.section("vision_config")
    if vision is None:
        return None
    # The defaults are the ones SGLang falls back to when it estimates what a vision tower needs.
    return (
        vision.positive("num_hidden_layers", "vt_num_hidden_layers", default=24),
        vision.positive("hidden_size", "vt_hidden_size", default=1024),
    )


# --- weights from the configuration -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scheme:
    """A way to store weights: *quantized* bytes for a number where it applies, *plain* bytes where it does not."""

    name: str
    plain: float
    quantized: float
    ignored: tuple[str, ...] = ()
    only_experts: bool = False

    def bytes(self, numbers: int, module: str) -> int:
        """Return the bytes of *numbers* weights of the linear layer called *module*."""
        skip = (self.only_experts and ".experts." not in module) or any(
            _names(pattern, module) for pattern in self.ignored
        )
        return math.ceil(numbers * (self.plain if skip else self.quantized))


def _names(pattern: str, module: str) -> bool:
    """Say whether an entry of an ignore list ("re:" expression, shell pattern, part of a name) names *module*."""
    if pattern.startswith("re:"):
        try:
            return any(re.match(pattern[3:], name) for name in (module, f"language_model.{module}"))
        except re.error as error:
            raise ModelError(
                f"config.json: quantization_config: {pattern[:60]!r} is no regular expression: {error}"
            ) from error
    if any(sign in pattern for sign in "*?["):
        return any(fnmatch.fnmatchcase(name, pattern) for name in (module, f"language_model.{module}"))
    return f".{pattern}." in f".{module}." or f".{module}.".startswith(f".{pattern.replace('language_model.', '', 1)}.")


_DTYPE_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "": 2.0}


def _quantization(config: _Config) -> _Scheme:
    """Return how the weights are stored; raise ModelError where the method is not known."""
    dtype = config.text("torch_dtype") or config.text("dtype")
    text = config.section("text_config")
    if not dtype and text is not None:
        dtype = text.text("torch_dtype") or text.text("dtype")
    plain = _DTYPE_BYTES.get(dtype.replace("torch.", ""), 2.0)
    section = config.section("quantization_config")
    if section is None or not section.values:
        return _Scheme({4.0: "fp32"}.get(plain, "bf16"), plain, plain)
    method = section.text("quant_method").lower() or ("modelopt" if section.has("quant_algo") else "")
    ignored = (
        *section.strings("ignore"),
        *section.strings("modules_to_not_convert"),
        *section.strings("exclude_modules"),
        "lm_head",
    )
    if method == "fp8":
        return _Scheme("fp8", plain, 1.0 + _block_scale(section, "weight_block_size", 4.0), ignored)
    if method in ("gptq", "awq", "gptq_marlin", "awq_marlin"):
        bits = section.positive("bits", "w_bit", default=4)
        group = section.positive("group_size", "q_group_size", default=128)
        return _Scheme(f"int{bits} ({method})", plain, bits / 8 + (2.0 + bits / 8) / group, ignored)
    if method == "mxfp4":
        return _Scheme("mxfp4", plain, 0.5 + 1 / 32, ignored, only_experts=True)
    if method.startswith("modelopt"):
        algorithm = section.text("quant_algo").upper()
        if algorithm in ("NVFP4", "FP4"):
            group = section.positive("group_size", default=16)
            return _Scheme("nvfp4", plain, 0.5 + 1 / group, ignored)
        if algorithm == "FP8":
            return _Scheme("fp8", plain, 1.0, ignored)
        raise _unknown_scheme(f"{method} {algorithm}")
    if method == "compressed-tensors":
        return _compressed_tensors(section, plain, ignored)
    raise _unknown_scheme(method)


def _compressed_tensors(section: _Config, plain: float, ignored: tuple[str, ...]) -> _Scheme:
    groups = section.section("config_groups")
    first = groups and next((groups.section(key) for key in groups.values), None)
    weights = first and first.section("weights")
    if not weights:
        raise _unknown_scheme("compressed-tensors without config_groups")
    bits = weights.positive("num_bits")
    group = weights.number("group_size", default=0)
    if weights.text("type") == "float":
        if bits == 4:
            return _Scheme("nvfp4", plain, 0.5 + 1 / (group or 16), ignored)
        if bits == 8:
            return _Scheme("fp8", plain, 1.0 + _block_scale(weights, "block_structure", 2.0), ignored)
    elif bits in (4, 8):
        return _Scheme(f"int{bits}", plain, bits / 8 + (2.0 / group if group else 0.0), ignored)
    raise _unknown_scheme(f"compressed-tensors {weights.text('type')} with {bits} bits")


def _block_scale(section: _Config, key: str, scale_bytes: float) -> float:
    """Return the bytes of scales for each number, where one scale serves a block of numbers."""
    block = section.values.get(key)
    if not block:
        return 0.0
    if not isinstance(block, (list, tuple)) or not all(isinstance(n, int) and 0 < n <= MAX_NUMBER for n in block):
        raise ModelError(
            f"config.json: {section.where}{key}: expected a list of positive numbers, got {str(block)[:40]!r}"
        )
    return scale_bytes / math.prod(block)


def _unknown_scheme(method: str) -> ModelError:
    return ModelError(
        f"config.json: quantization_config: this planner does not know how large {method[:60]!r} weights are; give "
        "model_path, so that the sizes are read from the files"
    )


@dataclass(frozen=True)
class _Layer:
    """The sizes of one layer in bytes."""

    dense: int
    routed: int
    replicated: int


def _estimate(
    outer: _Config, text: _Config, layers: int, cached: tuple[bool, ...], scheme: _Scheme, weight_bytes: int | None
) -> Weights:
    """Return the weights worked out from the configuration, scaled to *weight_bytes* where that is given."""
    hidden = text.positive("hidden_size", "n_embd")
    table = text.positive("vocab_size") * hidden
    embedding = math.ceil(table * scheme.plain)
    tied = bool(text.values.get("tie_word_embeddings", outer.values.get("tie_word_embeddings", False)))
    moe = _moe_layers(text, layers)
    sizes = [_layer(text, hidden, scheme, index, moe[index], cached[index]) for index in range(layers)]
    vision = _estimated_vision(outer, hidden, scheme)
    norm = math.ceil(hidden * scheme.plain)
    weights = Weights(
        layers=tuple(size.dense + size.routed for size in sizes),
        routed=tuple(size.routed for size in sizes),
        replicated=tuple(size.replicated for size in sizes),
        first=embedding,
        last=norm + (0 if tied else scheme.bytes(table, "lm_head")),
        everywhere=vision,
        tied=embedding if tied else 0,
    )
    if weight_bytes is None:
        return weights
    if not 1 <= weight_bytes <= MAX_NUMBER:
        raise ModelError(f"weight_bytes: expected the size of the model in bytes, got {weight_bytes}")
    return _scaled(weights, weight_bytes / weights.total)


def _scaled(weights: Weights, factor: float) -> Weights:
    def scale(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(round(value * factor) for value in values)

    first, last, everywhere, tied = scale((weights.first, weights.last, weights.everywhere, weights.tied))
    return Weights(
        layers=scale(weights.layers),
        routed=scale(weights.routed),
        replicated=scale(weights.replicated),
        first=first,
        last=last,
        everywhere=everywhere,
        tied=tied,
        source="weight_bytes",
    )


def _moe_layers(text: _Config, layers: int) -> list[bool]:
    """Return which layers have routed experts."""
    if not text.number("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", default=0):
        return [False] * layers
    dense = text.number("first_k_dense_replace", default=0)
    every = text.positive("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", default=1)
    only_dense = text.values.get("mlp_only_layers") or []
    if not isinstance(only_dense, (list, tuple)):
        raise ModelError(f"config.json: {text.where}mlp_only_layers: expected a list, got {str(only_dense)[:40]!r}")
    # DeepSeek counts its frequency from layer 0, the others from the end of each group.
    offset = 0 if text.has("moe_layer_freq") else 1
    return [index >= dense and (index + offset) % every == 0 and index not in only_dense for index in range(layers)]


# Activations of a plain MLP, one matrix up and one down; all others have a third one as a gate.
_UNGATED = ("relu", "relu2", "gelu", "gelu_new", "gelu_fast")


def _layer(text: _Config, hidden: int, scheme: _Scheme, index: int, moe: bool, cached: bool) -> _Layer:
    prefix = f"model.layers.{index}"
    attention, replicated = (
        _attention_bytes(text, hidden, scheme, prefix) if cached else _linear_bytes(text, hidden, scheme, prefix)
    )
    norms = math.ceil(2 * hidden * scheme.plain)
    replicated += norms
    if text.has("intermediate_size_mlp"):
        raise ModelError(
            f"config.json: {text.where}intermediate_size_mlp: this planner does not know which layers have that size; "
            "give model_path, so that the sizes are read from the files"
        )
    inner = text.positive("intermediate_size", "ffn_dim", "n_inner")
    activation = text.text("hidden_act") or text.text("activation_function")
    matrices = 2 if activation in _UNGATED else 3
    if not moe:
        mlp = scheme.bytes(matrices * hidden * inner, f"{prefix}.mlp.up_proj")
        return _Layer(attention + norms + mlp, 0, replicated)
    experts = text.positive("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    expert_inner = text.positive("moe_intermediate_size", "expert_intermediate_size", default=inner)
    router = math.ceil(hidden * experts * scheme.plain)
    shared = text.number("shared_expert_intermediate_size", default=0) or (
        text.number("n_shared_experts", "num_shared_experts", default=0) * expert_inner
    )
    routed = scheme.bytes(matrices * hidden * expert_inner, f"{prefix}.mlp.experts.0.up_proj") * experts
    dense = (
        attention + norms + router + scheme.bytes(matrices * hidden * shared, f"{prefix}.mlp.shared_experts.up_proj")
    )
    return _Layer(dense, routed, replicated + router)


def _attention_bytes(text: _Config, hidden: int, scheme: _Scheme, prefix: str) -> tuple[int, int]:
    """Return the bytes of an attention block, and those of them that every tensor-parallel rank holds."""
    heads = text.positive("num_attention_heads", "n_head")

    def linear(numbers: int, name: str) -> int:
        return scheme.bytes(numbers, f"{prefix}.self_attn.{name}")

    if not text.has("kv_lora_rank"):
        head_dim = text.positive("head_dim", default=max(1, hidden // heads))
        value_dim = text.positive("v_head_dim", default=head_dim)
        kv_heads = text.positive("num_key_value_heads", default=heads)
        query = hidden * heads * head_dim * (2 if text.has("attn_output_gate") else 1)
        numbers = query + hidden * kv_heads * (head_dim + value_dim) + heads * value_dim * hidden
        return linear(numbers, "q_proj"), 0
    latent, rope = text.positive("kv_lora_rank"), text.positive("qk_rope_head_dim")
    nope, value_dim = text.positive("qk_nope_head_dim"), text.positive("v_head_dim")
    query_latent = text.number("q_lora_rank", default=0)
    down = linear(hidden * (latent + rope), "kv_a_proj_with_mqa") + linear(hidden * query_latent, "q_a_proj")
    up = linear((query_latent or hidden) * heads * (nope + rope), "q_b_proj") + linear(
        latent * heads * (nope + value_dim), "kv_b_proj"
    )
    return down + up + linear(heads * value_dim * hidden, "o_proj"), down


def _linear_bytes(text: _Config, hidden: int, scheme: _Scheme, prefix: str) -> tuple[int, int]:
    """Return the bytes of a gated delta-rule block: query, key, value, gate, two scalars a head, and the way out."""
    keys = text.positive("linear_num_key_heads") * text.positive("linear_key_head_dim")
    value_heads = text.positive("linear_num_value_heads")
    values = value_heads * text.positive("linear_value_head_dim")
    numbers = hidden * (2 * keys + 2 * values + 2 * value_heads) + values * hidden
    return scheme.bytes(numbers, f"{prefix}.linear_attn.in_proj"), 0


def _estimated_vision(outer: _Config, hidden: int, scheme: _Scheme) -> int:
    """Return the bytes of a vision tower and its projector: four attention and two MLP matrices a layer."""
    vision = outer.section("vision_config")
    if vision is None:
        return 0
    depth = vision.positive("num_hidden_layers", "vt_num_hidden_layers", "depth", default=24)
    width = vision.positive("hidden_size", "vt_hidden_size", "embed_dim", default=1024)
    inner = vision.positive("intermediate_size", "vt_intermediate_size", default=4 * width)
    merged = 4 * width
    return math.ceil((depth * (4 * width * width + 2 * width * inner) + merged * (merged + hidden)) * scheme.plain)


# --- weights from the files -------------------------------------------------------------------------------------------


def read_directory(directory: str) -> ModelShape:
    """Return the shape of the model in *directory*: its config.json and the headers of its safetensors files.

    Raises ModelError where the directory is not a whole, understood model. Never reads a file outside of it.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ModelError(f"model_path: expected a directory on this host, {directory} is none")
    config = _parse(_read(_inside(root, "config.json"), MAX_CONFIG_BYTES), "config.json")
    text = _text_section(_Config(config))
    tied = bool(text.values.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    return read_config(config, weights=read_weights(root, _layer_count(text), tied))


def read_weights(root: Path, layers: int, tied: bool = False) -> Weights:
    """Return the bytes that the headers of the safetensors files in *root* tell of, by the place they go to."""
    sums = _Sums(layers)
    for shard in _shards(root):
        for name, size in _tensors(shard):
            sums.add(name, size)
    return sums.weights(tied)


class _Sums:
    """Adds tensors up by the place they go to."""

    # Where a tensor sits is told by its prefix; what a tower or a draft model calls its layers is no layer of ours.
    _NUMBERED = re.compile(r"(?P<prefix>(?:[^.]+\.)*?)(?:layers|h|blocks)\.(?P<index>\d{1,6})\.(?P<rest>.+)")
    _TOWER = re.compile(r"vision|visual|vit\b|audio|image|projector|multi_modal|patch_embed|merger")
    _DRAFT = re.compile(r"(?:^|\.)(?:mtp|draft|eagle)")
    _FIRST = re.compile(r"embed|wte|wpe|project_in")
    _LAST = re.compile(r"lm_head|(?:^|\.)(?:norm|ln_f|final_layernorm|final_layer_norm|norm_f|output|project_out)\b")
    _REPLICATED = re.compile(r"norm|\.gate\.|router|q_a_proj|kv_a_proj|fused_qkv_a")

    def __init__(self, layers: int) -> None:
        self.layers = [0] * layers
        self.routed = [0] * layers
        self.replicated = [0] * layers
        self.places = {"first": 0, "last": 0, "everywhere": 0, "unused": 0}
        self.embedding = 0
        self.has_head = False
        self._expert_places: dict[str, int | str] = {}

    def add(self, name: str, size: int) -> None:
        # Most tensors of a large model are experts, hundreds to a layer under one prefix: look at each prefix once.
        prefix, routed, _rest = name.partition(".experts.")
        if routed:
            place = self._expert_places.get(prefix)
            if place is None:
                place = self._expert_places[prefix] = self._place(name)
            if isinstance(place, int):
                self.routed[place] += size
        else:
            place = self._place(name)
            if isinstance(place, int) and self._REPLICATED.search(name):
                self.replicated[place] += size
        if isinstance(place, int):
            self.layers[place] += size
        else:
            self.places[place] += size
            self.has_head = self.has_head or "lm_head" in name
            if place == "first" and ("embed_tokens" in name or "wte" in name or "word_embeddings" in name):
                self.embedding += size

    def _place(self, name: str) -> int | str:
        numbered = self._NUMBERED.match(name)
        prefix = numbered["prefix"] if numbered else name
        if self._DRAFT.search(prefix):
            return "unused"
        if self._TOWER.search(prefix):
            return "everywhere"
        if numbered:
            index = int(numbered["index"])
            # Layers behind the last one are for drafting: not loaded unless speculative decoding is asked for.
            return index if index < len(self.layers) else "unused"
        if self._FIRST.search(name):
            return "first"
        return "last" if self._LAST.search(name) else "everywhere"

    def weights(self, tied: bool) -> Weights:
        empty = [index for index, size in enumerate(self.layers) if not size]
        if empty:
            raise ModelError(
                f"model_path: the files hold nothing for layer {empty[0]} of {len(self.layers)} (num_hidden_layers): "
                "the download is not complete, or its tensors are named in a way this planner does not know"
            )
        return Weights(
            layers=tuple(self.layers),
            routed=tuple(self.routed),
            replicated=tuple(self.replicated),
            tied=self.embedding if tied and not self.has_head else 0,
            source="files",
            **self.places,
        )


def _shards(root: Path) -> list[Path]:
    """Return the safetensors files of the model: those of the index where there is one, else all."""
    if os.path.lexists(root / INDEX_NAME):
        index = _parse(_read(_inside(root, INDEX_NAME), MAX_INDEX_BYTES), INDEX_NAME)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise ModelError(f"{INDEX_NAME}: weight_map: expected a dictionary of file names")
        names = sorted(set(weight_map.values()))
    else:
        names = sorted(path.name for path in root.glob("*.safetensors"))
        # Mistral ships the same weights twice, once in one file; SGLang reads the split ones.
        names = [name for name in names if not name.startswith("consolidated")] or names
    if not names:
        raise ModelError(
            f"model_path: {root} has no *.safetensors file: the download is not complete, or the weights have another "
            "format"
        )
    if len(names) > MAX_SHARDS:
        raise ModelError(f"model_path: expected at most {MAX_SHARDS} safetensors files, got {len(names)}")
    return [_inside(root, name) for name in names]


def _inside(root: Path, name: str) -> Path:
    """Return the file *name* of *root*, links resolved; raise ModelError where that leads out of the directory.

    A snapshot of the Hugging Face cache is nothing but links to the blobs of the same repository: those are let
    through.
    """
    try:
        base = root.resolve(strict=True)
        path = (root / name).resolve(strict=True)
        regular = path.is_file()
    except FileNotFoundError:
        raise ModelError(f"model_path: {root} has no {name[:120]!a}: the download is not complete") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"model_path: {name[:120]!a} cannot be opened: {error.__class__.__name__}") from error
    allowed = [base]
    if base.parent.name == "snapshots":
        allowed.append(base.parent.parent / "blobs")
    if Path(name).name != name or not any(place in path.parents for place in allowed):
        raise ModelError(
            f"model_path: {name[:120]!a} leads out of {root}: only files of the model's own directory are read"
        )
    if not regular:
        raise ModelError(f"model_path: {name[:120]!a} is not a regular file")
    return path


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        raise ModelError(f"model_path: {path} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise ModelError(f"model_path: {path} is larger than {limit} bytes: not what its name says")
    return content


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name}: not valid JSON: {str(error)[:80]}") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{name}: expected a JSON object, got {type(parsed).__name__}")
    return parsed


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Yield name and size in bytes of each tensor that the header of a safetensors file lists.

    The file is 8 bytes of header length, the header in JSON, then the tensors without gaps.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ModelError(
                    f"{path.name}: a header of {length} bytes: expected at most {MAX_HEADER_BYTES}; is this "
                    "safetensors?"
                )
            header = stream.read(length)
    except OSError as error:
        raise ModelError(f"{path.name}: cannot be read: {error.strerror}") from error
    if size < 8 or len(header) < length:
        raise ModelError(f"{path.name}: ends inside its header: the download is not complete")
    room = size - 8 - length
    end = total = 0
    for name, entry in _parse(header, path.name).items():
        if name == "__metadata__":
            continue
        try:
            first, last = entry["data_offsets"]
            valid = 0 <= first <= last and not isinstance(first, float) and not isinstance(last, float)
        except (KeyError, TypeError, ValueError, IndexError):
            valid = False
        if not valid:
            raise ModelError(f"{path.name}: tensor {name[:120]!a}: expected data_offsets [begin, end] in its header")
        end = max(end, last)
        total += last - first
        yield name, last - first
    if end > room:
        raise ModelError(f"{path.name}: {end - room} bytes are missing at its end: the download is not complete")
    if total != end:
        raise ModelError(
            f"{path.name}: the tensors of its header overlap or leave gaps: expected {end} bytes, they add up to "
            f"{total}"
        )
