"""Formats of weights: bits per weight, and what a configuration declares."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.errors import ConfigError
from specwatch.lab.advise.formats import (
    cache_bits,
    declared_format,
    first_with_bits,
    usual_embedding,
    weight_bits,
    weight_bytes,
)
from specwatch.lab.advise.model_names import plain_size
from specwatch.lab.advise.parameter_count import Parameters, count_parameters
from tests.advise.models import shape


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("half", 16),
        ("AWQ_Marlin", 4 + 20 / 128),
        ("nvfp4", 4.5),
        ("q8_0", 8.5008),
        (" IQ4_XS ", 4.4597),
    ],
)
def test_bits_of_a_weight_by_any_name_of_its_format(name: str, expected: float) -> None:
    assert weight_bits(name) == expected


@pytest.mark.parametrize(
    ("name", "nearest"), [("awk", "awq"), ("Q4_KM", "Q4_K_M"), ("fb8", "fp8"), ("int5", "int")]
)
def test_an_unknown_format_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"^'{name}' is not a known .*did you mean {nearest}"):
        weight_bits(name)


def test_types_of_caches() -> None:
    assert (cache_bits("q8_0"), cache_bits("f16"), cache_bits("FP8")) == (8.5, 16, 8)
    assert cache_bits("nvfp4_ds_mla") is None
    with pytest.raises(ConfigError, match=r"'fp9' is not a known type of .*did you mean fp8"):
        cache_bits("fp9")


def test_a_format_of_unknown_bits_gives_no_size() -> None:
    assert weight_bits("compressed-tensors") is None
    assert size(parameters("Llama-3.1-8B"), "quark") is None
    assert first_with_bits("compressed-tensors", "w4a16") == "w4a16"
    assert first_with_bits("quark", "brand_new") == "quark"
    assert first_with_bits(None, None) is None


DECLARED: list[tuple[Any, str | None]] = [
    ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq"),
    ({"quant_method": "gptq", "bits": 4}, "gptq"),
    ({"quant_method": "gptq", "bits": 8}, "gptq-int8"),
    ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
    ({"quant_method": "fbgemm_fp8"}, "fp8"),
    ({"quant_method": "mxfp4"}, "mxfp4"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-int4"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-int8"),
    ({"quant_method": "brand_new"}, "brand_new"),
    ({}, None),
    ("fp8", None),
]


def test_what_a_config_declares() -> None:
    found = [declared_format({"quantization_config": declared}) for declared, _ in DECLARED]
    assert found == [form for _, form in DECLARED]


COMPRESSED: list[tuple[dict[str, Any] | None, dict[str, Any] | None, str]] = [
    ({"num_bits": 8, "type": "int"}, {"num_bits": 8}, "w8a8"),
    ({"num_bits": 8, "type": "int"}, None, "int8"),
    ({"num_bits": 8, "type": "float"}, {"num_bits": 8}, "fp8"),
    ({"num_bits": 4, "type": "int", "group_size": 128}, None, "w4a16"),
    ({"num_bits": 4, "type": "float", "group_size": 16}, None, "nvfp4"),
    ({"num_bits": 4, "type": "float", "group_size": 32}, None, "mxfp4"),
    ({"num_bits": 3}, None, "unknown"),
    (None, None, "unknown"),
]


def test_what_compressed_tensors_declare() -> None:
    found = []
    for weights, activations, _ in COMPRESSED:
        group = {"weights": weights, "input_activations": activations}
        declared = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
        found.append(declared_format({"quantization_config": declared}))
    assert found == [form for _, _, form in COMPRESSED]


def parameters(name: str) -> Parameters:
    result = count_parameters(shape(name))
    assert result is not None
    return result


def size(model: Parameters, form: str) -> int | None:
    return weight_bytes(form, model.total, model.embedding, model.routed)


def usual_bytes(text: str, form: str) -> int | None:
    plain = plain_size(text)
    return weight_bytes(form, plain.total, usual_embedding(plain.active))


def test_embeddings_stay_as_they_are_in_the_formats_of_vllm() -> None:
    llama = parameters("Llama-3.1-8B")
    embedding = 2 * 128256 * 4096
    assert size(llama, "bf16") == 2 * llama.total
    assert size(llama, "int8") == llama.total + embedding


def test_sizes_are_those_of_published_files() -> None:
    """Those of llama.cpp as its README has them; the others typed in, not downloaded."""
    gigabytes = {
        ("gpt-oss-20b", "mxfp4"): 13.8,  # only experts; openai/gpt-oss-20b
        ("gpt-oss-120b", "mxfp4"): 65.2,
        ("Qwen2.5-32B", "awq"): 19.3,  # Qwen/Qwen2.5-32B-Instruct-AWQ
        ("Qwen2.5-72B", "awq"): 41.6,
        ("Llama-3.1-8B", "Q4_K_M"): 4.9,  # llama.cpp, tools/quantize/README.md
        ("Llama-3.1-70B", "Q4_K_M"): 43.1,
    }
    found = {key: (size(parameters(key[0]), key[1]) or 0) / 1e9 for key in gigabytes}
    assert found == pytest.approx(gigabytes, rel=0.02)


NAMED_SIZES = {
    "Qwen3-0.6B": "0.6B",
    "Llama-3.2-1B": "1B",
    "Llama-3.2-3B": "3B",
    "Qwen2.5-7B": "7B",
    "Llama-3.1-8B": "8B",
    "Qwen3-8B": "8B",
    "Qwen3-32B": "32B",
    "Llama-3.1-70B": "70B",
    "Qwen2.5-72B": "72B",
    "Qwen3-30B-A3B": "30B-A3B",
    "gpt-oss-20b": "20B-A3.6B",
}


@pytest.mark.parametrize("form", ["awq", "fp8"])
def test_a_size_alone_gives_about_what_the_config_gives(form: str) -> None:
    """Bits times parameters were 14 to 30 % less: embeddings and output head have 16 bits."""
    found = {name: usual_bytes(text, form) for name, text in NAMED_SIZES.items()}
    # 1B is 1.24 billion, 7B 7.6: what a size is rounded to is not ours.
    exact = {
        name: size(parameters(name), form) * plain_size(text).total / parameters(name).total
        for name, text in NAMED_SIZES.items()
    }
    assert found == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(
    ("size_text", "embedding"),
    [("405B", 2 * 128_256 * 16_384), ("671B", 2 * 129_280 * 7168), ("1T", 2 * 163_840 * 7168)],
)
def test_embeddings_of_the_largest_are_no_share_of_smaller_ones(
    size_text: str, embedding: int
) -> None:
    """Llama 3.1 405B, DeepSeek-V3 and Kimi K2; a share as of 72B made 6 to 9 % more of them."""
    plain = plain_size(size_text)
    exact = (plain.total * 4.15625 + embedding * (16 - 4.15625)) / 8
    assert usual_bytes(size_text, "awq") == pytest.approx(exact, rel=0.015)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, 4 + 20 / 32),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": {"a": 1}}, 4 + 20 / 128),
    ],
)
def test_smaller_groups_have_more_scales(declared: dict[str, Any], expected: float) -> None:
    result = declared_format({"quantization_config": declared})
    assert weight_bits(result) == expected
