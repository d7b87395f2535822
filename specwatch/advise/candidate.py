"""A target or a draft as far as it is known: from its files, from its name, or from a number."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specwatch.advise import architecture as architectures
from specwatch.advise import kv_cache, naming, quantization
from specwatch.advise.architecture import Architecture
from specwatch.advise.model import Finding, Model
from specwatch.advise.model_files import ModelFolder, Weights
from specwatch.advise.naming import Size
from specwatch.advise.parameters import Parameters
from specwatch.advise.parameters import count as count_parameters
from specwatch.advise.quantization import Usual
from specwatch.errors import ConfigError

_TWO_BYTES = frozenset({"F16", "BF16"})
_FLOATS = _TWO_BYTES | {"F32"}
_CUSTOMARY = "bf16"
"""What weights are taken to be in where nothing says."""
_NAME = "its name"


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
    mtp_weights: int | None = None
    """Bytes more that its layers for multi-token prediction take, if they draft; over all GPUs."""
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

    @property
    def guessed(self) -> bool:
        """Whether nothing but its name tells its size, which may be off."""
        return self.told_by == _NAME

    def as_head(self) -> Candidate:
        """The same as a head, in whose name the size is that of its target."""
        if not self.guessed or self.architecture is not None:
            return self
        kept = (each for each in self.findings if not each.text.startswith(f"{self.name}: "))
        said = "the size in its name is that of its target, and its own is not known"
        return replace(
            self,
            total=None,
            active=None,
            weights=None,
            told_by="",
            findings=(_without_files(self.name, said), *kept),
        )

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
    size = None if shape.draft_kind is not None else naming.size_in(name)
    if shape.experts is not None and size is not None and size.active == size.total:
        # It may be what a token uses: Llama-4-Scout-17B has 109 billion.
        size = None
    told_by, total = "its config.json", None if counted is None else counted.total
    if held is not None:
        told_by, total = "the headers of its weights", held
    elif total is None and size is not None:
        told_by, total = _NAME, size.total
    if quantized is not None:
        quantization.known(quantized)
    form = quantization.first_told(quantized, shape.quantization)
    weights = _weights(folder.weights, counted, total, shape, dtype, form, folder.kind == "gguf")
    found = _of_files(name, folder, shape)
    if weights is None and total is not None and form is not None:
        found.append(_untold(name, form))
    return Candidate(
        name=name,
        folder=folder,
        architecture=shape,
        total=total,
        active=_active(total, counted, size, shape),
        weights=weights,
        quantization=form,
        told_by=told_by,
        mtp_weights=_mtp_weights(folder.weights, counted, total, weights),
        findings=tuple(found),
    )


def of_name(name: str, *, dtype: str | None = None, quantized: str | None = None) -> Candidate:
    """What a name alone tells: its size and format, where it says, and that no more is known."""
    size, form = naming.size_in(name), naming.format_in(name)
    said = "so its size is read off its name" if size else "so nothing is known of it"
    if size and form and quantized is None:
        said += f", and its format too ({form})"
    return _sized(name, size, _NAME, dtype, quantized, form, [_without_files(name, said)])


def _without_files(name: str, said: str) -> Finding:
    return Finding(
        topic="model",
        level="note",
        text=f"{name}: its files are not here, {said}",
        reason="tokenizers, the KV cache and what a method needs are in the files",
        remedy="give its folder, or download it into the local hub cache first",
    )


def of_size(text: str, size: Size, *, dtype: str | None, quantized: str | None) -> Candidate:
    """A model of which only the number of parameters was given."""
    return _sized(text, size, "the size given", dtype, quantized, None, [])


def _sized(
    name: str,
    size: Size | None,
    told_by: str,
    dtype: str | None,
    quantized: str | None,
    named: str | None,
    findings: list[Finding],
) -> Candidate:
    if quantized is not None:
        quantization.known(quantized)
    form = quantization.first_told(quantized, named) or dtype or _CUSTOMARY
    bits = quantization.bits(form)
    weights = None
    if size is not None and bits is None:
        findings.append(_untold(name, form))
    if size is not None:
        weights = quantization.weight_bytes(Usual.of(size.total, size.active), form)
        if weights is not None and not quantization.covers_all(form):
            findings.append(_usual(name, form, weights))
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
        quantization=None if form in (dtype, _CUSTOMARY) else form,
        told_by=told_by if size else "",
        findings=tuple(findings),
    )


def _usual(name: str, form: str, weights: int) -> Finding:
    return Finding(
        topic="model",
        level="note",
        text=f"{name}: {weights / 1e9:.3g} GB of weights in {form}, embeddings and output head in"
        " 16 bits",
        reason="how large those are a size does not tell: they are taken to grow with it as in"
        " Qwen2.5 and Llama 3 models of 0.5B to 405B; with a vocabulary below 128,000 they are"
        " smaller",
        source="published config.json; the format's own bits, its scales and zero points",
        remedy="give its folder, or its config.json in one, for the exact size",
    )


def _untold(name: str, form: str) -> Finding:
    return Finding(
        topic="model",
        level="note",
        text=f"{name}: the size of its weights is not known",
        reason=f"{form} does not say how many bits a weight has: the checkpoint does",
        remedy="give its folder with the weights, or the format itself, such as w4a16 or fp8",
    )


def _active(
    total: int | None, counted: Parameters | None, size: Size | None, shape: Architecture
) -> int | None:
    if total is None:
        return None
    if counted is not None:
        # The share that a token uses is of the shape; the count may be of the headers.
        return round(total * counted.active / counted.total)
    if size is not None:
        return size.active
    return total if shape.experts is None else None


def _mtp_weights(
    held: Weights | None, counted: Parameters | None, total: int | None, weights: int | None
) -> int | None:
    """Bytes of layers for multi-token prediction that ``weights`` does not have; None: unknown."""
    if held is not None and held.mtp:
        return 0
    if counted is None or not total or weights is None:
        return None
    return round(counted.mtp * weights / total)


def _weights(
    held: Weights | None,
    counted: Parameters | None,
    total: int | None,
    shape: Architecture,
    dtype: str | None,
    form: str | None,
    is_file: bool,
) -> int | None:
    """Bytes in memory: as the files have them, unless the server converts them to ``form``."""
    converts = form is not None and shape.quantization is None
    if held is not None and not converts:
        kept = is_file or shape.quantization is not None
        return held.bytes if kept else _served(held, dtype)
    try:
        bits = quantization.bits(form or dtype or _CUSTOMARY)
    except ConfigError:  # of its config.json, which may have a format of tomorrow
        return None
    if counted is not None:
        return quantization.weight_bytes(counted, form or dtype or _CUSTOMARY)
    return None if total is None or bits is None else round(total * bits / 8)


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
        whole = folder.weights is not None
        counted = "all of its weights are" if whole else "only the language model is"
        found.append(
            Finding(
                topic="model",
                level="note",
                text=f"{name} takes more than text, and {counted} counted",
                reason="with a draft model vLLM drafts from the text alone",
                source="vLLM 0.32, vllm/v1/spec_decode/llm_base_proposer.py",
            )
        )
    return found
