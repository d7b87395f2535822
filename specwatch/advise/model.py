"""What ``specwatch advise`` says, as plain values: what ``--json`` prints, and lines are made of.

Memory is bytes, context and lengths tokens, rates and shares 0 to 1. None is what is not known.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

FORMAT = 1
"""Grows when a program that reads advice would have to be changed."""

Level = Literal["ok", "note", "doubt", "wrong"]
"""``wrong`` is a reason not to start it: exit code 1; ``doubt`` one to measure first."""
Topic = Literal["tokenizer", "pairing", "memory", "k", "quantization", "method", "use", "model"]
LEVELS: tuple[Level, ...] = ("wrong", "doubt", "note", "ok")
"""Gravest first."""


class Finding(Struct, frozen=True, kw_only=True):
    """One line of advice. ``source`` says who says so: a file, a formula, or a report cited."""

    topic: Topic
    level: Level
    text: str
    reason: str = ""
    source: str = ""
    remedy: str = ""


class Model(Struct, frozen=True, kw_only=True):
    """A target or a draft. ``weights`` are bytes in memory; ``kv_per_token`` bytes of KV cache that
    one token takes over all its full-attention layers and GPUs."""

    name: str
    parameters: int | None
    active_parameters: int | None = None
    """Of a mixture of experts: those that one token uses."""
    weights: int | None
    quantization: str | None
    kv_per_token: float | None = None
    context: int | None = None
    """The longest that it was trained for."""


class Memory(Struct, frozen=True, kw_only=True):
    """Of each GPU, with the draft and without; ``requests`` of the wanted context fit at once.

    What depends on a draft of unknown size is None.
    """

    gpus: int
    gpu_memory: int
    usable: int
    """``gpu_memory`` times ``--gpu-memory-utilization``."""
    target_weights: int
    draft_weights: int | None
    reserved: int
    """Activations, CUDA graphs and the runtime: assumed."""
    kv_without: int
    kv_with: int | None
    tokens_without: int | None
    """None where the shape of the target is not known."""
    tokens_with: int | None
    requests_without: int | None
    requests_with: int | None


class Expected(Struct, frozen=True, kw_only=True):
    """The speedup at an acceptance rate: an assumption, S = tau / (1 + k c) at low load."""

    acceptance: float
    """alpha: accepted / draft tokens, so an average over the k positions, at the k asked for."""
    per_token: float
    """The chance that a token is accepted after those before it were, taken as the same at each
    position: it gives this alpha, and so what alpha and tau are at another k."""
    mean_length: float
    """tau, in tokens per step."""
    speedup: float
    best_k: int | None
    """Where the speedup is highest; None where drafts cost nothing, so that more is never worse,
    and where what drafts has too few parts for this k."""
    best_speedup: float | None


class Advice(Struct, frozen=True, kw_only=True):
    """All of it; ``sound`` is False where any finding is ``wrong``."""

    format: int = FORMAT
    version: str
    method: str | None
    k: int | None
    target: Model | None
    draft: Model | None
    memory: Memory | None
    draft_cost: float | None
    """c: what a draft token costs, in plain steps of the target: computed from the weights read."""
    draft_cost_assumed: bool = False
    """Whether nothing tells c, so that the usual one is taken."""
    expected: tuple[Expected, ...]
    findings: tuple[Finding, ...]
    """Gravest first."""
    sources: dict[str, str]
    """What the letters in brackets stand for in the sources of the findings."""
    sound: bool


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of :class:`Advice`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specwatch advise",
        **msgspec.json.schema(Advice),
    }
