"""The shape of a model, as its ``config.json`` tells it.

Keys and defaults are those of the model classes of *transformers* (5.x), and which layers keep
what is as vLLM 0.32 builds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specwatch.advise import quantization
from specwatch.advise.config_keys import Keys
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
    head_dim: int
    """Width of an attention head."""
    tied: bool
    """Whether the output head is the embedding again."""
    experts: Experts | None = None
    context: int | None = None
    dtype: str | None = None
    """``bfloat16``, ``float16``, ``float32`` ..."""
    quantization: str | None = None
    """As :func:`specwatch.advise.quantization.bits` takes it."""
    draft_kind: DraftKind | None = None
    """What kind of draft this is, where it is no model of its own."""
    positions: int | None = None
    """Tokens ahead that a head drafts at most, where it has a part for each."""
    mtp_layers: int = 0
    """Layers for multi-token prediction that the model brings; ``layers`` does not have them."""
    multimodal: bool = False
    """Whether there are parts besides the language model, which nobody counts here."""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Of the language model, with its family's defaults."""
    where: str = field(default="config.json", compare=False, repr=False)

    @property
    def keys(self) -> Keys:
        """The configuration, for what only some readers need."""
        return Keys(self.config, self.where)

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
_MOST_LAYERS = 4096
_NO_LAYERS: tuple[DraftKind, ...] = ("medusa", "mlp_speculator")
"""Heads without attention."""
_POSITIONS: Mapping[str | None, tuple[int, tuple[str, ...]]] = {
    "medusa": (5, ("medusa_num_heads", "num_heads")), "mlp_speculator": (3, ("n_predict",)),
}  # fmt: skip
"""Of heads with a part for each position: how many vLLM 0.32 takes, unless these keys tell."""
_MOST_POSITIONS = 1024
_WIDTH = ("hidden_size", "n_embd", "d_model", "emb_dim")


def read(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture that a ``config.json`` describes; ``where`` is its place, for messages.

    Raises ConfigError naming the key that is missing or cannot be.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}: expected an object with the keys of a config.json")
    draft_kind = _draft_kind(config)
    text, multimodal = _language_model(config)
    keys = Keys(text, where)
    heads_alone = draft_kind in _NO_LAYERS
    heads = 0 if heads_alone else keys.count("num_attention_heads", "n_head", "n_heads")
    experts = _experts(keys)
    return Architecture(
        model_type=str(text.get("model_type") or "unknown"),
        layers=() if heads_alone else _layers(keys, heads),
        hidden_size=keys.count(*_WIDTH),
        vocabulary=keys.count("vocab_size"),
        heads=heads,
        head_dim=_head_dim(keys, heads),
        tied=bool(text.get("tie_word_embeddings", False)),
        experts=experts,
        context=keys.optional("max_position_embeddings", "n_positions", "max_sequence_length"),
        dtype=_dtype(config, text),
        quantization=quantization.of_config(config) or quantization.of_config(text),
        draft_kind=draft_kind,
        positions=_positions(keys, draft_kind),
        mtp_layers=0 if draft_kind else _mtp_layers(keys),
        multimodal=multimodal,
        config=text,
        where=where,
    )


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
    names = (config.get("model_type", ""), config.get("speculators_model_type", ""))
    said = " ".join(map(str, (*names, *classes(config)))).lower()
    if "medusa_num_heads" in config:
        return "medusa"
    return next((kind for word, kind in _DRAFT_WORDS if word in said), None)


def classes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of its model classes, which stand under ``architectures``."""
    found = config.get("architectures")
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


def _positions(keys: Keys, draft_kind: DraftKind | None) -> int | None:
    if draft_kind not in _POSITIONS:
        return None
    usual, names = _POSITIONS[draft_kind]
    return keys.optional(*names, most=_MOST_POSITIONS) or usual


def _dtype(*configs: Mapping[str, Any]) -> str | None:
    for config in configs:
        for key in ("dtype", "torch_dtype"):
            if isinstance(config.get(key), str):
                return str(config[key]).removeprefix("torch.")
    return None


def _experts(keys: Keys) -> Experts | None:
    total = keys.optional("num_local_experts", "n_routed_experts", "num_experts", least=0)
    if not total or total == 1:
        return None
    active = keys.count("num_experts_per_tok", "num_experts_per_token", "moe_topk")
    return Experts(total, active)


def _mtp_layers(keys: Keys) -> int:
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    return keys.optional(*names, least=0) or 0


def _layers(keys: Keys, heads: int) -> tuple[Layer, ...]:
    count = keys.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count > _MOST_LAYERS:
        raise ConfigError(
            f"{keys.where}: num_hidden_layers is {count}: expected {_MOST_LAYERS} at most"
        )
    full = _attention(keys, heads)
    state = _linear_state(keys)
    # What other kinds of linear attention keep is not known here.
    linear = Layer("none") if state is None else Layer("linear", state=state)
    by_kind = {"full": full, "linear": linear, "none": Layer("none")}
    by_kind["sliding"] = _windowed(keys, full)
    kinds = _kinds(keys, count)
    # Gemma 3n: the last layers read the cache of earlier ones.
    own = count - (keys.optional("num_kv_shared_layers", least=0) or 0)
    return tuple(by_kind[kind] if at < own else Layer("none") for at, kind in enumerate(kinds))


def _attention(keys: Keys, heads: int) -> Layer:
    if keys.config.get("kv_lora_rank") and keys.config.get("qk_rope_head_dim"):
        width = keys.count("kv_lora_rank") + keys.count("qk_rope_head_dim")
        return Layer("full", kv_heads=1, head_dim=width, latent=width)
    kv_heads = keys.optional("num_key_value_heads", "n_head_kv", "num_kv_heads") or heads
    if keys.config.get("multi_query") is True and "num_key_value_heads" not in keys.config:
        kv_heads = 1
    return Layer(
        "full",
        kv_heads=kv_heads,
        head_dim=_head_dim(keys, heads),
        value_dim=keys.optional("v_head_dim"),
    )


def _head_dim(keys: Keys, heads: int) -> int:
    hidden = keys.count(*_WIDTH)
    if (given := keys.optional("head_dim")) is not None or not heads:
        return given or 0
    if heads > hidden:
        raise ConfigError(
            f"{keys.where}: num_attention_heads is {heads}, above hidden_size, {hidden}: expected"
            " heads of some width"
        )
    return hidden // heads


def _windowed(keys: Keys, full: Layer) -> Layer:
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


def _kinds(keys: Keys, count: int) -> list[Kind]:
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


def _linear_state(keys: Keys) -> LinearState | None:
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
