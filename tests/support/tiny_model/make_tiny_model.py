# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes a model that SGLang can serve on a CPU in seconds: `python3 make_tiny_model.py DIRECTORY`.

OPT, because SGLang serves it without compiled kernels; eight layers, so that pp-size can be up to 8. Its words mean
nothing, but each of its 512 tokens is a word that can be seen, and none ends the answer: a completion of n tokens
reads as n words, and a text of n known words is n tokens.
"""

from __future__ import annotations

import array
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

HIDDEN = 128
FEED_FORWARD = 512
LAYERS = 8
HEADS = 4
POSITIONS = 2048

_SYLLABLES = [consonant + vowel for consonant in "bdfklmnprstv" for vowel in "aeio"]
# What the chat template writes, and the one that stands for any word that is not in the vocabulary.
_OWN = ("user", "assistant", "system", "word")
_UNKNOWN = "word"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def vocabulary(size: int = 512) -> list[str]:
    """The tokens: words of two syllables, different ones, the same every time."""
    words = [first + second for second in _SYLLABLES for first in _SYLLABLES]
    return [*_OWN, *words[: size - len(_OWN)]]


def config() -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": len(vocabulary()),
        "hidden_size": HIDDEN,
        "word_embed_proj_dim": HIDDEN,
        "ffn_dim": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": POSITIONS,
        "activation_function": "relu",
        "do_layer_norm_before": True,
        "tie_word_embeddings": True,
        "dtype": "float32",
        # No token may end an answer.
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def tokenizer() -> dict[str, Any]:
    """tokenizer.json: one token a word."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        # Joins words with spaces; its prefix never occurs.
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(vocabulary())},
            "unk_token": _UNKNOWN,
        },
    }


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of the model."""
    linear = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (HIDDEN, HIDDEN),
        "self_attn.v_proj": (HIDDEN, HIDDEN),
        "self_attn.out_proj": (HIDDEN, HIDDEN),
        "fc1": (FEED_FORWARD, HIDDEN),
        "fc2": (HIDDEN, FEED_FORWARD),
    }
    norms = ("self_attn_layer_norm", "final_layer_norm")
    found: dict[str, tuple[int, ...]] = {
        "model.decoder.embed_tokens.weight": (len(vocabulary()), HIDDEN),
        # OPT leaves the first two positions to padding.
        "model.decoder.embed_positions.weight": (POSITIONS + 2, HIDDEN),
        "model.decoder.final_layer_norm.weight": (HIDDEN,),
        "model.decoder.final_layer_norm.bias": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.decoder.layers.{layer}"
        for name, (rows, columns) in linear.items():
            found[f"{prefix}.{name}.weight"] = (rows, columns)
            found[f"{prefix}.{name}.bias"] = (rows,)
        for name in norms:
            found[f"{prefix}.{name}.weight"] = (HIDDEN,)
            found[f"{prefix}.{name}.bias"] = (HIDDEN,)
    return found


def safetensors(seed: int = 0) -> bytes:
    """model.safetensors: random weights, the same every time."""
    generator = random.Random(seed)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in shapes().items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        if "norm" in name:
            values = array.array("f", [1.0 if name.endswith("weight") else 0.0]) * count
        else:
            values = array.array("f", (generator.uniform(-0.05, 0.05) for _number in range(count)))
        if sys.byteorder == "big":
            values.byteswap()
        start = len(body)
        body += values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def write_model(directory: Path) -> bool:
    """Write the model directory; False when it is there already and is this one."""
    texts = {
        "config.json": config(),
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": tokenizer_config(),
    }
    files = {name: json.dumps(content, indent=2) + "\n" for name, content in texts.items()}
    # The weights follow from the configuration, and are written first: these files tell all.
    if all((directory / name).is_file() and (directory / name).read_text() == text for name, text in files.items()):
        return False
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    (draft / "model.safetensors").write_bytes(safetensors())
    for name, text in files.items():
        (draft / name).write_text(text)
    shutil.rmtree(directory, ignore_errors=True)
    draft.rename(directory)
    return True


def main() -> int:
    """The command line."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: make_tiny_model.py DIRECTORY", file=sys.stderr)
        return 2
    write_model(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
