"""A model's folder, or .gguf file, is read by its headers alone; what cannot be read is named."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from specwatch.lab.advise.model_files import cached_model, open_model
from specwatch.lab.advise.vocabulary import read_vocabulary
from specwatch.lab.advise.weights import Tensor, Weights, add_tensors
from tests.advise.folders import CONFIG, fast, model, refused, safetensors, weights_of

INDEX = "model.safetensors.index.json"


def test_a_whole_folder(tmp_path: Path) -> None:
    tensors = safetensors({"embed.weight": ("BF16", [8, 4], 64), "norm.weight": ("F32", [4], 16)})
    folder = model(
        tmp_path / "Tiny",
        {
            "config.json": CONFIG,
            "generation_config.json": {"temperature": 0.7},
            "tokenizer.json": fast(),
            "tokenizer.model": b"broken",
            "model.safetensors": tensors,
        },
    )
    files = open_model(folder)
    assert (files.name, files.kind, files.where) == ("Tiny", "folder", str(folder))
    assert (files.config["vocab_size"], files.generation_config) == (352, {"temperature": 0.7})
    assert files.weights == Weights(
        bytes=80, parameters=36, float_bytes=80, float_elements=36, mtp=0
    )
    assert files.tokenizer.files.keys() == {"tokenizer.json"}, "the others need not be read"
    assert len(read_vocabulary(files.tokenizer).tokens) == 344


def test_missing_parts_of_a_model_are_none(tmp_path: Path) -> None:
    """A head (EAGLE) often has its configuration only; what only names roles is no tokenizer."""
    files = open_model(model(tmp_path, {"config.json": CONFIG, "tokenizer_config.json": {}}))
    assert (files.weights, files.tokenizer, files.generation_config) == (None, None, None)


def test_shards_are_those_that_the_index_lists(tmp_path: Path) -> None:
    part = safetensors({"a": ("BF16", [4], 8)})
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    other = safetensors({"b": ("BF16", [4], 8)})
    files: dict[str, object] = {
        "config.json": CONFIG,
        INDEX: {"weight_map": names},
        names["a"]: part,
        names["b"]: other,
        "consolidated.safetensors": part,
        "stray.safetensors": part,
    }
    folder = model(tmp_path, files)
    assert (weights_of(folder).bytes, weights_of(folder).parameters) == (16, 8)
    (folder / names["b"]).unlink()
    assert refused(folder) == (
        f"{folder}/model-00002-of-00002.safetensors: is missing, 1 of 2 files are; expected all"
        f" that {INDEX} lists: download them"
    )
    index = {"metadata": {"total_size": 988097536}, "weight_map": {"a": "model-1.safetensors"}}
    alone = model(tmp_path / "alone", {"config.json": CONFIG, INDEX: index})
    assert weights_of(alone) == Weights(bytes=988097536, parameters=None)


def test_pickled_weights_are_sized_and_never_loaded(tmp_path: Path) -> None:
    folder = model(tmp_path, {"config.json": CONFIG, "pytorch_model.bin": b"\x80\x04not loaded"})
    assert weights_of(folder) == Weights(bytes=12, parameters=None)


def quantized(method: str, **settings: Any) -> dict[str, Any]:
    return {"vocab_size": 1, "quantization_config": {"quant_method": method, **settings}}


PACKED: dict[str, tuple[dict[str, Any], dict[str, tuple[str, list[int], int]], int | None]] = {
    "GPTQ, 4 bits": (
        quantized("gptq", bits=4),
        {
            "q.qweight": ("I32", [16, 10], 640),
            "q.qzeros": ("I32", [1, 2], 8),
            "q.scales": ("F16", [1, 10], 20),
            "q.g_idx": ("I32", [128], 512),
        },
        1280,
    ),
    "GPTQ, 3 bits": (
        quantized("gptq", bits=3),
        {"q.qweight": ("I32", [12, 10], 480)},
        1280,
    ),
    "AWQ beside plain ones": (
        quantized("awq", bits=4),
        {
            "q.qweight": ("I32", [128, 2], 1024),
            "q.qzeros": ("I32", [1, 2], 8),
            "q.scales": ("F16", [1, 16], 32),
            "norm.weight": ("F16", [128], 256),
        },
        2048 + 128,
    ),
    "compressed-tensors, 4 bits": (
        quantized("compressed-tensors", config_groups={"group_0": {"weights": {"num_bits": 4}}}),
        {
            "q.weight_packed": ("I32", [10, 16], 640),
            "q.weight_scale": ("BF16", [10, 1], 20),
            "q.weight_shape": ("I64", [2], 16),
        },
        1280,
    ),
    "FP8 with scales of blocks": (
        quantized("fp8"),
        {"q.weight": ("F8_E4M3", [128, 128], 16384), "q.weight_scale_inv": ("F32", [1, 1], 4)},
        16384,
    ),
    "MXFP4 of gpt-oss": (
        quantized("mxfp4"),
        {"e.down_proj_blocks": ("U8", [2, 8, 16], 256), "e.down_proj_scales": ("U8", [2, 8], 16)},
        512,
    ),
    "NVFP4 of ModelOpt": (
        quantized("modelopt", quant_algo="NVFP4"),
        {
            "q.weight": ("U8", [16, 32], 512),
            "q.weight_scale": ("F8_E4M3", [16, 4], 64),
            "q.weight_scale_2": ("F32", [], 4),
            "q.input_scale": ("F32", [], 4),
        },
        1024,
    ),
    "bitsandbytes, 4 bits": (
        quantized("bitsandbytes", load_in_4bit=True),
        {
            "q.weight": ("U8", [512, 1], 512),
            "q.weight.absmax": ("U8", [16], 16),
            "q.weight.quant_map": ("F32", [16], 64),
            "q.weight.quant_state.bitsandbytes__nf4": ("U8", [80], 80),
        },
        1024,
    ),
    "experts whose names say nothing": (
        quantized("modelopt", quant_algo="NVFP4"),
        {"e.gate_up_proj": ("U8", [4, 8], 32)},
        64,
    ),
    "maps of an EAGLE head": (
        {"vocab_size": 1},
        {"fc.weight": ("F16", [8, 8], 128), "d2t": ("I64", [4], 32), "t2d": ("BOOL", [8], 8)},
        64,
    ),
    "packed in a way that the configuration does not tell": (
        {"vocab_size": 1},
        {"q.qweight": ("I32", [16, 10], 640), "norm.weight": ("F16", [4], 8)},
        None,
    ),
}


@pytest.mark.parametrize(("config", "tensors", "parameters"), PACKED.values(), ids=PACKED)
def test_packed_weights_are_counted_unpacked_and_bytes_exactly(
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, tuple[str, list[int], int]],
    parameters: int | None,
) -> None:
    files = {"config.json": config, "model.safetensors": safetensors(tensors)}
    weights = weights_of(model(tmp_path, files))
    assert weights.parameters == parameters
    assert weights.bytes == sum(size for _dtype, _shape, size in tensors.values())


@pytest.mark.parametrize(
    ("name", "is_mtp"),
    [
        ("mtp.layers.0.mlp.gate_proj.weight", True),
        ("model.mtp_block.0.mlp.up.weight", True),
        ("model.layers.61.self_attn.o_proj.weight", True),
        ("model.layers.60.self_attn.o_proj.weight", False),
        ("model.prompt_mtpx.weight", False),
    ],
)
def test_layers_for_multi_token_prediction_by_their_names(name: str, is_mtp: bool) -> None:
    """As DeepSeek V3 (after its 61 layers), Qwen3-Next and ERNIE 4.5 call them."""
    config = {"num_hidden_layers": 61, "num_nextn_predict_layers": 1}
    tensors = [Tensor(name, "BF16", 16, 32), Tensor("lm_head.weight", "BF16", 4, 8)]
    assert add_tensors(tensors, config).mtp == (32 if is_mtp else 0)
    assert add_tensors(tensors, {"num_hidden_layers": 61}).mtp == (32 if "mtp" in name[:9] else 0)


def test_a_snapshot_of_the_hub_s_cache_has_the_hub_s_name(tmp_path: Path) -> None:
    root = tmp_path / "models--Qwen--Qwen2.5-0.5B"
    blobs = model(root / "blobs", {"aa": CONFIG})
    for revision in ("abc", "def"):
        folder = root / "snapshots" / revision
        folder.mkdir(parents=True)
        (folder / "config.json").symlink_to(blobs / "aa")
    assert "expected one, or refs/main to name it" in refused(root)
    model(root / "refs", {"main": "abc\n"})
    files = open_model(root)
    assert (files.name, files.where) == ("Qwen/Qwen2.5-0.5B", str(root / "snapshots" / "abc"))
    (blobs / "aa").unlink()
    assert "config.json: is a link to" in refused(root / "snapshots" / "def")


PLACES = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
    "HOME": ".cache/huggingface/hub",
}


@pytest.mark.parametrize(("variable", "below"), PLACES.items(), ids=PLACES)
def test_the_environment_says_where_the_cache_is(tmp_path: Path, variable: str, below: str) -> None:
    folder = tmp_path / below / "models--Qwen--Qwen3-8B"
    environ = {variable: str(tmp_path)}
    folder.mkdir(parents=True)
    assert cached_model("Qwen/Qwen3-8B", environ) is None, "nothing downloaded yet"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    assert cached_model("Qwen/Qwen3-8B", environ) == folder
    assert cached_model("Qwen/Qwen3-8B", environ | {"HF_HUB_CACHE": "/nowhere"}) is None or (
        variable == "HF_HUB_CACHE"
    )
    for name in ("", "../x", "a/../b", "a/b/c", "/a", "a\0b", "x" * 500, "-x"):
        assert cached_model(name, environ) is None
    for home in ("~nouser/x", "a\0b", "x" * 5000):
        assert cached_model("Qwen/Qwen3-8B", {"HF_HOME": home}) is None


def test_an_adapter_is_no_model_and_is_noted_beside_one(tmp_path: Path) -> None:
    folder = model(tmp_path, {"adapter_config.json": {"base_model_name_or_path": "Llama\x1b[2J"}})
    assert "is a LoRA adapter, its base model is Llama\\x1b[2J; expected a model" in refused(folder)
    assert open_model(model(folder, {"config.json": CONFIG})).has_adapter


def test_mistral_s_own_configuration_has_the_usual_keys(tmp_path: Path) -> None:
    params = {
        "dim": 5120,
        "n_layers": 40,
        "head_dim": 128,
        "hidden_dim": 14336,
        "n_heads": 32,
        "n_kv_heads": 8,
        "vocab_size": 131072,
        "max_seq_len": 131072,
    }
    config = open_model(model(tmp_path, {"params.json": params})).config
    expected = {
        "model_type": "mistral",
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "vocab_size": 131072,
        "max_position_embeddings": 131072,
    }
    assert expected.items() <= config.items()


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
        "model.safetensors: cannot be",
    ),
    "a file that ends in its length": (
        {"model.safetensors": b"\x01\x00"},
        "model.safetensors: cannot be read",
    ),
    "an interrupted download": (
        {"model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + b"1234"},
        "model.safetensors: cannot be read (Error while deserializing header: ",
    ),
    "a tensor that ends before it begins": (
        {"model.safetensors": safetensors({"a": ("F16", [4], -8)})},
        "model.safetensors: cannot",
    ),
    "an index that leads out of the folder": (
        {INDEX: {"weight_map": {"a": "../../etc/x.safetensors"}}},
        f"{INDEX}: cannot be read ('../../etc/x.safetensors' in its weight_map); expected names of",
    ),
    "an index of nothing": ({INDEX: {"weight_map": []}}, f"{INDEX}: cannot be read (no weight_map"),
    "a configuration cut short": ({"config.json": '{"a": '}, "config.json: cannot be read"),
    "another encoding": ({"config.json": b'{"a": "\xe9"}'}, "config.json: cannot be read"),
    "a list": ({"config.json": []}, "config.json: cannot be read (a JSON list); expected a JSON"),
    "nested without end": ({"config.json": "[" * 100_000}, "config.json: cannot be read"),
}


@pytest.mark.parametrize(("files", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_cannot_be_read_is_named_with_its_file(
    tmp_path: Path, files: dict[str, object], message: str
) -> None:
    error = refused(model(tmp_path, {"config.json": CONFIG, **files}))
    assert error.startswith(f"{tmp_path}/{message}"), error
    assert "; expected " in error
    assert len(error) < 500


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
    assert f"{name}: is a device, pipe or socket; expected a file" in refused(folder)


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    folder = model(tmp_path, {"config.json": CONFIG})
    for name, size in (("tokenizer.json", 2**40), ("config.json", 2**36)):
        with open(folder / name, "wb") as file:
            file.truncate(size)
        assert f"{name}: has {size // 2**20:,} MiB; expected at most" in refused(folder)


def test_a_file_without_read_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The superuser may read everything, so the refusal is the system's own, put in its place."""
    folder = model(tmp_path, {"config.json": CONFIG})
    open_file = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("config.json"):
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert refused(folder).endswith(
        "(Permission denied); expected a readable file: let this user read it"
    )


def test_links_without_an_end_and_paths_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "; expected a" in refused(tmp_path / "a")
    assert "; expected a" in refused(Path("a\0b"))
    (tmp_path / "link").symlink_to(model(tmp_path / "Real", {"config.json": CONFIG}))
    assert open_model(tmp_path / "link").name == "Real"
