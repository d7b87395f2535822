"""The metrics page of a simulated server, as vLLM 0.32 writes it, and the tap's part of it."""

from __future__ import annotations

import bisect
from itertools import accumulate

import numpy as np

from specwatch_tap.acceptance import Acceptance
from specwatch_tap.outcome import RequestOutcome
from tests.worlds.serving import FIRST_TOKEN_TIMES, Counts, Engine, Histogram
from tests.worlds.traffic import Request

MODEL = "llama"
TEMPERATURES = ("0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1")
TEMPERATURE_EDGES = (0.0, 0.3, 0.7, 1.0)
TAP_TOKEN_TIMES = (
    0.001,
    0.002,
    0.003,
    0.004,
    0.005,
    0.006,
    0.008,
    0.01,
    0.0125,
    0.015,
    0.02,
    0.025,
    0.0375,
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
RATIOS = tuple(step / 20 for step in range(1, 21))

_ENGINE = f'engine="0",model_name="{MODEL}"'
_HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "ttft"),
    ("vllm:inter_token_latency_seconds", "inter_token"),
    ("vllm:request_time_per_output_token_seconds", "tpot"),
    ("vllm:e2e_request_latency_seconds", "e2e"),
    ("vllm:request_generation_tokens", "output_length"),
    ("vllm:request_prompt_tokens", "prompt_length"),
)


class TapBucket:
    """What the tap has counted of the requests of one temperature bucket."""

    def __init__(self, label: str, k: int) -> None:
        self.drafts_by_kept = np.zeros(k + 1, dtype=np.int64)
        self.endings = {"loop": 0, "usual": 0}
        self.generation_tokens = 0
        self.requests = {"stop": 0, "length": 0}
        self.ratio = Histogram(RATIOS)
        self.ttft = Histogram(FIRST_TOKEN_TIMES)
        self.tpot = Histogram(TAP_TOKEN_TIMES)
        self._label, self._k = label, k
        self._lines: dict[str, str] | None = None

    def count(self, request: Request, end: float, drafts_by_kept: np.ndarray | None) -> None:
        """Count a request that is done."""
        self._lines = None
        self.requests[request.reason] += 1
        self.generation_tokens += request.output
        self.ttft.observe(request.first - request.arrival)
        if request.output > 1:
            self.tpot.observe((end - request.first) / (request.output - 1))
        if drafts_by_kept is not None:
            self.drafts_by_kept += drafts_by_kept
            drafts = int(drafts_by_kept.sum())
            kept = int(drafts_by_kept @ np.arange(self._k + 1))
            record = Acceptance("record", drafts, drafts * self._k, kept)
            ending = RequestOutcome(finish_reason=request.reason, acceptance=record).ending
            self.endings[ending or "usual"] += 1
            self.ratio.observe(kept / (drafts * self._k))

    def lines(self) -> dict[str, str]:
        """Its lines of each family."""
        if self._lines is None:
            self._lines = self._written()
        return self._lines

    def _written(self) -> dict[str, str]:
        labels = f'model_name="{MODEL}"'
        mark = f'temperature="{self._label}"'
        both = f"{{{labels},{mark}}}"
        lines: dict[str, str] = {}
        drafting_requests = sum(self.endings.values())
        if drafting_requests:
            drafts, kept = _drafts_and_kept(self.drafts_by_kept)
            lines["specwatch_drafts"] = f"specwatch_drafts_total{both} {drafts}.0\n"
            proposed = drafts * self._k
            lines["specwatch_draft_tokens"] = f"specwatch_draft_tokens_total{both} {proposed}.0\n"
            lines["specwatch_accepted_tokens"] = (
                f"specwatch_accepted_tokens_total{both} {sum(kept)}.0\n"
            )
            lines["specwatch_accepted_tokens_per_position"] = "".join(
                f"specwatch_accepted_tokens_per_position_total"
                f'{{{labels},position="{position}",{mark}}} {number}.0\n'
                for position, number in enumerate(kept)
            )
            lines["specwatch_tap_records"] = (
                f'specwatch_tap_records_total{{method="record",{labels},{mark}}}'
                f" {drafting_requests}.0\n"
            )
            lines["specwatch_tap_request_endings"] = "".join(
                f'specwatch_tap_request_endings_total{{ending="{ending}",{labels},{mark}}}'
                f" {number}.0\n"
                for ending, number in self.endings.items()
                if number
            )
            lines["specwatch_request_acceptance_ratio"] = _histogram(
                "specwatch_request_acceptance_ratio", self.ratio, labels, mark
            )
        lines["specwatch_generation_tokens"] = (
            f"specwatch_generation_tokens_total{both} {self.generation_tokens}.0\n"
        )
        lines["specwatch_requests"] = "".join(
            f'specwatch_requests_total{{finish_reason="{reason}",{labels},{mark}}} {number}.0\n'
            for reason, number in self.requests.items()
            if number
        )
        for name, histogram in (
            ("specwatch_time_to_first_token_seconds", self.ttft),
            ("specwatch_time_per_output_token_seconds", self.tpot),
        ):
            lines[name] = _histogram(name, histogram, labels, mark)
        return lines


_TAP_FAMILIES = (
    ("specwatch_drafts", "counter"),
    ("specwatch_draft_tokens", "counter"),
    ("specwatch_accepted_tokens", "counter"),
    ("specwatch_accepted_tokens_per_position", "counter"),
    ("specwatch_generation_tokens", "counter"),
    ("specwatch_requests", "counter"),
    ("specwatch_request_acceptance_ratio", "histogram"),
    ("specwatch_time_to_first_token_seconds", "histogram"),
    ("specwatch_time_per_output_token_seconds", "histogram"),
    ("specwatch_tap_records", "counter"),
    ("specwatch_tap_request_endings", "counter"),
)


class Tap:
    """The tap of one process of the server: counts requests when they are done."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._buckets: dict[str, TapBucket] = {}

    def __call__(self, request: Request, end: float, drafts_by_kept: np.ndarray | None) -> None:
        if not request.tapped:
            return
        label = TEMPERATURES[bisect.bisect_left(TEMPERATURE_EDGES, request.temperature)]
        bucket = self._buckets.get(label)
        if bucket is None:
            bucket = self._buckets[label] = TapBucket(label, self._k)
        bucket.count(request, end, drafts_by_kept)

    def page(self) -> str:
        """The lines of all its families."""
        buckets = [bucket.lines() for bucket in self._buckets.values()]
        parts: list[str] = []
        for name, kind in _TAP_FAMILIES:
            total = name + "_total" if kind == "counter" else name
            parts.append(f"# HELP {total} Of requests.\n# TYPE {total} {kind}\n")
            parts.extend(lines.get(name, "") for lines in buckets)
        parts.append(
            "# HELP specwatch_tap_failures_total Failures of the tap itself.\n"
            "# TYPE specwatch_tap_failures_total counter\n"
            'specwatch_tap_failures_total{stage="request"} 0.0\n'
        )
        return "".join(parts)


class MetricsPage:
    """Writes the page of one process of the server."""

    def __init__(self, engine: Engine, process_start: float, tap: Tap | None = None) -> None:
        """``process_start`` is in seconds since the Unix epoch."""
        self._engine, self._tap = engine, tap
        self._template = _template(engine, process_start)

    def text(self) -> str:
        """The page as of the time that the engine was advanced to."""
        engine = self._engine
        engine.flush()
        counts: Counts = engine.counts
        values: list[float] = []
        if engine.positions:
            drafts, kept = 0, [0] * engine.positions
            if engine.k:
                drafts, kept = _drafts_and_kept(counts.steps_by_kept)
            values += (drafts, drafts * engine.k, sum(kept), *kept)
        values += (
            engine.shown_running,
            len(engine.waiting),
            engine.cache_usage,
            counts.prefix_queries,
            counts.prefix_hits,
            counts.prompt_tokens,
            counts.generation_tokens,
            counts.requests["stop"],
            counts.requests["length"],
        )
        for _, attribute in _HISTOGRAMS:
            histogram: Histogram = getattr(counts, attribute)
            totals = list(accumulate(histogram.buckets))
            values += totals
            values += (histogram.sum, totals[-1])
        text = self._template % tuple(values)
        return text + self._tap.page() if self._tap is not None else text


def _drafts_and_kept(drafts_by_kept: np.ndarray) -> tuple[int, list[int]]:
    """Drafts altogether, and those that kept the token at each position."""
    reached = [int(number) for number in drafts_by_kept[::-1].cumsum()[::-1]]
    return reached[0], reached[1:]


def _histogram(name: str, histogram: Histogram, before: str, after: str) -> str:
    totals = list(accumulate(histogram.buckets))
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    lines = [
        f'{name}_bucket{{le="{bound}",{before},{after}}} {total}.0\n'
        for bound, total in zip(bounds, totals, strict=True)
    ]
    lines.append(f"{name}_count{{{before},{after}}} {totals[-1]}.0\n")
    lines.append(f"{name}_sum{{{before},{after}}} {histogram.sum!r}\n")
    return "".join(lines)


def _head(name: str, kind: str) -> str:
    return f"# HELP {name} Of the simulated server.\n# TYPE {name} {kind}\n"


def _template(engine: Engine, process_start: float) -> str:
    """The page with a place for each value that changes."""
    parts = [
        _head("process_start_time_seconds", "gauge"),
        f"process_start_time_seconds {process_start!r}\n",
    ]
    if engine.positions:
        name = "vllm:spec_decode_num_"
        for counter in ("drafts_total", "draft_tokens_total", "accepted_tokens_total"):
            parts += (_head(name + counter, "counter"), f"{name}{counter}{{{_ENGINE}}} %d.0\n")
        name += "accepted_tokens_per_pos_total"
        parts.append(_head(name, "counter"))
        parts += (f'{name}{{{_ENGINE},position="{i}"}} %d.0\n' for i in range(engine.positions))
    for name, kind, value in (
        ("vllm:num_requests_running", "gauge", "%d.0"),
        ("vllm:num_requests_waiting", "gauge", "%d.0"),
        ("vllm:kv_cache_usage_perc", "gauge", "%r"),
        ("vllm:prefix_cache_queries_total", "counter", "%d.0"),
        ("vllm:prefix_cache_hits_total", "counter", "%d.0"),
        ("vllm:num_preemptions_total", "counter", "0.0"),
        ("vllm:prompt_tokens_total", "counter", "%d.0"),
        ("vllm:generation_tokens_total", "counter", "%d.0"),
    ):
        parts += (_head(name, kind), f"{name}{{{_ENGINE}}} {value}\n")
    name = "vllm:request_success_total"
    parts.append(_head(name, "counter"))
    for reason, value in (("stop", "%d"), ("length", "%d"), ("abort", "0"), ("error", "0")):
        labels = f'engine="0",finished_reason="{reason}",model_name="{MODEL}"'
        parts.append(f"{name}{{{labels}}} {value}.0\n")
    for name, attribute in _HISTOGRAMS:
        parts.append(_head(name, "histogram"))
        bounds = (*map(repr, getattr(engine.counts, attribute).bounds), "+Inf")
        for bound in bounds:
            labels = f'engine="0",le="{bound}",model_name="{MODEL}"'
            parts.append(f"{name}_bucket{{{labels}}} %d.0\n")
        parts.append(f"{name}_sum{{{_ENGINE}}} %r\n{name}_count{{{_ENGINE}}} %d.0\n")
    labels = f'block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="{engine.blocks}"'
    name = "vllm:cache_config_info"
    parts += (_head(name, "gauge"), f"{name}{{{labels}}} 1.0\n")
    return "".join(parts)
