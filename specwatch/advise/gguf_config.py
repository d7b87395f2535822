"""The keys of a .gguf file as those of a ``config.json``, and the sizes of its tensor types.

Names and numbers are those of llama.cpp's ``gguf-py/gguf/constants.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TYPE_NAMES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 40), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4),
    27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66),
    39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip
"""Weights in a block of each type, and its bytes."""
_FILE_TYPES: Mapping[int, str] = {
    2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M",
    18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS",
    24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
_DTYPES = {0: "float32", 1: "float16", 32: "bfloat16"}
_MODEL_TYPES = {
    "command-r": "cohere", "deepseek2": "deepseek_v3", "gemma3": "gemma3_text",
    "glm4moe": "glm4_moe", "gpt-oss": "gpt_oss", "gptneox": "gpt_neox", "minimax-m2": "minimax_m2",
    "granitemoe": "granitemoe", "mistral3": "mistral", "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2", "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text",
    "qwen3moe": "qwen3_moe", "qwen3next": "qwen3_next", "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3_moe", "starcoder": "gpt_bigcode",
}  # fmt: skip
"""Where *transformers* has another name than llama.cpp."""
_KEYS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "num_nextn_predict_layers": "nextn_predict_layers",
    "full_attention_interval": "full_attention_interval",
    "num_kv_shared_layers": "attention.shared_kv_layers",
}
_EXPERTS = {"deepseek_v3": "n_routed_experts", "glm4_moe": "n_routed_experts",
            "mixtral": "num_local_experts", "gpt_oss": "num_local_experts"}  # fmt: skip


def config_of(keys: Mapping[str, Any], tensor_names: Iterable[str]) -> dict[str, Any]:
    """As much of a ``config.json`` as the keys tell; what they do not tell is left out."""
    own = str(keys.get("general.architecture", "unknown"))
    config: dict[str, Any] = {"model_type": _model_type(own, keys)}
    for name, key in _KEYS.items():
        value = keys.get(f"{own}.{key}")
        if isinstance(value, list):
            # Where layers differ, memory is planned for the largest.
            numbers = [item for item in value if isinstance(item, int)]
            value = max(numbers, default=None)
        if value is not None:
            config[name] = value
    rows = keys.get("tokenizer.ggml.tokens")
    rows = len(rows) if isinstance(rows, list) else keys.get(f"{own}.vocab_size")
    if rows is not None:
        config["vocab_size"] = rows
    experts = keys.get(f"{own}.expert_count")
    if isinstance(experts, int) and experts > 0:
        config[_EXPERTS.get(config["model_type"], "num_experts")] = experts
    _latent(config, own, keys)
    _layer_kinds(config, own, keys)
    _precision(config, keys)
    config["tie_word_embeddings"] = "output.weight" not in set(tensor_names)
    return config


def _model_type(own: str, keys: Mapping[str, Any]) -> str:
    if own == "llama" and keys.get("llama.expert_count"):
        return "mixtral"
    return _MODEL_TYPES.get(own, own.replace("-", "_"))


def _latent(config: dict[str, Any], own: str, keys: Mapping[str, Any]) -> None:
    """MLA: the width of a key is that of the cached entry, its own stands under another key."""
    if "kv_lora_rank" not in config:
        value = keys.get(f"{own}.attention.value_length")
        if value is not None and value != config.get("head_dim"):
            config["v_head_dim"] = value
        return
    config.pop("head_dim", None)
    rotary = keys.get(f"{own}.rope.dimension_count")
    whole, value = (
        keys.get(f"{own}.attention.{part}_length_mla", keys.get(f"{own}.attention.{part}_length"))
        for part in ("key", "value")
    )
    config["qk_rope_head_dim"] = rotary
    config["v_head_dim"] = value
    if isinstance(whole, int) and isinstance(rotary, int):
        config["qk_nope_head_dim"] = whole - rotary


def _layer_kinds(config: dict[str, Any], own: str, keys: Mapping[str, Any]) -> None:
    """Which layers have a window, or no attention at all."""
    pattern = keys.get(f"{own}.attention.sliding_window_pattern")
    heads = keys.get(f"{own}.attention.head_count_kv")
    if isinstance(pattern, list):
        config["layer_types"] = [
            "sliding_attention" if windowed else "full_attention" for windowed in pattern
        ]
    elif isinstance(pattern, int) and pattern:
        config["sliding_window_pattern"] = pattern
    elif isinstance(heads, list) and 0 in heads:
        config["layer_types"] = ["full_attention" if each else "none" for each in heads]


def _precision(config: dict[str, Any], keys: Mapping[str, Any]) -> None:
    kind = keys.get("general.file_type")
    if not isinstance(kind, int):
        return
    if kind in _DTYPES:
        config["dtype"] = _DTYPES[kind]
    elif kind in _FILE_TYPES:
        config["quantization_config"] = {"quant_method": _FILE_TYPES[kind]}
