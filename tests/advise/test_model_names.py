"""Sizes and families are read off the names that models really have."""

from __future__ import annotations

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.formats import weight_bits
from specwatch.lab.advise.model_names import Size, family_in, format_in, plain_size, size_in

SIZES = {
    "meta-llama/Llama-3.1-70B-Instruct": (70e9, 70e9),
    "Qwen/Qwen2.5-0.5B-Instruct-AWQ": (0.5e9, 0.5e9),
    "Qwen/Qwen3-30B-A3B": (30e9, 3e9),
    "HuggingFaceTB/SmolLM2-135M": (135e6, 135e6),
    "mistralai/Mixtral-8x7B-v0.1": (56e9, 14e9),
    "Qwen2.5-32B-Instruct-Q4_K_M.gguf": (32e9, 32e9),
    "microsoft/phi-4": None,
    "microsoft/Phi-3-medium-128k-instruct": None,
    "Qwen/Qwen2.5-7B-Instruct-1M": (7e9, 7e9),
    "org/long-1M": None,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": None,
    "deepseek-ai/DeepSeek-V3": None,
    "draft-7B-for-70B": None,
    "org/foo-0B": None,
    "org/foo-7B-A0B": None,
    "org/foo-3B-A30B": None,
    "org/foo-0x7B": None,
    "org/foo-1x7B": (7e9, 7e9),
}


def totals(size: Size | None) -> tuple[float, float] | None:
    return size and (size.total, size.active)


def test_sizes_of_names() -> None:
    assert {name: totals(size_in(name)) for name in SIZES} == SIZES


def test_a_product_is_an_upper_bound() -> None:
    """Mixtral 8x7B has 46.7 billion parameters."""
    result = size_in("Mixtral-8x7B")
    assert result.at_most
    assert result.total > 46.7e9


def test_plain_sizes() -> None:
    sizes = {
        "70B": (70e9, 70e9),
        "0.5b": (0.5e9, 0.5e9),
        "30B-A3B": (30e9, 3e9),
        "1T": (1e12, 1e12),
        "Llama-70B": None,
        "70": None,
        "": None,
    }
    assert {text: totals(plain_size(text)) for text in sizes} == sizes


@pytest.mark.parametrize("text", ["0B", "0.0B", "0B-A0B", "30B-A0B", "3B-A30B"])
def test_sizes_that_no_model_has_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{text} is not the size of a model: expected"):
        plain_size(text)


FORMATS = {
    "Qwen/Qwen2.5-32B-Instruct-AWQ": "awq",
    "Qwen2.5-32B-Instruct-Q4_K_M.gguf": "Q4_K_M",
    "openai/gpt-oss-120b": "mxfp4",
    "unsloth/gpt-oss-20b-BF16": "bf16",
    "Qwen2.5-7B-Instruct-GPTQ-Int8": "gptq-int8",
    "Llama-3.1-8B-GPTQ-INT4": "gptq",
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": "fp8",
    "nvidia/DeepSeek-R1-NVFP4": "nvfp4",
    "Meta-Llama-3.1-8B-Instruct-quantized.w4a16": "w4a16",
    "Llama-3.1-8B-w8a8": "w8a8",
    "Llama-3.2-3B-Instruct-bnb-4bit": "bnb-int4",
    "mlx/Llama-3-8B-4bit": "int4",
    "Llama-INT8": "int8",
    "L-UD-Q4_K_XL.gguf": "Q4_K",
    "L-IQ2_XXS": "IQ2_XXS",
    "meta-llama/Llama-3.1-70B-Instruct": None,
}


def test_formats_of_names() -> None:
    assert {name: format_in(name) for name in FORMATS} == FORMATS
    assert all(weight_bits(form) for form in FORMATS.values() if form)


def test_families() -> None:
    families = {
        "meta-llama/Llama-3.2-1B": "llama",
        "Qwen/Qwen2.5-72B": "qwen",
        "qwen3_moe": "qwen",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "deepseek",
        "gpt_oss": "gpt-oss",
        "TinyLlama-1.1B": "tinyllama",
        "target": None,
    }
    assert {name: family_in(name) for name in families} == families
