"""How many weights tensors hold, as their headers tell: packed ones are counted unpacked."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from specwatch.advise.model_files import Weights

_PLAIN = frozenset(
    {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "F4"}
)
"""Types of which one element is one weight."""
_BESIDE = frozenset(
    {
        "absmax", "g_idx", "inv_freq", "k_scale", "nested_absmax", "nested_quant_map", "q_scale",
        "quant_map", "qzeros", "scales", "SCB", "v_scale", "weight_g_idx", "weight_scale",
        "weight_scale_2", "weight_scale_inv", "weight_shape", "weight_zero_point",
        "weight_global_scale", "input_scale", "input_global_scale", "input_zero_point",
        "output_scale", "prob_output_scale", "weight_packed_scale", "weight_format",
    }
)  # fmt: skip
"""Last parts of the names of what quantisation needs beside the weights."""
_INDEX_TYPES = frozenset({"I64", "U64", "BOOL", "I16", "U16", "F8_E8M0"})
"""Types of maps, masks and block scales."""


_MTP = re.compile(r"(?:^|\.)(?:mtp|nextn)[._]")
_LAYER = re.compile(r"model\.layers\.(\d{1,5})\.")


class Tensor(NamedTuple):
    """One tensor of a header; ``size`` is bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


def stored(tensors: Iterable[Tensor], config: Mapping[str, Any], files: tuple[str, ...]) -> Weights:
    """Add tensors up; ``config`` tells with how many bits packed ones were quantised."""
    sizes: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    bits = quantized_bits(config)
    weights: Fraction | None = Fraction(0)
    count = mtp = 0
    for tensor in tensors:
        count += 1
        sizes[tensor.dtype] += tensor.size
        elements[tensor.dtype] += math.prod(tensor.shape)
        mtp += tensor.size if _is_mtp(tensor.name, config) else 0
        held = _weights_of(tensor, bits)
        weights = None if weights is None or held is None else weights + held
    return Weights(
        bytes=sum(sizes.values()),
        parameters=None if weights is None else round(weights),
        tensors=count,
        bytes_by_dtype=dict(sizes),
        elements_by_dtype=dict(elements),
        files=files,
        mtp=mtp,
    )


def _is_mtp(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor is for multi-token prediction: by name, or after the model's own layers."""
    if _MTP.search(name):
        return True
    layers = config.get("num_hidden_layers")
    number = _LAYER.match(name)
    own = config.get("num_nextn_predict_layers")
    return bool(own and isinstance(layers, int) and number and int(number[1]) >= layers)


def stored_gguf(tensors: Iterable[Tensor], files: tuple[str, ...]) -> Weights:
    """The same of a .gguf file, whose shapes are those of the unpacked weights."""
    sizes: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    count = 0
    for tensor in tensors:
        count += 1
        sizes[tensor.dtype] += tensor.size
        elements[tensor.dtype] += math.prod(tensor.shape)
    return Weights(
        bytes=sum(sizes.values()),
        parameters=sum(elements.values()),
        tensors=count,
        bytes_by_dtype=dict(sizes),
        elements_by_dtype=dict(elements),
        files=files,
    )


def _weights_of(tensor: Tensor, bits: int | None) -> Fraction | None:
    """Weights in a tensor, 0 for what lies beside them, None where its packing is not known."""
    last = tensor.name.rpartition(".")[2]
    number = math.prod(tensor.shape)
    if last in _BESIDE or last.endswith("_scales") or "quant_state" in tensor.name:
        return Fraction(0)
    if tensor.dtype in _INDEX_TYPES:
        return Fraction(0)
    if tensor.dtype in _PLAIN:
        return Fraction(number)
    if tensor.dtype in ("U8", "I32", "U32"):
        if last.endswith("blocks"):
            return Fraction(number * 2)  # MXFP4: two weights a byte
        width = 8 if tensor.dtype == "U8" else 32
        packed = last in ("qweight", "weight_packed", "weight") or width == 8
        return Fraction(number * width, bits) if bits and packed else None
    return None


def quantized_bits(config: Mapping[str, Any]) -> int | None:
    """Bits of a quantised weight as ``quantization_config`` says, None where it does not."""
    found = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, Mapping):
        text = config.get("text_config")
        return quantized_bits(text) if isinstance(text, Mapping) else None
    method = str(found.get("quant_method", "")).lower()
    if method == "bitsandbytes":
        return 4 if found.get("load_in_4bit") or found.get("_load_in_4bit") else 8
    bits: object = found.get("bits", found.get("w_bit"))
    groups = found.get("config_groups")
    if bits is None and isinstance(groups, Mapping):
        widths = {_group_bits(group) for group in groups.values()}
        bits = widths.pop() if len(widths) == 1 else None
    if bits is None and ("fp4" in method or "FP4" in str(found.get("quant_algo", ""))):
        bits = 4
    return bits if isinstance(bits, int) and 1 <= bits <= 16 else None


def _group_bits(group: object) -> object:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    return weights.get("num_bits") if isinstance(weights, Mapping) else None
