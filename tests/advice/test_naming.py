"""Sizes and families are read off the names that models really have."""

from __future__ import annotations

import pytest

from specwatch.advice.naming import family_in, plain_size, size_in

SIZES = {
    "meta-llama/Llama-3.1-70B-Instruct": (70e9, 70e9),
    "Qwen/Qwen2.5-0.5B-Instruct-AWQ": (0.5e9, 0.5e9),
    "Qwen/Qwen3-30B-A3B": (30e9, 3e9),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": (235e9, 22e9),
    "HuggingFaceTB/SmolLM2-135M": (135e6, 135e6),
    "mistralai/Mixtral-8x7B-v0.1": (56e9, 14e9),
    "Qwen2.5-32B-Instruct-Q4_K_M.gguf": (32e9, 32e9),
    "Llama-3.2-1B": (1e9, 1e9),
    "microsoft/phi-4": None,
    "deepseek-ai/DeepSeek-V3": None,
    "gpt2": None,
    "draft-7B-for-70B": None,
}


@pytest.mark.parametrize(("name", "size"), SIZES.items(), ids=SIZES.keys())
def test_sizes_of_names(name: str, size: tuple[float, float] | None) -> None:
    found = size_in(name)
    assert (found and (found.total, found.active)) == size


def test_a_product_is_an_upper_bound() -> None:
    """Mixtral 8x7B has 46.7 billion parameters."""
    found = size_in("Mixtral-8x7B")
    assert found is not None
    assert found.at_most
    assert found.total > 46.7e9


@pytest.mark.parametrize(
    ("text", "size"),
    [("70B", (70e9, 70e9)), ("0.5b", (0.5e9, 0.5e9)), ("30B-A3B", (30e9, 3e9)),
     ("1T", (1e12, 1e12)), ("Llama-70B", None), ("70", None), ("", None)],
)  # fmt: skip
def test_plain_sizes(text: str, size: tuple[float, float] | None) -> None:
    found = plain_size(text)
    assert (found and (found.total, found.active)) == size


@pytest.mark.parametrize(
    ("name", "family"),
    [("meta-llama/Llama-3.2-1B", "llama"), ("Qwen/Qwen2.5-72B", "qwen"), ("qwen3_moe", "qwen"),
     ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "deepseek"), ("gpt_oss", "gpt-oss"),
     ("TinyLlama-1.1B", "tinyllama"), ("target", None)],
)  # fmt: skip
def test_families(name: str, family: str | None) -> None:
    assert family_in(name) == family
