"""Input and output of ``specwatch advise``: the output has the fields of ``--json``.

Memory is bytes, context and lengths tokens, rates and shares 0 to 1. None means not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

FORMAT = 1
"""Increases with changes that are not compatible."""

Level = Literal["ok", "note", "doubt", "wrong"]
"""``wrong`` is a reason not to start the server (exit code 1), ``doubt`` one to measure first."""
Topic = Literal["tokenizer", "pairing", "memory", "k", "quantization", "method", "use", "model"]
LEVELS: tuple[Level, ...] = ("wrong", "doubt", "note", "ok")
"""The most severe first."""
ServerKind = Literal["vllm", "llama.cpp"]
Workload = Literal["chat", "code", "summarization", "creative", "extraction", "rag"]
Latency = Literal["ttft", "tpot", "throughput"]
TOPICS: tuple[Topic, ...] = (
    "tokenizer",
    "memory",
    "method",
    "pairing",
    "k",
    "quantization",
    "use",
    "model",
)
"""The order of findings of one level."""

SOURCES = {
    "F": "Speculative Decoding on vLLM: A Configuration and Decision Framework (July 2026), which"
    " quotes the vLLM team's benchmark of October 2024",
    "G": "vLLM Speculative Decoding Setup, a GPU hosting guide",
    "L": "Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding"
    " (2023)",
    "P": "a practitioner's article on when speculative decoding pays (vLLM and llama.cpp)",
    "T": "Make vLLM 1.8x Faster With Speculative Decoding (July 2026)",
}
"""Reports by letter. Their figures are cited and were not measured by specwatch."""
VLLM = "vLLM 0.32, vllm/config/speculative.py"
LLAMA = "llama.cpp, common/arg.cpp and common/speculative.cpp"


def reported(letters: str) -> str:
    """Cite reports by their letters: ``reported [T] [G]``."""
    return " ".join(["reported", *(f"[{letter}]" for letter in letters)])


class Finding(Struct, frozen=True):
    """One piece of advice. ``source`` is a file, a formula, or a cited report."""

    topic: Topic
    level: Level
    text: str
    reason: str = ""
    source: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """The server to start; None means not given. Lengths are tokens."""

    server: ServerKind = "vllm"
    from_command: bool = False
    """Whether this is the command of a server, and not options of advise."""
    target: str | None = None
    draft: str | None = None
    method: str | None = None
    """As written; see :func:`specwatch.lab.advise.methods.method_of`."""
    k: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)
    """The keys of ``--speculative-config``; older flags are converted to these."""
    gpus: int | None = None
    """GPUs of one engine, by its command: tensor times pipeline parallelism."""
    tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    data_parallel: int = 1
    utilization: float | None = None
    context: int | None = None
    slots: int | None = None
    """The most requests that the server runs at once."""
    dtype: str | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    kv_dtype: str | None = None
    findings: tuple[Finding, ...] = ()
    """Problems with how the command is written."""

    def parallel(self, gpus: int | None = None) -> int:
        """The number of GPUs that share each layer, of ``gpus`` in all: every GPU unless given.

        llama.cpp puts whole layers on each GPU.
        """
        if self.server != "vllm":
            return 1
        return self.tensor_parallel or gpus or self.gpus or 1

    @property
    def draft_parallel(self) -> int | None:
        """``draft_tensor_parallel_size``, if given."""
        return whole_number(self.speculation.get("draft_tensor_parallel_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The expected traffic, as far as it is known."""

    temperatures: tuple[tuple[float, float], ...] = ()
    """Ascending temperatures with their shares, which add up to 1."""
    output_tokens: int | None = None
    tool_calls: bool = False
    workload: Workload | None = None
    saturated: bool = False
    latency: Latency | None = None
    concurrency: int | None = None


def whole_number(value: object) -> int | None:
    """Read a whole number as vLLM does in its configuration; None for other values."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,18}\s*", value):
        return int(value)
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return None


class Model(Struct, frozen=True, kw_only=True):
    """A target or a draft. ``weights`` are bytes in memory; ``kv_per_token`` bytes of KV cache that
    one token takes over all full-attention layers and GPUs."""

    name: str
    parameters: int | None
    active_parameters: int | None = None
    """Parameters that one token uses, of a mixture of experts."""
    weights: int | None
    quantization: str | None
    kv_per_token: float | None = None
    context: int | None = None
    """The longest context that the model was trained for."""


class Memory(Struct, frozen=True, kw_only=True):
    """The memory of each GPU, with the draft and without it.

    ``requests`` is the number of requests of the wanted context that fit at once. What depends on a
    draft of unknown size is None.
    """

    gpus: int
    gpu_memory: int
    usable: int
    """``gpu_memory`` times ``--gpu-memory-utilization``."""
    target_weights: int
    draft_weights: int | None
    reserved: int
    """Activations, CUDA graphs and the runtime (assumed)."""
    kv_without: int
    kv_with: int | None
    tokens_without: int | None
    """None if the architecture of the target is not known."""
    tokens_with: int | None
    requests_without: int | None
    requests_with: int | None


class Expected(Struct, frozen=True, kw_only=True):
    """The expected speedup at an acceptance rate, at low load: S = tau / (1 + k c)."""

    acceptance: float
    """alpha: accepted / draft tokens, the average over the k positions."""
    per_token: float
    """Probability that a token is accepted if all before it were; assumed equal for all."""
    mean_length: float
    """tau, in tokens per step."""
    speedup: float
    best_k: int | None
    """The k with the highest speedup; None if drafts cost nothing, or if the drafter has too few
    layers or heads for this k."""
    best_speedup: float | None


class Advice(Struct, frozen=True, kw_only=True):
    """The result; ``sound`` is False if any finding is ``wrong``."""

    format: int = FORMAT
    version: str
    method: str | None
    k: int | None
    target: Model | None
    draft: Model | None
    memory: Memory | None
    draft_cost: float | None
    """c: the cost of a draft token relative to a plain step of the target."""
    draft_cost_assumed: bool = False
    """Whether c is a default, because it could not be computed."""
    expected: tuple[Expected, ...]
    findings: tuple[Finding, ...]
    """The most severe first."""
    sources: dict[str, str]
    """The reports of the letters in brackets in the sources of the findings."""
    sound: bool


def cited(findings: Iterable[Finding], also: str = "") -> dict[str, str]:
    """The reports that the findings cite by letter, and those of the letters ``also``."""
    letters = {
        letter for finding in findings for letter in re.findall(r"\[([A-Z])\]", finding.source)
    }
    letters.update(also)
    return {letter: title for letter, title in SOURCES.items() if letter in letters}
