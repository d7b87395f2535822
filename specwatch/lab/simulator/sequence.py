"""One request on its way through the simulated engine, and its entry in the request log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from specwatch.lab.simulator.workload import SimulatedRequest

Listener = Callable[["SimulatedSequence", int, str | None], None]
"""Called with the sequence, the number of new tokens, and the finish reason with the last ones."""


@dataclass(slots=True)
class SimulatedGroup:
    """The ``n`` sequences of one request."""

    n: int = 1
    unfinished: int = 1
    longest: int = 0


@dataclass(slots=True, eq=False)
class SimulatedSequence:
    """State and history of one sequence; times are virtual seconds."""

    request: SimulatedRequest
    engine: int
    incarnation: int
    arrival: float
    length: int
    """Output tokens at which it will end."""
    end_reason: str
    group: SimulatedGroup
    listener: Listener | None = None
    closed: bool = False
    """Sent by a client that asks again as soon as it has its answer."""
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finish: float | None = None
    finished_reason: str | None = None
    generation_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_histogram: list[int] = field(default_factory=list)
    """Number of drafts with 0, 1, ... k accepted tokens."""
    per_step: list[tuple[int, int]] | None = None
    """(accepted, drafted) of every speculative step, where it was asked for."""
    cached_tokens: int = 0
    preemptions: int = 0
    computed: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and output tokens so far."""
        return self.request.prompt_tokens + self.generation_tokens

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; 0 for a single one, as vLLM has it."""
        if self.first_token is None or self.last_token is None:
            return None
        if self.generation_tokens < 2:
            return 0.0
        return (self.last_token - self.first_token) / (self.generation_tokens - 1)
