"""What the tap counts, as metrics of prometheus-client.

Plain counters and histograms, since those alone survive the multi-process mode in which vLLM runs
several API servers. A model's and bucket's children are looked up once and kept.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from specwatch.engines.acceptance import Acceptance
from specwatch.engines.base import Family
from specwatch.engines.tap import TAP
from specwatch.tap.outcome import Outcome

STAGES = ("request", "response", "count")
"""Where the tap itself may fail."""

BOUNDS = {
    "ttft": (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
        40, 80, 160, 640, 2560,
    ),
    "tpot": (
        0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.0375,
        0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
    ),
    "request_acceptance": tuple(step / 20 for step in range(21)),
}  # fmt: skip
"""Upper bounds of the histograms: of latencies all that vLLM has, in seconds, and for TPOT more
below 50 ms, where speculation on a GPU lives; of acceptance rates 20 of equal width, and one for
requests of which nothing was accepted, which interpolation would give a share of the first."""

_MOST_POSITIONS = 64
"""Positions that are told apart: far more than any drafter proposes."""


class Counters:
    """The tap's families in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Raises ValueError when the registry has them already."""
        self._families = _Families(
            {f.quantity: _counter(f, registry) for f in TAP if f.kind == "counter"},
            {f.quantity: _histogram(f, registry) for f in TAP if f.kind == "histogram"},
        )
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        # None so far: the sign on a page that a tap is there.
        failures = self._families.counters["tap_failures"]
        self._failures = {stage: failures.labels(stage) for stage in STAGES}

    def fail(self, stage: str) -> None:
        """Count a failure of the tap itself."""
        self._failures[stage].inc()

    def count(self, model_name: str, bucket: str, outcome: Outcome) -> None:
        """Count one request."""
        counters = self._buckets.get((model_name, bucket))
        if counters is None:
            counters = _Bucket(self._families, (model_name, bucket))
            self._buckets[model_name, bucket] = counters
        counters.count(outcome)


class _Families(NamedTuple):
    counters: dict[str, Counter]
    histograms: dict[str, Histogram]


class _Bucket:
    """The metrics of one model and temperature bucket; each appears with its first count."""

    def __init__(self, families: _Families, labels: tuple[str, str]) -> None:
        counters, histograms = families
        self._counter = cache(lambda of, *key: counters[of].labels(*labels, *key))
        self._histogram = cache(lambda of: histograms[of].labels(*labels))

    def count(self, outcome: Outcome) -> None:
        if outcome.finish_reason is not None:
            self._counter("requests", outcome.finish_reason).inc()
        if outcome.tokens:
            self._counter("generation_tokens").inc(outcome.tokens)
        if outcome.ttft is not None:
            self._histogram("ttft").observe(outcome.ttft)
        if outcome.tpot is not None:
            self._histogram("tpot").observe(outcome.tpot)
        if outcome.acceptance is not None:
            self._count_acceptance(outcome.acceptance)
        elif outcome.uncovered is not None:
            self._counter("uncovered", outcome.uncovered).inc()

    def _count_acceptance(self, acceptance: Acceptance) -> None:
        counter = self._counter
        counter("records", acceptance.method).inc()
        counter("drafts").inc(acceptance.drafts)
        counter("draft_tokens").inc(acceptance.draft_tokens)
        counter("accepted_tokens").inc(acceptance.accepted_tokens)
        for position, kept in enumerate((acceptance.accepted_per_position or ())[:_MOST_POSITIONS]):
            child = counter("accepted_per_position", position)
            if kept:
                child.inc(kept)
        if acceptance.draft_tokens:
            rate = acceptance.accepted_tokens / acceptance.draft_tokens
            self._histogram("request_acceptance").observe(rate)


def _counter(family: Family, registry: CollectorRegistry) -> Counter:
    return Counter(family.exposed, family.help, _labels(family), registry=registry)


def _histogram(family: Family, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        family.exposed,
        family.help,
        _labels(family),
        buckets=BOUNDS[family.quantity],
        registry=registry,
    )


def _labels(family: Family) -> list[str]:
    by_temperature = ["model_name", "temperature"] if family.by_temperature else []
    return [*by_temperature, *([family.label] if family.label else [])]
