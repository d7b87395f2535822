"""A .gguf file tells its architecture, tokenizer and tensors by its header alone."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from specwatch.advise import quantization
from specwatch.advise.architecture import read as read_architecture
from specwatch.advise.gguf_config import config_of
from specwatch.edges.model_folder import open_model
from specwatch.errors import ConfigError
from tests.advise.folders import WRITTEN, gguf, key, text

_U32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9


def test_a_file_as_the_library_writes_it() -> None:
    """Bytes and weights are those that the library packed: 352 x 32 of Q8_0 are 34 bytes a 32."""
    found = open_model(WRITTEN / "bpe.gguf")
    assert (found.name, found.kind, found.vocabulary_size) == ("bpe", "gguf", 352)
    assert found.weights is not None
    assert found.weights.elements_by_dtype == {"Q8_0": 352 * 32, "F32": 32, "F16": 32 * 32}
    assert found.weights.bytes == 352 * 34 + 32 * 4 + 32 * 32 * 2
    assert found.weights.parameters == 352 * 32 + 32 + 32 * 32


def test_its_keys_are_read_as_a_configuration() -> None:
    config = open_model(WRITTEN / "bpe.gguf").config
    found = read_architecture(config, "bpe.gguf")
    assert (found.model_type, found.hidden_size, found.vocabulary) == ("qwen2", 32, 352)
    assert [(each.kv_heads, each.head_dim) for each in found.layers] == [(2, 8)]
    assert found.tied
    assert found.quantization is not None
    assert quantization.bits(found.quantization) == pytest.approx(8.5, abs=0.01)


DEEPSEEK = {
    "general.architecture": "deepseek2",
    "general.file_type": 15,
    "deepseek2.block_count": 61,
    "deepseek2.embedding_length": 7168,
    "deepseek2.attention.head_count": 128,
    "deepseek2.attention.head_count_kv": 1,
    "deepseek2.attention.key_length": 576,
    "deepseek2.attention.value_length": 512,
    "deepseek2.attention.key_length_mla": 192,
    "deepseek2.attention.value_length_mla": 128,
    "deepseek2.attention.kv_lora_rank": 512,
    "deepseek2.rope.dimension_count": 64,
    "deepseek2.expert_count": 256,
    "deepseek2.expert_used_count": 8,
    "deepseek2.vocab_size": 129280,
}


def test_of_latent_attention_the_cached_width_is_that_of_the_entry() -> None:
    """DeepSeek-V3 keeps 512 + 64 elements of a token and layer."""
    found = read_architecture(config_of(DEEPSEEK, ["output.weight"]), "x")
    assert {each.latent for each in found.layers} == {576}
    assert found.experts is not None
    assert (found.experts.total, found.experts.active) == (256, 8)
    assert (found.quantization or "").upper() == "Q4_K_M"
    assert not found.tied


def test_layers_without_attention_and_with_windows_are_told_apart() -> None:
    keys = {
        "general.architecture": "lfm2", "lfm2.block_count": 3, "lfm2.embedding_length": 64,
        "lfm2.attention.head_count": 4, "lfm2.attention.head_count_kv": [0, 2, 0],
        "lfm2.vocab_size": 9,
    }  # fmt: skip
    found = read_architecture(config_of(keys, []), "x")
    assert [each.kind for each in found.layers] == ["none", "full", "none"]
    assert found.kv_heads == 2
    windowed = {
        **keys, "lfm2.attention.head_count_kv": 2, "lfm2.attention.sliding_window": 16,
        "lfm2.attention.sliding_window_pattern": [True, True, False],
    }  # fmt: skip
    found = read_architecture(config_of(windowed, []), "x")
    assert [each.kind for each in found.layers] == ["sliding", "sliding", "full"]


def test_a_mixture_under_llama_s_name_is_mixtral() -> None:
    keys = {"general.architecture": "llama", "llama.expert_count": 8, "llama.expert_used_count": 2}
    found = config_of(keys, [])
    assert (found["model_type"], found["num_local_experts"]) == ("mixtral", 8)


def split(folder: Path, number: int) -> Path:
    keys = key("split.count", 2, struct.pack("<H", 2))
    name = text("a") + struct.pack("<IQIQ", 1, 8, 0, 0)
    header = gguf(keys + name, tensors=1, count=1)
    path = folder / f"m-{number:05d}-of-00002.gguf"
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(32))
    return path


def test_parts_of_a_model_are_added_up_and_a_missing_one_is_named(tmp_path: Path) -> None:
    first, second = split(tmp_path, 1), split(tmp_path, 2)
    found = open_model(first).weights
    assert found is not None
    assert (found.bytes, found.parameters, len(found.files)) == (64, 16, 2)
    assert open_model(tmp_path).weights == found
    with pytest.raises(ConfigError, match="is part 2 of 2; expected the first: give m-00001-of"):
        open_model(second)
    second.unlink()
    with pytest.raises(ConfigError, match=r"m-00002-of-00002\.gguf: is missing; expected all 2"):
        open_model(first)


def test_a_type_that_is_not_known_has_the_size_up_to_the_next_tensor(tmp_path: Path) -> None:
    tensors = b"".join(
        text(name) + struct.pack("<IQIQ", 1, 8, 99, at) for name, at in (("a", 0), ("b", 96))
    )
    header = gguf(tensors, tensors=2)
    path = tmp_path / "x.gguf"
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(128))
    found = open_model(path).weights
    assert found is not None
    assert found.bytes_by_dtype == {"type 99": 128}


WHOLE = (WRITTEN / "bpe.gguf").read_bytes()
HOSTILE = {
    "another file under its name": (b"PK\x03\x04", "is no .gguf file; expected one, or a model's"),
    "nothing": (b"", "is no .gguf file"),
    "only its name": (b"GGUF", "a header that wants 4 bytes more at byte 4"),
    "the first version": (gguf(version=1), "version 1; expected version 2 or 3"),
    "the other end first": (gguf(version=3 << 24), "(is it big-endian?); expected version 2 or 3"),
    "more keys than there can be": (gguf(count=2**60), "0 tensors and 1,152,921,504,606,846,976"),
    "more tensors than there can be": (gguf(tensors=2**40), "1,099,511,627,776 tensors and 0 keys"),
    "a text of all memory": (
        gguf(key("a", _STRING, struct.pack("<Q", 2**62)), count=1),
        "a header that wants 4,611,686,018,427,387,904 bytes more",
    ),
    "a list of all memory": (
        gguf(key("a", _ARRAY, struct.pack("<IQ", _STRING, 2**50)), count=1),
        "1,125,899,906,842,624 texts in a; expected at most",
    ),
    "numbers of all memory": (
        gguf(key("a", _ARRAY, struct.pack("<IQ", _U32, 2**50)), count=1),
        "a header that wants",
    ),
    "lists of lists": (
        gguf(key("a", _ARRAY, struct.pack("<IQ", _ARRAY, 1)), count=1),
        "a of type 9; expected a type of GGUF's",
    ),
    "a tensor of many dimensions": (
        gguf(text("t") + struct.pack("<I", 2**31), tensors=1),
        "2,147,483,648 dimensions of t; expected at most 8",
    ),
    "an alignment of nothing": (
        gguf(key("general.alignment", _U32, struct.pack("<I", 0)), count=1),
        "an alignment of 0; expected one up to 65,536",
    ),
    "an interrupted download": (WHOLE[:-100], "ending at 21,248; expected all tensors of its"),
    "a header cut short": (WHOLE[:5000], "bytes more at byte"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_be_read_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as raised:
        open_model(path)
    found = str(raised.value)
    assert found.startswith(f"{path}: ")
    assert message in found
    assert "; expected " in found


def test_a_file_of_tensors_alone_has_no_tokenizer(tmp_path: Path) -> None:
    shutil.copy(split(tmp_path, 1), tmp_path / "alone.gguf")
    found = open_model(tmp_path / "alone.gguf")
    assert found.tokenizer is None
    assert found.vocabulary_size is None
