"""What somebody means to start: the sizes and the speculation, wherever they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specwatch.advise.model import Finding

Server = Literal["vllm", "llama.cpp"]
Workload = Literal["chat", "code", "summarization", "creative", "extraction", "rag"]
Latency = Literal["ttft", "tpot", "throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of a server; None is what is not said. Lengths are tokens."""

    server: Server = "vllm"
    written: bool = False
    """Whether it is a command that would be started as it is; else options of ours."""
    target: str | None = None
    draft: str | None = None
    method: str | None = None
    """As it was written: which one that means is for :mod:`specwatch.advise.methods`."""
    k: int | None = None
    speculation: Mapping[str, Any] = field(default_factory=dict)
    """The keys of ``--speculative-config``; of older flags, their successors."""
    gpus: int | None = None
    """Of one engine, where the command says: its tensor times its pipeline parallelism."""
    tensor_parallel: int | None = None
    pipeline_parallel: int = 1
    data_parallel: int = 1
    utilization: float | None = None
    context: int | None = None
    slots: int | None = None
    """Requests that the server takes at once at most."""
    dtype: str | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    kv_dtype: str | None = None
    findings: tuple[Finding, ...] = ()
    """What is wrong with how it was written."""

    def parallel(self, gpus: int | None = None) -> int:
        """GPUs that each layer is shared out among, with ``gpus`` in all: every GPU, unless told.

        llama.cpp gives each GPU whole layers.
        """
        if self.server != "vllm":
            return 1
        return self.tensor_parallel or gpus or self.gpus or 1

    def draft_parallel(self, gpus: int | None = None) -> int:
        """GPUs that each layer of the draft is shared out among: one, or as the target's."""
        alone = self.speculation.get("draft_tensor_parallel_size") in (1, "1")
        return 1 if alone else self.parallel(gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the traffic is like, as far as somebody said."""

    temperatures: tuple[tuple[float, float], ...] = ()
    """Temperatures with their shares, which add up to 1; ascending."""
    output_tokens: int | None = None
    tool_calls: bool = False
    workload: Workload | None = None
    saturated: bool = False
    latency: Latency | None = None
    concurrency: int | None = None
