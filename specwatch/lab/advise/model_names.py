"""Size, family and format from the name of a model, if its files are not there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from specwatch.errors import ConfigError

_SCALE = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = r"(\d+(?:\.\d+)?)"
_MIXTURE = re.compile(rf"(?<![A-Za-z0-9.])(\d+)x{_NUMBER}([MB])(?![A-Za-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(rf"(?<![A-Za-z0-9])A{_NUMBER}([MB])(?![A-Za-z0-9])", re.IGNORECASE)
_SIZE = re.compile(rf"(?<![A-Za-z0-9.]){_NUMBER}([MBT])(?![A-Za-z0-9])", re.IGNORECASE)
"""Without K, which is a context, as in ``Phi-3-medium-128k-instruct``."""
_CONTEXT = 10**6
"""A size that is a context, as in ``Qwen2.5-7B-Instruct-1M``."""
_EXPERTS = re.compile(r"-\d+E(?![A-Za-z0-9])")
"""``Llama-4-Scout-17B-16E``: the size before it is of the active parameters."""
_PLAIN = re.compile(rf"{_NUMBER}([KMBT])(?:-A{_NUMBER}([MB]))?", re.IGNORECASE)
_MIXTRAL_ACTIVE = 2
"""Experts that a token uses in Mixtral, whose names have the form 8x7B."""
_FORMATS = (
    ("bf16|fp?16", "bf16"),
    (r"I?Q\d_(?:[01]|K_[SML]|K|X{1,2}S|NL|[SM])", None),
    ("w4a16", "w4a16"),
    ("w8a8", "w8a8"),
    ("w8a16", "int8"),
    ("nvfp4|fp4", "nvfp4"),
    ("mxfp4|gpt-oss-[0-9]+b", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("fp8(?:-dynamic)?", "fp8"),
    ("gptq-?int8|gptq-8-?bit", "gptq-int8"),
    ("awq", "awq"),
    ("gptq", "gptq"),
    ("bnb-4-?bit", "bnb-int4"),
    ("bnb-8-?bit", "bnb-int8"),
    ("int4|4-?bits?", "int4"),
    ("int8|8-?bits?", "int8"),
)
"""Formats in names, the more specific first; None means the text itself, a name of llama.cpp."""
_FAMILIES = (
    "codellama",
    "tinyllama",
    "llama",
    "qwen",
    "mixtral",
    "mistral",
    "ministral",
    "gemma",
    "deepseek",
    "phi",
    "granite",
    "falcon",
    "olmo",
    "smollm",
    "glm",
    "kimi",
    "gpt-oss",
    "mimo",
    "exaone",
    "command",
    "nemotron",
    "starcoder",
    "yi",
    "internlm",
    "opt",
    "pythia",
    "bloom",
)


@dataclass(frozen=True, slots=True)
class Size:
    """Parameters by a name; ``at_most`` if shared ones are counted several times."""

    total: int
    active: int
    at_most: bool = False


def plain_size(text: str) -> Size | None:
    """A size such as ``70B``, ``0.5B`` or ``30B-A3B``; None for any other text.

    Raises ConfigError for an impossible size.
    """
    match = _PLAIN.fullmatch(text.strip())
    if match is None:
        return None
    total = _parameters(match[1], match[2])
    active = _parameters(match[3], match[4]) if match[3] else total
    if not 0 < active <= total:
        raise ConfigError(
            f"{text.strip()} is not the size of a model: expected parameters above 0, such as 70B,"
            " or 30B-A3B with 3B active ones"
        )
    return Size(total, active)


def size_in(name: str) -> Size | None:
    """The size in a name such as ``Llama-3.1-70B-Instruct`` or ``Qwen3-30B-A3B``.

    None for a name without a size, with several, with active parameters only, or with an impossible
    size.
    """
    if _EXPERTS.search(name):
        return None
    if mixture := _MIXTURE.search(name):
        count, expert = int(mixture[1]), _parameters(mixture[2], mixture[3])
        size = Size(count * expert, min(count, _MIXTRAL_ACTIVE) * expert, at_most=True)
    else:
        sizes = {_parameters(*match.groups()) for match in _SIZE.finditer(name)} - {_CONTEXT}
        if len(sizes) != 1:
            return None
        (total,) = sizes
        active = _ACTIVE.search(name)
        size = Size(total, _parameters(active[1], active[2]) if active else total)
    return size if 0 < size.active <= size.total else None


def family_in(name: str) -> str | None:
    """The family in a name or a model type: ``llama``, ``qwen`` ...; None if not known."""
    text = name.rpartition("/")[2].lower().replace("_", "-")
    places = {text.find(family): family for family in reversed(_FAMILIES) if family in text}
    return places[min(places)] if places else None


def format_in(name: str) -> str | None:
    """The format of the weights in a name: ``awq``, ``Q4_K_M`` ...; None if it has none."""
    for pattern, form in _FORMATS:
        word = rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])"
        if match := re.search(word, name, re.IGNORECASE):
            return form or match[0].upper()
    return None


def _parameters(number: str, unit: str) -> int:
    return round(float(number) * _SCALE[unit.upper()])
