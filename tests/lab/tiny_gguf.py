"""Write a tiny Llama of ``tiny_models.py`` as GGUF, for llama-server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from safetensors import deserialize

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Weight = npt.NDArray[np.float32]


def write(model: Path, path: Path) -> None:
    """Read the checkpoint in the folder ``model``, write ``path``."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(model.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((model / "chat_template.jinja").read_text())
    _add_tokens(writer, json.loads((model / "tokenizer.json").read_text()))
    for name, tensor in deserialize((model / "model.safetensors").read_bytes()):
        # The upper half of a float32 is a bfloat16.
        halves = np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16
        writer.add_tensor(*_renamed(name, halves.view(np.float32).reshape(tensor["shape"]), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    """The vocabulary; bytes that are not ASCII get a name, for llama-server answers to output that
    is not UTF-8 with an error."""
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: int(item[1]))
    special = {token["content"] for token in tokenizer["added_tokens"]}
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    ascii_bytes = {*map(chr, range(33, 127)), *map(chr, range(256, 289))}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(
        [token if ascii_bytes.issuperset(token) else f"~{index}" for token, index in vocabulary]
    )
    writer.add_token_types([kinds[token in special] for token, _ in vocabulary])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])


def _renamed(name: str, weight: Weight, config: dict[str, Any]) -> tuple[str, Weight]:
    stem = name.removesuffix(".weight")
    layer = ""
    if stem.startswith("model.layers."):
        _, _, number, stem = stem.split(".", 3)
        layer = f"blk.{number}."
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    if stem in heads:
        # llama.cpp's rotary embedding turns neighbours, not halves.
        rows, columns = weight.shape
        halves = weight.reshape(config[heads[stem]], 2, -1, columns)
        weight = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows, columns))
    return f"{layer}{_NAMES[stem]}.weight", weight
