"""What the tap counts.

In one process, totals in memory that a collector shows: an addition costs a quarter of that of a
counter of prometheus-client. In the multi-process mode, in which vLLM runs several API servers,
only the counters and histograms of prometheus-client work. The children of a model and bucket, or
segment, are looked up once and kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, values
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from specwatch_tap.acceptance import Acceptance
from specwatch_tap.families import SEGMENTS, TAP, Family
from specwatch_tap.outcome import RequestOutcome
from specwatch_tap.segment_kinds import prompt_length_label
from specwatch_tap.server_facts import ServerFacts

STAGES = ("request", "response", "count")
"""Where the tap itself may fail."""

BOUNDS = {
    "ttft": (
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
        1,
        2.5,
        5,
        7.5,
        10,
        20,
        40,
        80,
        160,
        640,
        2560,
    ),
    "tpot": (
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
        1,
        2.5,
        5,
        7.5,
        10,
        20,
        40,
        80,
    ),
    "request_acceptance": tuple(step / 20 for step in range(21)),
}
"""Upper bounds of the histograms: of latencies all that vLLM has, in seconds, and for TPOT more
below 50 ms, the usual range with speculation on a GPU; of acceptance rates 20 of equal width, and
one for requests of which nothing was accepted, so that their quantiles are 0."""

_MOST_POSITIONS = 64
"""Positions with a series each; no drafter proposes as many tokens."""


class _Child(Protocol):
    """The part of a counter's or histogram's child that is used here."""

    def inc(self, amount: float = 1) -> None: ...

    def observe(self, amount: float) -> None: ...


class TapCounters(Collector):
    """The tap's families in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Raises ValueError when the registry has them already."""
        self._registry = registry
        self._lock = threading.Lock()
        self._totals: list[_Totals] = []
        in_one_process = values.ValueClass is values.MutexValue
        self._of_tap = self._made(TAP, in_one_process)
        if in_one_process:
            registry.register(self)
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self._segments: dict[tuple[str, str, str], list[_Child]] = {}
        # Shown at 0 from the start: the daemon sees by them that a tap is there.
        self._failures = {stage: self._of_tap["tap_failures"].labels(stage) for stage in STAGES}

    def _made(self, families: Iterable[Family], in_one_process: bool) -> dict[str, Any]:
        if not in_one_process:
            return {family.quantity: _metric(family, self._registry) for family in families}
        made = {family.quantity: _Totals(family) for family in families}
        self._totals = [*self._totals, *made.values()]
        return made

    @cached_property
    def _of_segments(self) -> dict[str, Any]:
        """In the order of the families; made with the first count, as most taps have none."""
        return self._made(SEGMENTS, bool(self._totals))

    def describe(self) -> Iterator[Metric]:
        """The families without their values, by which a registry knows their names."""
        return (totals.empty() for totals in self._totals)

    def collect(self) -> list[Metric]:
        """The families as they are between two requests."""
        with self._lock:
            return [totals.metric() for totals in self._totals]

    def fail(self, stage: str) -> None:
        """Count a failure of the tap itself."""
        with self._lock:
            self._failures[stage].inc()

    def show_launch(self, server: ServerFacts) -> None:
        """Show the settings of the server's launch, at 0."""
        with self._lock:
            for setting in server.launch:
                self._of_tap["launch"].labels(setting)

    def count(
        self,
        server: ServerFacts,
        bucket: str,
        outcome: RequestOutcome,
        segments: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Count one request, in its bucket and its segments (kind and value).

        Each metric of a model and bucket appears with its first count, those of a segment at once.
        """
        with self._lock:
            for segment in segments:
                self._count_segment((server.model_name, *segment), outcome)
            labels = server.model_name, bucket
            children = self._buckets.get(labels)
            if children is None:
                children = self._buckets[labels] = _Bucket(self._of_tap, labels)
            _count(children, outcome)

    def _count_segment(self, labels: tuple[str, str, str], outcome: RequestOutcome) -> None:
        children = self._segments.get(labels)
        if children is None:
            children = [family.labels(*labels) for family in self._of_segments.values()]
            self._segments[labels] = children
        drafts, draft_tokens, accepted_tokens, requests, decode_seconds, decode_tokens = children
        if outcome.finish_reason is not None:
            requests.inc()
        if outcome.tpot is not None and outcome.tokens is not None and outcome.tokens > 1:
            decode_seconds.inc(outcome.tpot * (outcome.tokens - 1))
            decode_tokens.inc(outcome.tokens - 1)
        if (acceptance := outcome.acceptance) is not None:
            drafts.inc(acceptance.drafts)
            draft_tokens.inc(acceptance.draft_tokens)
            accepted_tokens.inc(acceptance.accepted_tokens)


class _Bucket:
    """The children of one model and temperature bucket, by quantity and further label.

    An attribute or key that is missing makes the child.
    """

    drafts: _Child
    draft_tokens: _Child
    accepted_tokens: _Child
    generation_tokens: _Child
    ttft: _Child
    tpot: _Child
    request_acceptance: _Child
    requests: _ByLabel
    decode_seconds: _ByLabel
    decode_tokens: _ByLabel
    records: _ByLabel
    endings: _ByLabel
    uncovered: _ByLabel

    def __init__(self, families: dict[str, Any], labels: tuple[str, str]) -> None:
        self._families = families
        self._labels = labels
        self.positions: list[_Child] = []
        for quantity in (
            "requests",
            "decode_seconds",
            "decode_tokens",
            "records",
            "endings",
            "uncovered",
        ):
            setattr(self, quantity, _ByLabel(families[quantity], labels))

    def position(self, position: int) -> Any:
        """The child of a position, made at each call."""
        return self._families["accepted_per_position"].labels(*self._labels, position)

    def __getattr__(self, quantity: str) -> Any:
        child = self._families[quantity].labels(*self._labels)
        setattr(self, quantity, child)
        return child


class _ByLabel(dict[str, _Child]):
    """Children of one family by the label that it has beside model and bucket."""

    def __init__(self, family: Any, labels: tuple[str, str]) -> None:
        super().__init__()
        self._family = family
        self._labels = labels

    def __missing__(self, label: str) -> _Child:
        child: _Child = self._family.labels(*self._labels, label)
        self[label] = child
        return child


def _count(of: _Bucket, outcome: RequestOutcome) -> None:
    tokens, tpot = outcome.tokens, outcome.tpot
    if outcome.finish_reason is not None:
        of.requests[outcome.finish_reason].inc()
    if tokens:
        of.generation_tokens.inc(tokens)
    if outcome.ttft is not None:
        of.ttft.observe(outcome.ttft)
    if tpot is not None:
        of.tpot.observe(tpot)
        if tokens is not None and tokens > 1:
            prompt_length = prompt_length_label(outcome.prompt_tokens)
            of.decode_seconds[prompt_length].inc(tpot * (tokens - 1))
            of.decode_tokens[prompt_length].inc(tokens - 1)
    if outcome.acceptance is not None:
        _count_acceptance(of, outcome.acceptance)
        if (ending := outcome.ending) is not None:
            of.endings[ending].inc()
    elif outcome.uncovered is not None:
        of.uncovered[outcome.uncovered].inc()


def _count_acceptance(of: _Bucket, acceptance: Acceptance) -> None:
    of.records[acceptance.method].inc()
    of.drafts.inc(acceptance.drafts)
    of.draft_tokens.inc(acceptance.draft_tokens)
    of.accepted_tokens.inc(acceptance.accepted_tokens)
    if accepted := acceptance.accepted_per_position:
        positions = of.positions
        if len(positions) < len(accepted):
            for position in range(len(positions), min(len(accepted), _MOST_POSITIONS)):
                positions.append(of.position(position))
        for counter, kept in zip(positions, accepted, strict=False):
            if kept:
                counter.inc(kept)
    if acceptance.draft_tokens:
        of.request_acceptance.observe(acceptance.accepted_tokens / acceptance.draft_tokens)


class _Totals:
    """A family in memory; one thread at a time may change or read it."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._children: dict[tuple[str, ...], _Sum | _Distribution] = {}

    def labels(self, *labels: str | int) -> _Sum | _Distribution:
        """The child with the values of the labels, made at the first call."""
        key = tuple(map(str, labels))
        child = self._children.get(key)
        if child is None:
            histogram = self._family.kind == "histogram"
            child = _Distribution(BOUNDS[self._family.quantity]) if histogram else _Sum()
            self._children[key] = child
        return child

    def empty(self) -> CounterMetricFamily | HistogramMetricFamily:
        """The family without children."""
        family = self._family
        kind = CounterMetricFamily if family.kind == "counter" else HistogramMetricFamily
        return kind(family.exposed, family.help, labels=family.labels)

    def metric(self) -> Any:
        """The family with its children now."""
        metric: Any = self.empty()
        for labels, child in self._children.items():
            child.add_to(metric, labels)
        return metric


class _Sum:
    """A counter's child."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: float = 0

    def inc(self, amount: float = 1) -> None:
        self._value += amount

    def add_to(self, metric: CounterMetricFamily, labels: Sequence[str]) -> None:
        metric.add_metric(labels, self._value)


class _Distribution:
    """A histogram's child."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, amount: float) -> None:
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def add_to(self, metric: HistogramMetricFamily, labels: Sequence[str]) -> None:
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        metric.add_metric(labels, buckets, self._sum)


def _metric(family: Family, registry: CollectorRegistry) -> Any:
    labels = family.labels
    if family.kind == "counter":
        return Counter(family.exposed, family.help, labels, registry=registry)
    bounds = BOUNDS[family.quantity]
    return Histogram(family.exposed, family.help, labels, registry=registry, buckets=bounds)
