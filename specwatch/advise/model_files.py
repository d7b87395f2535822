"""What a model's files say, as plain values; :mod:`specwatch.edges.model_folder` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The tensors that headers list; no tensor is read. Sizes are bytes."""

    bytes: int
    """Of all tensors, exactly: what the weights take before a server converts them."""
    parameters: int | None
    """Weights that the tensors hold, packed ones unpacked, scales and zero points left out; None
    where tensors are packed in a way that is not known."""
    tensors: int
    bytes_by_dtype: Mapping[str, int]
    elements_by_dtype: Mapping[str, int]
    """As stored: a packed int32 is one element."""
    files: tuple[str, ...]
    mtp: int = 0
    """Bytes, of ``bytes``, that layers for multi-token prediction take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The tokenizer's files, unread; ``where`` is their folder, or the .gguf file."""

    where: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By name, only those that are there."""
    gguf: Mapping[str, Any] | None = None
    """The ``tokenizer.`` keys of a .gguf file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model on disk, or as much of it as is there."""

    name: str
    where: str
    """The folder or file itself, symbolic links followed; for messages."""
    kind: Literal["folder", "gguf"]
    config: Mapping[str, Any]
    """``config.json``; of a .gguf file, or Mistral's ``params.json``, the same keys made of it."""
    generation_config: Mapping[str, Any] | None
    adapter: Mapping[str, Any] | None = None
    """``adapter_config.json`` of a model that a LoRA adapter lies beside."""
    weights: Weights | None
    tokenizer: TokenizerFiles | None
    vocabulary_size: int | None
    """Rows of the embedding, as the configuration says: padded, so often more than tokens."""
