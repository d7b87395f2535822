"""Memory of target and draft on each GPU, and the KV cache that is left beside them.

KV cache = memory x utilization - weights - what else the server needs. vLLM 0.32 measures the last
at its start; here it is assumed. Weights lie on GPUs as
:func:`specwatch.advise.parameters.share` has it, the cache as :mod:`specwatch.advise.block_pool`.
What falls short by less than :data:`NEAR` is a doubt, not an error: the runtime is assumed, and a
card sold as 80 GB may have 80 GiB, which is 7 % more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specwatch.advise.architecture import Architecture
from specwatch.advise.block_pool import NULL_BLOCK, Part, Pool, pool_of
from specwatch.advise.model import Finding, Level, Memory
from specwatch.advise.parameters import share
from specwatch.advise.sources import reported
from specwatch.errors import ConfigError
from specwatch.wording import figures

UTILIZATION = 0.92
"""``--gpu-memory-utilization`` of vLLM 0.32, unless given; earlier versions took 0.9."""
RESERVED = 2 * 2**30
"""Bytes of each GPU for activations, CUDA graphs and the runtime: assumed."""
TIGHT = 0.70
"""Share of the memory that a target may take before it should be tried under load first."""
FULL = 0.95
"""Share of the memory at which a server should not be started."""
MOST_DRAFT = 0.15
"""Share of the memory that a draft should take at most."""
NEAR = 0.08
"""Share of the memory by which a plan may be off."""
_ROUND = "by less than 8 % of the memory: a card sold as 80 GB may have 80 GiB, 7 % more"
_COMPUTED = "computed from config.json; blocks as vLLM 0.32 allots them (v1/core/kv_cache_utils.py)"


@dataclass(frozen=True, slots=True)
class Footprint:
    """A model, and the bytes of one copy of its weights."""

    architecture: Architecture
    weights: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How an engine lies on its GPUs: ``stages`` of a pipeline, each on ``tensor_parallel``."""

    tensor_parallel: int
    stages: int
    draft_parallel: int

    @classmethod
    def of(cls, gpus: int, tensor_parallel: int | None, draft_parallel: int | None) -> Layout:
        """The layout on ``gpus``, all in one tensor-parallel group unless told otherwise.

        Raises ConfigError for more parts than GPUs.
        """
        parallel = gpus if tensor_parallel is None else tensor_parallel
        if not 1 <= parallel <= gpus:
            raise ConfigError(
                f"tensor parallelism {parallel} on {figures.counted(gpus, 'GPU')}: expected 1 to "
                f"{gpus}; give as many GPUs as one engine has"
            )
        return cls(parallel, gpus // parallel, min(draft_parallel or parallel, parallel))


def plan(
    target: Footprint,
    draft: Footprint | None,
    *,
    gpus: int,
    gpu_memory: int,
    context: int,
    concurrency: int | None = None,
    utilization: float = UTILIZATION,
    tensor_parallel: int | None = None,
    draft_tensor_parallel: int | None = None,
    draft_known: bool = True,
    draft_tokens: int = 0,
    kv_bits: float = 16,
    reserved: int = RESERVED,
) -> tuple[Memory, list[Finding]]:
    """Plan each GPU of one engine, with the draft and without; memory is bytes of one GPU.

    ``tensor_parallel`` is the number of GPUs unless given; more GPUs than that are stages of a
    pipeline, the last of which has the draft. The draft is divided as its target is, as vLLM 0.32
    does it unless told (``SpeculativeConfig._verify_and_get_draft_tp``); with a
    ``draft_tensor_parallel`` of 1 each GPU has all of it. Where it is not ``draft_known`` there is
    a draft that nothing is known of. ``draft_tokens`` is k, of which linear layers keep a state
    each. Raises ConfigError for a ``tensor_parallel`` that is above ``gpus``.
    """
    layout = Layout.of(gpus, tensor_parallel, draft_tensor_parallel)
    usable = int(gpu_memory * utilization)
    weights = held(target, layout.tensor_parallel) // layout.stages
    drafts = 0 if draft is None else held(draft, layout.draft_parallel)
    left = usable - weights - reserved
    alone = _pool(target, None, layout, kv_bits)
    both = _pool(target, draft, layout, kv_bits, draft_tokens)
    memory = Memory(
        gpus=gpus,
        gpu_memory=gpu_memory,
        usable=usable,
        target_weights=weights,
        draft_weights=drafts if draft_known else None,
        reserved=reserved,
        kv_without=max(left, 0),
        kv_with=max(left - drafts, 0) if draft_known else None,
        tokens_without=alone.capacity(left, context),
        tokens_with=both.capacity(left - drafts, context) if draft_known else None,
        requests_without=alone.requests(left, context),
        requests_with=both.requests(left - drafts, context) if draft_known else None,
    )
    one = both.block_bytes * (both.blocks_of_request(context) + NULL_BLOCK)
    return memory, [*of_weights(memory), *_of_requests(memory, context, concurrency, one)]


def of_prediction(shape: Architecture, weights: int) -> Footprint:
    """The layers for multi-token prediction that a target brings, as a draft of it.

    ``weights`` are bytes that they take besides the target's. Each keeps what an attention layer of
    the target keeps.
    """
    attention = [each for each in shape.layers if each.kind in ("full", "sliding")]
    full = [each for each in attention if each.kind == "full"]
    layers = tuple((full or attention)[-1:]) * shape.mtp_layers
    return Footprint(replace(shape, layers=layers), weights)


def held(model: Footprint, tensor_parallel: int) -> int:
    """Bytes of its weights that each of ``tensor_parallel`` GPUs holds."""
    return math.ceil(model.weights * share(model.architecture, tensor_parallel))


def _pool(
    target: Footprint,
    draft: Footprint | None,
    layout: Layout,
    kv_bits: float,
    draft_tokens: int = 0,
) -> Pool:
    """The blocks of the GPU that has most: the last stage, where the draft is."""
    layers = target.architecture.layers
    last = layers[-math.ceil(len(layers) / layout.stages) :]
    parts = [Part(replace(target.architecture, layers=last), layout.tensor_parallel)]
    if draft is not None:
        parts.append(Part(draft.architecture, layout.draft_parallel))
    return pool_of(parts, kv_bits=kv_bits, draft_tokens=draft_tokens)


def of_weights(memory: Memory) -> Iterator[Finding]:
    """Yield what is to be said of the weights alone, gravest first."""
    ours, theirs = memory.target_weights, memory.draft_weights or 0
    short = ours + theirs + memory.reserved - memory.usable
    taken = (
        f"{gigabytes(ours)} of weights"
        + (f" and {gigabytes(theirs)} of the draft's" if theirs else "")
        + f", {gigabytes(memory.reserved)} for the runtime (assumed), of "
        f"{gigabytes(memory.usable)} that the server may use on each GPU"
    )
    if memory.kv_without <= 0:
        yield _short(
            memory,
            short - theirs,
            "the target alone does not fit: no memory is left for any KV cache",
            taken,
            "quantise the target, or use more or larger GPUs",
        )
        return
    if memory.kv_with is not None and memory.kv_with <= 0:
        yield _short(
            memory,
            short,
            "beside the draft no memory is left for any KV cache",
            taken,
            "quantise the target first, take a smaller draft, or one without weights (n-gram)",
        )
    elif (ours + theirs) / memory.gpu_memory >= FULL:
        yield _finding(
            "wrong",
            f"weights take {(ours + theirs) / memory.gpu_memory:.0%} of each GPU: do not start it",
            "at 95 % nothing is left for contexts of any use",
            reported("F"),
            "quantise the target, or take a smaller draft",
        )
    yield from _shares(memory)


def _short(memory: Memory, short: int, text: str, taken: str, remedy: str) -> Finding:
    """A finding on so many bytes too few: whether that is sure depends on how many."""
    reason = f"{taken}: {gigabytes(max(short, 0))} short"
    if short >= NEAR * memory.gpu_memory:
        return _finding("wrong", text, reason, _COMPUTED, remedy)
    return _finding("doubt", f"nearly: {text}", f"{reason}, {_ROUND}", _COMPUTED, remedy)


def _shares(memory: Memory) -> Iterator[Finding]:
    ours = memory.target_weights / memory.gpu_memory
    theirs = (memory.draft_weights or 0) / memory.gpu_memory
    if ours > TIGHT:
        yield _finding(
            "doubt",
            f"the target's weights take {ours:.0%} of each GPU",
            "above 70 % a draft takes what contexts and batches need: preemptions under load",
            reported("F"),
            "test it under real load first, quantise the target, or add a GPU",
        )
    if theirs > MOST_DRAFT:
        yield _finding(
            "doubt",
            f"the draft's weights take {theirs:.0%} of each GPU",
            "a draft should take 15 % of all memory at most",
            reported("F"),
            "quantise the draft, which hardly hurts its acceptance, or take a smaller one",
        )
    elif theirs:
        yield _finding(
            "ok",
            f"the draft's weights take {theirs:.1%} of each GPU",
            "15 % at most is the rule",
            reported("F"),
        )


def _of_requests(
    memory: Memory, context: int, concurrency: int | None, one: int
) -> Iterator[Finding]:
    """Yield how many requests of the wanted context fit, and whether these are enough.

    ``one`` is bytes of such a request. With a draft that nothing is known of: those beside none.
    """
    known, without = memory.kv_with is not None, memory.requests_without
    fit = memory.requests_with if known else without
    left = memory.kv_without if memory.kv_with is None else memory.kv_with
    if left <= 0 or fit is None or without is None:
        return
    length = f"{figures.number(context)} tokens"
    if fit == 0:
        yield _not_one(memory, length, left, one)
        return
    beside = bool(memory.draft_weights) or fit != without
    cost = f"; without the draft {figures.number(without)}" if beside else ""
    if not known:
        cost = ", without the draft"
    verb = "fits" if fit == 1 else "fit"
    says = f"{figures.counted(fit, 'request')} of {length} {verb} at once{cost}"
    reason = f"{gigabytes(left)} of KV cache on each GPU"
    if memory.draft_weights:
        reason += f", {gigabytes(memory.kv_without)} without the draft"
    if concurrency is not None and fit < concurrency:
        yield _finding(
            "doubt",
            f"{says}, and {concurrency} are wanted",
            f"{reason}: the others wait, or are preempted and computed again",
            _COMPUTED,
            "shorten --max-model-len if contexts are shorter in truth, use --kv-cache-dtype fp8, "
            + ("or leave the draft off" if without >= concurrency else "or add memory"),
        )
        return
    wanted = "" if concurrency is None else f", {concurrency} are wanted"
    yield _finding("ok", says + wanted, reason, _COMPUTED)


def _not_one(memory: Memory, length: str, left: int, one: int) -> Finding:
    room = memory.tokens_without if memory.kv_with is None else memory.tokens_with
    return _short(
        memory,
        one - left,
        f"not one request of {length} fits beside the weights",
        f"there is KV cache for {figures.number(room)} tokens, {gigabytes(left)} on each GPU",
        "lower --max-model-len, quantise, or use --kv-cache-dtype fp8",
    )


def gigabytes(size: float) -> str:
    """``16.1 GB``: thousands, as GPUs are sold by."""
    return f"{size / 1e9:,.{0 if abs(size) >= 1e11 else 1}f} GB"


def _finding(level: Level, text: str, reason: str, source: str, remedy: str = "") -> Finding:
    return Finding(
        topic="memory", level=level, text=text, reason=reason, source=source, remedy=remedy
    )
