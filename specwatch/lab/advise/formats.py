"""Formats of weights and of the KV cache: bits per element, with the scales that come along.

Block formats follow from their definition: where a group of g weights of b bits shares a scale of
s bits, a weight takes b + s / g bits. AWQ and GPTQ: 128 weights of 4 bits, a scale of 16 and a zero
point of 4 bits; NVFP4: 16 weights, a scale of 8 bits; MXFP4: 32 weights, a scale of 8 bits. GGUF:
what ``llama-quantize`` reports for Llama 3.1 8B, all tensors together (llama.cpp,
tools/quantize/README.md); its mixtures differ a little from model to model.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

from specwatch.errors import ConfigError

_GROUPED = 4 + (16 + 4) / 128
_VLLM_BITS: Mapping[str, float] = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "w8a8": 8,
    "mxfp8": 8 + 8 / 32,
    "gptq-int8": 8 + (16 + 8) / 128,
    "bnb-int8": 8,
    "int4": 4,
    "awq": _GROUPED,
    "gptq": _GROUPED,
    "w4a16": 4 + 16 / 128,
    "bnb-int4": 4 + 32 / 64,
    "hqq": 4 + 32 / 64,
    "nvfp4": 4 + 8 / 16,
    "mxfp4": 4 + 8 / 32,
    **{
        f"{name}-g{group}": 4 + scale / group
        for name, scale in (("awq", 16 + 4), ("gptq", 16 + 4), ("w4a16", 16))
        for group in (32, 64)
    },
}
"""``int4`` has 4 bits without scales, as in rules of thumb."""
_GGUF_BITS: Mapping[str, float] = {
    "IQ1_S": 2.0042,
    "IQ1_M": 2.1460,
    "IQ2_XXS": 2.3824,
    "IQ2_XS": 2.5882,
    "IQ2_S": 2.7403,
    "IQ2_M": 2.9294,
    "IQ3_XXS": 3.2548,
    "IQ3_XS": 3.4977,
    "IQ3_S": 3.6606,
    "IQ3_M": 3.7628,
    "IQ4_XS": 4.4597,
    "IQ4_NL": 4.6818,
    "Q2_K_S": 2.9697,
    "Q2_K": 3.1593,
    "Q3_K_S": 3.6429,
    "Q3_K_M": 4.00,
    "Q3_K_L": 4.2979,
    "Q4_0": 4.64,
    "Q4_1": 5.11,
    "Q4_K_S": 4.6672,
    "Q4_K_M": 4.8944,
    "Q5_0": 5.57,
    "Q5_1": 6.04,
    "Q5_K_S": 5.5704,
    "Q5_K_M": 5.7036,
    "Q6_K": 6.5633,
    "Q8_0": 8.5008,
    "F16": 16.0005,
    "BF16": 16.0005,
    "F32": 32.0,
}
_OTHER_NAMES: Mapping[str, str] = {
    "float32": "fp32",
    "f32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "f16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "fbgemm_fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "ptpc_fp8": "fp8",
    "int8_w8a8": "w8a8",
    "w8a16": "int8",
    "w4a16_awq": "awq",
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "auto-round": "gptq",
    "auto_round": "gptq",
    "gptq_int8": "gptq-int8",
    "bitsandbytes": "bnb-int4",
    "bnb": "bnb-int4",
    "nf4": "bnb-int4",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "experts_int8": "int8",
    "gpt_oss_mxfp4": "mxfp4",
    "modelopt_mxfp8": "mxfp8",
    "auto_awq": "awq",
    "auto_gptq": "gptq",
    "fp8_per_tensor": "fp8",
    "fp8_per_block": "fp8",
    "fp8_per_channel": "fp8",
    "int8_per_channel_weight_only": "int8",
    "nvfp4_per_token": "nvfp4",
    "q3_k": "Q3_K_M",
    "q4_k": "Q4_K_M",
    "q5_k": "Q5_K_M",
}
_BITS_IN_CHECKPOINT = frozenset(
    {
        "compressed-tensors",
        "deepseek_v4_fp8",
        "fp_quant",
        "gguf",
        "humming",
        "inc",
        "modelopt_mixed",
        "moe_wna16",
        "online",
        "quark",
        "torchao",
    }
)
"""Methods of vLLM 0.32 (``QuantizationMethods``) whose bits depend on the checkpoint."""
_CACHE_BITS: Mapping[str, float | None] = {
    "float16": 16,
    "bfloat16": 16,
    "fp8": 8,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "fp8_inc": 8,
    "fp8_ds_mla": 8,
    "nvfp4_ds_mla": None,
    "turboquant_k8v4": 6.125,
    "turboquant_4bit_nc": 4.1875,
    "turboquant_k3v4_nc": 3.6875,
    "turboquant_3bit_nc": 3.1875,
    "ultraquant_4bit": None,
    "int4_per_token_head": 4,
    "int8_per_token_head": 8,
    "fp8_per_token_head": 8,
    "nvfp4": 4.5,
    "nvfp4_4over6": 4.5,
    "f32": 32,
    "f16": 16,
    "bf16": 16,
    "q8_0": 8.5,
    "q4_0": 4.5,
    "q4_1": 5,
    "iq4_nl": 4.5,
    "q5_0": 5.5,
    "q5_1": 6,
}
"""``CacheDType`` of vLLM 0.32, then the types of llama.cpp; None if the bits are not known."""
_EMBEDDINGS = (
    (494_032_768, 151_936 * 896),
    (1_235_814_400, 128_256 * 2048),
    (3_212_749_824, 128_256 * 3072),
    (7_615_616_512, 2 * 152_064 * 3584),
    (32_763_876_352, 2 * 152_064 * 5120),
    (72_706_203_648, 2 * 152_064 * 8192),
    (405_853_388_800, 2 * 128_256 * 16_384),
)
"""All parameters, and those of embeddings and output head: the published config.json of Qwen2.5
0.5B, Llama 3.2 1B and 3B, Qwen2.5 7B, 32B and 72B, Llama 3.1 405B."""


def canonical_name(name: str) -> str:
    """The canonical name of a weight format.

    Raises ConfigError with the nearest name for an unknown format.
    """
    lower = name.strip().lower()
    lower = _OTHER_NAMES.get(lower, lower)
    if lower in _VLLM_BITS or lower in _BITS_IN_CHECKPOINT:
        return lower
    if (upper := lower.upper()) in _GGUF_BITS:
        return upper
    names = [*_VLLM_BITS, *_GGUF_BITS, *_OTHER_NAMES, *_BITS_IN_CHECKPOINT]
    raise ConfigError(
        f"{name!r} is not a known format of weights; expected one of {', '.join(_VLLM_BITS)}, or"
        f" one of llama.cpp's such as Q4_K_M{_nearest(lower, names)}"
    )


def weight_bits(name: str) -> float | None:
    """Bits per weight, scales included; None if they depend on the checkpoint.

    Raises ConfigError with the nearest name for an unknown format.
    """
    form = canonical_name(name)
    return _VLLM_BITS.get(form, _GGUF_BITS.get(form))


def cache_bits(name: str) -> float | None:
    """Bits of an element of the KV cache; None if they are not known.

    Raises ConfigError with the nearest name for an unknown type.
    """
    lower = name.strip().lower()
    if lower in _CACHE_BITS:
        return _CACHE_BITS[lower]
    raise ConfigError(
        f"{name!r} is not a known type of the KV cache; expected one of"
        f" {', '.join(_CACHE_BITS)}{_nearest(lower, [*_CACHE_BITS])}"
    )


def _nearest(name: str, names: list[str]) -> str:
    by_lower = {form.lower(): form for form in names}
    near = difflib.get_close_matches(name, by_lower, n=1, cutoff=0.4)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def part_quantized(name: str) -> Literal["all", "linear", "experts"]:
    """The part of a model that a format is used for.

    ``linear`` layers only (embeddings and output head keep 16 bits), the routed ``experts`` only,
    or ``all``. Raises as :func:`weight_bits`.
    """
    form = canonical_name(name)
    if form in ("fp32", "bf16", "fp16") or form not in _VLLM_BITS:
        return "all"
    return "experts" if form == "mxfp4" else "linear"


def first_with_bits(*names: str | None) -> str | None:
    """The first of these formats whose bits are known, else the first that is not None."""
    given = [name for name in names if name is not None]
    for name in given:
        try:
            if weight_bits(name) is not None:
                return name
        except ConfigError:
            continue
    return given[0] if given else None


def weight_bytes(name: str, total: int, embedding: int, routed: int = 0) -> int | None:
    """Bytes of ``total`` parameters in a format; parts that it does not cover have 16 bits.

    ``embedding`` are those of embeddings and output head, ``routed`` those of routed experts. None
    if the bits of the format are not known. Raises as :func:`weight_bits`.
    """
    bits, part = weight_bits(name), part_quantized(name)
    if bits is None:
        return None
    if part == "all":
        covered = total
    elif part == "experts" and routed:
        covered = routed
    else:
        covered = total - embedding
    return round((covered * bits + (total - covered) * 16) / 8)


def usual_embedding(active: int) -> int:
    """Estimated parameters of embeddings and output head, by the size of a model.

    Interpolated between the models of :data:`_EMBEDDINGS`, by the active parameters, as experts add
    none; above the largest the trend is continued.
    """
    points = [(math.log(total), math.log(part / total)) for total, part in _EMBEDDINGS]
    size = max(math.log(active), points[0][0])
    (low, first), (high, last) = next(
        (pair for pair in pairwise(points) if size <= pair[1][0]), (points[-2], points[-1])
    )
    return round(active * math.exp(first + (last - first) * (size - low) / (high - low)))


def declared_format(config: Mapping[str, Any]) -> str | None:
    """The format that a ``config.json`` declares, as :func:`weight_bits` takes it.

    None if it declares none; the name of the method if it is not known here.
    """
    declared = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(declared, Mapping):
        return None
    method = str(declared.get("quant_method") or declared.get("quant_algo") or "unknown").lower()
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(declared)
    if method in ("modelopt", "modelopt_fp4", "nvfp4", "fp8"):
        algorithm = str(declared.get("quant_algo") or method)
        return "nvfp4" if "FP4" in algorithm.upper() else "fp8"
    if method == "bitsandbytes":
        return "bnb-int8" if declared.get("load_in_8bit") else "bnb-int4"
    method = _OTHER_NAMES.get(method, method)
    if method in ("awq", "gptq"):
        if declared.get("bits", declared.get("w_bit", 4)) == 8:
            return "gptq-int8"
        return _with_group(method, declared.get("group_size", declared.get("q_group_size")))
    return method


def _with_group(method: str, size: object) -> str:
    named = f"{method}-g{size}"
    return named if named in _VLLM_BITS else method


def _compressed_tensors(declared: Mapping[str, Any]) -> str:
    """The format of its first group of layers."""
    groups = declared.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) and groups else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(first, Mapping) or not isinstance(weights, Mapping):
        return "unknown"
    match weights.get("num_bits"), str(weights.get("type", "int")):
        case 4, "float":
            return "mxfp4" if weights.get("group_size") == 32 else "nvfp4"
        case 4, _:
            return _with_group("w4a16", weights.get("group_size"))
        case 8, "float":
            return "fp8"
        case 8, _:
            return "w8a8" if first.get("input_activations") else "int8"
    return "unknown"
