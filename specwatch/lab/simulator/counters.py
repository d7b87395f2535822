"""What one simulated engine has counted since its process started."""

from __future__ import annotations

import bisect
import itertools

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")

TTFT_BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
INTER_TOKEN_BOUNDS = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
LATENCY_BOUNDS = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
ITERATION_BOUNDS = tuple(float(bound) for bound in (1, *(2**power for power in range(3, 15))))
PARAMS_N_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def length_bounds(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to ``max_model_len`` tokens."""
    bounds = (step * 10**decade for decade in itertools.count() for step in (1.0, 2.0, 5.0))
    return tuple(itertools.takewhile(lambda bound: bound <= max_model_len, bounds))


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


class SimulatedCounters:
    """Counters and histograms of one engine core; ``k`` positions, none without speculation."""

    def __init__(self, k: int, max_model_len: int) -> None:
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.accepted_per_position = [0] * k
        self.prompt_tokens = 0
        self.prompt_tokens_computed = 0
        self.prompt_tokens_cached = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.prefix_cache_query_blocks = 0
        self.prefix_cache_hit_blocks = 0
        self.busy = 0.0
        """Seconds spent in steps."""
        self.requests = dict.fromkeys(FINISHED_REASONS, 0)
        self.ttft = SimulatedHistogram(TTFT_BOUNDS)
        self.inter_token = SimulatedHistogram(INTER_TOKEN_BOUNDS)
        self.tpot = SimulatedHistogram(INTER_TOKEN_BOUNDS)
        self.e2e = SimulatedHistogram(LATENCY_BOUNDS)
        self.queue_time = SimulatedHistogram(LATENCY_BOUNDS)
        self.inference_time = SimulatedHistogram(LATENCY_BOUNDS)
        self.prefill_time = SimulatedHistogram(LATENCY_BOUNDS)
        self.decode_time = SimulatedHistogram(LATENCY_BOUNDS)
        lengths = length_bounds(max_model_len)
        self.prompt_length = SimulatedHistogram(lengths)
        self.output_length = SimulatedHistogram(lengths)
        self.max_output_length = SimulatedHistogram(lengths)
        self.params_max_tokens = SimulatedHistogram(lengths)
        self.prefill_computed = SimulatedHistogram(lengths)
        self.params_n = SimulatedHistogram(PARAMS_N_BOUNDS)
        self.request_preemptions = SimulatedHistogram(PREEMPTION_BOUNDS)
        self.iteration_tokens = SimulatedHistogram(ITERATION_BOUNDS)
