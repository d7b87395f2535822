"""The header of a .gguf file: a configuration, the sizes of its tensors, and its tokenizer.

The library *gguf* reads the file; names of keys are those of its ``constants.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specwatch.errors import ConfigError
from specwatch.lab.advise.files import library, opened, unreadable
from specwatch.lab.advise.weights import Tensor

MAGIC = b"GGUF"
SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_NOT_USED = ("tokenizer.ggml.merges", "tokenizer.ggml.scores")
"""Long lists that are not needed."""
_MODEL_TYPES = {
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "gemma3": "gemma3_text",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "minimax-m2": "minimax_m2",
    "granitemoe": "granitemoe",
    "mistral3": "mistral",
    "qwen2moe": "qwen2_moe",
    "qwen2vl": "qwen2",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3_moe",
    "starcoder": "gpt_bigcode",
}
"""Names of *transformers* that differ from llama.cpp's."""
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
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "num_nextn_predict_layers": "nextn_predict_layers",
    "full_attention_interval": "full_attention_interval",
    "num_kv_shared_layers": "attention.shared_kv_layers",
}


class GgufModel(NamedTuple):
    """The headers of all parts of a model."""

    keys: dict[str, Any]
    tensors: list[Tensor]


def read_gguf(path: Path) -> GgufModel:
    """Read the header of a model, and of its other parts if it was split.

    Raises ConfigError with the file that is missing or cannot be read.
    """
    keys, tensors = _read_part(path)
    count, shard = keys.get("split.count"), SHARD.fullmatch(path.name)
    if not isinstance(count, int) or count < 2 or shard is None:
        return GgufModel(keys, tensors)
    if int(shard["number"]) != 1 or int(shard["count"]) != count:
        raise ConfigError(
            f"{path}: is part {int(shard['number'])} of {count}; expected the first: give"
            f" {shard['stem']}-00001-of-{count:05d}.gguf"
        )
    for number in range(2, count + 1):
        part = path.with_name(f"{shard['stem']}-{number:05d}-of-{count:05d}.gguf")
        if not part.exists():
            raise ConfigError(
                f"{part}: is missing; expected all {count} parts of the model: download it"
            )
        tensors += _read_part(part)[1]
    return GgufModel(keys, tensors)


def _read_part(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    gguf = library("gguf", f"{path}: a .gguf file")
    numpy = library("numpy", f"{path}: a .gguf file")

    class BoundedReader(gguf.GGUFReader):  # type: ignore[misc, name-defined]
        """As the library's, five times as fast, and with an error if the file ends too early."""

        def _get(
            self, offset: int, dtype: Any, count: int = 1, override_order: str | None = None
        ) -> Any:
            values = numpy.frombuffer(self.data, dtype, int(count), int(offset))
            swapped = (override_order or self.byte_order) == "S"
            return values.view(values.dtype.newbyteorder("S")) if swapped else values

    with opened(path):
        try:
            reader = BoundedReader(path)
            keys = {
                name: _value(gguf, field)
                for name, field in reader.fields.items()
                if name not in _NOT_USED
            }
        except (ValueError, KeyError, IndexError, OverflowError, TypeError, OSError) as error:
            raise unreadable(path, error, "a whole .gguf file of version 2 or 3") from None
    tensors = [
        Tensor(tensor.name, tensor.tensor_type.name, int(tensor.n_elements), int(tensor.n_bytes))
        for tensor in reader.tensors
    ]
    kind = keys.get("general.file_type")
    if isinstance(kind, int) and kind in set(gguf.LlamaFileType):
        name = gguf.LlamaFileType(kind).name
        keys["general.file_type"] = re.sub(r"^(MOSTLY|ALL)_|_MOE$", "", name)
    return keys, tensors


def _value(gguf: Any, field: Any) -> Any:
    """The value of a key; a token may be a part of a character, which is not UTF-8."""
    if field.types and field.types[-1] == gguf.GGUFValueType.STRING:
        texts = [
            bytes(field.parts[index]).decode("utf-8", "surrogateescape") for index in field.data
        ]
        return texts if field.types[0] == gguf.GGUFValueType.ARRAY else texts[0]
    return field.contents()


def config_of_gguf(model: GgufModel) -> dict[str, Any]:
    """A ``config.json`` with as many keys as can be derived."""
    keys = model.keys
    family = str(keys.get("general.architecture", "unknown"))
    is_mixtral = family == "llama" and keys.get("llama.expert_count")
    model_type = _MODEL_TYPES.get(family, family.replace("-", "_"))
    config: dict[str, Any] = {"model_type": "mixtral" if is_mixtral else model_type}
    for name, key in _KEYS.items():
        value = keys.get(f"{family}.{key}")
        if isinstance(value, list):
            # If layers differ, memory is planned for the largest.
            value = max((item for item in value if isinstance(item, int)), default=None)
        if value is not None:
            config[name] = value
    tokens = keys.get("tokenizer.ggml.tokens")
    rows = len(tokens) if isinstance(tokens, list) else keys.get(f"{family}.vocab_size")
    if rows is not None:
        config["vocab_size"] = rows
    if "kv_lora_rank" in config:
        _set_latent_attention(config, family, keys)
    else:
        value_dim = keys.get(f"{family}.attention.value_length")
        if value_dim is not None and value_dim != config.get("head_dim"):
            config["v_head_dim"] = value_dim
    pattern = keys.get(f"{family}.attention.sliding_window_pattern")
    kv_heads = keys.get(f"{family}.attention.head_count_kv")
    if isinstance(pattern, list):
        config["layer_types"] = [
            "sliding_attention" if windowed else "full_attention" for windowed in pattern
        ]
    elif isinstance(pattern, int) and pattern:
        config["sliding_window_pattern"] = pattern
    elif isinstance(kv_heads, list) and 0 in kv_heads:
        config["layer_types"] = ["full_attention" if count else "none" for count in kv_heads]
    kind = keys.get("general.file_type")
    dtypes = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    if kind in dtypes:
        config["dtype"] = dtypes[kind]
    elif isinstance(kind, str):
        config["quantization_config"] = {"quant_method": kind}
    config["tie_word_embeddings"] = not any(
        tensor.name == "output.weight" for tensor in model.tensors
    )
    return config


def _set_latent_attention(config: dict[str, Any], family: str, keys: Mapping[str, Any]) -> None:
    """MLA: the key length is that of the cached entry; the length of a head has another key."""
    rotary = keys.get(f"{family}.rope.dimension_count")
    head, value = (
        keys.get(
            f"{family}.attention.{part}_length_mla", keys.get(f"{family}.attention.{part}_length")
        )
        for part in ("key", "value")
    )
    config |= {"qk_rope_head_dim": rotary, "v_head_dim": value}
    if isinstance(head, int) and isinstance(rotary, int):
        config["qk_nope_head_dim"] = head - rotary
