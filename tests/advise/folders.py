"""Model folders for tests: what libraries wrote (``data/tokenizers``), and small made-up ones."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.model_files import TokenizerFiles, open_model
from specwatch.lab.advise.vocabulary import Vocabulary, read_vocabulary
from specwatch.lab.advise.weights import Weights

WRITTEN = Path(__file__).parent / "data" / "tokenizers"
CONFIG = {"model_type": "qwen2", "vocab_size": 352}
ROLES = json.loads((WRITTEN / "bpe" / "tokenizer_config.json").read_text())


def written(name: str) -> Vocabulary:
    """A tokenizer as a library wrote it."""
    files = {path.name: path.read_bytes() for path in (WRITTEN / name).glob("*")}
    if name.endswith(".gguf"):
        tokenizer = open_model(WRITTEN / name).tokenizer
        assert tokenizer is not None
        return read_vocabulary(tokenizer)
    return read_vocabulary(TokenizerFiles(where=name, files=files))


def vocabulary(where: str = "model", **files: object) -> Vocabulary:
    """The tokenizer of files, whose names have ``_`` for ``.``; what is not bytes becomes JSON."""
    content = {
        ".".join(name.rsplit("_", 1)): value
        if isinstance(value, bytes)
        else json.dumps(value).encode()
        for name, value in files.items()
    }
    return read_vocabulary(TokenizerFiles(where=where, files=content))


def fast() -> dict[str, Any]:
    """A byte-level ``tokenizer.json``, to be changed."""
    return copy.deepcopy(json.loads((WRITTEN / "bpe" / "tokenizer.json").read_text()))


def tokenizer(
    document: object, config: Mapping[str, Any] | None = None, where: str = "model"
) -> Vocabulary:
    """The vocabulary of a changed ``tokenizer.json``."""
    roles = ROLES if config is None else config
    return vocabulary(where, tokenizer_json=document, tokenizer_config_json=roles)


def safetensors(tensors: Mapping[str, tuple[str, list[int], int]]) -> bytes:
    """A .safetensors file of zeros; the tensors are type, shape and bytes."""
    end, header = 0, {}
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(max(end, 0))


def model(folder: Path, files: Mapping[str, object]) -> Path:
    """A folder with these files: bytes, text, or what is written as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else None
        if isinstance(content, str):
            data = content.encode()
        (folder / name).write_bytes(json.dumps(content).encode() if data is None else data)
    return folder


def gguf(keys: bytes = b"", *, version: int = 3, tensors: int = 0, count: int = 0) -> bytes:
    """The beginning of a .gguf file."""
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + keys


def key(name: str, kind: int, value: bytes) -> bytes:
    """One key of a .gguf file."""
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def text(value: str) -> bytes:
    """A text of a .gguf file."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def refused(path: Path) -> str:
    """The error of a model that cannot be read."""
    with pytest.raises(ConfigError) as raised:
        open_model(path)
    return str(raised.value)


def weights_of(path: Path) -> Weights:
    """The weights of a model."""
    weights = open_model(path).weights
    assert weights is not None
    return weights
