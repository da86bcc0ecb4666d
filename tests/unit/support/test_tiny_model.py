# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model that real SGLang serves in the test hosts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.gpufleet.sglang.tests.support.tiny_model.make_tiny_model import (
    config,
    main,
    safetensors,
    shapes,
    tokenizer,
    tokenizer_config,
    vocabulary,
    write_model,
)


def test_every_token_is_a_word_of_its_own() -> None:
    words = vocabulary()
    assert len(words) == len(set(words)) == config()["vocab_size"] == 512
    assert all(re.fullmatch("[a-z]{4,}", word) for word in words)


def test_no_token_ends_an_answer() -> None:
    assert {config()[f"{kind}_token_id"] for kind in ("bos", "eos", "pad")} == {None}
    assert tokenizer()["added_tokens"] == []
    assert not [key for key in tokenizer_config() if key.endswith("_token")]


def test_unknown_words_have_a_token() -> None:
    model = tokenizer()["model"]
    assert model["unk_token"] in model["vocab"]
    assert sorted(model["vocab"].values()) == list(range(512))


def test_chat_template_writes_known_words() -> None:
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Template(tokenizer_config()["chat_template"])
    text = template.render(messages=[{"role": "user", "content": "baba"}], add_generation_prompt=True)
    assert text.split() == ["user", "baba", "assistant"]
    assert set(text.split()) <= set(vocabulary())


def test_up_to_eight_pipeline_ranks_have_a_layer() -> None:
    assert config()["num_hidden_layers"] == 8


def test_weights_are_where_their_header_says() -> None:
    data = safetensors()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert {name: tuple(tensor["shape"]) for name, tensor in header.items()} == shapes()
    end = 0
    for name, tensor in header.items():
        start, stop = tensor["data_offsets"]
        shape = shapes()[name]
        assert start == end
        assert stop - start == 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        end = stop
    assert len(data) == 8 + size + end
    assert size % 8 == 0


def test_weights_are_the_same_every_time() -> None:
    assert safetensors() == safetensors()
    assert safetensors(seed=1) != safetensors()


def test_model_directory_is_written_once(tmp_path: Path) -> None:
    target = tmp_path / "models" / "tiny"
    assert write_model(target)
    assert not write_model(target)
    names = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert {path.name for path in target.iterdir()} == names
    assert list(target.parent.iterdir()) == [target]


def test_model_directory_of_another_shape_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    write_model(target)
    (target / "config.json").write_text("{}")
    (target / "more.json").write_text("{}")
    assert write_model(target)
    assert json.loads((target / "config.json").read_text()) == config()
    assert not (target / "more.json").exists()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_command_says_how_it_is_called(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["make_tiny_model.py", *arguments])
    assert main() == 2
    assert "DIRECTORY" in capsys.readouterr().err
