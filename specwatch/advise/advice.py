"""What ``specwatch advise`` is asked, and what it answers: the fields of ``--json``.

Memory is bytes, context and lengths tokens, rates and shares 0 to 1. None means not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec import Struct

FORMAT = 1
"""Increases when a program that reads the JSON would have to be changed."""

Level = Literal["ok", "note", "doubt", "wrong"]
"""``wrong`` is a reason not to start the server: exit code 1. ``doubt`` is one to measure first."""
Topic = Literal["tokenizer", "pairing", "memory", "k", "quantization", "method", "use", "model"]
LEVELS: tuple[Level, ...] = ("wrong", "doubt", "note", "ok")
"""The most severe first."""
Server = Literal["vllm", "llama.cpp"]
Workload = Literal["chat", "code", "summarization", "creative", "extraction", "rag"]
Latency = Literal["ttft", "tpot", "throughput"]
TOPICS: tuple[Topic, ...] = (
    "tokenizer", "memory", "method", "pairing", "k", "quantization", "use", "model",
)  # fmt: skip
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
"""Reports by letter. They are cited as such: specwatch did not measure what they say."""
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
    """The server that is to be started; None means not given. Lengths are tokens."""

    server: Server = "vllm"
    from_command: bool = False
    """Whether this is a command that would be started as it is, and not options of advise."""
    target: str | None = None
    draft: str | None = None
    method: str | None = None
    """As written; :func:`specwatch.advise.methods.method_of` tells which method that is."""
    k: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)
    """The keys of ``--speculative-config``; of older flags, the keys that replaced them."""
    gpus: int | None = None
    """Of one engine, where the command tells: tensor times pipeline parallelism."""
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
        """``draft_tensor_parallel_size``, where it is given."""
        return whole_number(self.speculation.get("draft_tensor_parallel_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The traffic that the server will get, as far as it is known."""

    temperatures: tuple[tuple[float, float], ...] = ()
    """Ascending temperatures with their shares, which add up to 1."""
    output_tokens: int | None = None
    tool_calls: bool = False
    workload: Workload | None = None
    saturated: bool = False
    latency: Latency | None = None
    concurrency: int | None = None


def whole_number(value: object) -> int | None:
    """Read a whole number as vLLM does in its configuration; None if it is none."""
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
    """Of a mixture of experts: those that one token uses."""
    weights: int | None
    quantization: str | None
    kv_per_token: float | None = None
    context: int | None = None
    """The longest context that the model was trained for."""


class Memory(Struct, frozen=True, kw_only=True):
    """The memory of each GPU, with the draft and without it.

    ``requests`` is how many requests of the wanted context fit at once. What depends on a draft of
    unknown size is None.
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
    """None where the architecture of the target is not known."""
    tokens_with: int | None
    requests_without: int | None
    requests_with: int | None


class Expected(Struct, frozen=True, kw_only=True):
    """The speedup at an acceptance rate: an assumption, S = tau / (1 + k c) at low load."""

    acceptance: float
    """alpha: accepted / draft tokens, so an average over the k positions, at the given k."""
    per_token: float
    """The chance that a token is accepted if all before it were: taken as equal everywhere."""
    mean_length: float
    """tau, in tokens per step."""
    speedup: float
    best_k: int | None
    """The k with the highest speedup; None where drafts cost nothing, or where the drafter has too
    few parts for this k."""
    best_speedup: float | None


class Advice(Struct, frozen=True, kw_only=True):
    """The whole answer; ``sound`` is False where any finding is ``wrong``."""

    format: int = FORMAT
    version: str
    method: str | None
    k: int | None
    target: Model | None
    draft: Model | None
    memory: Memory | None
    draft_cost: float | None
    """c: the cost of a draft token in plain steps of the target, computed from the weights read."""
    draft_cost_assumed: bool = False
    """Whether c is the usual cost, because nothing tells the real one."""
    expected: tuple[Expected, ...]
    findings: tuple[Finding, ...]
    """The most severe first."""
    sources: dict[str, str]
    """What the letters in brackets in the sources of the findings stand for."""
    sound: bool


def cited(findings: Iterable[Finding], also: str = "") -> dict[str, str]:
    """Return the reports that the findings cite by letter, and those of the letters ``also``."""
    letters = {
        letter for finding in findings for letter in re.findall(r"\[([A-Z])\]", finding.source)
    }
    letters.update(also)
    return {letter: title for letter, title in SOURCES.items() if letter in letters}


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of :class:`Advice`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specwatch advise",
        **msgspec.json.schema(Advice),
    }
