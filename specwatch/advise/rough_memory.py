"""Memory where only the number of parameters is known: weights, and the bytes left beside them."""

from __future__ import annotations

from msgspec.structs import replace

from specwatch.advise import memory as exact
from specwatch.advise.memory import RESERVED, UTILIZATION
from specwatch.advise.model import Finding, Memory

_COUNTED = "parameters times bytes; what the KV cache takes needs the config.json"


def plan(
    target: int,
    draft: int | None,
    *,
    gpus: int,
    gpu_memory: int,
    utilization: float = UTILIZATION,
    draft_parallel: int | None = None,
) -> tuple[Memory, list[Finding]]:
    """Plan each GPU in bytes, with weights shared out evenly.

    ``target`` and ``draft`` are the bytes of one copy of their weights; None is a draft that
    nothing is known of.
    """
    usable = int(gpu_memory * utilization)
    ours = -(-target // gpus)
    theirs = None if draft is None else -(-draft // min(draft_parallel or gpus, gpus))
    memory = Memory(
        gpus=gpus,
        gpu_memory=gpu_memory,
        usable=usable,
        target_weights=ours,
        draft_weights=theirs,
        reserved=RESERVED,
        kv_without=max(usable - ours - RESERVED, 0),
        kv_with=None if theirs is None else max(usable - ours - theirs - RESERVED, 0),
        tokens_without=None,
        tokens_with=None,
        requests_without=None,
        requests_with=None,
    )
    findings = [
        each if each.source.startswith("reported") else replace(each, source=_COUNTED)
        for each in exact.of_weights(memory)
    ]
    if memory.kv_without > 0 and memory.kv_with != 0:
        findings.append(_left(memory))
    return memory, findings


def _left(memory: Memory) -> Finding:
    """What weights leave of each GPU."""
    without = exact.gigabytes(memory.kv_without)
    said = f"{without} of each GPU are left for the KV cache, without the draft"
    if memory.kv_with is not None:
        left = exact.gigabytes(memory.kv_with)
        said = f"{left} of each GPU are left for the KV cache, {without} without the draft"
    return Finding(topic="memory", level="note", text=said, source=_COUNTED)
