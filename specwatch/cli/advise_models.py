"""The models that ``specwatch advise`` is asked about: their folders, else what their names say."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specwatch.advise import candidate, names
from specwatch.advise.advice import Finding, ServerPlan
from specwatch.advise.candidate import Candidate
from specwatch.advise.files import MissingLibrary
from specwatch.advise.model_files import ModelFiles, cached_model, open_model, open_tokenizer
from specwatch.advise.vllm_command import with_own_speculation
from specwatch.errors import ConfigError
from specwatch.scrape.gpu import GpuMemoryReader

_MOST_GPUS = 64


class Models:
    """Finds models on this machine.

    ``strict`` says that what looks like a path must be there; paths of a command may lie elsewhere,
    in a container or on another machine.
    """

    def __init__(self, environ: Mapping[str, str], *, strict: bool) -> None:
        self._environ = environ
        self._strict = strict

    def unfold(self, plan: ServerPlan) -> ServerPlan:
        """What is asked once a target that brings its own speculation is taken apart."""
        try:
            folder = None if plan.target is None else self._folder(plan.target)
        except _NotWhole:
            return plan
        if folder is None:
            return plan
        return with_own_speculation(plan, folder.config, folder.where)

    def target(self, plan: ServerPlan) -> Candidate:
        """The target. Raises ConfigError."""
        if plan.target is None:
            raise ConfigError("no target is named: give --model, or a command that names its model")
        return self._model(plan.target, plan.dtype, plan.quantization)

    def draft(self, plan: ServerPlan, method: str | None) -> Candidate | None:
        """The draft, if there is a model of one. Raises ConfigError."""
        if plan.draft is None or method in ("ngram", "ngram_gpu", "suffix", "custom_class"):
            return None
        return self._model(plan.draft, plan.dtype, plan.draft_quantization)

    def _model(self, name: str, dtype: str | None, quantized: str | None) -> Candidate:
        size = names.plain_size(name)
        if size is not None and not _is_there(name):
            return candidate.from_size(name, size, dtype=dtype, quantized=quantized)
        try:
            folder = self._folder(name)
        except _NotWhole as error:
            named = candidate.from_name(name, dtype=dtype, quantized=quantized)
            findings = (*named.findings, error.finding(name))
            return replace(named, files=error.tokenizer, findings=findings)
        if folder is None:
            return candidate.from_name(name, dtype=dtype, quantized=quantized)
        shown = folder.name if _is_there(name) else name
        return candidate.from_files(folder, name=shown, dtype=dtype, quantized=quantized)

    def _folder(self, name: str) -> ModelFiles | None:
        path = Path(name)
        if _is_there(name):
            return open_model(path)
        cached = cached_model(name, self._environ)
        if cached is not None:
            try:
                return open_model(cached)
            except MissingLibrary:
                raise
            except ConfigError as error:
                raise _NotWhole(str(error), open_tokenizer(cached)) from error
        if self._strict and (name.startswith(("/", ".", "~")) or name.endswith(".gguf")):
            return open_model(path)  # which says what is wrong with it
        return None


class _NotWhole(Exception):
    """The hub's cache has a model, but not all that is needed of it."""

    def __init__(self, why: str, tokenizer: ModelFiles | None) -> None:
        super().__init__(why)
        self.tokenizer = tokenizer

    def finding(self, name: str) -> Finding:
        used = ": only its tokenizer is used" if self.tokenizer is not None else ""
        return Finding(
            "model", "note", f"{name} is not whole in the hub's cache{used}", str(self),
            "the cache of the hub", f"download all of it: hf download {name}",
        )  # fmt: skip


def _is_there(name: str) -> bool:
    """Whether there is anything at a path; no for what can be none."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        # A path that is too long, a home that is not known, a NUL.
        return False


def gpus(
    plan: ServerPlan, count: int | None, memory: int | None
) -> tuple[int | None, int | None, tuple[Finding, ...]]:
    """GPUs and the bytes of each: as given, else as this machine has them; with what to say."""
    wanted = count if count is not None else plan.gpus
    if memory is None or wanted is None:
        there = _on_machine()
        if memory is None:
            memory = min(there, default=None)
        if wanted is None:
            wanted = len(there) or (None if memory is None else 1)
    if wanted is not None and memory is not None:
        return wanted, memory, ()
    finding = Finding(
        "memory", "note", "memory: how much the GPUs have is not known",
        "none is seen on this machine" if memory is None else "",
        remedy="give --gpus and --gpu-memory, such as --gpus 2 --gpu-memory 80GB",
    )  # fmt: skip
    return None, None, (finding,)


def _on_machine() -> list[int]:
    """Bytes of each GPU of this machine."""
    reader, now = GpuMemoryReader(), time.monotonic()
    reader.refresh(now)
    totals = []
    for index in range(_MOST_GPUS):
        memory = reader.read([index], now)
        if memory is None:
            break
        totals.append(memory.total)
    return totals


def with_options(plan: ServerPlan, given: Mapping[str, object]) -> ServerPlan:
    """What a command asks, with the options that were given as well taking the place of its own.

    GPUs that are not counted are as many as the layers are shared out among.
    """
    options = {name: value for name, value in given.items() if value is not None}
    changed = replace(plan, **options)  # type: ignore[arg-type]
    if "tensor_parallel" in options and "gpus" not in options and changed.tensor_parallel:
        return replace(changed, gpus=changed.tensor_parallel * changed.pipeline_parallel)
    return changed
