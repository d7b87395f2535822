"""What one simulated engine has counted since its process started."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from specwatch.domain.model import Histogram

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")

TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
INTER_TOKEN_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
LATENCY_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
ITERATION_BOUNDS = tuple(float(bound) for bound in (1, *(2**power for power in range(3, 15))))
PARAMS_N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def length_bounds(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to ``max_model_len`` tokens."""
    bounds: list[float] = []
    decade = 1
    while True:
        for step in (1, 2, 5):
            if step * decade > max_model_len:
                return tuple(bounds)
            bounds.append(float(step * decade))
        decade *= 10


class SimulatedHistogram:
    """Counts between upper bounds, which belong to the bucket below them."""

    __slots__ = ("bounds", "count", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` over."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times

    def frozen(self) -> Histogram:
        """The same as a plain value."""
        return Histogram(self.bounds, tuple(self.counts), self.sum)


@dataclass(slots=True)
class SimulatedCounters:
    """Counters and histograms of one engine core; ``k`` positions, none without speculation."""

    k: int
    max_model_len: int
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(init=False)
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_query_blocks: int = 0
    prefix_cache_hit_blocks: int = 0
    busy: float = 0.0
    """Seconds spent in steps."""
    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    ttft: SimulatedHistogram = field(init=False)
    inter_token: SimulatedHistogram = field(init=False)
    tpot: SimulatedHistogram = field(init=False)
    e2e: SimulatedHistogram = field(init=False)
    queue_time: SimulatedHistogram = field(init=False)
    inference_time: SimulatedHistogram = field(init=False)
    prefill_time: SimulatedHistogram = field(init=False)
    decode_time: SimulatedHistogram = field(init=False)
    prompt_length: SimulatedHistogram = field(init=False)
    output_length: SimulatedHistogram = field(init=False)
    max_output_length: SimulatedHistogram = field(init=False)
    params_max_tokens: SimulatedHistogram = field(init=False)
    prefill_computed: SimulatedHistogram = field(init=False)
    params_n: SimulatedHistogram = field(init=False)
    request_preemptions: SimulatedHistogram = field(init=False)
    iteration_tokens: SimulatedHistogram = field(init=False)

    def __post_init__(self) -> None:
        self.accepted_per_position = [0] * self.k
        self.ttft = SimulatedHistogram(TTFT_BOUNDS)
        self.inter_token = SimulatedHistogram(INTER_TOKEN_BOUNDS)
        self.tpot = SimulatedHistogram(INTER_TOKEN_BOUNDS)
        for name in ("e2e", "queue_time", "inference_time", "prefill_time", "decode_time"):
            setattr(self, name, SimulatedHistogram(LATENCY_BOUNDS))
        lengths = length_bounds(self.max_model_len)
        for name in (
            "prompt_length", "output_length", "max_output_length", "params_max_tokens",
            "prefill_computed",
        ):  # fmt: skip
            setattr(self, name, SimulatedHistogram(lengths))
        self.params_n = SimulatedHistogram(PARAMS_N_BOUNDS)
        self.request_preemptions = SimulatedHistogram(PREEMPTION_BOUNDS)
        self.iteration_tokens = SimulatedHistogram(ITERATION_BOUNDS)
