"""Models for tests: as their publishers describe them (``data/models.json``), and made-up ones.

``config`` are the values of the published ``config.json`` that sizes depend on, ``parameters`` the
exact total stated for the published weights (tied embeddings once). Both were typed in from what
is known of these models, at the page that ``source`` names, and not downloaded from there; that
they belong together is shown by ``by_class``: what the model class of transformers 5.19 has of
such a configuration on the meta device, with the routers' correction biases, which it keeps as
buffers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specwatch.lab.advise.architecture import Architecture, read_architecture
from specwatch.lab.advise.candidate import Candidate
from specwatch.lab.advise.model_files import ModelFiles

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
"""Llama 3.1 8B."""
EAGLE = LLAMA | {"num_hidden_layers": 1, "architectures": ["EagleLlamaForCausalLM"]}
EAGLE3 = LLAMA | {
    "num_hidden_layers": 1,
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": 32000,
}
"""As yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, whose file of weights has 850 MB in float16."""
MEDUSA = {
    "model_type": "medusa",
    "architectures": ["MedusaModel"],
    "hidden_size": 4096,
    "vocab_size": 128256,
    "medusa_num_heads": 4,
    "medusa_num_layers": 1,
}


@dataclass(frozen=True)
class Published:
    """A model with the figures that it is known by."""

    name: str
    parameters: int | None
    by_class: int
    config: dict[str, Any]


MODELS = {
    entry["name"].partition("/")[2]: Published(
        entry["name"], entry["parameters"], entry["by_class"], entry["config"]
    )
    for entry in json.loads((Path(__file__).parent / "data" / "models.json").read_text())
}
"""By name, without the publisher's."""


def shape(name: str) -> Architecture:
    return read_architecture(MODELS[name].config, name)


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
        "size_source": "the size given",
    }
    if config is not None:
        given["architecture"] = read_architecture(config, "here")
        given["files"] = ModelFiles(name=name, where="here", config=config)
    return Candidate(**(given | changes))
