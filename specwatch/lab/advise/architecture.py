"""The shape of a model, from its ``config.json``.

Keys and defaults are those of the model classes of *transformers* 5.x; the KV cache of each layer
is as in vLLM 0.32.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specwatch.errors import ConfigError
from specwatch.lab.advise import formats

LayerKind = Literal["full", "sliding", "linear", "none"]
DraftKind = Literal["eagle", "medusa", "mtp", "mlp_speculator"]

_LARGEST_NUMBER = 1 << 40
_MOST_LAYERS = 4096
_MOST_POSITIONS = 1024
_HIDDEN_SIZE = ("hidden_size", "n_embd", "d_model", "emb_dim")
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys of the language model in multimodal models."""
_OUTER = ("model_type", "tie_word_embeddings", "vocab_size")
"""Keys that some multimodal models have outside of the language model's part."""
_GATED_DELTA_NET = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "mamba_ssm_dtype": "float32",
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {
        "head_dim": 256,
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "sliding_window_pattern": 6,
    },
    "gpt_oss": {"head_dim": 64, "sliding_window": 128, "sliding_window_pattern": 2},
    "gpt2": {"tie_word_embeddings": True},
    "opt": {"tie_word_embeddings": True},
    "cohere": {"tie_word_embeddings": True},
    "cohere2": {
        "tie_word_embeddings": True,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "mistral": {"head_dim": None},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"tie_word_embeddings": False},
    "qwen3_next": {"head_dim": 256, "full_attention_interval": 4},
    "qwen3_5_text": _GATED_DELTA_NET,
    "qwen3_5_moe_text": _GATED_DELTA_NET,
}
"""Defaults of *transformers* for keys that published files leave out."""
_RENAMED = {"gemma3": "gemma3_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
_DRAFT_WORDS: tuple[tuple[str, DraftKind], ...] = (
    ("eagle", "eagle"),
    ("medusa", "medusa"),
    ("mlpspeculator", "mlp_speculator"),
    ("mlp_speculator", "mlp_speculator"),
    ("mtp", "mtp"),
    ("nextn", "mtp"),
)


class ConfigKeys:
    """The keys of a configuration, validated; ``where`` is its path, for messages.

    An invalid value raises ConfigError with the key and the value.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def required(self, *names: str) -> int:
        """A whole number above 0 under the first of ``names`` that is present."""
        number = self.optional(*names)
        if number is None:
            near = difflib.get_close_matches(names[0], map(str, self.config), n=1)
            hint = f" (there is {near[0]})" if near else ""
            raise ConfigError(
                f"{self.where}: {names[0]} is missing{hint}: expected the config.json of a "
                "language model, as its publisher wrote it"
            )
        return number

    def optional(self, *names: str, least: int = 1, most: int = _LARGEST_NUMBER) -> int | None:
        """As :meth:`required`, but None if ``names`` are missing."""
        name = next((name for name in names if self.config.get(name) is not None), None)
        if name is None:
            return None
        value = self.config[name]
        # Some published files have 4096.0.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or value != int(value):
            raise ConfigError(
                f"{self.where}: {name} is {value!r:.80}: expected a whole number of at least "
                f"{least} and at most {most}"
            )
        return int(value)

    def items(self, name: str, length: int = 0) -> Sequence[Any] | None:
        """A list of at least ``length`` items; None if missing."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or len(value) < length:
            expected = (
                f"a list with an item for each of the {length} layers" if length else "a list"
            )
            raise ConfigError(f"{self.where}: {name} is {value!r:.80}: expected {expected}")
        return value


@dataclass(frozen=True, slots=True)
class Layer:
    """What one decoder layer keeps in the KV cache.

    ``full`` keeps ``token_elements`` for every token (on all GPUs together), ``sliding`` for
    the last ``window`` tokens, ``linear`` a state of fixed size for a sequence, ``none`` nothing.
    """

    kind: LayerKind
    token_elements: int = 0
    window: int | None = None
    state_bytes: int = 0
    """Bytes of the state of a sequence; the convolution has 16 bits."""
    draft_token_bytes: int = 0
    """Additional bytes of the state for each draft token."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: number of experts in a layer, and of those that each token uses."""

    total: int
    active: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """The contents of a ``config.json``. Widths are elements, lengths tokens."""

    model_type: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocabulary: int
    """Rows of the embedding, often padded to more than the number of tokens."""
    heads: int
    kv_heads: int
    """Key-value heads of a layer; 1 for MLA, whose entry serves all heads; 0 without attention."""
    head_dim: int
    tied: bool
    """Whether the output head is the embedding."""
    experts: Experts | None = None
    context: int | None = None
    dtype: str | None = None
    """``bfloat16``, ``float16``, ``float32`` ..."""
    quantization: str | None = None
    """As :func:`specwatch.lab.advise.formats.weight_bits` takes it."""
    draft_kind: DraftKind | None = None
    """The kind of draft, if it is not a model by itself."""
    positions: int | None = None
    """The most tokens that a head drafts, if it has a part for each."""
    mtp_layers: int = 0
    """Layers of the model for multi-token prediction, not counted in ``layers``."""
    multimodal: bool = False
    """Whether there are parts besides the language model, which are not counted."""
    keys: ConfigKeys = field(default_factory=lambda: ConfigKeys({}, ""), compare=False, repr=False)
    """The configuration of the language model, with the defaults of its family."""


def read_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """The architecture that a ``config.json`` describes; ``where`` is its path, for messages.

    Raises ConfigError with the key that is missing or invalid.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where}: expected an object with the keys of a config.json")
    draft_kind = _draft_kind(config)
    text, multimodal = _language_model(config)
    keys = ConfigKeys(text, where)
    without_attention = draft_kind in ("medusa", "mlp_speculator")
    heads = 0 if without_attention else keys.required("num_attention_heads", "n_head", "n_heads")
    hidden = keys.required(*_HIDDEN_SIZE)
    head_dim = keys.optional("head_dim") or (hidden // heads if heads else 0)
    if heads and not head_dim:
        raise ConfigError(
            f"{where}: num_attention_heads is {heads}, above hidden_size, {hidden}: expected fewer"
        )
    kv_heads, elements = _kv_entry(keys, heads, head_dim)
    mtp = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
    return Architecture(
        model_type=str(text.get("model_type") or "unknown"),
        layers=() if without_attention else _layers(keys, elements),
        hidden_size=hidden,
        vocabulary=keys.required("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tied=bool(text.get("tie_word_embeddings", False)),
        experts=_experts(keys),
        context=keys.optional("max_position_embeddings", "n_positions", "max_sequence_length"),
        dtype=_dtype(config) or _dtype(text),
        quantization=formats.declared_format(config) or formats.declared_format(text),
        draft_kind=draft_kind,
        positions=_positions(keys, draft_kind),
        mtp_layers=0 if draft_kind else keys.optional(*mtp, least=0) or 0,
        multimodal=multimodal,
        keys=keys,
    )


def _kv_entry(keys: ConfigKeys, heads: int, head_dim: int) -> tuple[int, int]:
    """Key-value heads of a layer, and elements of a token in its cache."""
    text = keys.config
    if text.get("kv_lora_rank") and text.get("qk_rope_head_dim"):
        return 1, keys.required("kv_lora_rank") + keys.required("qk_rope_head_dim")
    kv_heads = keys.optional("num_key_value_heads", "n_head_kv", "num_kv_heads") or heads
    if text.get("multi_query") is True and "num_key_value_heads" not in text:
        kv_heads = 1
    return kv_heads, kv_heads * (head_dim + (keys.optional("v_head_dim") or head_dim))


def _experts(keys: ConfigKeys) -> Experts | None:
    count = keys.optional("num_local_experts", "n_routed_experts", "num_experts", least=0)
    if not count or count == 1:
        return None
    names = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
    return Experts(count, keys.required(*names))


def _positions(keys: ConfigKeys, kind: DraftKind | None) -> int | None:
    if kind == "medusa":
        return keys.optional("medusa_num_heads", "num_heads", most=_MOST_POSITIONS) or 5
    if kind == "mlp_speculator":
        return keys.optional("n_predict", most=_MOST_POSITIONS) or 3
    return None


def _dtype(config: Mapping[str, Any]) -> str | None:
    values = (config.get("dtype"), config.get("torch_dtype"))
    return next((name.removeprefix("torch.") for name in values if isinstance(name, str)), None)


def _language_model(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The part that describes the language model, with its defaults, and whether it is a part."""
    if isinstance(layer := config.get("transformer_layer_config"), Mapping):
        return {**layer, **{key: config[key] for key in config if key not in layer}}, False
    text = config
    while part := next(
        (text[name] for name in _NESTED if isinstance(text.get(name), Mapping) and text[name]), None
    ):
        text = {**{key: text[key] for key in _OUTER if key in text}, **part}
    model_type = str(text.get("model_type") or "unknown")
    model_type = _RENAMED.get(model_type, model_type)
    given = {key: value for key, value in text.items() if value is not None}
    multimodal = text is not config
    return {**_DEFAULTS.get(model_type, {}), **given, "model_type": model_type}, multimodal


def _draft_kind(config: Mapping[str, Any]) -> DraftKind | None:
    if "medusa_num_heads" in config:
        return "medusa"
    names = (config.get("model_type", ""), config.get("speculators_model_type", ""))
    text = " ".join(map(str, (*names, *class_names(config)))).lower()
    return next((kind for word, kind in _DRAFT_WORDS if word in text), None)


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of its model classes, under ``architectures``."""
    names = config.get("architectures")
    return tuple(map(str, names)) if isinstance(names, list | tuple) else ()


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether an EAGLE head is of EAGLE-3, which reads three layers of its target."""
    names = " ".join((*class_names(config), str(config.get("speculators_model_type")))).lower()
    return "eagle3" in names or "eagle-3" in names or config.get("draft_vocab_size") is not None


def _layers(keys: ConfigKeys, elements: int) -> tuple[Layer, ...]:
    count = keys.required("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if count > _MOST_LAYERS:
        raise ConfigError(
            f"{keys.where}: num_hidden_layers is {count}: expected {_MOST_LAYERS} at most"
        )
    full = Layer("full", elements)
    window = keys.optional("sliding_window", "attention_chunk_size", least=0)
    by_kind = {
        "full": full,
        "sliding": replace(full, kind="sliding", window=window) if window else full,
        "linear": _linear_layer(keys),
        "none": Layer("none"),
    }
    layers = [by_kind[kind] for kind in _layer_kinds(keys, count)]
    # Gemma 3n: the last layers use the cache of earlier ones.
    cached = count - (keys.optional("num_kv_shared_layers", least=0) or 0)
    return (*layers[: max(cached, 0)], *(Layer("none") for _ in layers[max(cached, 0) :]))


def _layer_kinds(keys: ConfigKeys, count: int) -> list[LayerKind]:
    """The kind of each layer: from ``layer_types``, else by the rule of the family."""
    config, numbers = keys.config, range(1, count + 1)
    if (types := keys.items("layer_types", count)) is not None:
        return [_kind_of_type(str(layer_type)) for layer_type in types[:count]]
    if interval := keys.optional("full_attention_interval"):
        return ["full" if number % interval == 0 else "linear" for number in numbers]
    if not keys.optional("sliding_window", least=0) or config.get("use_sliding_window") is False:
        return ["full"] * count
    if interval := keys.optional("sliding_window_pattern"):
        return ["full" if number % interval == 0 else "sliding" for number in numbers]
    if str(config.get("model_type")).startswith("qwen"):
        if not config.get("use_sliding_window"):
            return ["full"] * count
        first = keys.optional("max_window_layers", least=0)
        first = 28 if first is None else first
        return ["sliding" if number > first else "full" for number in numbers]
    return ["sliding"] * count


def _kind_of_type(layer_type: str) -> LayerKind:
    if layer_type in ("sliding_attention", "chunked_attention"):
        return "sliding"
    if layer_type in ("linear_attention", "gated_deltanet"):
        return "linear"
    return "full" if "attention" in layer_type else "none"


def _linear_layer(keys: ConfigKeys) -> Layer:
    """A gated delta net (Qwen3-Next, Qwen3.5); other linear attention is not known."""
    key_heads = keys.optional("linear_num_key_heads")
    if key_heads is None:
        return Layer("none")
    value_heads = keys.required("linear_num_value_heads")
    key_dim = keys.required("linear_key_head_dim")
    value_dim = keys.required("linear_value_head_dim")
    width = 2 * key_heads * key_dim + value_heads * value_dim
    kernel = keys.optional("linear_conv_kernel_dim") or 4
    recurrent_bytes = 4 if keys.config.get("mamba_ssm_dtype") == "float32" else 2
    return Layer(
        "linear",
        state_bytes=2 * width * (kernel - 1) + value_heads * value_dim * key_dim * recurrent_bytes,
        draft_token_bytes=2 * width,
    )
