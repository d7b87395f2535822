"""The weights of a model, from the headers of their files; no tensor is read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from specwatch.errors import ConfigError
from specwatch.lab.advise.files import json_object, library, opened, read_file, unreadable
from specwatch.wording.text import shown

INDEX = "model.safetensors.index.json"
_MOST_INDEX = 64 * 1024 * 1024
_FLOATS = ("F16", "BF16", "F32")
"""Types that a server converts to its own dtype."""
_ONE_WEIGHT = frozenset(
    {
        "F64",
        "F32",
        "F16",
        "BF16",
        "F8_E4M3",
        "F8_E5M2",
        "F8_E4M3FNUZ",
        "F8_E5M2FNUZ",
        "I8",
        "F4",
    }
)
"""Types with one weight in each element."""
_NO_WEIGHTS = frozenset(
    {
        "absmax",
        "g_idx",
        "inv_freq",
        "k_scale",
        "nested_absmax",
        "nested_quant_map",
        "q_scale",
        "quant_map",
        "qzeros",
        "scales",
        "SCB",
        "v_scale",
        "weight_g_idx",
        "weight_scale",
        "weight_scale_2",
        "weight_scale_inv",
        "weight_shape",
        "weight_zero_point",
        "weight_global_scale",
        "input_scale",
        "input_global_scale",
        "input_zero_point",
        "output_scale",
        "prob_output_scale",
        "weight_packed_scale",
        "weight_format",
    }
)
"""Last parts of the names of tensors of quantization that are not weights."""
_INDEX_TYPES = frozenset({"I64", "U64", "BOOL", "I16", "U16", "F8_E8M0"})
"""Types of maps, masks and block scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The sum of the stored tensors. Sizes are bytes."""

    bytes: int
    parameters: int | None
    """Packed weights are counted unpacked, without scales and zero points; None if the packing is
    not known."""
    float_bytes: int = 0
    """Bytes of tensors in 16 or 32 bit floats, included in ``bytes``."""
    float_elements: int = 0
    mtp: int = 0
    """Bytes of layers for multi-token prediction, included in ``bytes``."""


class Tensor(NamedTuple):
    """One tensor of a header; ``size`` is bytes."""

    name: str
    dtype: str
    elements: int
    size: int


def stored_weights(folder: Path, names: Iterable[str], config: Mapping[str, Any]) -> Weights | None:
    """The weights in a folder with the files ``names``; None if it has no weights.

    Raises ConfigError with the file that is missing or cannot be read.
    """
    names = list(names)
    paths, total = _safetensors_files(folder, names)
    if paths:
        return add_tensors((tensor for path in paths for tensor in _safetensors(path)), config)
    if total is None:
        pickled = [
            name
            for name in names
            if re.fullmatch(r"(pytorch_model.*|consolidated.*)\.(bin|pth)", name)
        ]
        if not pickled:
            return None
        # Pickles are never loaded, as that runs code; their size is nearly that of their tensors.
        total = 0
        for name in pickled:
            with opened(folder / name) as (_, size):
                total += size
    return Weights(bytes=total, parameters=None)


def _safetensors(path: Path) -> Iterator[Tensor]:
    safetensors = library("safetensors", f"{path}: a .safetensors file")
    with opened(path):
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 - it is not a mapping
                    tensor = file.get_slice(name)
                    dtype, elements = tensor.get_dtype(), math.prod(tensor.get_shape())
                    bits = re.search(r"\d+", dtype)  # BF16, F8_E4M3; only BOOL has no number
                    yield Tensor(name, dtype, elements, elements * int(bits[0] if bits else 8) // 8)
        except (safetensors.SafetensorError, OSError) as error:
            raise unreadable(path, error, "a whole .safetensors file") from None


def _safetensors_files(folder: Path, names: Iterable[str]) -> tuple[list[Path], int | None]:
    """The files with a model's weights, and the total size by the index if all of its files are
    missing."""
    present = {name for name in names if name.endswith(".safetensors")}
    index_data = read_file(folder / INDEX, _MOST_INDEX)
    if index_data is not None:
        index = json_object(index_data, folder / INDEX)
        file_of_tensor = index.get("weight_map")
        if not isinstance(file_of_tensor, dict) or not file_of_tensor:
            raise unreadable(folder / INDEX, "no weight_map", "the file of each tensor")
        listed = set(map(str, file_of_tensor.values()))
        for name in listed:
            if "/" in name or not name.endswith(".safetensors"):
                problem = f"{shown(name)!r} in its weight_map"
                raise unreadable(folder / INDEX, problem, "names of files beside it")
        missing = sorted(listed - present)
        if len(missing) == len(listed):
            metadata = index.get("metadata")
            total = metadata.get("total_size") if isinstance(metadata, dict) else None
            return [], total if isinstance(total, int) and 0 <= total < 2**62 else None
        if missing:
            raise ConfigError(
                f"{folder / missing[0]}: is missing, {len(missing)} of {len(listed)} files are;"
                f" expected all that {INDEX} lists: download them"
            )
        return [folder / name for name in sorted(listed)], None
    # Mistral's own files have the same weights as those with the usual names.
    usual = {name for name in present if not name.startswith("consolidated")}
    if "model.safetensors" in usual:
        usual = {"model.safetensors"}
    return [folder / name for name in sorted(usual or present)], None


def add_tensors(
    tensors: Iterable[Tensor], config: Mapping[str, Any], *, packed: bool = True
) -> Weights:
    """The sum of tensors; ``config`` has the bits of packed ones.

    If tensors are not ``packed`` (.gguf), each element is a weight, regardless of its type.
    """
    bits = _quantized_bits(config)
    size = float_bytes = float_elements = mtp = 0
    parameters: Fraction | None = Fraction(0)
    for tensor in tensors:
        size += tensor.size
        if tensor.dtype in _FLOATS:
            float_bytes += tensor.size
            float_elements += tensor.elements
        if _is_mtp(tensor.name, config):
            mtp += tensor.size
        held = _parameters_of(tensor, bits) if packed else Fraction(tensor.elements)
        parameters = None if parameters is None or held is None else parameters + held
    return Weights(
        bytes=size,
        parameters=None if parameters is None else round(parameters),
        float_bytes=float_bytes,
        float_elements=float_elements,
        mtp=mtp,
    )


def _is_mtp(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor is for multi-token prediction: by name, or after the model's own layers."""
    if re.search(r"(?:^|\.)(?:mtp|nextn)[._]", name):
        return True
    layers, number = config.get("num_hidden_layers"), re.match(r"model\.layers\.(\d{1,5})\.", name)
    predicts = bool(config.get("num_nextn_predict_layers"))
    return predicts and isinstance(layers, int) and number is not None and int(number[1]) >= layers


def _parameters_of(tensor: Tensor, bits: int | None) -> Fraction | None:
    """Parameters in a tensor; 0 for scales and maps, None if its packing is not known."""
    last = tensor.name.rpartition(".")[2]
    if last in _NO_WEIGHTS or last.endswith("_scales") or "quant_state" in tensor.name:
        return Fraction(0)
    if tensor.dtype in _INDEX_TYPES:
        return Fraction(0)
    if tensor.dtype in _ONE_WEIGHT:
        return Fraction(tensor.elements)
    if tensor.dtype in ("U8", "I32", "U32"):
        if last.endswith("blocks"):
            return Fraction(tensor.elements * 2)  # MXFP4: two weights a byte
        width = 8 if tensor.dtype == "U8" else 32
        is_packed = width == 8 or last in ("qweight", "weight_packed", "weight")
        return Fraction(tensor.elements * width, bits) if bits and is_packed else None
    return None


def _quantized_bits(config: Mapping[str, Any]) -> int | None:
    """Bits of a packed weight, from ``quantization_config``; None if not known."""
    declared = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(declared, Mapping):
        text = config.get("text_config")
        return _quantized_bits(text) if isinstance(text, Mapping) else None
    method = str(declared.get("quant_method", "")).lower()
    if method == "bitsandbytes":
        return 4 if declared.get("load_in_4bit") or declared.get("_load_in_4bit") else 8
    bits: object = declared.get("bits", declared.get("w_bit"))
    groups = declared.get("config_groups")
    if bits is None and isinstance(groups, Mapping):
        weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
        widths = {part.get("num_bits") for part in weights if isinstance(part, Mapping)}
        bits = widths.pop() if len(widths) == 1 else None
    if bits is None and ("fp4" in method or "FP4" in str(declared.get("quant_algo", ""))):
        bits = 4
    return bits if isinstance(bits, int) and 1 <= bits <= 16 else None
