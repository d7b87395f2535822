"""Memory of target and draft on each GPU, and the KV cache that is left beside them.

    KV cache = GPU memory x utilization - weights - runtime

vLLM 0.32 measures the runtime's part when it starts; here it is assumed. Weights are divided evenly
among the GPUs. In each full-attention layer a token takes ``2 x KV heads x head dimension``
elements (``kv_lora_rank + qk_rope_head_dim`` with MLA); layers with a sliding window keep no more
than the window, layers of linear attention a state for the sequence and for each draft token. KV
heads are divided among GPUs, and copied where there are more GPUs than heads. vLLM allocates
whole blocks, a difference of up to 10 %. A plan that is short by less than :data:`NEAR` is a
doubt and not an error: the runtime is assumed, and a card sold as 80 GB may have 80 GiB, 7 % more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specwatch.errors import ConfigError
from specwatch.lab.advise.advice import Finding, Level, Memory, reported
from specwatch.lab.advise.architecture import Architecture, Layer
from specwatch.wording import figures

UTILIZATION = 0.92
"""Default of ``--gpu-memory-utilization`` in vLLM 0.32; it was 0.9 in earlier versions."""
RESERVED = 2 * 2**30
"""Bytes of each GPU for activations, CUDA graphs and the runtime (assumed)."""
TIGHT = 0.70
"""Share of the memory above which a target should first be tested under load."""
FULL = 0.95
"""Share of the memory at which a server should not be started."""
MOST_DRAFT = 0.15
"""Share of the memory that a draft should take at most."""
NEAR = 0.08
"""Share of the memory by which a plan may be wrong."""
_COMPUTED = "computed from config.json: elements of a token x bytes, without rounding to blocks"
_FROM_SIZE = "parameters times bytes; the size of the KV cache needs the config.json"


@dataclass(frozen=True, slots=True)
class Footprint:
    """A model in memory: the bytes of one copy of its weights, None if not known, and its layers.

    ``layers`` is empty if they are not known, or if there is no attention.
    """

    weights: int | None
    layers: tuple[Layer, ...] = ()
    kv_heads: int = 1


def kv_bytes(
    models: Sequence[tuple[Footprint, int]],
    tokens: int,
    *,
    bits: float = 16,
    draft_tokens: int = 0,
) -> float:
    """Bytes of KV cache on each GPU for a request of ``tokens``, prompt and answer together.

    ``models`` are the target, and the draft if there is one, each with the number of GPUs that
    share its layers; ``bits`` are those of an element of the cache, ``draft_tokens`` is k. If
    layers of several kinds share the cache, vLLM 0.32 (``v1/core/kv_cache_utils.py``) makes groups
    of equal length: the layers of a kind are rounded up to a multiple of the smallest number, and
    a state takes as much as a block of the widest layer.
    """
    counts: Counter[tuple[Layer, int, float, float]] = Counter()
    widest: list[float] = []
    for model, parallel in models:
        heads = max(1, model.kv_heads // parallel)
        share = heads / max(model.kv_heads, 1) * bits / 8
        for layer in model.layers:
            if layer.kind != "none":
                # Layers of two models are of one kind if they have the same size on a GPU.
                kind = Layer(layer.kind, window=layer.window)
                state = (layer.state_bytes + draft_tokens * layer.draft_token_bytes) / parallel
                counts[kind, heads, layer.token_elements * share, state] += 1
        widest.append(max((layer.token_elements * share for layer in model.layers), default=0.0))
    length = 1
    if len({kind for kind, _, _, _ in counts}) > 1:
        fewest, most = min(counts.values()), max(counts.values())
        length = most if most < 1.5 * fewest else fewest
    total = 0.0
    for (kind, _, token_bytes, state), count in counts.items():
        size = token_bytes * (tokens if kind.window is None else min(tokens, kind.window))
        if kind.kind == "linear":
            size = state * (1 + draft_tokens) * max(widest) / (widest[0] or max(widest) or 1)
        total += math.ceil(count / length) * length * size
    return total


def kv_bytes_per_token(model: Architecture, bits: float = 16) -> float:
    """Bytes over all GPUs that one more token of a long request takes.

    Layers with a sliding window do not count, as it is full; unless a model has no others.
    """
    by_kind = {"full": 0.0, "sliding": 0.0}
    for layer in model.layers:
        if layer.kind in by_kind:
            by_kind[layer.kind] += layer.token_elements * bits / 8
    return by_kind["full"] or by_kind["sliding"]


def mtp_footprint(model: Architecture, weights: int | None) -> Footprint:
    """The target's layers for multi-token prediction, as a draft.

    ``weights`` are their bytes in addition to the target's. Each takes as much cache as an
    attention layer of the target.
    """
    attention = [layer for layer in model.layers if layer.kind in ("full", "sliding")]
    full = [layer for layer in attention if layer.kind == "full"]
    return Footprint(weights, tuple((full or attention)[-1:]) * model.mtp_layers, model.kv_heads)


def plan_memory(
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
    draft_tokens: int = 0,
    kv_bits: float = 16,
    reserved: int = RESERVED,
) -> tuple[Memory, list[Finding]]:
    """Plan each GPU of one engine, with the draft and without; ``gpu_memory`` is bytes of one GPU.

    ``tensor_parallel`` is the number of GPUs unless given; more GPUs than that are stages of a
    pipeline, the last of which has the draft. The draft is divided as its target is, unless
    ``draft_tensor_parallel`` is given (vLLM 0.32, ``_verify_and_get_draft_tp``).
    ``draft_tokens`` is k. Raises ConfigError for a ``tensor_parallel`` above ``gpus``.
    """
    parallel = gpus if tensor_parallel is None else tensor_parallel
    if not 1 <= parallel <= gpus:
        raise ConfigError(
            f"tensor parallelism {parallel} on {figures.counted(gpus, 'GPU')}: expected 1 to "
            f"{gpus}; give as many GPUs as one engine has"
        )
    stages = gpus // parallel
    draft_parallel = min(draft_tensor_parallel or parallel, parallel)
    usable = int(gpu_memory * utilization)
    target_weights = math.ceil((target.weights or 0) / parallel / stages)
    draft_weights: int | None = 0
    if draft is not None:
        draft_weights = None if draft.weights is None else math.ceil(draft.weights / draft_parallel)
    # The GPU with the most cache is the last stage, where the draft is.
    last_stage = target.layers[-math.ceil(len(target.layers) / stages) :]
    models = [(replace(target, layers=last_stage), parallel)]
    alone = kv_bytes(models, context, bits=kv_bits)
    if draft is not None:
        models.append((draft, draft_parallel))
    both = kv_bytes(models, context, bits=kv_bits, draft_tokens=draft_tokens)
    left_alone = max(usable - target_weights - reserved, 0)
    left_both = None if draft_weights is None else max(left_alone - draft_weights, 0)
    memory = Memory(
        gpus=gpus,
        gpu_memory=gpu_memory,
        usable=usable,
        target_weights=target_weights,
        draft_weights=draft_weights,
        reserved=reserved,
        kv_without=left_alone,
        kv_with=left_both,
        tokens_without=int(left_alone / alone * context) if alone else None,
        tokens_with=int(left_both / both * context) if both and left_both is not None else None,
        requests_without=int(left_alone / alone) if alone else None,
        requests_with=int(left_both / both) if both and left_both is not None else None,
    )
    findings = [*_weight_findings(memory, _COMPUTED if alone else _FROM_SIZE)]
    if alone:
        findings += _request_findings(memory, context, concurrency, both)
    elif memory.kv_without and memory.kv_with != 0:
        left, without = memory.kv_with, gigabytes(memory.kv_without)
        text = (
            f"{without if left is None else gigabytes(left)} of each GPU are left for the KV cache"
        )
        text += "" if left is None else f", {without} without the draft"
        findings.append(Finding("memory", "note", text, source=_FROM_SIZE))
    return memory, findings


def _weight_findings(memory: Memory, source: str) -> Iterator[Finding]:
    """The findings on the weights, the most severe first."""
    target, draft, total = memory.target_weights, memory.draft_weights or 0, memory.gpu_memory
    short = target + draft + memory.reserved - memory.usable
    use = (
        f"{gigabytes(target)} of weights"
        + (f" and {gigabytes(draft)} of the draft's" if draft else "")
        + f", {gigabytes(memory.reserved)} for the runtime (assumed), of "
        f"{gigabytes(memory.usable)} that the server may use on each GPU"
    )
    if not memory.kv_without:
        yield _shortage(
            memory,
            short - draft,
            "the target alone does not fit: no memory is left for any KV cache",
            use,
            source,
            "quantize the target, or use more or larger GPUs",
        )
        return
    if memory.kv_with == 0:
        yield _shortage(
            memory,
            short,
            "with the draft no memory is left for any KV cache",
            use,
            source,
            "quantize the target first, take a smaller draft, or one without weights (n-gram)",
        )
    elif (target + draft) / total >= FULL:
        yield Finding(
            "memory",
            "wrong",
            f"weights take {(target + draft) / total:.0%} of each GPU: do not start it",
            "at 95 % too little is left for useful contexts",
            reported("F"),
            "quantize the target, or take a smaller draft",
        )
    if target / total > TIGHT:
        yield Finding(
            "memory",
            "doubt",
            f"the target's weights take {target / total:.0%} of each GPU",
            "above 70 % a draft takes memory that contexts and batches need under load",
            reported("F"),
            "test it under real load first, quantize the target, or add a GPU",
        )
    if draft / total > MOST_DRAFT:
        yield Finding(
            "memory",
            "doubt",
            f"the draft's weights take {draft / total:.0%} of each GPU",
            "a draft should take at most 15 % of the memory",
            reported("F"),
            "quantize the draft, which hardly hurts its acceptance, or take a smaller one",
        )
    elif draft:
        text = f"the draft's weights take {draft / total:.1%} of each GPU"
        yield Finding("memory", "ok", text, "the rule is at most 15 %", reported("F"))


def _shortage(
    memory: Memory, short: float, text: str, reason: str, source: str, remedy: str
) -> Finding:
    """A finding on ``short`` missing bytes; a doubt if they are few."""
    level: Level = "wrong"
    reason = f"{reason}: {gigabytes(max(short, 0))} short"
    if short < NEAR * memory.gpu_memory:
        level, text = "doubt", f"nearly: {text}"
        reason += ", less than 8 % of the memory: a card sold as 80 GB may have 80 GiB, 7 % more"
    return Finding("memory", level, text, reason, source, remedy)


def _request_findings(
    memory: Memory, context: int, concurrency: int | None, request_bytes: float
) -> Iterator[Finding]:
    """Findings on how many requests of the wanted context fit, and whether these are enough."""
    draft_known, without = memory.kv_with is not None, memory.requests_without
    requests = memory.requests_with if draft_known else without
    left = memory.kv_without if memory.kv_with is None else memory.kv_with
    if not left or requests is None or without is None:
        return
    length = f"{figures.number(context)} tokens"
    if requests == 0:
        tokens = memory.tokens_with if draft_known else memory.tokens_without
        yield _shortage(
            memory,
            request_bytes - left,
            f"not one request of {length} fits beside the weights",
            f"there is KV cache for {figures.number(tokens)} tokens, {gigabytes(left)} on each GPU",
            _COMPUTED,
            "lower --max-model-len, quantize, or use --kv-cache-dtype fp8",
        )
        return
    text = (
        f"{figures.counted(requests, 'request')} of {length} {'fits' if requests == 1 else 'fit'}"
    )
    text += " at once"
    if not draft_known:
        text += ", without the draft"
    elif memory.draft_weights or requests != without:
        text += f"; without the draft {figures.number(without)}"
    reason = f"{gigabytes(left)} of KV cache on each GPU"
    if memory.draft_weights:
        reason += f", {gigabytes(memory.kv_without)} without the draft"
    if concurrency is None:
        yield Finding("memory", "ok", text, reason, _COMPUTED)
    elif requests >= concurrency:
        yield Finding("memory", "ok", f"{text}, {concurrency} are wanted", reason, _COMPUTED)
    else:
        yield Finding(
            "memory",
            "doubt",
            f"{text}, and {concurrency} are wanted",
            f"{reason}: the others wait, or are preempted and recomputed",
            _COMPUTED,
            "shorten --max-model-len if real contexts are shorter, use --kv-cache-dtype fp8, or "
            + ("leave the draft off" if without >= concurrency else "add memory"),
        )


def gigabytes(size: float) -> str:
    """``16.1 GB``: powers of ten, as GPUs are sold."""
    return f"{size / 1e9:,.{0 if abs(size) >= 1e11 else 1}f} GB"
