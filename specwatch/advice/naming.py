"""What the name of a model says of its size and family; names are all there is without files."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SCALE = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = r"(\d+(?:\.\d+)?)"
_MIXTURE = re.compile(rf"(?<![A-Za-z0-9.])(\d+)x{_NUMBER}([MB])(?![A-Za-z0-9])", re.IGNORECASE)
_ACTIVE = re.compile(rf"(?<![A-Za-z0-9])A{_NUMBER}([MB])(?![A-Za-z0-9])", re.IGNORECASE)
_SIZE = re.compile(rf"(?<![A-Za-z0-9.]){_NUMBER}([KMBT])(?![A-Za-z0-9])", re.IGNORECASE)
_PLAIN = re.compile(rf"{_NUMBER}([KMBT])(?:-A{_NUMBER}([MB]))?", re.IGNORECASE)
_EXPERTS_A_TOKEN = 2
"""Of Mixtral, whose names are the ones written like 8x7B."""

_FAMILIES = (
    "codellama", "tinyllama", "llama", "qwen", "mixtral", "mistral", "ministral", "gemma",
    "deepseek", "phi", "granite", "falcon", "olmo", "smollm", "glm", "kimi", "gpt-oss", "mimo",
    "exaone", "command", "nemotron", "starcoder", "yi", "internlm", "opt", "pythia", "bloom",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Size:
    """Parameters that a name gives; ``at_most`` where it counts shared ones several times."""

    total: int
    active: int
    at_most: bool = False


def plain_size(text: str) -> Size | None:
    """``70B``, ``0.5B``, ``30B-A3B``: a size and nothing else; None for anything else."""
    found = _PLAIN.fullmatch(text.strip())
    if found is None:
        return None
    total = _parameters(found[1], found[2])
    return Size(total, _parameters(found[3], found[4]) if found[3] else total)


def size_in(name: str) -> Size | None:
    """Read the size off a name such as ``Llama-3.1-70B-Instruct`` or ``Qwen3-30B-A3B``.

    None where there is none, or several.
    """
    if mixture := _MIXTURE.search(name):
        expert = _parameters(mixture[2], mixture[3])
        return Size(int(mixture[1]) * expert, _EXPERTS_A_TOKEN * expert, at_most=True)
    active = _ACTIVE.search(name)
    sizes = {_parameters(*found.groups()) for found in _SIZE.finditer(name)}
    if len(sizes) != 1:
        return None
    (total,) = sizes
    return Size(total, _parameters(active[1], active[2]) if active else total)


def family_in(name: str) -> str | None:
    """Read the family off a name or a model type: ``llama``, ``qwen`` ...; None if not known."""
    text = name.rpartition("/")[2].lower().replace("_", "-")
    places = {text.find(family): family for family in reversed(_FAMILIES) if family in text}
    return places[min(places)] if places else None


def _parameters(number: str, unit: str) -> int:
    return round(float(number) * _SCALE[unit.upper()])
