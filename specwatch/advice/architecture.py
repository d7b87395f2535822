"""The shape of a model, as its ``config.json`` tells it.

Keys and defaults are those of the model classes of *transformers* (5.x), and which layers keep
what is as vLLM 0.32 builds them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specwatch.advice import quantization
from specwatch.errors import ConfigError

Kind = Literal["full", "sliding", "linear", "none"]
DraftKind = Literal["eagle", "medusa", "mtp", "mlp_speculator"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer, as the KV cache sees it.

    ``full`` keeps every token, ``sliding`` the last ``window`` ones, ``linear`` a state of fixed
    size per sequence, ``none`` nothing of its own.
    """

    kind: Kind
    kv_heads: int = 0
    head_dim: int = 0
    """Width of a key; of a value as well, unless ``value_dim`` is given."""
    value_dim: int | None = None
    window: int | None = None
    latent: int | None = None
    """Width of the one compressed entry of a token (MLA), its rotary part included."""
    state: LinearState | None = None


@dataclass(frozen=True, slots=True)
class LinearState:
    """What a layer of linear attention keeps of a sequence, in elements over all heads."""

    convolution: int
    per_draft_token: int
    """More of the convolution's elements for each draft token."""
    recurrent: int
    recurrent_bits: int
    """The convolution has the model's own type."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: how many a layer has, and how many each token is sent to."""

    total: int
    active: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a ``config.json`` says. Widths are elements, lengths tokens."""

    model_type: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocabulary: int
    """Rows of the embedding: padded, so often more than there are tokens."""
    heads: int
    tied: bool
    """Whether the output head is the embedding again."""
    experts: Experts | None = None
    context: int | None = None
    dtype: str | None = None
    """``bfloat16``, ``float16``, ``float32`` ..."""
    quantization: str | None = None
    """As :func:`specwatch.advice.quantization.bits` takes it."""
    draft_kind: DraftKind | None = None
    """What kind of draft this is, where it is no model of its own."""
    mtp_layers: int = 0
    """Layers for multi-token prediction that the model brings; ``layers`` does not have them."""
    multimodal: bool = False
    """Whether there are parts besides the language model, which nobody counts here."""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Of the language model, with its family's defaults."""

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return int(self.config.get("head_dim") or self.hidden_size // max(self.heads, 1))

    @property
    def kv_heads(self) -> int:
        """Key-value heads of the layers that have most of them; 0 where there is no attention."""
        return max((each.kv_heads for each in self.layers), default=0)


_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal models keep the language model."""
_GEMMA3 = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    "max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window_pattern": 6,
}  # fmt: skip
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {
        "head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "gemma3_text": _GEMMA3,
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
    "gpt2": {"tie_word_embeddings": True},
    "opt": {"tie_word_embeddings": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {
        "tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 4,
    },
    "mistral": {"head_dim": None},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"tie_word_embeddings": False},
    "qwen3_next": {"head_dim": 256, "full_attention_interval": 4},
    "qwen3_5_text": {
        "head_dim": 256, "full_attention_interval": 4, "mamba_ssm_dtype": "float32",
    },
    "qwen3_5_moe_text": {
        "head_dim": 256, "full_attention_interval": 4, "mamba_ssm_dtype": "float32",
    },
}  # fmt: skip
"""What *transformers* takes for keys that published files leave out."""
_RENAMED = {"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
_LINEAR = ("linear_attention", "gated_deltanet")
_WINDOWED = ("sliding_attention", "chunked_attention")
_DRAFT_WORDS: tuple[tuple[str, DraftKind], ...] = (
    ("eagle", "eagle"), ("medusa", "medusa"), ("mlpspeculator", "mlp_speculator"),
    ("mlp_speculator", "mlp_speculator"), ("mtp", "mtp"), ("nextn", "mtp"),
)  # fmt: skip
_TOO_MANY = 1 << 40
_MOST_LAYERS = 4096
_NO_LAYERS: tuple[DraftKind, ...] = ("medusa", "mlp_speculator")
"""Heads without attention."""


def read(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture that a ``config.json`` describes; ``where`` is its place, for messages.

    Raises ConfigError naming the key that is missing or cannot be.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}: expected an object with the keys of a config.json")
    draft_kind = _draft_kind(config)
    text, multimodal = _language_model(config)
    keys = _Keys(text, where)
    heads_alone = draft_kind in _NO_LAYERS
    heads = 0 if heads_alone else keys.count("num_attention_heads", "n_head", "n_heads")
    experts = _experts(keys)
    return Architecture(
        model_type=str(text.get("model_type") or "unknown"),
        layers=() if heads_alone else _layers(keys, heads),
        hidden_size=keys.count("hidden_size", "n_embd", "d_model", "emb_dim"),
        vocabulary=keys.count("vocab_size"),
        heads=heads,
        tied=bool(text.get("tie_word_embeddings", False)),
        experts=experts,
        context=keys.optional("max_position_embeddings", "n_positions", "max_sequence_length"),
        dtype=_dtype(config, text),
        quantization=quantization.of_config(config) or quantization.of_config(text),
        draft_kind=draft_kind,
        mtp_layers=0 if draft_kind else _mtp_layers(keys),
        multimodal=multimodal,
        config=text,
    )


class _Keys:
    """The keys of a configuration, with errors that say where and what."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def count(self, *names: str) -> int:
        """A whole number above 0 under the first of ``names`` that is there."""
        found = self.optional(*names)
        if found is None:
            close = difflib.get_close_matches(names[0], map(str, self.config), n=1)
            hint = f" (there is {close[0]})" if close else ""
            raise ConfigError(
                f"{self.where}: {names[0]} is missing{hint}: expected the config.json of a "
                "language model, as its publisher wrote it"
            )
        return found

    def optional(self, *names: str, least: int = 1) -> int | None:
        """As :meth:`count`, and None where none of ``names`` is there."""
        name = next((each for each in names if self.config.get(each) is not None), None)
        if name is None:
            return None
        value = self.config[name]
        # Published files write 4096.0 now and then.
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not least <= value < _TOO_MANY or value != int(value):
            raise ConfigError(
                f"{self.where}: {name} is {value!r:.80}: expected a whole number of at least "
                f"{least}, as there are in a model"
            )
        return int(value)

    def names(self, name: str, length: int) -> tuple[str, ...] | None:
        """A list of ``length`` words, or None where there is none."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < length:
            raise ConfigError(
                f"{self.where}: {name} is {value!r:.80}: expected one word for each of the "
                f"{length} layers"
            )
        return tuple(map(str, value))[:length]


def _language_model(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The part that describes the language model, with its defaults, and whether it is a part."""
    if isinstance(layer := config.get("transformer_layer_config"), Mapping):
        return {**layer, **{key: config[key] for key in config if key not in layer}}, False
    text = config
    while (name := next((each for each in _NESTED if _is_part(text, each)), None)) is not None:
        outer = {key: text[key] for key in _OUTER if key in text}
        text = {**outer, **text[name]}
    model_type = _model_type(text)
    own = {key: value for key, value in text.items() if value is not None}
    return {**_DEFAULTS.get(model_type, {}), **own, "model_type": model_type}, text is not config


_OUTER = ("model_type", "tie_word_embeddings", "vocab_size")
"""Keys that some multimodal models write outside of the language model's part."""


def _is_part(config: Mapping[str, Any], name: str) -> bool:
    return isinstance(config.get(name), Mapping) and bool(config[name])


def _model_type(text: Mapping[str, Any]) -> str:
    found = str(text.get("model_type") or "unknown")
    return _RENAMED.get(found, found)


def _draft_kind(config: Mapping[str, Any]) -> DraftKind | None:
    architectures = config.get("architectures")
    names = [str(config.get("model_type", "")), str(config.get("speculators_model_type", ""))]
    names += map(str, architectures) if isinstance(architectures, Sequence) else []
    said = " ".join(names).lower()
    if "medusa_num_heads" in config:
        return "medusa"
    return next((kind for word, kind in _DRAFT_WORDS if word in said), None)


def _dtype(*configs: Mapping[str, Any]) -> str | None:
    for config in configs:
        for key in ("dtype", "torch_dtype"):
            if isinstance(config.get(key), str):
                return str(config[key]).removeprefix("torch.")
    return None


def _experts(keys: _Keys) -> Experts | None:
    total = keys.optional("num_local_experts", "n_routed_experts", "num_experts", least=0)
    if not total or total == 1:
        return None
    active = keys.count("num_experts_per_tok", "num_experts_per_token", "moe_topk")
    return Experts(total, active)


def _mtp_layers(keys: _Keys) -> int:
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    return keys.optional(*names, least=0) or 0


def _layers(keys: _Keys, heads: int) -> tuple[Layer, ...]:
    count = keys.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count > _MOST_LAYERS:
        raise ConfigError(
            f"{keys.where}: num_hidden_layers is {count}: expected {_MOST_LAYERS} at most"
        )
    full = _attention(keys, heads)
    linear = Layer("linear", state=_linear_state(keys))
    by_kind = {"full": full, "linear": linear, "none": Layer("none")}
    by_kind["sliding"] = _windowed(keys, full)
    kinds = _kinds(keys, count)
    # Gemma 3n: the last layers read the cache of earlier ones.
    own = count - (keys.optional("num_kv_shared_layers", least=0) or 0)
    return tuple(by_kind[kind] if at < own else Layer("none") for at, kind in enumerate(kinds))


def _attention(keys: _Keys, heads: int) -> Layer:
    if keys.config.get("kv_lora_rank") and keys.config.get("qk_rope_head_dim"):
        width = keys.count("kv_lora_rank") + keys.count("qk_rope_head_dim")
        return Layer("full", kv_heads=1, head_dim=width, latent=width)
    kv_heads = keys.optional("num_key_value_heads", "n_head_kv", "num_kv_heads") or heads
    if keys.config.get("multi_query") is True and "num_key_value_heads" not in keys.config:
        kv_heads = 1
    hidden = keys.count("hidden_size", "n_embd", "d_model", "emb_dim")
    head_dim = keys.optional("head_dim") or hidden // heads
    return Layer(
        "full", kv_heads=kv_heads, head_dim=head_dim, value_dim=keys.optional("v_head_dim")
    )


def _windowed(keys: _Keys, full: Layer) -> Layer:
    window = keys.optional("sliding_window", "attention_chunk_size", least=0)
    if not window:
        return full
    return Layer(
        "sliding",
        kv_heads=full.kv_heads,
        head_dim=full.head_dim,
        value_dim=full.value_dim,
        latent=full.latent,
        window=window,
    )


def _kinds(keys: _Keys, count: int) -> list[Kind]:
    """The kind of each layer: as ``layer_types`` says, or as the family's rule has it."""
    config = keys.config
    if (types := keys.names("layer_types", count)) is not None:
        return [_kind(each) for each in types]
    if every := keys.optional("full_attention_interval"):
        return ["full" if (at + 1) % every == 0 else "linear" for at in range(count)]
    if not keys.optional("sliding_window", least=0) or config.get("use_sliding_window") is False:
        return ["full"] * count
    if every := keys.optional("sliding_window_pattern"):
        return ["full" if (at + 1) % every == 0 else "sliding" for at in range(count)]
    if str(config.get("model_type")).startswith("qwen"):
        if not config.get("use_sliding_window"):
            return ["full"] * count
        first = keys.optional("max_window_layers", least=0)
        first = 28 if first is None else first
        return ["sliding" if at >= first else "full" for at in range(count)]
    return ["sliding"] * count


def _kind(layer_type: str) -> Kind:
    if layer_type in _WINDOWED:
        return "sliding"
    if layer_type in _LINEAR:
        return "linear"
    return "full" if "attention" in layer_type else "none"


def _linear_state(keys: _Keys) -> LinearState | None:
    """Of a gated delta net (Qwen3-Next, Qwen3.5)."""
    key_heads = keys.optional("linear_num_key_heads")
    if key_heads is None:
        return None
    value_heads = keys.count("linear_num_value_heads")
    key_dim, value_dim = keys.count("linear_key_head_dim"), keys.count("linear_value_head_dim")
    width = 2 * key_heads * key_dim + value_heads * value_dim
    kernel = keys.optional("linear_conv_kernel_dim") or 4
    return LinearState(
        convolution=width * (kernel - 1),
        per_draft_token=width,
        recurrent=value_heads * value_dim * key_dim,
        recurrent_bits=32 if keys.config.get("mamba_ssm_dtype") == "float32" else 16,
    )
