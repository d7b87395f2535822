"""Reading a model's folder, a snapshot in the hub's cache, or a .gguf file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specwatch.errors import ConfigError
from specwatch.lab.advise.files import cannot_read, json_object, opened, read_file
from specwatch.lab.advise.gguf_model import MAGIC, SHARD, config_of_gguf, read_gguf
from specwatch.lab.advise.weights import Weights, add_tensors, stored_weights
from specwatch.wording.text import shown

_MIB = 1024 * 1024
_MOST_CONFIG = 16 * _MIB
_MOST_TOKENIZER = 48 * _MIB
"""The largest published ones have 33 MiB."""
_VOCABULARIES = re.compile(
    r"tokenizer\.json|tekken\.json|tiktoken\.model|vocab\.json|vocab\.txt"
    r"|tokenizer\.model(\.v\d\w*)?|[\w.-]+\.tiktoken"
)
_TOKENIZER_SETTINGS = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer_config.json",
    }
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_DOWNLOAD = "download it first (hf download ORGANISATION/NAME), specwatch fetches nothing"
_MISTRAL_KEYS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "tied_embeddings": "tie_word_embeddings",
}
_MISTRAL_EXPERTS = {
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The tokenizer's files, not yet parsed; ``where`` is their folder, or the .gguf file."""

    where: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By name; only those that exist."""
    gguf: Mapping[str, Any] | None = None
    """The ``tokenizer.`` keys of a .gguf file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """A model on disk, possibly incomplete."""

    name: str
    where: str
    """The folder or file, with symbolic links resolved; for messages."""
    kind: Literal["folder", "gguf"] = "folder"
    config: Mapping[str, Any] = field(default_factory=dict)
    """``config.json``, or the same keys from a .gguf file or Mistral's ``params.json``."""
    generation_config: Mapping[str, Any] | None = None
    has_adapter: bool = False
    """Whether there is a LoRA adapter in the folder."""
    weights: Weights | None = None
    tokenizer: TokenizerFiles | None = None


def open_model(path: Path) -> ModelFiles:
    """Read the model at ``path``; missing parts are None.

    Raises ConfigError if there is no model, or a part of it cannot be read.
    """
    try:
        path = path.expanduser()
        if not path.exists():
            raise ConfigError(
                f"{path}: no such file or folder; expected a model's folder or a .gguf file:"
                f" {_DOWNLOAD}"
            )
        if not path.is_dir():
            return _open_gguf(path)
        folder = _snapshot(path)
        names = frozenset(os.listdir(folder))
    except (OSError, ValueError, RuntimeError) as error:
        # From pathlib: a NUL in the path, an unknown home, or a loop of links.
        raise ConfigError(cannot_read(path, error)) from None
    if names.isdisjoint({"config.json", "params.json"}):
        return _open_without_config(folder, names)
    config = _read_json(folder, "config.json")
    if config is None:
        config = _config_of_mistral(_read_json(folder, "params.json") or {})
    return ModelFiles(
        name=_name(folder),
        where=str(folder),
        config=config,
        generation_config=_read_json(folder, "generation_config.json"),
        has_adapter="adapter_config.json" in names,
        weights=stored_weights(folder, names, config),
        tokenizer=_tokenizer_files(folder, names),
    )


def open_tokenizer(path: Path) -> ModelFiles | None:
    """Only the tokenizer at ``path``, for a folder that cannot be read otherwise."""
    try:
        folder = _snapshot(path)
        tokenizer = _tokenizer_files(folder, frozenset(os.listdir(folder)))
    except (ConfigError, OSError):
        return None
    if tokenizer is None:
        return None
    return ModelFiles(name=_name(folder), where=str(folder), tokenizer=tokenizer)


def cached_model(name: str, environ: Mapping[str, str]) -> Path | None:
    """The folder of a model such as ``Qwen/Qwen3-8B`` in the hub's cache; None if it has none.

    Source: ``huggingface_hub.constants`` (HF_HUB_CACHE, HF_HOME) and its "Manage your cache" guide.
    """
    if not _HUB_NAME.fullmatch(name):
        return None
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if not cache and (home := environ.get("HF_HOME")):
        cache = f"{home}/hub"
    if not cache:
        caches = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME') or '~'}/.cache"
        cache = f"{caches}/huggingface/hub"
    try:
        folder = Path(cache).expanduser() / f"models--{name.replace('/', '--')}"
        return folder if any((folder / "snapshots").iterdir()) else None
    except (OSError, RuntimeError, ValueError):
        # From pathlib: an unknown home, or a NUL in the path.
        return None


def _snapshot(folder: Path) -> Path:
    """The snapshot in a folder of the hub's cache; any other folder unchanged."""
    snapshots = folder / "snapshots"
    if not snapshots.is_dir() or (folder / "config.json").exists():
        return folder
    revisions = sorted(entry.name for entry in snapshots.iterdir() if entry.is_dir())
    main = read_file(folder / "refs" / "main", 1024)
    revision = "" if main is None else main.decode("ascii", "replace").strip()
    if revision not in revisions:
        if len(revisions) != 1:
            names = ", ".join(map(shown, revisions[:4])) or "none"
            raise ConfigError(
                f"{snapshots}: has these revisions: {names}; expected one, or refs/main to name it:"
                " give the path of one"
            )
        revision = revisions[0]
    return snapshots / revision


def _open_without_config(folder: Path, names: frozenset[str]) -> ModelFiles:
    """The .gguf model of a folder. Raises ConfigError, with a hint, if there is not exactly one."""
    models = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name)
    first_parts = [
        name
        for name in models
        if (shard := SHARD.fullmatch(name)) is None or int(shard["number"]) == 1
    ]
    if len(first_parts) == 1:
        return _open_gguf(folder / first_parts[0])
    if first_parts:
        listed = ", ".join(map(shown, first_parts[:4]))
        raise ConfigError(
            f"{folder}: has {len(first_parts)} .gguf files ({listed}); expected one: name it"
        )
    if "adapter_config.json" in names:
        adapter = _read_json(folder, "adapter_config.json") or {}
        base = shown(str(adapter.get("base_model_name_or_path", "not named")))
        raise ConfigError(
            f"{folder}: is a LoRA adapter, its base model is {base}; expected a model: give the"
            " folder of the base model, as the adapter changes neither its size nor its tokens"
        )
    inside = sorted(name for name in names if (folder / name / "config.json").is_file())
    hint = f"give {folder / inside[0]}" if inside else _DOWNLOAD
    raise ConfigError(f"{folder}: has no config.json; expected a model's folder: {hint}")


def _read_json(folder: Path, name: str) -> dict[str, Any] | None:
    data = read_file(folder / name, _MOST_CONFIG)
    return None if data is None else json_object(data, folder / name)


def _tokenizer_files(folder: Path, names: frozenset[str]) -> TokenizerFiles | None:
    vocabularies = {name for name in names if _VOCABULARIES.fullmatch(name)}
    if not vocabularies:
        return None
    # Servers prefer this one, and the others may be large.
    if "tokenizer.json" in vocabularies:
        vocabularies = {"tokenizer.json"}
    files = {}
    for name in sorted(vocabularies | (names & _TOKENIZER_SETTINGS)):
        data = read_file(folder / name, _MOST_TOKENIZER)
        if data is not None:
            files[name] = data
    return TokenizerFiles(where=str(folder), files=files)


def _name(folder: Path) -> str:
    """The model's name on the hub, if the path has it; else that of its folder."""
    parts = folder.absolute().parts
    if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].removeprefix("models--").replace("--", "/", 1)
    return folder.absolute().resolve().name or str(folder)


def _open_gguf(path: Path) -> ModelFiles:
    with opened(path) as (file, _):
        magic = file.read(len(MAGIC))
    if magic != MAGIC:
        hint = (
            f"give {path.parent}" if path.suffix in (".safetensors", ".json", ".bin") else _DOWNLOAD
        )
        raise ConfigError(f"{path}: is not a .gguf file; expected one, or a model's folder: {hint}")
    model = read_gguf(path)
    has_tokens = "tokenizer.ggml.tokens" in model.keys
    return ModelFiles(
        name=path.name.removesuffix(".gguf"),
        where=str(path),
        kind="gguf",
        config=config_of_gguf(model),
        weights=add_tensors(model.tensors, {}, packed=False) if model.tensors else None,
        tokenizer=TokenizerFiles(where=str(path), gguf=model.keys) if has_tokens else None,
    )


def _config_of_mistral(params: Mapping[str, Any]) -> dict[str, Any]:
    """Mistral's ``params.json`` with the names of *transformers*, as renamed by vLLM.

    Source: vLLM 0.32, vllm/transformers_utils/configs/mistral.py.
    """
    config = {_MISTRAL_KEYS.get(key, key): value for key, value in params.items()}
    config.setdefault("max_position_embeddings", params.get("max_seq_len", 128_000))
    moe = params.get("moe")
    if isinstance(moe, Mapping):
        config |= {name: moe[key] for key, name in _MISTRAL_EXPERTS.items() if key in moe}
    config.setdefault("model_type", "mixtral" if isinstance(moe, Mapping) else "mistral")
    if isinstance(quantization := params.get("quantization"), Mapping):
        method = quantization.get("quant_method")
        if str(quantization.get("qformat_weight", "")).startswith("fp8"):
            method = "fp8"
        config["quantization_config"] = {**quantization, "quant_method": method}
    return config
