"""A model's folder, a snapshot of the hub's cache, or a .gguf file: read, never run or fetched."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specwatch.advise.gguf_config import config_of
from specwatch.advise.mistral_config import of_params
from specwatch.advise.model_files import ModelFolder, TokenizerFiles, Weights
from specwatch.advise.stored_weights import Tensor, stored, stored_gguf
from specwatch.advise.tokenizer_formats import loose
from specwatch.edges.bounded_file import cannot_read, opened, read_file
from specwatch.edges.gguf_file import MAGIC, GgufHeader, read_gguf
from specwatch.edges.safetensors_header import read_header, shards
from specwatch.errors import ConfigError
from specwatch.wording.text import shown

__all__ = ["ModelFolder", "TokenizerFiles", "Weights", "open_model", "open_tokenizer"]

_MIB = 1024 * 1024
_MOST_CONFIG = 16 * _MIB
_MOST_TOKENIZER = 48 * _MIB
"""The largest published so far have 33."""
_VOCABULARIES = frozenset(
    {"tokenizer.json", "tekken.json", "tiktoken.model", "vocab.json", "vocab.txt"}
)
_BESIDE_THEM = frozenset(
    {
        "added_tokens.json", "chat_template.jinja", "chat_template.json", "merges.txt",
        "special_tokens_map.json", "tokenizer_config.json",
    }
)  # fmt: skip
_MODEL_FILE = re.compile(r"tokenizer\.model(\.v\d\w*)?|[\w.-]+\.tiktoken")
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_NESTED = ("text_config", "llm_config", "language_config", "transformer_layer_config")
_CACHED = re.compile(r"models--(?P<name>[^/]+)")
_DOWNLOAD = "download it first (hf download ORGANISATION/NAME), specwatch fetches nothing"


def open_model(path: Path) -> ModelFolder:
    """Read what lies at ``path``; parts that are not there are None.

    Raises :class:`ConfigError` where there is no model, or a part of it cannot be read.
    """
    try:
        found = path.expanduser()
        if not found.exists():
            raise ConfigError(
                f"{path}: no such file or folder; expected a model's folder or a .gguf file:"
                f" {_DOWNLOAD}"
            )
        if not found.is_dir():
            return _gguf(found)
        folder = _snapshot(found)
        names = frozenset(os.listdir(folder))
    except (OSError, ValueError, RuntimeError) as error:
        # Of pathlib: a NUL in the path, and a home or a chain of links that cannot be resolved.
        raise ConfigError(cannot_read(path, error)) from None
    if names.isdisjoint({"config.json", "params.json"}):
        return _without_config(folder, names)
    return _folder(folder, names)


def open_tokenizer(path: Path) -> ModelFolder | None:
    """Only the tokenizer of what lies at ``path``, of which nothing else can be read."""
    try:
        folder = _snapshot(path)
        tokenizer = _tokenizer(folder, frozenset(os.listdir(folder)))
    except (ConfigError, OSError):
        return None
    if tokenizer is None:
        return None
    return ModelFolder(
        name=_name(folder),
        where=str(folder),
        kind="folder",
        config={},
        generation_config=None,
        weights=None,
        tokenizer=tokenizer,
        vocabulary_size=None,
    )


def _folder(folder: Path, names: frozenset[str]) -> ModelFolder:
    config = _json(folder, "config.json")
    if config is None:
        config = of_params(_json(folder, "params.json") or {})
    return ModelFolder(
        name=_name(folder),
        where=str(folder),
        kind="folder",
        config=config,
        generation_config=_json(folder, "generation_config.json"),
        adapter=_json(folder, "adapter_config.json"),
        weights=_weights(folder, names, config),
        tokenizer=_tokenizer(folder, names),
        vocabulary_size=_rows(config),
    )


def _snapshot(folder: Path) -> Path:
    """The snapshot of a folder of the hub's cache; any other folder is itself."""
    kept = folder / "snapshots"
    if not kept.is_dir() or (folder / "config.json").exists():
        return folder
    revisions = sorted(each.name for each in kept.iterdir() if each.is_dir())
    main = read_file(folder / "refs" / "main", 1024)
    revision = "" if main is None else main.decode("ascii", "replace").strip()
    if revision not in revisions:
        if len(revisions) != 1:
            said = ", ".join(map(shown, revisions[:4])) or "none"
            raise ConfigError(
                f"{kept}: has these revisions: {said}; expected one, or refs/main to name it: give"
                " the path of one"
            )
        revision = revisions[0]
    return kept / revision


def _without_config(folder: Path, names: frozenset[str]) -> ModelFolder:
    """The one .gguf model of a folder; otherwise the error of what it is instead."""
    models = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name)
    firsts = [name for name in models if (found := _SHARD.fullmatch(name)) is None
              or int(found["number"]) == 1]  # fmt: skip
    if len(firsts) == 1:
        return _gguf(folder / firsts[0])
    if firsts:
        said = ", ".join(map(shown, firsts[:4]))
        raise ConfigError(
            f"{folder}: has {len(firsts)} .gguf files ({said}); expected one: name it"
        )
    if "adapter_config.json" in names:
        adapter = _json(folder, "adapter_config.json") or {}
        base = shown(str(adapter.get("base_model_name_or_path", "not named")))
        raise ConfigError(
            f"{folder}: is a LoRA adapter, its base model is {base}; expected a model: give the"
            " folder of the base model, the adapter changes neither its size nor its tokens"
        )
    inside = sorted(name for name in names if (folder / name / "config.json").is_file())
    hint = f"give {folder / inside[0]}" if inside else _DOWNLOAD
    raise ConfigError(f"{folder}: has no config.json; expected a model's folder: {hint}")


def _json(folder: Path, name: str) -> dict[str, Any] | None:
    data = read_file(folder / name, _MOST_CONFIG)
    return None if data is None else loose(data, str(folder / name))


def _tokenizer(folder: Path, names: frozenset[str]) -> TokenizerFiles | None:
    vocabularies = {name for name in names if name in _VOCABULARIES or _MODEL_FILE.fullmatch(name)}
    if not vocabularies:
        return None
    # The one that a server prefers is enough, and may be the larger part of all that is read.
    if "tokenizer.json" in vocabularies:
        vocabularies = {"tokenizer.json"}
    files = {}
    for name in sorted(vocabularies | (names & _BESIDE_THEM)):
        data = read_file(folder / name, _MOST_TOKENIZER)
        if data is not None:
            files[name] = data
    return TokenizerFiles(where=str(folder), files=files)


def _weights(folder: Path, names: frozenset[str], config: Mapping[str, Any]) -> Weights | None:
    paths, total = shards(folder, names)
    if paths:
        tensors = (tensor for path in paths for tensor in read_header(path))
        return stored(tensors, config, tuple(path.name for path in paths))
    if total is None:
        pickled = sorted(
            name
            for name in names
            if re.fullmatch(r"(pytorch_model.*|consolidated.*)\.(bin|pth)", name)
        )
        if not pickled:
            return None
        # What is pickled is never opened: its size is nearly that of its tensors.
        total = 0
        for name in pickled:
            with opened(folder / name) as (_file, size):
                total += size
        names = frozenset(pickled)
    return Weights(
        bytes=total,
        parameters=None,
        tensors=0,
        bytes_by_dtype={},
        elements_by_dtype={},
        files=tuple(sorted(name for name in names if name.endswith((".bin", ".pth")))),
    )


def _rows(config: Mapping[str, Any]) -> int | None:
    rows = config.get("vocab_size")
    if isinstance(rows, int) and not isinstance(rows, bool):
        return rows
    parts = (config.get(name) for name in _NESTED)
    found = (_rows(part) for part in parts if isinstance(part, Mapping))
    return next((rows for rows in found if rows is not None), None)


def _name(folder: Path) -> str:
    """The model's name on the hub, where the path tells it; else that of its folder."""
    parts = folder.absolute().parts
    if len(parts) > 2 and parts[-2] == "snapshots" and (found := _CACHED.fullmatch(parts[-3])):
        return found["name"].replace("--", "/", 1)
    return folder.absolute().resolve().name or str(folder)


def _gguf(path: Path) -> ModelFolder:
    with opened(path) as (file, _size):
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        hint = (
            f"give {path.parent}" if path.suffix in (".safetensors", ".json", ".bin") else _DOWNLOAD
        )
        raise ConfigError(f"{path}: is no .gguf file; expected one, or a model's folder: {hint}")
    header = read_gguf(path)
    paths = _all_shards(path, header)
    tensors: list[Tensor] = [*header.tensors]
    for other in paths[1:]:
        tensors += read_gguf(other).tensors
    config = config_of(header.keys, (tensor.name for tensor in tensors))
    own = {key: value for key, value in header.keys.items() if key.startswith("tokenizer.")}
    weights = stored_gguf(tensors, tuple(each.name for each in paths))
    return ModelFolder(
        name=path.name.removesuffix(".gguf"),
        where=str(path),
        kind="gguf",
        config=config,
        generation_config=None,
        weights=weights if tensors else None,
        tokenizer=TokenizerFiles(where=str(path), gguf=own)
        if "tokenizer.ggml.tokens" in own
        else None,
        vocabulary_size=_rows(config),
    )


def _all_shards(path: Path, header: GgufHeader) -> list[Path]:
    """All files of a model that was split; raises ConfigError naming the first one missing."""
    count = header.keys.get("split.count")
    found = _SHARD.fullmatch(path.name)
    if not isinstance(count, int) or count < 2 or found is None:
        return [path]
    if int(found["number"]) != 1 or int(found["count"]) != count:
        first = f"{found['stem']}-00001-of-{count:05d}.gguf"
        raise ConfigError(
            f"{path}: is part {int(found['number'])} of {count}; expected the first: give {first}"
        )
    paths = [
        path.with_name(f"{found['stem']}-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]
    for each in paths:
        if not each.exists():
            raise ConfigError(
                f"{each}: is missing; expected all {count} parts of the model: download it"
            )
    return paths
