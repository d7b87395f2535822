"""The tensors of one decoder layer, by what distinguishes the families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specwatch.advise.architecture import Architecture
from specwatch.advise.tensors import Tensors

Said = bool | str
"""Whether there is such a bias: always, never, or as a key of the configuration says."""


@dataclass(frozen=True, slots=True)
class Family:
    """What the layers of a family have besides attention, MLP and norms without biases."""

    norms: int = 2
    """Norms of the hidden width in a layer."""
    norm_bias: Said = False
    qkv_bias: Said = False
    output_bias: Said = False
    qk_norm: Literal["", "head", "wide"] = ""
    """Norms of queries and keys: one for all heads, or as wide as all heads together."""
    qk_norm_if: str = ""
    """The key that says whether there are such norms, where one does."""
    attention: Literal["heads", "latent"] = "heads"
    gated_query: bool = False
    """Whether queries come with a gate as wide as they are."""
    sinks: bool = False
    """Whether each head has a logit for attending to nothing."""
    gated: bool = True
    """Whether the MLP has three matrices and not two."""
    mlp_bias: Said = False
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    learned_positions: int | None = None
    """Rows that the table of positions has besides the context; None where there is no table."""


class Shape:
    """Widths of a model, and the tensors that follow from them."""

    def __init__(self, architecture: Architecture, family: Family) -> None:
        self.config: Mapping[str, Any] = architecture.config
        self.keys = architecture.keys
        self.family = family
        self.hidden = architecture.hidden_size
        self.heads = architecture.heads
        self.head_dim = architecture.head_dim
        self.kv_heads = architecture.kv_heads
        self.experts = architecture.experts

    def width(self, *names: str, default: int = 0) -> int:
        """A number of the configuration. Raises ConfigError for what no width can be."""
        # Where there is one for each layer, none is that of the model.
        single = [name for name in names if not isinstance(self.config.get(name), list)]
        found = self.keys.optional(*single, least=0)
        return default if found is None else found

    def said(self, what: Said) -> bool:
        """Whether something is there."""
        return bool(self.config.get(what, False)) if isinstance(what, str) else what

    def norm(self, width: int) -> Tensors:
        """One norm."""
        return Tensors(copied=width * (2 if self.said(self.family.norm_bias) else 1))

    def layer(self, at: int, *, linear: bool = False) -> Tensors:
        """The decoder layer number ``at``, from 0."""
        layer = Tensors()
        layer.add(self.norm(self.hidden), self.family.norms)
        layer.add(self.linear_attention() if linear else self.attention())
        layer.add(self.mixture() if self.is_mixture(at) else self.mlp(self.inner))
        return layer

    @property
    def inner(self) -> int:
        """Width inside of a dense MLP."""
        names = ("intermediate_size", "n_inner", "ffn_dim", "intermediate_dim")
        return self.width(*names) or 4 * self.hidden

    def attention(self, inputs: int | None = None) -> Tensors:
        """Attention over the past; ``inputs`` is the width that it reads, if not the model's."""
        if self.family.attention == "latent":
            return self._latent_attention()
        family, inputs = self.family, inputs or self.hidden
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        values = self.kv_heads * self.width("v_head_dim", default=self.head_dim)
        asked = queries * (2 if family.gated_query else 1)
        found = Tensors(split=inputs * asked, by_kv_head=inputs * (keys + values))
        found.split += self.hidden * self.heads * self.width("v_head_dim", default=self.head_dim)
        if self.said(family.qkv_bias):
            found.split += asked
            found.by_kv_head += keys + values
        if self.said(family.output_bias):
            found.copied += self.hidden
        if family.qk_norm and (not family.qk_norm_if or self.said(family.qk_norm_if)):
            wide = family.qk_norm == "wide"
            found.copied += queries + keys if wide else 2 * self.head_dim
        if family.sinks:
            found.split += self.heads
        return found

    def _latent_attention(self) -> Tensors:
        """Multi-head latent attention of DeepSeek V2 and V3."""
        latent, rope = self.width("kv_lora_rank"), self.width("qk_rope_head_dim")
        plain, value = self.width("qk_nope_head_dim"), self.width("v_head_dim")
        asked = self.heads * (plain + rope)
        if rank := self.width("q_lora_rank"):
            found = Tensors(split=rank * asked, copied=self.hidden * rank + rank)
        else:
            found = Tensors(split=self.hidden * asked)
        found.copied += self.hidden * (latent + rope) + latent
        found.split += latent * self.heads * (plain + value)
        found.split += self.heads * value * self.hidden
        return found

    def linear_attention(self) -> Tensors:
        """A gated delta net of Qwen3-Next and Qwen3.5."""
        value_heads = self.width("linear_num_value_heads")
        value_dim = self.width("linear_value_head_dim")
        keys = self.width("linear_num_key_heads") * self.width("linear_key_head_dim")
        values = value_heads * value_dim
        projected = self.hidden * (2 * keys + 2 * values + 2 * value_heads) + values * self.hidden
        convolution = (2 * keys + values) * self.width("linear_conv_kernel_dim", default=4)
        return Tensors(split=projected + convolution + 2 * value_heads, copied=value_dim)

    def mlp(self, inner: int) -> Tensors:
        """A dense MLP."""
        ways = 2 if self.family.gated else 1
        found = Tensors(split=(ways + 1) * self.hidden * inner)
        if self.said(self.family.mlp_bias):
            found.split += ways * inner
            found.copied += self.hidden
        return found

    def is_mixture(self, at: int) -> bool:
        """Whether layer ``at`` has experts in the place of one MLP."""
        if self.experts is None or at in self.keys.members("mlp_only_layers"):
            return False
        if at < self.width("first_k_dense_replace"):
            return False
        if every := self.width("decoder_sparse_step"):
            return (at + 1) % every == 0
        return at % (self.width("moe_layer_freq") or 1) == 0

    def mixture(self) -> Tensors:
        """Experts, their router, and the MLP that every token goes through."""
        if self.experts is None:
            return Tensors()
        family, total = self.family, self.experts.total
        inner = self.width("moe_intermediate_size") or self.inner
        one = 3 * self.hidden * inner
        if family.expert_bias:
            one += 2 * inner + self.hidden
        idle = total - min(self.experts.active, total)
        found = Tensors(routed=total * one, routed_idle=idle * one)
        found.copied += self.hidden * total + (total if family.router_bias else 0)
        shared = self.width("shared_expert_intermediate_size")
        shared = shared or self.width("n_shared_experts", "num_shared_experts") * inner
        if shared:
            found.add(self.mlp(shared))
            found.copied += self.hidden if family.shared_gate else 0
        return found
