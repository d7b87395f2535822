"""A target or a draft, known from its files, its name, or a given size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specwatch.errors import ConfigError
from specwatch.lab.advise import formats, model_names
from specwatch.lab.advise.advice import Finding, Model
from specwatch.lab.advise.architecture import Architecture, read_architecture
from specwatch.lab.advise.memory import kv_bytes_per_token
from specwatch.lab.advise.model_files import ModelFiles
from specwatch.lab.advise.model_names import Size
from specwatch.lab.advise.parameter_count import Parameters, count_parameters

_DEFAULT_FORMAT = "bf16"
"""Assumed format of weights if it is not known."""
_NAME = "its name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A target or a draft. Counts are parameters, ``weights`` bytes."""

    name: str
    files: ModelFiles | None = None
    architecture: Architecture | None = None
    total: int | None = None
    active: int | None = None
    """Parameters that one token uses."""
    weights: int | None = None
    """Bytes in memory, over all GPUs, as served."""
    quantization: str | None = None
    size_source: str = ""
    """The source of its size."""
    mtp_weights: int | None = None
    """Bytes that its layers for multi-token prediction take besides ``weights``, over all GPUs."""
    findings: tuple[Finding, ...] = ()
    """Findings on the model by itself."""

    @property
    def family(self) -> str | None:
        """``llama``, ``qwen`` ...: by its model type, else by its name."""
        model_type = "" if self.architecture is None else self.architecture.model_type
        return model_names.family_in(model_type) or model_names.family_in(self.name)

    @property
    def bits(self) -> float | None:
        """Bits per weight, on average."""
        return 8 * self.weights / self.total if self.total and self.weights is not None else None

    @property
    def read_per_step(self) -> float | None:
        """Bytes of weights that a step for one token reads, over all GPUs."""
        return None if self.active is None or self.bits is None else self.active * self.bits / 8

    @property
    def is_guessed(self) -> bool:
        """Whether its size is from its name only, and may be wrong."""
        return self.size_source == _NAME

    def as_head(self) -> Candidate:
        """The same as a head; a size in the name of a head is that of its target."""
        if not self.is_guessed or self.architecture is not None:
            return self
        own_text = f"{self.name}: "
        others = (item for item in self.findings if not item.text.startswith(own_text))
        reason = "the size in its name is that of its target, and its own is not known"
        return replace(
            self,
            total=None,
            active=None,
            weights=None,
            size_source="",
            findings=(_without_files(self.name, reason), *others),
        )

    def model(self, kv_bits: float) -> Model:
        """Its description for ``--json``."""
        shape = self.architecture
        return Model(
            name=self.name,
            parameters=self.total,
            active_parameters=self.active if self.active != self.total else None,
            weights=self.weights,
            quantization=self.quantization,
            kv_per_token=kv_bytes_per_token(shape, kv_bits) if shape and shape.layers else None,
            context=None if shape is None else shape.context,
        )


def from_files(
    files: ModelFiles, *, name: str, dtype: str | None = None, quantized: str | None = None
) -> Candidate:
    """A model by its files. ``dtype`` and ``quantized`` are options of the server.

    Raises ConfigError if the configuration cannot be used.
    """
    shape = read_architecture(files.config, files.where)
    counted = count_parameters(shape)
    stored = None if files.weights is None else files.weights.parameters
    size = None if shape.draft_kind is not None else model_names.size_in(name)
    if shape.experts is not None and size is not None and size.active == size.total:
        # It may be the size of one token's experts: Llama-4-Scout-17B has 109 billion.
        size = None
    source, total = "its config.json", None if counted is None else counted.total
    if stored is not None:
        source, total = "the headers of its weights", stored
    elif total is None and size is not None:
        source, total = _NAME, size.total
    if quantized is not None:
        formats.canonical_name(quantized)
    form = formats.first_with_bits(quantized, shape.quantization)
    weights = _weight_bytes(files, counted, total, shape, dtype, form)
    active = total
    if total is None or (counted is None and size is None and shape.experts is not None):
        active = None
    elif counted is not None:
        # The total may be from the headers of the weights, the share of active ones is computed.
        active = round(total * counted.active / counted.total)
    elif size is not None:
        active = size.active
    mtp_weights = None
    if files.weights is not None and files.weights.mtp:
        mtp_weights = 0
    elif counted is not None and total and weights is not None:
        mtp_weights = round(counted.mtp * weights / total)
    findings = _file_findings(name, files, shape)
    if weights is None and total is not None and form is not None:
        findings.append(_unknown_bits(name, form))
    return Candidate(
        name=name,
        files=files,
        architecture=shape,
        total=total,
        active=active,
        weights=weights,
        quantization=form,
        size_source=source,
        mtp_weights=mtp_weights,
        findings=tuple(findings),
    )


def from_name(name: str, *, dtype: str | None = None, quantized: str | None = None) -> Candidate:
    """A model by its name: size and format, if it has them."""
    size, form = model_names.size_in(name), model_names.format_in(name)
    reason = "so its size is read from its name" if size else "so nothing is known about it"
    if size and form and quantized is None:
        reason += f", and its format too ({form})"
    return _from_size(name, size, _NAME, dtype, quantized, form, [_without_files(name, reason)])


def from_size(text: str, size: Size, *, dtype: str | None, quantized: str | None) -> Candidate:
    """A model of which only the number of parameters is given."""
    return _from_size(text, size, "the size given", dtype, quantized, None, [])


def _from_size(
    name: str,
    size: Size | None,
    source: str,
    dtype: str | None,
    quantized: str | None,
    named: str | None,
    findings: list[Finding],
) -> Candidate:
    if quantized is not None:
        formats.canonical_name(quantized)
    form = formats.first_with_bits(quantized, named) or dtype or _DEFAULT_FORMAT
    weights = None
    if size is not None:
        embedding = formats.usual_embedding(size.active)
        weights = formats.weight_bytes(form, size.total, embedding)
        if weights is None:
            findings.append(_unknown_bits(name, form))
        elif formats.part_quantized(form) != "all":
            findings.append(
                Finding(
                    "model",
                    "note",
                    f"{name}: {weights / 1e9:.3g} GB of weights in {form}, embeddings and output"
                    " head in 16 bits",
                    "the size of those is estimated from the number of parameters, as in"
                    " Qwen2.5 and Llama 3 models of 0.5B to 405B; with a vocabulary below 128,000"
                    " they are smaller",
                    "published config.json; bits, scales and zero points of the format",
                    "give its folder, or its config.json in one, for the exact size",
                )
            )
        if size.at_most:
            text = f"{name}: at most {size.total / 1e9:.0f}B parameters"
            reason = "in a name like 8x7B the shared parameters are counted for each expert"
            findings.append(Finding("model", "note", text, reason))
    return Candidate(
        name=name,
        total=None if size is None else size.total,
        active=None if size is None else size.active,
        weights=weights,
        quantization=None if form in (dtype, _DEFAULT_FORMAT) else form,
        size_source=source if size else "",
        findings=tuple(findings),
    )


def _weight_bytes(
    files: ModelFiles,
    counted: Parameters | None,
    total: int | None,
    shape: Architecture,
    dtype: str | None,
    form: str | None,
) -> int | None:
    """Bytes in memory: as in the files, unless the server converts them to ``form``."""
    stored = files.weights
    if stored is not None and (form is None or shape.quantization is not None):
        if files.kind == "gguf" or shape.quantization is not None:
            return stored.bytes
        # Each float tensor is converted to the type that it is served in.
        width = 4 if dtype in ("float32", "float", "fp32") else 2
        return stored.bytes - stored.float_bytes + stored.float_elements * width
    form = form or dtype or _DEFAULT_FORMAT
    try:
        if counted is not None:
            return formats.weight_bytes(form, counted.total, counted.embedding, counted.routed)
        bits = formats.weight_bits(form)
    except ConfigError:  # its config.json may have a format of a later version
        return None
    return None if total is None or bits is None else round(total * bits / 8)


def _without_files(name: str, reason: str) -> Finding:
    return Finding(
        "model",
        "note",
        f"{name}: its files are not here, {reason}",
        "its tokenizer, its KV cache and what a method needs are known from its files only",
        remedy="give its folder, or download it into the local hub cache first",
    )


def _unknown_bits(name: str, form: str) -> Finding:
    return Finding(
        "model",
        "note",
        f"{name}: the size of its weights is not known",
        f"with {form} the bits of a weight depend on the checkpoint",
        remedy="give its folder with the weights, or the format itself, such as w4a16 or fp8",
    )


def _file_findings(name: str, files: ModelFiles, shape: Architecture) -> list[Finding]:
    findings = []
    if files.has_adapter:
        text = f"{name}: a LoRA adapter in its folder is not counted"
        source = f"{files.where}: adapter_config.json"
        findings.append(Finding("model", "note", text, source=source))
    if files.weights is None:
        text = f"{name}: no weights in its folder, so their size is computed"
        findings.append(Finding("model", "note", text, source=f"{files.where}: config.json"))
    if shape.multimodal:
        counted = (
            "only the language model is" if files.weights is None else "all of its weights are"
        )
        findings.append(
            Finding(
                "model",
                "note",
                f"{name} is multimodal, and {counted} counted",
                "with a draft model vLLM drafts from the text only",
                "vLLM 0.32, vllm/v1/spec_decode/llm_base_proposer.py",
            )
        )
    return findings
