"""Mistral's ``params.json`` as the keys of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "tied_embeddings": "tie_word_embeddings",
}
_MOE = {
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size",
}


def of_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same under the names that *transformers* has, as vLLM renames them.

    Source: vLLM 0.32, vllm/transformers_utils/configs/mistral.py.
    """
    config = {_KEYS.get(key, key): value for key, value in params.items()}
    config.setdefault("max_position_embeddings", params.get("max_seq_len", 128_000))
    moe = params.get("moe")
    if isinstance(moe, Mapping):
        config |= {name: moe[key] for key, name in _MOE.items() if key in moe}
    config.setdefault("model_type", "mixtral" if isinstance(moe, Mapping) else "mistral")
    if isinstance(quantization := params.get("quantization"), Mapping):
        method = quantization.get("quant_method")
        if str(quantization.get("qformat_weight", "")).startswith("fp8"):
            method = "fp8"
        config["quantization_config"] = {**quantization, "quant_method": method}
    return config
