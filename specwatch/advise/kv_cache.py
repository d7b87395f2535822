"""What the KV cache of a token, and of a request, takes on each GPU.

A layer of attention keeps a key and a value per key-value head: 2 x heads x width. MLA keeps one
compressed entry for all heads. Under tensor parallelism heads are divided among the GPUs, and
copied where there are more GPUs than heads; the one entry of MLA is on every GPU.
"""

from __future__ import annotations

from specwatch.advise.architecture import Architecture, Layer

_MODEL_BITS = 16


def layer_bytes(layer: Layer, *, kv_bits: float = 16, tensor_parallel: int = 1) -> float:
    """Bytes on each GPU that a layer keeps of one token; 0 for one that keeps none."""
    if layer.kind not in ("full", "sliding"):
        return 0.0
    if layer.latent is not None:
        return layer.latent * kv_bits / 8
    heads = max(1, layer.kv_heads // tensor_parallel)
    value = layer.head_dim if layer.value_dim is None else layer.value_dim
    return heads * (layer.head_dim + value) * kv_bits / 8


def state_bytes(layer: Layer, *, tensor_parallel: int = 1, draft_tokens: int = 0) -> float:
    """Bytes on each GPU that a layer of linear attention keeps of a sequence, of any length.

    The convolution is taken to be in 16 bits, as such models are served.
    """
    if layer.state is None or layer.kind != "linear":
        return 0.0
    state = layer.state
    convolution = state.convolution + draft_tokens * state.per_draft_token
    total = convolution * _MODEL_BITS + state.recurrent * state.recurrent_bits
    return total / 8 / tensor_parallel


def bytes_per_token(
    architecture: Architecture, *, kv_bits: float = 16, tensor_parallel: int = 1
) -> float:
    """Bytes on each GPU that one more token takes of a long request.

    Layers with a window, which is full by then, keep no more of it; of a model that has no others,
    what a token takes until then.
    """
    every = {"full": 0.0, "sliding": 0.0}
    for layer in architecture.layers:
        if layer.kind in every:
            every[layer.kind] += layer_bytes(
                layer, kv_bits=kv_bits, tensor_parallel=tensor_parallel
            )
    return every["full"] or every["sliding"]


def bytes_of_request(
    architecture: Architecture,
    tokens: int,
    *,
    kv_bits: float = 16,
    tensor_parallel: int = 1,
    draft_tokens: int = 0,
) -> float:
    """Bytes on each GPU that a request of ``tokens`` keeps, prompt and output together."""
    total = 0.0
    for layer in architecture.layers:
        kept = tokens if layer.window is None else min(tokens, layer.window)
        total += kept * layer_bytes(layer, kv_bits=kv_bits, tensor_parallel=tensor_parallel)
        total += state_bytes(layer, tensor_parallel=tensor_parallel, draft_tokens=draft_tokens)
    return total
