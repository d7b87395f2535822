"""A target or a draft as far as it is known: from its files, from its name, or from a number."""

from __future__ import annotations

from dataclasses import dataclass

from specwatch.advice import architecture as architectures
from specwatch.advice import kv_cache, naming, quantization
from specwatch.advice.architecture import Architecture
from specwatch.advice.model import Finding, Model
from specwatch.advice.model_files import ModelFolder, Weights
from specwatch.advice.naming import Size
from specwatch.advice.parameters import Parameters
from specwatch.advice.parameters import count as count_parameters
from specwatch.errors import ConfigError

_TWO_BYTES = frozenset({"F16", "BF16"})
_FLOATS = _TWO_BYTES | {"F32"}
_CUSTOMARY = "bf16"
"""What weights are taken to be in where nothing says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that is to be a target or a draft. Counts are parameters, ``weights`` bytes."""

    name: str
    folder: ModelFolder | None = None
    architecture: Architecture | None = None
    total: int | None = None
    active: int | None = None
    """Those that one token uses."""
    weights: int | None = None
    """In memory, over all GPUs, as they will be served."""
    quantization: str | None = None
    told_by: str = ""
    """Where its size is known from."""
    findings: tuple[Finding, ...] = ()
    """What is to be said of the model by itself."""

    @property
    def family(self) -> str | None:
        """``llama``, ``qwen`` ...: by its model type, else by its name."""
        found = None
        if self.architecture is not None:
            found = naming.family_in(self.architecture.model_type)
        return found or naming.family_in(self.name)

    @property
    def bits(self) -> float | None:
        """Bits per weight, over all of it."""
        if not self.total or self.weights is None:
            return None
        return 8 * self.weights / self.total

    @property
    def read_per_step(self) -> float | None:
        """Bytes of weights that a step for one token reads, over all GPUs."""
        if self.active is None or self.bits is None:
            return None
        return self.active * self.bits / 8

    def model(self, kv_bits: float) -> Model:
        """What ``--json`` says of it."""
        shape = self.architecture
        per_token = None
        if shape is not None and shape.layers:
            per_token = kv_cache.bytes_per_token(shape, kv_bits=kv_bits)
        return Model(
            name=self.name,
            parameters=self.total,
            active_parameters=self.active if self.active != self.total else None,
            weights=self.weights,
            quantization=self.quantization,
            kv_per_token=per_token,
            context=None if shape is None else shape.context,
        )


def of_folder(
    folder: ModelFolder, *, name: str, dtype: str | None = None, quantized: str | None = None
) -> Candidate:
    """What the files of a model tell. ``dtype`` and ``quantized`` are what the server is told.

    Raises ConfigError where the configuration cannot be used.
    """
    shape = architectures.read(folder.config, folder.where)
    counted = count_parameters(shape)
    held = None if folder.weights is None else folder.weights.parameters
    size = naming.size_in(name)
    told_by, total = "its config.json", None if counted is None else counted.total
    if held is not None:
        told_by, total = "the headers of its weights", held
    elif total is None and size is not None:
        told_by, total = "its name", size.total
    active = _active(total, counted, size)
    form = quantized or shape.quantization
    return Candidate(
        name=name,
        folder=folder,
        architecture=shape,
        total=total,
        active=active,
        weights=_weights(
            folder.weights,
            counted,
            total,
            shape,
            dtype,
            quantized,
            is_file=folder.kind == "gguf",
        ),
        quantization=form,
        told_by=told_by,
        findings=tuple(_of_files(name, folder, shape)),
    )


def of_name(name: str, *, dtype: str | None = None, quantized: str | None = None) -> Candidate:
    """What a name alone tells: its size, where it says, and that nothing else is known."""
    size = naming.size_in(name)
    found = [
        Finding(
            topic="model",
            level="note",
            text=f"{name}: its files are not here, so "
            + ("its size is read off its name" if size else "nothing is known of it"),
            reason="tokenizers, the KV cache and what a method needs are in the files",
            remedy="give its folder, or download it into the local hub cache first",
        )
    ]
    return _sized(name, size, "its name", dtype, quantized, found)


def of_size(text: str, size: Size, *, dtype: str | None, quantized: str | None) -> Candidate:
    """A model of which only the number of parameters was given."""
    return _sized(text, size, "the size given", dtype, quantized, [])


def _sized(
    name: str,
    size: Size | None,
    told_by: str,
    dtype: str | None,
    quantized: str | None,
    findings: list[Finding],
) -> Candidate:
    form = quantized or dtype
    weights = None
    if size is not None:
        weights = round(size.total * quantization.bits(form or _CUSTOMARY) / 8)
        if size.at_most:
            findings.append(
                Finding(
                    topic="model",
                    level="note",
                    text=f"{name}: at most {size.total / 1e9:.0f}B parameters",
                    reason="a name like 8x7B counts what the experts share once for each",
                )
            )
    return Candidate(
        name=name,
        total=None if size is None else size.total,
        active=None if size is None else size.active,
        weights=weights,
        quantization=quantized,
        told_by=told_by if size else "",
        findings=tuple(findings),
    )


def _active(total: int | None, counted: Parameters | None, size: Size | None) -> int | None:
    if total is None:
        return None
    if counted is not None:
        # The share that a token uses is of the shape; the count may be of the headers.
        return round(total * counted.active / counted.total)
    return size.active if size is not None else total


def _weights(
    held: Weights | None,
    counted: Parameters | None,
    total: int | None,
    shape: Architecture,
    dtype: str | None,
    quantized: str | None,
    *,
    is_file: bool,
) -> int | None:
    """Bytes in memory: as the files have them, unless the server converts them."""
    converts = quantized is not None and shape.quantization is None
    if held is not None and not converts:
        kept = is_file or shape.quantization is not None
        return held.bytes if kept else _served(held, dtype)
    form = quantized or shape.quantization or dtype or _CUSTOMARY
    try:
        if counted is not None:
            return quantization.weight_bytes(counted, form)
        return None if total is None else round(total * quantization.bits(form) / 8)
    except ConfigError:
        if quantized is not None:
            raise
        return None


def _served(held: Weights, dtype: str | None) -> int:
    """Bytes of stored weights once each float tensor has the type that it is served in."""
    width = 4 if dtype in ("float32", "float", "fp32") else 2
    floats = sum(held.elements_by_dtype.get(name, 0) for name in _FLOATS)
    stored = sum(held.bytes_by_dtype.get(name, 0) for name in _FLOATS)
    return held.bytes - stored + floats * width


def _of_files(name: str, folder: ModelFolder, shape: Architecture) -> list[Finding]:
    found = []
    if folder.adapter is not None:
        found.append(
            Finding(
                topic="model",
                level="note",
                text=f"{name}: a LoRA adapter lies beside it, and is not counted",
                source=f"{folder.where}: adapter_config.json",
            )
        )
    if folder.weights is None:
        found.append(
            Finding(
                topic="model",
                level="note",
                text=f"{name}: no weights in its folder, so their size is computed",
                source=f"{folder.where}: config.json",
            )
        )
    if shape.multimodal:
        found.append(
            Finding(
                topic="model",
                level="note",
                text=f"{name} takes more than text, and only the language model is counted",
                reason="with a draft model vLLM drafts from the text alone",
                source="vLLM 0.32, vllm/v1/spec_decode/llm_base_proposer.py",
            )
        )
    return found
