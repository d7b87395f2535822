"""The models of ``specwatch advise``: from their folders, else derived from their names."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specwatch.errors import ConfigError
from specwatch.lab.advise import candidate, model_names
from specwatch.lab.advise.advice import Finding, ServerPlan
from specwatch.lab.advise.candidate import Candidate
from specwatch.lab.advise.files import MissingLibrary
from specwatch.lab.advise.model_files import ModelFiles, cached_model, open_model, open_tokenizer
from specwatch.lab.advise.vllm_command import with_own_speculation
from specwatch.scrape.gpu import GpuMemoryReader

_MOST_GPUS = 64


class LocalModels:
    """Finds models on this machine.

    ``strict``: what looks like a path must exist. Paths of a command may be in a container or on
    another machine.
    """

    def __init__(self, environ: Mapping[str, str], *, strict: bool) -> None:
        self._environ = environ
        self._strict = strict

    def unfold(self, plan: ServerPlan) -> ServerPlan:
        """The plan, completed with the built-in speculation of its target."""
        folder = None if plan.target is None else self._folder(plan.target)[0]
        if folder is None:
            return plan
        return with_own_speculation(plan, folder.config, folder.where)

    def target(self, plan: ServerPlan) -> Candidate:
        """The target. Raises ConfigError."""
        if plan.target is None:
            raise ConfigError("there is no target: give --model, or a command with a model")
        return self._model(plan.target, plan.dtype, plan.quantization)

    def draft(self, plan: ServerPlan, method: str | None) -> Candidate | None:
        """The draft model, if the method has one. Raises ConfigError."""
        if plan.draft is None or method in ("ngram", "ngram_gpu", "suffix", "custom_class"):
            return None
        return self._model(plan.draft, plan.dtype, plan.draft_quantization)

    def _model(self, name: str, dtype: str | None, quantized: str | None) -> Candidate:
        size = model_names.plain_size(name)
        if size is not None and not _is_there(name):
            return candidate.from_size(name, size, dtype=dtype, quantized=quantized)
        files, missing = self._folder(name)
        if files is not None and not missing:
            shown = files.name if _is_there(name) else name
            return candidate.from_files(files, name=shown, dtype=dtype, quantized=quantized)
        named = candidate.from_name(name, dtype=dtype, quantized=quantized)
        if not missing:
            return named
        used = ": only its tokenizer is used" if files is not None else ""
        finding = Finding(
            "model",
            "note",
            f"{name} is incomplete in the hub's cache{used}",
            missing,
            "the cache of the hub",
            f"download all of it: hf download {name}",
        )
        return replace(named, files=files, findings=(*named.findings, finding))

    def _folder(self, name: str) -> tuple[ModelFiles | None, str]:
        """A model's files; of one that is incomplete its tokenizer, and the reason."""
        path = Path(name)
        if _is_there(name):
            return open_model(path), ""
        cached = cached_model(name, self._environ)
        if cached is not None:
            try:
                return open_model(cached), ""
            except MissingLibrary:
                raise
            except ConfigError as error:
                return open_tokenizer(cached), str(error)
        if self._strict and (name.startswith(("/", ".", "~")) or name.endswith(".gguf")):
            return open_model(path), ""  # its error says what is wrong
        return None, ""


def _is_there(name: str) -> bool:
    """Whether a path exists; False for an impossible one."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        # A path that is too long, an unknown home, a NUL.
        return False


def gpus(
    plan: ServerPlan, count: int | None, memory: int | None
) -> tuple[int | None, int | None, tuple[Finding, ...]]:
    """GPUs and the bytes of each: as given, else those of this machine; and findings about them."""
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
        "memory",
        "note",
        "memory: the size of the GPUs' memory is unknown",
        "this machine shows no GPU" if memory is None else "",
        remedy="give --gpus and --gpu-memory, such as --gpus 2 --gpu-memory 80GB",
    )
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
    """The plan of a command, overridden by the given options that are its fields.

    Without a number of GPUs, it is that which parallelism needs.
    """
    names = ServerPlan.__dataclass_fields__.keys() & given.keys()
    options = {name: given[name] for name in names if given[name] is not None}
    changed = replace(plan, **options)  # type: ignore[arg-type]
    if "tensor_parallel" in options and "gpus" not in options and changed.tensor_parallel:
        return replace(changed, gpus=changed.tensor_parallel * changed.pipeline_parallel)
    return changed
