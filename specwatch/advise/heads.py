"""The tensors of draft heads, which share the embedding of their target."""

from __future__ import annotations

from specwatch.advise.architecture import Architecture
from specwatch.advise.blocks import Family, Shape
from specwatch.advise.tensors import Tensors


def count_head(architecture: Architecture, family: Family) -> Tensors | None:
    """The tensors that a head brings with it; None where that cannot be told.

    EAGLE as vLLM 0.32 builds it (``llama_eagle.py``, ``llama_eagle3.py``), Medusa as its authors
    do, MLP speculators as IBM's accelerators. Embeddings of the target are not counted.
    """
    counts = {"eagle": _eagle, "medusa": _medusa, "mlp_speculator": _mlp_speculator}
    of_kind = counts.get(architecture.draft_kind or "")
    return None if of_kind is None else of_kind(architecture, family)


def _eagle(architecture: Architecture, family: Family) -> Tensors:
    """One or more decoder layers after a projection of the target's hidden states."""
    shape = Shape(architecture, family)
    hidden = architecture.hidden_size
    target = shape.width("target_hidden_size", default=hidden)
    if not is_eagle3(architecture):
        found = Tensors(copied=2 * hidden * hidden)
        for at in range(len(architecture.layers)):
            found.add(shape.layer(at))
        # The first layer reads what the projection gives, without a norm before it.
        found.copied -= hidden
        return found
    found = Tensors(copied=3 * target * hidden)
    for at in range(len(architecture.layers)):
        first = at == 0
        found.add(shape.attention(2 * hidden if first else None))
        found.add(shape.mlp(shape.inner))
        found.add(shape.norm(hidden), 3 if first else 2)
    found.add(shape.norm(hidden))
    drafted = shape.width("draft_vocab_size", default=architecture.vocabulary)
    found.embedding += drafted * hidden
    return found


def is_eagle3(architecture: Architecture) -> bool:
    """Whether an EAGLE head is of the third kind, which reads three layers of its target."""
    config = architecture.config
    named = " ".join(
        map(str, (config.get("architectures"), config.get("speculators_model_type")))
    ).lower()
    return "eagle3" in named or "eagle-3" in named or config.get("draft_vocab_size") is not None


def _medusa(architecture: Architecture, family: Family) -> Tensors:
    """Each head: residual blocks, and an output head of its own."""
    shape = Shape(architecture, family)
    hidden = architecture.hidden_size
    heads = architecture.positions or 0
    blocks = shape.width("medusa_num_layers", "num_hidden_layers", default=1)
    return Tensors(
        split=heads * blocks * hidden * (hidden + 1),
        embedding=heads * architecture.vocabulary * hidden,
    )


def _mlp_speculator(architecture: Architecture, family: Family) -> Tensors:
    """For each drafted position: an embedding, a projection, a norm and an output head."""
    hidden, vocabulary = architecture.hidden_size, architecture.vocabulary
    inner = architecture.keys.optional("inner_dim") or hidden
    positions = architecture.positions or 0
    tables = 1 if architecture.config.get("tie_weights") else positions
    first = hidden * inner
    later = inner * inner * (min(positions - 1, 1) if tables == 1 else positions - 1)
    return Tensors(
        copied=first + later + tables * 2 * inner,
        embedding=tables * 2 * vocabulary * inner,
    )
