"""How many parameters a model has, from its shape alone.

Counted from the tensors that each family's model class makes (*transformers* 5.x, and for drafts
vLLM 0.32); checked against that class and against what publishers state.
"""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.advise.architecture import Architecture
from specwatch.advise.blocks import Family, Shape
from specwatch.advise.heads import count_head
from specwatch.advise.tensors import Parameters, Tensors

__all__ = ["FAMILIES", "Parameters", "count", "share"]

_LLAMA = Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_QWEN3 = Family(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm="head")
_QWEN3_NEXT = Family(qk_norm="head", gated_query=True, shared_gate=True)
_DEEPSEEK = Family(attention="latent")
FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(),
    "ministral": Family(),
    "mixtral": Family(),
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "seed_oss": Family(
        qkv_bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias"
    ),
    "gemma": Family(),
    "gemma2": Family(norms=4),
    "gemma3_text": Family(norms=4, qk_norm="head"),
    "phi3": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True, shared_gate=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    "olmo2": Family(qk_norm="wide"),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": Family(attention="latent", router_bias=True),
    "kimi_k2": Family(attention="latent", router_bias=True),
    "glm": Family(qkv_bias="attention_bias"),
    "glm4": Family(norms=4, qkv_bias="attention_bias"),
    "glm4_moe": Family(
        qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm", router_bias=True
    ),
    "minimax_m2": Family(qk_norm="wide", router_bias=True),
    "gpt_oss": Family(
        qkv_bias=True, output_bias=True, sinks=True, router_bias=True, expert_bias=True
    ),
    "gpt2": Family(
        norm_bias=True, qkv_bias=True, output_bias=True, gated=False, mlp_bias=True,
        learned_positions=0,
    ),
    "opt": Family(
        norm_bias=True, qkv_bias=True, output_bias=True, gated=False, mlp_bias=True,
        learned_positions=2,
    ),
    "starcoder2": Family(
        norm_bias=True, qkv_bias="use_bias", output_bias="use_bias", gated=False,
        mlp_bias="use_bias",
    ),
}  # fmt: skip
_SAME: Mapping[str, str] = {
    "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe",
    "mistral3": "mistral", "ministral3": "mistral", "eagle": "llama",
}  # fmt: skip
"""Families whose language model is built like another."""


def count(architecture: Architecture) -> Parameters | None:
    """The parameters of a language model, or of a draft head; None where the family is unknown.

    Parts for images or sound are not counted (``architecture.multimodal``).
    """
    if architecture.draft_kind is not None:
        found = count_head(architecture, _LLAMA)
        return None if found is None else _parameters(found)
    name = _SAME.get(architecture.model_type, architecture.model_type)
    family = FAMILIES.get(name)
    if family is None:
        return None
    shape = Shape(architecture, family)
    every = Tensors()
    for at, layer in enumerate(architecture.layers):
        every.add(shape.layer(at, linear=layer.kind == "linear"))
    every.add(_outside(architecture, shape))
    return _parameters(every, _mtp(architecture, shape))


def share(architecture: Architecture, tensor_parallel: int) -> float:
    """The share of its weights that each of ``tensor_parallel`` GPUs holds.

    Norms, routers and the first projections of MLA lie whole on every GPU, keys and values are
    divided by head (vLLM 0.32); all else is divided evenly.
    """
    if tensor_parallel == 1:
        return 1.0
    found = count(architecture)
    if found is None:
        return 1 / tensor_parallel
    kv_parts = min(tensor_parallel, max(architecture.kv_heads, 1))
    split = found.total - found.copied - found.by_kv_head
    held = split / tensor_parallel + found.by_kv_head / kv_parts + found.copied
    return held / found.total


def _outside(architecture: Architecture, shape: Shape) -> Tensors:
    """Embeddings, output head, and what stands between them and the layers."""
    hidden, vocabulary = architecture.hidden_size, architecture.vocabulary
    width = shape.width("word_embed_proj_dim", default=hidden)
    found = Tensors(embedding=vocabulary * width * (1 if architecture.tied else 2))
    if width != hidden:
        found.copied += 2 * width * hidden
    if (more := shape.family.learned_positions) is not None:
        found.copied += hidden * ((architecture.context or 0) + more)
    # OPT 350M, which normalizes after each part, has no norm at its end.
    if architecture.config.get("do_layer_norm_before") is not False:
        found.add(shape.norm(hidden))
    return found


def _mtp(architecture: Architecture, shape: Shape) -> int:
    """Of each layer for MTP: a decoder layer, a projection of two widths to one, three norms."""
    hidden = architecture.hidden_size
    last = len(architecture.layers)
    one = shape.layer(last).total + 2 * hidden * hidden + 3 * hidden
    return architecture.mtp_layers * one


def _parameters(tensors: Tensors, mtp: int = 0) -> Parameters:
    return Parameters(
        total=tensors.total,
        active=tensors.total - tensors.routed_idle,
        embedding=tensors.embedding,
        routed=tensors.routed,
        mtp=mtp,
        copied=tensors.copied,
        by_kv_head=tensors.by_kv_head,
    )
