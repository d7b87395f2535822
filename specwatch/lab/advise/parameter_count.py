"""The number of parameters of a model, estimated from the shape of its matrices.

Biases and norms, which are below 1 % of a model, are left out; :mod:`specwatch.lab.advise.weights`
counts exactly if the weights are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from specwatch.lab.advise.architecture import Architecture, is_eagle3

_GATED = frozenset(
    {
        "deepseek_v2",
        "deepseek_v3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "kimi_k2",
        "llama",
        "minimax_m2",
        "ministral",
        "ministral3",
        "mistral",
        "mistral3",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "qwen2_moe",
        "qwen2_vl",
        "qwen2_vl_text",
        "qwen3",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "seed_oss",
        "smollm3",
    }
)
"""Model types whose MLP has three matrices."""
_UNGATED = frozenset({"gpt2", "opt", "starcoder2"})
"""Model types whose MLP has two matrices."""
_GATED_QUERY = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Model types whose queries have a gate of the same width."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of parameters. ``total`` has tied embeddings once, and no layers for MTP."""

    total: int
    active: int
    """Those that one token uses: fewer than ``total`` in a mixture of experts."""
    embedding: int
    """Input embeddings and output head, which most quantization leaves alone."""
    routed: int = 0
    """Those of routed experts, included in ``total``."""
    mtp: int = 0
    """Those of layers for multi-token prediction, not included in ``total``."""


def count_parameters(model: Architecture) -> Parameters | None:
    """The parameters of a language model, or of a draft head; None if the family is not known.

    Parts for images or sound are not counted (``model.multimodal``).
    """
    if model.draft_kind is not None:
        return _head_parameters(model)
    if model.model_type not in _GATED | _UNGATED:
        return None
    embedding = (
        model.vocabulary
        * (_width(model, "word_embed_proj_dim") or model.hidden_size)
        * (1 if model.tied else 2)
    )
    total, active, routed = embedding, embedding, 0
    for index, layer in enumerate(model.layers):
        attention = _linear_attention(model) if layer.kind == "linear" else _attention(model)
        mlp, idle, experts = _mlp(model, index)
        total += attention + mlp
        active += attention + mlp - idle
        routed += experts
    last = len(model.layers)
    # Each layer for MTP: a decoder layer, and a projection of two widths to one.
    layer_size = _attention(model) + _mlp(model, last)[0] + 2 * model.hidden_size**2
    return Parameters(total, active, embedding, routed, model.mtp_layers * layer_size)


def _width(model: Architecture, *names: str) -> int:
    # A list has a value for each layer, and none of them is that of the model.
    single = [name for name in names if not isinstance(model.keys.config.get(name), list)]
    return model.keys.optional(*single, least=0) or 0


def _attention(model: Architecture, inputs: int = 0) -> int:
    """Parameters of attention; ``inputs`` is its input width, if not that of the model."""
    hidden, heads = model.hidden_size, model.heads
    inputs = inputs or hidden
    if latent := _width(model, "kv_lora_rank"):
        # Multi-head latent attention of DeepSeek V2 and V3.
        rope, value = _width(model, "qk_rope_head_dim"), _width(model, "v_head_dim")
        plain, rank = _width(model, "qk_nope_head_dim"), _width(model, "q_lora_rank")
        queries = heads * (plain + rope)
        queries = rank * (hidden + queries) if rank else hidden * queries
        keys_values = hidden * (latent + rope) + latent * heads * (plain + value)
        return queries + keys_values + heads * value * hidden
    value_dim = _width(model, "v_head_dim") or model.head_dim
    queries = heads * model.head_dim * (2 if model.model_type in _GATED_QUERY else 1)
    keys_values = model.kv_heads * (model.head_dim + value_dim)
    return inputs * (queries + keys_values) + heads * value_dim * hidden


def _linear_attention(model: Architecture) -> int:
    """A gated delta net of Qwen3-Next and Qwen3.5."""
    value_heads = _width(model, "linear_num_value_heads")
    keys = _width(model, "linear_num_key_heads") * _width(model, "linear_key_head_dim")
    values = value_heads * _width(model, "linear_value_head_dim")
    return model.hidden_size * (2 * keys + 3 * values + 2 * value_heads)


def _mlp(model: Architecture, index: int) -> tuple[int, int, int]:
    """Parameters of the MLP or the experts of a layer: all, those that a token does not use, and
    those of routed experts."""
    hidden = model.hidden_size
    inner = _width(model, "intermediate_size", "n_inner", "ffn_dim", "intermediate_dim")
    inner = inner or 4 * hidden
    if model.experts is None or not _is_mixture(model, index):
        return hidden * inner * (2 if model.model_type in _UNGATED else 3), 0, 0
    inner = _width(model, "moe_intermediate_size") or inner
    expert, count = 3 * hidden * inner, model.experts.total
    shared = _width(model, "shared_expert_intermediate_size")
    shared = shared or _width(model, "n_shared_experts", "num_shared_experts") * inner
    idle = count - min(model.experts.active, count)
    return count * expert + hidden * count + 3 * hidden * shared, idle * expert, count * expert


def _is_mixture(model: Architecture, index: int) -> bool:
    if index in (model.keys.items("mlp_only_layers") or ()):
        return False
    if index < _width(model, "first_k_dense_replace"):
        return False
    if step := _width(model, "decoder_sparse_step"):
        return (index + 1) % step == 0
    return index % (_width(model, "moe_layer_freq") or 1) == 0


def _head_parameters(model: Architecture) -> Parameters | None:
    """Parameters of a draft head, without the embeddings that it shares with its target; None for
    other kinds.

    EAGLE as in vLLM 0.32 (``llama_eagle.py``, ``llama_eagle3.py``), Medusa as by its authors, MLP
    speculators as IBM's accelerators.
    """
    hidden, vocabulary, positions = model.hidden_size, model.vocabulary, model.positions or 0
    embedding = 0
    if model.draft_kind == "eagle":
        layer = _attention(model) + _mlp(model, 0)[0]
        if is_eagle3(model.keys.config):
            embedding = (_width(model, "draft_vocab_size") or vocabulary) * hidden
            target = _width(model, "target_hidden_size") or hidden
            wider = _attention(model, 2 * hidden) - _attention(model)
            total = embedding + 3 * target * hidden + len(model.layers) * layer + wider
        else:
            total = 2 * hidden * hidden + len(model.layers) * layer
    elif model.draft_kind == "medusa":
        blocks = _width(model, "medusa_num_layers", "num_hidden_layers") or 1
        embedding = positions * vocabulary * hidden
        total = embedding + positions * blocks * hidden * hidden
    elif model.draft_kind == "mlp_speculator":
        inner = _width(model, "inner_dim") or hidden
        tables = 1 if model.keys.config.get("tie_weights") else positions
        later = min(positions - 1, 1) if tables == 1 else positions - 1
        embedding = tables * 2 * vocabulary * inner
        total = embedding + hidden * inner + later * inner * inner
    else:
        return None
    return Parameters(total, total, embedding)
