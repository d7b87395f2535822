"""A .gguf file is read by its header alone; what cannot be read is named."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from specwatch.lab.advise.architecture import read_architecture
from specwatch.lab.advise.formats import weight_bits
from specwatch.lab.advise.gguf_model import GgufModel, config_of_gguf
from specwatch.lab.advise.model_files import open_model
from specwatch.lab.advise.weights import Tensor
from tests.advise.folders import WRITTEN, gguf, key, model, refused, text, weights_of


def test_a_gguf_file_as_the_library_writes_it() -> None:
    """352 x 32 weights of Q8_0 take 34 bytes for each 32."""
    files = open_model(WRITTEN / "bpe.gguf")
    assert (files.name, files.kind, files.config["vocab_size"]) == ("bpe", "gguf", 352)
    assert files.weights.bytes == 352 * 34 + 32 * 4 + 32 * 32 * 2
    assert files.weights.parameters == 352 * 32 + 32 + 32 * 32
    shape = read_architecture(files.config, "bpe.gguf")
    assert (shape.model_type, shape.hidden_size, shape.vocabulary) == ("qwen2", 32, 352)
    assert [layer.token_elements for layer in shape.layers] == [2 * 2 * 8]
    assert shape.tied
    assert weight_bits(shape.quantization) == pytest.approx(8.5, abs=0.01)


DEEPSEEK = {
    "general.architecture": "deepseek2",
    "general.file_type": "Q4_K_M",
    **{
        f"deepseek2.{name}": value
        for name, value in {
            "block_count": 61,
            "embedding_length": 7168,
            "attention.head_count": 128,
            "attention.head_count_kv": 1,
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "attention.kv_lora_rank": 512,
            "rope.dimension_count": 64,
            "expert_count": 256,
            "expert_used_count": 8,
            "vocab_size": 129280,
        }.items()
    },
}
LFM2 = {
    "general.architecture": "lfm2",
    "lfm2.block_count": 3,
    "lfm2.embedding_length": 64,
    "lfm2.attention.head_count": 4,
    "lfm2.attention.head_count_kv": [0, 2, 0],
    "lfm2.vocab_size": 9,
}


def test_keys_of_gguf_are_those_of_a_configuration() -> None:
    output = [Tensor("output.weight", "F16", 1, 2)]
    deepseek = read_architecture(config_of_gguf(GgufModel(DEEPSEEK, output)), "x")
    assert {layer.token_elements for layer in deepseek.layers} == {512 + 64}
    assert (deepseek.experts.total, deepseek.experts.active) == (256, 8)
    assert ((deepseek.quantization or "").upper(), deepseek.tied) == ("Q4_K_M", False)
    mixed = read_architecture(config_of_gguf(GgufModel(LFM2, [])), "x")
    assert [layer.kind for layer in mixed.layers] == ["none", "full", "none"]
    assert (mixed.kv_heads, mixed.tied) == (2, True)
    windows = {
        **LFM2,
        "lfm2.attention.head_count_kv": 2,
        "lfm2.attention.sliding_window": 16,
        "lfm2.attention.sliding_window_pattern": [True, True, False],
    }
    windowed = read_architecture(config_of_gguf(GgufModel(windows, [])), "x")
    assert [layer.kind for layer in windowed.layers] == ["sliding", "sliding", "full"]
    llama = {"general.architecture": "llama", "llama.expert_count": 8}
    assert config_of_gguf(GgufModel(llama, []))["model_type"] == "mixtral"


def split(folder: Path, number: int) -> Path:
    keys = key("split.count", 2, struct.pack("<H", 2))
    tensor = text("a") + struct.pack("<IQIQ", 1, 8, 0, 0)
    header = gguf(keys + tensor, tensors=1, count=1)
    path = folder / f"m-{number:05d}-of-00002.gguf"
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(32))
    return path


def test_parts_of_a_model_are_added_up_and_a_missing_one_is_named(tmp_path: Path) -> None:
    first, second = split(tmp_path, 1), split(tmp_path, 2)
    assert (weights_of(first).bytes, weights_of(first).parameters) == (64, 16)
    assert weights_of(tmp_path) == weights_of(first)
    assert open_model(first).tokenizer is None
    assert "is part 2 of 2; expected the first: give m-00001-of" in refused(second)
    second.unlink()
    assert "m-00002-of-00002.gguf: is missing; expected all 2" in refused(first)


def test_gguf_in_a_folder(tmp_path: Path) -> None:
    """The only model there, whatever projector of images lies beside it."""
    named = gguf(key("general.architecture", 8, text("llama")), count=1)
    model(tmp_path, {"a.gguf": named, "mmproj-a.gguf": gguf()})
    assert open_model(tmp_path).name == "a"
    model(tmp_path, {"b.gguf": gguf()})
    assert "has 2 .gguf files (a.gguf, b.gguf); expected one: name it" in refused(tmp_path)


WHOLE = (WRITTEN / "bpe.gguf").read_bytes()
HOSTILE_GGUF = {
    "another file under its name": (b"PK\x03\x04", "is not a .gguf file; expected one, or a"),
    "nothing": (b"", "is not a .gguf file"),
    "only its name": (b"GGUF", "cannot be read"),
    "the first version": (gguf(version=1), "file appears to be version 1"),
    "more keys than there can be": (gguf(count=2**60), "cannot be read"),
    "more tensors than there can be": (gguf(tensors=2**40), "cannot be read"),
    "a text of all memory": (gguf(key("a", 8, struct.pack("<Q", 2**62)), count=1), "cannot be"),
    "a list of all memory": (gguf(key("a", 9, struct.pack("<IQ", 8, 2**50)), count=1), "cannot"),
    "numbers of all memory": (gguf(key("a", 9, struct.pack("<IQ", 4, 2**50)), count=1), "cannot"),
    "a tensor of many dimensions": (
        gguf(text("t") + struct.pack("<I", 2**31), tensors=1),
        "cannot be read",
    ),
    "an interrupted download": (WHOLE[:-100], "cannot be read"),
    "a header cut short": (WHOLE[:5000], "cannot be read"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE_GGUF.values(), ids=HOSTILE_GGUF)
def test_a_gguf_file_that_cannot_be_read_is_named(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    error = refused(path)
    assert error.startswith(f"{path}: ")
    assert message in error
    assert "; expected " in error
