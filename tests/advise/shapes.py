"""Candidates for tests, made from little configurations."""

from __future__ import annotations

from typing import Any

from specwatch.advise import architecture
from specwatch.advise.candidate import Candidate
from specwatch.advise.model_files import ModelFolder

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
"""Llama 3.1 8B."""


def candidate(
    billions: float | None = None,
    *,
    name: str = "",
    config: dict[str, Any] | None = None,
    bits: float = 16,
    **changes: Any,
) -> Candidate:
    """A candidate of so many parameters, with a configuration where one is given."""
    total = None if billions is None else round(billions * 1e9)
    given: dict[str, Any] = {
        "name": name,
        "total": total,
        "active": total,
        "weights": None if total is None else round(total * bits / 8),
        "told_by": "the size given",
    }
    if config is not None:
        given |= {
            "architecture": architecture.read(config, "here"),
            "folder": ModelFolder(
                name=name, where="here", kind="folder", config=config, generation_config=None,
                weights=None, tokenizer=None, vocabulary_size=config.get("vocab_size"),
            ),
        }  # fmt: skip
    return Candidate(**(given | changes))
