"""The models that ``specwatch advise`` is asked about: their folders, else what their names say."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specwatch.advise import candidate, naming, speculators
from specwatch.advise.asked import Asked
from specwatch.advise.candidate import Candidate
from specwatch.advise.model import Finding
from specwatch.advise.model_files import ModelFolder
from specwatch.edges import hub_cache
from specwatch.edges.gpu import GpuMemoryReader
from specwatch.edges.model_folder import open_model, open_tokenizer
from specwatch.errors import ConfigError

_MOST_GPUS = 64


class Models:
    """Finds models on this machine.

    ``strict`` says that what looks like a path must be there; paths of a command may lie elsewhere,
    in a container or on another machine.
    """

    def __init__(self, environ: Mapping[str, str], *, strict: bool) -> None:
        self._environ = environ
        self._strict = strict

    def unfold(self, asked: Asked) -> Asked:
        """What is asked once a target that brings its own speculation is taken apart."""
        try:
            folder = None if asked.target is None else self._folder(asked.target)
        except _NotWhole:
            return asked
        if folder is None:
            return asked
        return speculators.unfolded(asked, folder.config, folder.where)

    def target(self, asked: Asked) -> Candidate:
        """The target. Raises ConfigError."""
        if asked.target is None:
            raise ConfigError("no target is named: give --model, or a command that names its model")
        return self._model(asked.target, asked.dtype, asked.quantization)

    def draft(self, asked: Asked, method: str | None) -> Candidate | None:
        """The draft, if there is a model of one. Raises ConfigError."""
        if asked.draft is None or method in ("ngram", "ngram_gpu", "suffix", "custom_class"):
            return None
        return self._model(asked.draft, asked.dtype, asked.draft_quantization)

    def _model(self, name: str, dtype: str | None, quantized: str | None) -> Candidate:
        size = naming.plain_size(name)
        if size is not None and not _is_there(name):
            return candidate.of_size(name, size, dtype=dtype, quantized=quantized)
        try:
            folder = self._folder(name)
        except _NotWhole as error:
            named = candidate.of_name(name, dtype=dtype, quantized=quantized)
            findings = (*named.findings, error.finding(name))
            return replace(named, folder=error.tokenizer, findings=findings)
        if folder is None:
            return candidate.of_name(name, dtype=dtype, quantized=quantized)
        shown = folder.name if _is_there(name) else name
        return candidate.of_folder(folder, name=shown, dtype=dtype, quantized=quantized)

    def _folder(self, name: str) -> ModelFolder | None:
        path = Path(name)
        if _is_there(name):
            return open_model(path)
        cached = hub_cache.find(name, self._environ)
        if cached is not None:
            try:
                return open_model(cached)
            except ConfigError as error:
                raise _NotWhole(str(error), open_tokenizer(cached)) from error
        if self._strict and (name.startswith(("/", ".", "~")) or name.endswith(".gguf")):
            return open_model(path)  # which says what is wrong with it
        return None


class _NotWhole(Exception):
    """The hub's cache has a model, but not all that is needed of it."""

    def __init__(self, why: str, tokenizer: ModelFolder | None) -> None:
        super().__init__(why)
        self.tokenizer = tokenizer

    def finding(self, name: str) -> Finding:
        used = ": only its tokenizer is used" if self.tokenizer is not None else ""
        return Finding(
            topic="model",
            level="note",
            text=f"{name} is not whole in the hub's cache{used}",
            reason=str(self),
            source="the cache of the hub",
            remedy=f"download all of it: hf download {name}",
        )


def _is_there(name: str) -> bool:
    """Whether there is anything at a path; no for what can be none."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        # A path that is too long, a home that is not known, a NUL.
        return False


def gpus(
    asked: Asked, count: int | None, memory: int | None
) -> tuple[int | None, int | None, tuple[Finding, ...]]:
    """GPUs and the bytes of each: as given, else as this machine has them; with what to say."""
    wanted = count if count is not None else asked.gpus
    if memory is None or wanted is None:
        there = _on_machine()
        if memory is None:
            memory = min(there, default=None)
        if wanted is None:
            wanted = len(there) or (None if memory is None else 1)
    if wanted is not None and memory is not None:
        return wanted, memory, ()
    return None, None, (
        Finding(
            topic="memory",
            level="note",
            text="memory: how much the GPUs have is not known",
            reason="none is seen on this machine" if memory is None else "",
            remedy="give --gpus and --gpu-memory, such as --gpus 2 --gpu-memory 80GB",
        ),
    )  # fmt: skip


def _on_machine() -> list[int]:
    """Bytes of each GPU of this machine."""
    reader, now = GpuMemoryReader(), time.monotonic()
    reader.refresh(now)
    found = []
    for index in range(_MOST_GPUS):
        memory = reader.read([index], now)
        if memory is None:
            break
        found.append(memory.total)
    return found


def with_options(asked: Asked, given: Mapping[str, object]) -> Asked:
    """What a command asks, with the options that were given as well taking the place of its own.

    GPUs that are not counted are as many as the layers are shared out among.
    """
    options = {name: value for name, value in given.items() if value is not None}
    found = replace(asked, **options)  # type: ignore[arg-type]
    if "tensor_parallel" in options and "gpus" not in options and found.tensor_parallel:
        return replace(found, gpus=found.tensor_parallel * found.pipeline_parallel)
    return found
