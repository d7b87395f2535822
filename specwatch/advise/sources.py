"""Who says what advice leans on. Reports are cited as such: nobody here measured them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from specwatch.advise.model import Finding

SOURCES = {
    "F": "Speculative Decoding on vLLM: A Configuration and Decision Framework (July 2026), which"
    " quotes the vLLM team's benchmark of October 2024",
    "G": "vLLM Speculative Decoding Setup, a GPU hosting guide",
    "L": "Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding"
    " (2023)",
    "P": "a practitioner's article on when speculative decoding pays (vLLM and llama.cpp)",
    "T": "Make vLLM 1.8x Faster With Speculative Decoding (July 2026)",
}
"""By letter."""
_LETTERS = re.compile(r"\[([A-Z])\]")

VLLM = "vLLM 0.32, vllm/config/speculative.py"
LLAMA = "llama.cpp, common/arg.cpp and common/speculative.cpp"


def reported(letters: str) -> str:
    """Cite reports by their letters: ``reported [T] [G]``."""
    return " ".join(["reported", *(f"[{letter}]" for letter in letters)])


def cited(findings: Iterable[Finding], also: str = "") -> dict[str, str]:
    """Return those sources that the findings name by letter, and the letters ``also``."""
    found = {letter for each in findings for letter in _LETTERS.findall(each.source)}
    found.update(also)
    return {letter: said for letter, said in SOURCES.items() if letter in found}
