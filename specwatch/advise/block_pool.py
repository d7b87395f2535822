"""How vLLM 0.32 divides the memory for the KV cache into blocks.

As ``vllm/v1/core/kv_cache_utils.py`` does it: layers that keep the same tokens form a group with
one table of blocks, and all groups draw their blocks from one pool, so a block is as large as the
largest group needs it. A draft's layers are layers like those of its target. Where kinds of layers
are mixed, their pages are made equally large and groups equally long, which may leave some of it
unused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specwatch.advise.architecture import Architecture, Kind
from specwatch.advise.kv_cache import layer_bytes, state_bytes

BLOCK = 16
"""Tokens in a block on GPUs, unless a kernel wants more; 128 on CPUs."""
NULL_BLOCK = 1
"""Blocks of the pool that no request gets."""
_NEARLY = 1.5
"""Numbers of layers that differ by less than this are padded to the greater one."""


@dataclass(frozen=True, slots=True)
class Part:
    """A model with the number of GPUs that its layers are divided among."""

    architecture: Architecture
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class _Page:
    """What a layer takes of a block: equal pages may share a group."""

    kind: Kind
    window: int | None
    shape: tuple[int, ...]
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Layers with one table of blocks, each of ``tokens``; a linear one takes a block per state."""

    kind: Kind
    layers: int
    tokens: int
    window: int | None = None

    def blocks(self, tokens: int, in_flight: int, draft_tokens: int) -> int:
        """Blocks that a request of ``tokens`` holds."""
        if self.kind == "linear":
            return 1 + draft_tokens
        if self.window is None:
            return -(-tokens // self.tokens)
        # One more, for a window need not begin where a block does.
        return -(-min(self.window - 1 + in_flight, tokens) // self.tokens) + 1


@dataclass(frozen=True, slots=True)
class Pool:
    """The blocks of one GPU, each ``block_bytes`` large."""

    block_bytes: int
    groups: tuple[Group, ...]
    draft_tokens: int = 0

    def blocks(self, memory: int) -> int:
        """Blocks that a memory of so many bytes has."""
        return max(memory, 0) // self.block_bytes if self.groups else 0

    def blocks_of_request(self, tokens: int, *, in_flight: int = 1) -> int:
        """Blocks that a request of ``tokens`` holds.

        ``in_flight`` are tokens under way, which layers with a window keep besides it: 1 while a
        request decodes; vLLM's own figure reckons with all that its batches may have.
        """
        return sum(each.blocks(tokens, in_flight, self.draft_tokens) for each in self.groups)

    def capacity(self, memory: int, context: int, *, in_flight: int = 1) -> int:
        """Tokens that fit in requests of ``context``: vLLM's "KV cache size"."""
        needed = self.blocks_of_request(context, in_flight=in_flight)
        return int(self.blocks(memory) / needed * context) if needed else 0

    def requests(self, memory: int, context: int, *, in_flight: int = 1) -> int:
        """Requests of ``context`` tokens that fit at once."""
        needed = self.blocks_of_request(context, in_flight=in_flight)
        return max(self.blocks(memory) - NULL_BLOCK, 0) // needed if needed else 0


def pool_of(
    parts: Sequence[Part], *, kv_bits: float = 16, block: int = BLOCK, draft_tokens: int = 0
) -> Pool:
    """The pool of a target, and of its draft if there is one; ``block`` is tokens in a block."""
    block = _aligned(parts, kv_bits, block, draft_tokens)
    pages = [
        page
        for part in parts
        for page in _pages(part, kv_bits=kv_bits, block=block, draft_tokens=draft_tokens)
    ]
    if not pages:
        return Pool(0, (), draft_tokens)
    if len({(page.kind, page.window) for page in pages}) == 1:
        first = pages[0]
        group = Group(first.kind, len(pages), first.tokens, first.window)
        return Pool(sum(page.bytes for page in pages), (group,), draft_tokens)
    return _mixed(pages, draft_tokens)


def _pages(part: Part, *, kv_bits: float, block: int, draft_tokens: int) -> Iterable[_Page]:
    for layer in part.architecture.layers:
        if layer.kind == "linear":
            size = state_bytes(
                layer, tensor_parallel=part.tensor_parallel, draft_tokens=draft_tokens
            )
            yield _Page("linear", None, (), block, math.ceil(size))
        elif layer.kind != "none":
            size = layer_bytes(layer, kv_bits=kv_bits, tensor_parallel=part.tensor_parallel)
            heads = 1 if layer.latent else max(1, layer.kv_heads // part.tensor_parallel)
            shape = (heads, layer.head_dim, layer.value_dim or 0, layer.latent or 0)
            yield _Page(layer.kind, layer.window, shape, block, math.ceil(size * block))


def _aligned(parts: Sequence[Part], kv_bits: float, block: int, draft_tokens: int) -> int:
    """Tokens in a block such that a page of attention holds the state of a linear layer."""
    target = parts[0]
    states = [
        state_bytes(each, tensor_parallel=target.tensor_parallel, draft_tokens=draft_tokens)
        for each in target.architecture.layers
    ]
    tokens = [
        layer_bytes(each, kv_bits=kv_bits, tensor_parallel=target.tensor_parallel)
        for each in target.architecture.layers
    ]
    if not any(states) or not any(tokens):
        return block
    return max(block, block * math.ceil(max(states) / (block * max(tokens))))


def _mixed(pages: Sequence[_Page], draft_tokens: int) -> Pool:
    """The pool of layers of several kinds."""
    largest = max(page.bytes for page in pages)
    counts: dict[_Page, int] = {}
    for page in pages:
        unified = _unified(page, largest)
        counts[unified] = counts.get(unified, 0) + 1
    fewest, most = min(counts.values()), max(counts.values())
    length = most if most < _NEARLY * fewest else fewest
    groups: list[Group] = []
    for page, layers in counts.items():
        number = -(-layers // length)
        for at in range(number):
            in_group = len(range(at, layers, number))
            groups.append(Group(page.kind, in_group, page.tokens, page.window))
    return Pool(largest * max(each.layers for each in groups), tuple(groups), draft_tokens)


def _unified(page: _Page, largest: int) -> _Page:
    """A page as large as the largest: with more tokens where that comes out even, else padded."""
    if page.kind != "linear" and largest % page.bytes == 0:
        page = replace(page, tokens=page.tokens * (largest // page.bytes))
    return replace(page, bytes=largest)
