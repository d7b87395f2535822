"""What a format of weights costs: bits per weight, with the scales that come along.

Block formats follow from their definition: a group of weights shares a scale, of *g* weights of
*b* bits and a scale of *s* bits each takes b + s / g. AWQ and GPTQ: 4 bits, 128 weights, a scale
of 16 and a zero point of 4 bits; NVFP4: 16 weights, a scale of 8 bits; MXFP4: 32 weights, a scale
of 8 bits. GGUF: what ``llama-quantize`` reports for Llama 3.1 8B, all tensors together
(llama.cpp, tools/quantize/README.md; with two digits: from the sizes in its help); its mixtures
differ a little from model to model.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

from specwatch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Format:
    """A format of weights."""

    bits: float
    covers: Literal["all", "linear", "experts"] = "linear"
    """What of a model it is used for: ``all``, ``linear`` layers (embeddings and output head
    stay), or the routed ``experts`` alone."""


_GROUPED = 4 + (16 + 4) / 128
_GROUPS = (32, 64)
"""Other sizes of groups than 128 that checkpoints are published with."""
FORMATS: Mapping[str, Format] = {
    "fp32": Format(32, "all"), "bf16": Format(16, "all"), "fp16": Format(16, "all"),
    "fp8": Format(8), "int8": Format(8), "w8a8": Format(8), "mxfp8": Format(8 + 8 / 32),
    "gptq-int8": Format(8 + (16 + 8) / 128), "bnb-int8": Format(8),
    "int4": Format(4), "awq": Format(_GROUPED), "gptq": Format(_GROUPED),
    "w4a16": Format(4 + 16 / 128), "bnb-int4": Format(4 + 32 / 64), "hqq": Format(4 + 32 / 64),
    "nvfp4": Format(4 + 8 / 16), "mxfp4": Format(4 + 8 / 32, "experts"),
    **{
        f"{name}-g{group}": Format(4 + scale / group)
        for name, scale in (("awq", 16 + 4), ("gptq", 16 + 4), ("w4a16", 16))
        for group in _GROUPS
    },
}  # fmt: skip
"""Formats of vLLM. ``int4`` is the bare 4 bits of the rules of thumb."""
GGUF: Mapping[str, float] = {
    "IQ1_S": 2.0042, "IQ1_M": 2.1460, "IQ2_XXS": 2.3824, "IQ2_XS": 2.5882, "IQ2_S": 2.7403,
    "IQ2_M": 2.9294, "IQ3_XXS": 3.2548, "IQ3_XS": 3.4977, "IQ3_S": 3.6606, "IQ3_M": 3.7628,
    "IQ4_XS": 4.4597, "IQ4_NL": 4.6818, "Q2_K_S": 2.9697, "Q2_K": 3.1593, "Q3_K_S": 3.6429,
    "Q3_K_M": 4.00, "Q3_K_L": 4.2979, "Q4_0": 4.64, "Q4_1": 5.11, "Q4_K_S": 4.6672,
    "Q4_K_M": 4.8944, "Q5_0": 5.57, "Q5_1": 6.04, "Q5_K_S": 5.5704, "Q5_K_M": 5.7036,
    "Q6_K": 6.5633, "Q8_0": 8.5008, "F16": 16.0005, "BF16": 16.0005, "F32": 32.0,
}  # fmt: skip
_EMBEDDINGS = (
    (494_032_768, 151_936 * 896), (1_235_814_400, 128_256 * 2048), (3_212_749_824, 128_256 * 3072),
    (7_615_616_512, 2 * 152_064 * 3584), (32_763_876_352, 2 * 152_064 * 5120),
    (72_706_203_648, 2 * 152_064 * 8192), (405_853_388_800, 2 * 128_256 * 16_384),
)  # fmt: skip
"""All parameters, and those of embeddings and output head: the published config.json of Qwen2.5
0.5B, Llama 3.2 1B and 3B, Qwen2.5 7B, 32B and 72B, Llama 3.1 405B."""
_OTHER_NAMES: Mapping[str, str] = {
    "float32": "fp32", "f32": "fp32", "float": "fp32", "float16": "fp16", "f16": "fp16",
    "half": "fp16", "bfloat16": "bf16", "float8": "fp8", "fbgemm_fp8": "fp8", "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "ptpc_fp8": "fp8", "int8_w8a8": "w8a8",
    "w8a16": "int8", "w4a16_awq": "awq", "awq_marlin": "awq", "gptq_marlin": "gptq",
    "auto-round": "gptq", "auto_round": "gptq", "gptq_int8": "gptq-int8",
    "bitsandbytes": "bnb-int4", "bnb": "bnb-int4", "nf4": "bnb-int4", "modelopt": "fp8",
    "modelopt_fp4": "nvfp4", "experts_int8": "int8", "gpt_oss_mxfp4": "mxfp4",
    "modelopt_mxfp8": "mxfp8", "auto_awq": "awq", "auto_gptq": "gptq", "fp8_per_tensor": "fp8",
    "fp8_per_block": "fp8", "fp8_per_channel": "fp8", "int8_per_channel_weight_only": "int8",
    "nvfp4_per_token": "nvfp4", "q3_k": "Q3_K_M", "q4_k": "Q4_K_M", "q5_k": "Q5_K_M",
}  # fmt: skip
_OF_THE_CHECKPOINT = frozenset({
    "compressed-tensors", "deepseek_v4_fp8", "fp_quant", "gguf", "humming", "inc",
    "modelopt_mixed", "moe_wna16", "online", "quark", "torchao",
})  # fmt: skip
"""Methods of vLLM 0.32 (``QuantizationMethods``) that do not say how many bits a weight has."""
CACHES: Mapping[str, float | None] = {
    "float16": 16, "bfloat16": 16, "fp8": 8, "fp8_e4m3": 8, "fp8_e5m2": 8, "fp8_inc": 8,
    "fp8_ds_mla": 8, "nvfp4_ds_mla": None, "turboquant_k8v4": 6.125, "turboquant_4bit_nc": 4.1875,
    "turboquant_k3v4_nc": 3.6875, "turboquant_3bit_nc": 3.1875, "ultraquant_4bit": None,
    "int4_per_token_head": 4, "int8_per_token_head": 8, "fp8_per_token_head": 8, "nvfp4": 4.5,
    "nvfp4_4over6": 4.5,
    "f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5, "q4_1": 5, "iq4_nl": 4.5,
    "q5_0": 5.5, "q5_1": 6,
}  # fmt: skip
"""Bits of an element of the KV cache: ``CacheDType`` of vLLM 0.32, then llama.cpp's types (blocks
of 32 with their scales). TurboQuant's are those of heads 128 wide; of others the scales of a token
and head are left out. None is what is not told here."""


class Counted(Protocol):
    """As much of :class:`specwatch.advise.parameters.Parameters` as sizes depend on."""

    @property
    def total(self) -> int:
        """All of them."""

    @property
    def embedding(self) -> int:
        """Those of embeddings and output head."""

    @property
    def routed(self) -> int:
        """Those of routed experts."""


def known(name: str) -> str:
    """The name of a format as it is written here; ConfigError names the nearest."""
    plain = name.strip().lower()
    plain = _OTHER_NAMES.get(plain, plain)
    if plain in FORMATS or plain in _OF_THE_CHECKPOINT:
        return plain
    if (upper := plain.upper()) in GGUF:
        return upper
    every = [*FORMATS, *GGUF, *_OTHER_NAMES, *_OF_THE_CHECKPOINT]
    lowered = {each.lower(): each for each in every}
    near = difflib.get_close_matches(plain, lowered, n=1, cutoff=0.4)
    hint = f"; did you mean {lowered[near[0]]}?" if near else ""
    raise ConfigError(
        f"{name!r} is no format of weights that is known here: expected one of "
        f"{', '.join(FORMATS)}, or one of llama.cpp's such as Q4_K_M{hint}"
    )


def bits(name: str) -> float | None:
    """Bits per weight that a format covers, its scales included; None where the checkpoint says.

    Raises ConfigError with the nearest name where there is no such format.
    """
    found = known(name)
    return FORMATS[found].bits if found in FORMATS else GGUF.get(found)


def covers_all(name: str) -> bool:
    """Whether a format leaves no weights of a model in 16 bits. Raises as :func:`bits`."""
    found = known(name)
    return found not in FORMATS or FORMATS[found].covers == "all"


def of_cache(name: str) -> float | None:
    """Bits of an element of the KV cache; None where the type does not say.

    Raises ConfigError with the nearest name where there is no such type.
    """
    plain = name.strip().lower()
    if plain in CACHES:
        return CACHES[plain]
    near = difflib.get_close_matches(plain, CACHES, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(
        f"{name!r} is no type of a KV cache that is known here: expected one of"
        f" {', '.join(CACHES)}{hint}"
    )


def first_told(*names: str | None) -> str | None:
    """The first of these formats that says how many bits it has; else the first there is."""
    given = [name for name in names if name is not None]
    return next((name for name in given if _told(name)), given[0] if given else None)


def _told(name: str) -> bool:
    try:
        return bits(name) is not None
    except ConfigError:
        return False


def weight_bytes(parameters: Counted, name: str, *, rest: str = "bf16") -> int | None:
    """Bytes of a model's weights in a format; what the format does not cover is ``rest``.

    None where the format does not say how many bits it has.
    """
    found, width, others_width = known(name), bits(name), bits(rest)
    if width is None or others_width is None:
        return None
    covers = FORMATS[found].covers if found in FORMATS else "all"
    covered = parameters.total
    if covers == "experts" and parameters.routed:
        covered = parameters.routed
    elif covers != "all":
        covered -= parameters.embedding
    others = parameters.total - covered
    return round((covered * width + others * others_width) / 8)


@dataclass(frozen=True, slots=True)
class Usual:
    """Parameters of which only the number is known, shared out as is usual."""

    total: int
    embedding: int
    routed: int = 0

    @classmethod
    def of(cls, total: int, active: int) -> Usual:
        """As many in embeddings and output head as in :data:`_EMBEDDINGS`, for the parameters that
        a token uses, as experts add none; above the largest the share falls as just below it.
        """
        counts = [math.log(each) for each, _ in _EMBEDDINGS]
        shares = [math.log(embedding / each) for each, embedding in _EMBEDDINGS]
        at = math.log(active)
        share = math.exp(shares[0])
        for (low, first), (high, last) in pairwise(zip(counts, shares, strict=True)):
            part = max((at - low) / (high - low), 0.0)
            if high < counts[-1]:
                part = min(part, 1.0)
            share *= math.exp(part * (last - first))
        return cls(total, round(active * share))


def of_config(config: Mapping[str, Any]) -> str | None:
    """The format that a ``config.json`` declares, as :func:`bits` takes it.

    None where it declares none; the method's own name where it is one not known here.
    """
    declared = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(declared, Mapping):
        return None
    method = str(declared.get("quant_method") or declared.get("quant_algo") or "unknown").lower()
    if method in ("compressed-tensors", "compressed_tensors"):
        return _of_groups(declared)
    if method in ("modelopt", "modelopt_fp4", "nvfp4", "fp8"):
        said = str(declared.get("quant_algo") or method)
        return "nvfp4" if "FP4" in said.upper() else "fp8"
    if method == "bitsandbytes":
        return "bnb-int8" if declared.get("load_in_8bit") else "bnb-int4"
    if method in ("gptq", "gptq_marlin", "auto-round", "awq", "awq_marlin"):
        return _grouped(_OTHER_NAMES.get(method, method), declared)
    return _OTHER_NAMES.get(method, method)


def _grouped(method: str, declared: Mapping[str, Any]) -> str:
    width = declared.get("bits", declared.get("w_bit", 4))
    if width == 8:
        return "gptq-int8"
    return _in_groups(method, declared.get("group_size", declared.get("q_group_size")))


def _in_groups(method: str, size: object) -> str:
    """The format with groups of this size, where they are not those of 128 that are usual."""
    named = f"{method}-g{size}"
    return named if named in FORMATS else method


def _of_groups(declared: Mapping[str, Any]) -> str:
    """Of compressed-tensors: what its first group of layers says."""
    groups = declared.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) and groups else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return "unknown"
    width, kind = weights.get("num_bits"), str(weights.get("type", "int"))
    activations = bool(isinstance(first, Mapping) and first.get("input_activations"))
    if width == 4:
        if kind != "float":
            return _in_groups("w4a16", weights.get("group_size"))
        return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
    if width == 8:
        return "fp8" if kind == "float" else ("w8a8" if activations else "int8")
    return "unknown"
