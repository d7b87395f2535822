"""What lies in a model's folder is read by its headers alone; what cannot be is said."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from specwatch.advise.tokenizers import read
from specwatch.edges.model_folder import open_model
from specwatch.errors import ConfigError
from tests.advise.folders import CONFIG, WRITTEN, fast, gguf, key, model, safetensors, text

INDEX = "model.safetensors.index.json"


def read_all(path: Path) -> None:
    found = open_model(path)
    if found.tokenizer is not None:
        read(found.tokenizer)


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        read_all(path)
    return str(raised.value)


def test_a_whole_folder(tmp_path: Path) -> None:
    weights = safetensors({"embed.weight": ("BF16", [8, 4], 64), "norm.weight": ("F32", [4], 16)})
    folder = model(
        tmp_path / "Tiny",
        {
            "config.json": CONFIG,
            "generation_config.json": {"temperature": 0.7},
            "tokenizer.json": fast(),
            "model.safetensors": weights,
        },
    )
    found = open_model(folder)
    assert (found.name, found.kind, found.where) == ("Tiny", "folder", str(folder))
    assert found.vocabulary_size == 352
    assert found.generation_config == {"temperature": 0.7}
    assert found.weights is not None
    assert (found.weights.bytes, found.weights.parameters, found.weights.tensors) == (80, 36, 2)
    assert found.weights.bytes_by_dtype == {"BF16": 64, "F32": 16}
    assert found.tokenizer is not None
    assert len(read(found.tokenizer).tokens) == 344


def test_parts_that_are_not_there_are_none(tmp_path: Path) -> None:
    """A head (EAGLE) often brings its configuration only; what only names roles is no tokenizer."""
    folder = model(tmp_path, {"config.json": CONFIG, "tokenizer_config.json": {}})
    found = open_model(folder)
    assert (found.weights, found.tokenizer, found.generation_config) == (None, None, None)


SIZES: dict[str, dict[str, Any]] = {
    "of a multimodal model": {"model_type": "x", "text_config": {"vocab_size": 7}},
    "of a speculators checkpoint": {
        "speculators_config": {}, "draft_vocab_size": 3,
        "transformer_layer_config": {"vocab_size": 7},
    },
    "of a part of a part": {"thinker_config": {}, "llm_config": {"text_config": {"vocab_size": 7}}},
}  # fmt: skip


@pytest.mark.parametrize("config", SIZES.values(), ids=SIZES.keys())
def test_the_size_of_the_vocabulary(tmp_path: Path, config: dict[str, Any]) -> None:
    assert open_model(model(tmp_path, {"config.json": config})).vocabulary_size == 7


def test_numbers_that_json_does_not_have_are_read(tmp_path: Path) -> None:
    """Mamba's configurations hold Infinity."""
    folder = model(tmp_path, {"config.json": '{"limit": [0.0, Infinity], "vocab_size": 3}'})
    assert open_model(folder).config["limit"] == [0.0, float("inf")]


def test_shards_are_added_up_and_mistral_s_copies_of_them_are_not(tmp_path: Path) -> None:
    part = safetensors({"a": ("F16", [5], 10)})
    other = safetensors({"b": ("F16", [3], 6)})
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    files = {
        names["a"]: part,
        names["b"]: other,
        "consolidated.safetensors": part,
        "stray.safetensors": part,
    }
    folder = model(tmp_path, {"config.json": CONFIG, INDEX: {"weight_map": names}, **files})
    found = open_model(folder).weights
    assert found is not None
    assert (found.bytes, found.parameters, found.files) == (16, 8, tuple(names.values()))
    (folder / names["b"]).unlink()
    assert refused(folder) == (
        f"{folder}/model-00002-of-00002.safetensors: is missing, 1 of 2 files are; expected all"
        f" that {INDEX} lists: download them"
    )


def test_an_index_alone_tells_the_size(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 988097536}, "weight_map": {"a": "model-1.safetensors"}}
    found = open_model(model(tmp_path, {"config.json": CONFIG, INDEX: index})).weights
    assert found is not None
    assert (found.bytes, found.parameters) == (988097536, None)


def test_pickled_weights_are_sized_and_never_opened(tmp_path: Path) -> None:
    files = {"config.json": CONFIG, "pytorch_model.bin": b"\x80\x04not loaded"}
    found = open_model(model(tmp_path, files)).weights
    assert found is not None
    assert (found.bytes, found.parameters, found.files) == (12, None, ("pytorch_model.bin",))


def gptq(bits: int) -> dict[str, Any]:
    return {**CONFIG, "quantization_config": {"quant_method": "gptq", "bits": bits}}


GROUPS = {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
PACKED: dict[str, tuple[dict[str, Any], dict[str, tuple[str, list[int], int]], int | None]] = {
    "GPTQ, 4 bits": (
        gptq(4),
        {"q.qweight": ("I32", [16, 10], 640), "q.qzeros": ("I32", [1, 2], 8),
         "q.scales": ("F16", [1, 10], 20), "q.g_idx": ("I32", [128], 512)},
        1280,
    ),
    "GPTQ, 3 bits": (gptq(3), {"q.qweight": ("I32", [12, 10], 480)}, 1280),
    "AWQ beside plain ones": (
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"q.qweight": ("I32", [128, 2], 1024), "q.qzeros": ("I32", [1, 2], 8),
         "q.scales": ("F16", [1, 16], 32), "norm.weight": ("F16", [128], 256)},
        2048 + 128,
    ),
    "compressed-tensors, 4 bits": (
        {"quantization_config": {"quant_method": "compressed-tensors", **GROUPS}},
        {"q.weight_packed": ("I32", [10, 16], 640), "q.weight_scale": ("BF16", [10, 1], 20),
         "q.weight_shape": ("I64", [2], 16)},
        1280,
    ),
    "FP8 with scales of blocks": (
        {"quantization_config": {"quant_method": "fp8"}},
        {"q.weight": ("F8_E4M3", [128, 128], 16384), "q.weight_scale_inv": ("F32", [1, 1], 4)},
        16384,
    ),
    "MXFP4 of gpt-oss": (
        {"quantization_config": {"quant_method": "mxfp4"}},
        {"e.down_proj_blocks": ("U8", [2, 8, 16], 256), "e.down_proj_scales": ("U8", [2, 8], 16)},
        512,
    ),
    "NVFP4 of ModelOpt": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        {"q.weight": ("U8", [16, 32], 512), "q.weight_scale": ("F8_E4M3", [16, 4], 64),
         "q.weight_scale_2": ("F32", [], 4), "q.input_scale": ("F32", [], 4)},
        1024,
    ),
    "bitsandbytes, 4 bits": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"q.weight": ("U8", [512, 1], 512), "q.weight.absmax": ("U8", [16], 16),
         "q.weight.quant_map": ("F32", [16], 64),
         "q.weight.quant_state.bitsandbytes__nf4": ("U8", [80], 80)},
        1024,
    ),
    "int8 with scales": (
        {}, {"q.weight": ("I8", [8, 8], 64), "q.weight_scale": ("F32", [8, 1], 32)}, 64,
    ),
    "maps of an EAGLE head": (
        {},
        {"fc.weight": ("F16", [8, 8], 128), "d2t": ("I64", [4], 32), "t2d": ("BOOL", [8], 8)},
        64,
    ),
    "packed in a way that the configuration does not tell": (
        {}, {"q.qweight": ("I32", [16, 10], 640), "norm.weight": ("F16", [4], 8)}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "tensors", "parameters"), PACKED.values(), ids=PACKED.keys())
def test_packed_weights_are_counted_unpacked_and_bytes_exactly(
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, tuple[str, list[int], int]],
    parameters: int | None,
) -> None:
    files = {"config.json": {"vocab_size": 1, **config}, "model.safetensors": safetensors(tensors)}
    found = open_model(model(tmp_path, files)).weights
    assert found is not None
    assert found.parameters == parameters
    assert found.bytes == sum(size for _dtype, _shape, size in tensors.values())


def test_a_snapshot_of_the_hub_s_cache_is_found_by_its_root_and_has_the_hub_s_name(
    tmp_path: Path,
) -> None:
    root = tmp_path / "models--Qwen--Qwen2.5-0.5B"
    blobs = model(root / "blobs", {"aa": CONFIG})
    for revision in ("abc", "def"):
        folder = root / "snapshots" / revision
        folder.mkdir(parents=True)
        (folder / "config.json").symlink_to(blobs / "aa")
    assert "expected one, or refs/main to name it" in refused(root)
    model(root / "refs", {"main": "abc\n"})
    found = open_model(root)
    assert found.name == "Qwen/Qwen2.5-0.5B"
    assert found.where == str(root / "snapshots" / "abc")
    assert open_model(root / "snapshots" / "def").name == "Qwen/Qwen2.5-0.5B"
    (blobs / "aa").unlink()
    assert "config.json: is a link to" in refused(root / "snapshots" / "def")


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model(tmp_path / "Real", {"config.json": CONFIG}))
    assert open_model(tmp_path / "link").name == "Real"


def test_an_adapter_alone_is_no_model_and_beside_one_it_is_told(tmp_path: Path) -> None:
    adapter = {"base_model_name_or_path": "meta/Llama\x1b[2J"}
    folder = model(tmp_path / "lora", {"adapter_config.json": adapter})
    found = refused(folder)
    assert "is a LoRA adapter, its base model is meta/Llama\\x1b[2J; expected a model" in found
    model(folder, {"config.json": CONFIG})
    assert open_model(folder).adapter == adapter


def test_mistral_s_own_configuration_has_the_usual_keys(tmp_path: Path) -> None:
    params = {
        "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
        "n_kv_heads": 8, "vocab_size": 131072, "max_seq_len": 131072,
    }  # fmt: skip
    config = open_model(model(tmp_path, {"params.json": params})).config
    assert {
        "model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128,
        "num_key_value_heads": 8, "vocab_size": 131072, "max_position_embeddings": 131072,
    }.items() <= config.items()  # fmt: skip


def test_hints_lead_from_where_no_model_is_to_where_one_is(tmp_path: Path) -> None:
    assert "specwatch fetches nothing" in refused(tmp_path / "Qwen" / "Qwen2.5-0.5B")
    assert "has no config.json; expected a model's folder: download" in refused(tmp_path)
    inner = model(tmp_path / "inner", {"config.json": CONFIG, "model.safetensors": b""})
    assert refused(tmp_path).endswith(f"give {inner}")
    assert refused(inner / "model.safetensors").endswith(f"give {inner}")


HEADER = json.dumps({"a": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}}).encode()
HOSTILE: dict[str, tuple[dict[str, object], str]] = {
    "a header longer than the file": (
        {"model.safetensors": struct.pack("<Q", 2**63) + b"{}"},
        "model.safetensors: a header of 9,223,372,036,854,775,808 bytes in a file of 10; expected"
        " at most 2: download it again",
    ),
    "a file that ends in its length": (
        {"model.safetensors": b"\x01\x00"},
        "model.safetensors: 2 bytes; expected a header's length in the first 8: download it again",
    ),
    "an interrupted download": (
        {"model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + b"1234"},
        "model.safetensors: 4 bytes of tensors, and a ending at 8; expected all tensors of its"
        " header: download it again",
    ),
    "a header that is no JSON": (
        {"model.safetensors": struct.pack("<Q", 4) + b"\xff\xff{}"},
        "model.safetensors: a header that cannot be read",
    ),
    "a tensor that ends before it begins": (
        {"model.safetensors": safetensors({"a": ("F16", [4], -8)})},
        "model.safetensors: a from byte 0 to -8; expected a place in the file",
    ),
    "a tensor without a shape": (
        {"model.safetensors": struct.pack("<Q", 19) + b'{"a":{"dtype":"F"}}'},
        "model.safetensors: a header that cannot be read (Object missing required field `shape`)",
    ),
    "an index that leads out of the folder": (
        {INDEX: {"weight_map": {"a": "../../etc/x.safetensors"}}},
        f"{INDEX}: '../../etc/x.safetensors' in its weight_map; expected names of files beside it",
    ),
    "an index of nothing": ({INDEX: {"weight_map": []}}, f"{INDEX}: no weight_map; expected"),
    "a configuration cut short": ({"config.json": '{"a": '}, "config.json: no JSON that can be"),
    "a configuration in another encoding": (
        {"config.json": b'{"a": "\xe9"}'},
        "config.json: no JSON that can be",
    ),
    "a configuration that is a list": (
        {"config.json": []},
        "config.json: a JSON list; expected a JSON object: download it again",
    ),
    "a configuration nested without end": ({"config.json": "[" * 100_000}, "config.json: no JSON"),
    "a pointer of Git LFS in place of the file": (
        {"tokenizer.json": "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 7\n"},
        "tokenizer.json: JSON is malformed",
    ),
    "a tokenizer of the wrong shape": (
        {"tokenizer.json": {"model": {"vocab": {"a": "one"}}}},
        "tokenizer.json: Expected `int`, got `str` - at `$.model.vocab[...]`; expected the JSON",
    ),
    "a tokenizer nested without end": (
        {"tokenizer.json": '{"normalizer":' + "[" * 100_000},
        "tokenizer.json: ",
    ),
    "two tokens of one id": (
        {"tokenizer.json": {"model": {"vocab": {"a": 1, "b": 1}}}},
        "tokenizer.json: 1 tokens share an id; expected one id for each token",
    ),
    "an id that would take all memory": (
        {"tokenizer.json": {"model": {"vocab": {"a": 10**12}}}},
        "tokenizer.json: the id 1000000000000; expected one from 0 to 3,999,999",
    ),
    "more merges than memory should hold": (
        {"tokenizer.json": '{"model":{"merges":[' + "," * 4_000_001},
        "tokenizer.json: 4,000,001 values; expected at most 4,000,000: download it again",
    ),
    "an added token without text": (
        {"tokenizer.json": fast(), "tokenizer_config.json": {"added_tokens_decoder": {"7": 1}}},
        "tokenizer_config.json: added token 7; expected an object with its content",
    ),
    "a SentencePiece model cut short": (
        {"tokenizer.model": (WRITTEN / "spm-bpe" / "tokenizer.model").read_bytes()[:3000]},
        "tokenizer.model: what cannot be read after ",
    ),
    "a SentencePiece model that claims too much": (
        {"tokenizer.model": b"\n\xff\xff\xff\xff\xff\xff\xff\xff\x7fabc"},
        "tokenizer.model: what cannot be read after 0 pieces (a field of ",
    ),
    "a tiktoken file of something else": (
        {"qwen.tiktoken": "hello\n"},
        "qwen.tiktoken: the line 'hello'; expected a token in base64, and its rank",
    ),
    "a tekken file without its sizes": (
        {"tekken.json": {"vocab": []}},
        "tekken.json: Object missing required field `config`",
    ),
    "a vocabulary that is no text": (
        {"vocab.txt": b"abc\n\xff\n"},
        "vocab.txt: byte 4 is no UTF-8; expected text in UTF-8",
    ),
}


@pytest.mark.parametrize(("files", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_cannot_be_read_is_named_with_its_file(
    tmp_path: Path, files: dict[str, object], message: str
) -> None:
    found = refused(model(tmp_path, {"config.json": CONFIG, **files}))
    assert found.startswith(f"{tmp_path}/{message}"), found
    assert "; expected " in found
    assert len(found) < 500


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "model.safetensors", "merges.txt", INDEX]
)
def test_folders_and_pipes_in_place_of_files_are_refused_at_once(tmp_path: Path, name: str) -> None:
    folder = model(tmp_path / "m", {"config.json": CONFIG, "vocab.json": {}})
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    assert f"{name}: is a folder; expected a file" in refused(folder)
    (folder / name).rmdir()
    os.mkfifo(folder / name)
    assert f"{name}: is a pipe; expected a file" in refused(folder)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    folder = model(tmp_path, {"config.json": CONFIG})
    for name, size in (("tokenizer.json", 2**40), ("config.json", 2**36)):
        with open(folder / name, "wb") as file:
            file.truncate(size)
        assert f"{name}: has {size // 2**20:,} MiB; expected at most" in refused(folder)


def test_what_this_user_may_not_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superuser may read everything, so the refusal is the system's own, put in its place."""
    folder = model(tmp_path, {"config.json": CONFIG})
    opening = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("config.json"):
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert refused(folder).endswith(
        "config.json: cannot be read (Permission denied); expected a file that can: let this user"
        " read it"
    )


def test_a_chain_of_links_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "; expected a" in refused(tmp_path / "a")
    folder = model(tmp_path / "m", {})
    (folder / "config.json").symlink_to(folder / "config.json")
    assert "config.json" in refused(folder)


def test_a_path_that_cannot_be_one_is_refused() -> None:
    assert "; expected a" in refused(Path("a\0b"))


def test_several_formats_of_one_model_give_the_fast_tokenizer(tmp_path: Path) -> None:
    files = {"config.json": CONFIG, "tokenizer.json": fast(), "tokenizer.model": b"broken"}
    found = open_model(model(tmp_path, files)).tokenizer
    assert found is not None
    assert found.files.keys() == {"tokenizer.json"}, "the others need not be read"
    assert read(found).format == "tokenizer.json"


def test_gguf_in_a_folder(tmp_path: Path) -> None:
    """The only model there, whatever projector of images lies beside it."""
    named = key("general.architecture", 8, text("llama"))
    model(tmp_path, {"a.gguf": gguf(named, count=1), "mmproj-a.gguf": gguf()})
    assert open_model(tmp_path).name == "a"
    model(tmp_path, {"b.gguf": gguf()})
    assert "has 2 .gguf files (a.gguf, b.gguf); expected one: name it" in refused(tmp_path)
