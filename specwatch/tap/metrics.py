"""What the tap counts, as metrics of prometheus-client.

Plain counters and histograms, since only these work in the multi-process mode in which vLLM runs
several API servers. The children of a model and bucket, or segment, are looked up once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from specwatch.domain.model import prompt_length_label
from specwatch.engines.acceptance import Acceptance
from specwatch.engines.base import Family
from specwatch.engines.tap import SEGMENTS, TAP
from specwatch.tap.outcome import RequestOutcome
from specwatch.tap.server_facts import ServerFacts

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
below 50 ms, the usual range with speculation on a GPU; of acceptance rates 20 of equal width, and
one for requests of which nothing was accepted, so that their quantiles are 0."""

_MOST_POSITIONS = 64
"""Positions with a series each; no drafter proposes as many tokens."""


class TapCounters:
    """The tap's families in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Raises ValueError when the registry has them already."""
        self._families = {family.quantity: _metric(family, registry) for family in TAP}
        self._children: dict[tuple[str, str], Callable[..., Any]] = {}
        self._registry = registry
        self._segments: dict[tuple[str, str, str], list[Callable[..., None]]] = {}
        # Shown at 0 from the start: the daemon sees by them that a tap is there.
        failures = self._families["tap_failures"]
        self._failures = {stage: failures.labels(stage) for stage in STAGES}

    @cached_property
    def _of_segments(self) -> list[Any]:
        """In the order of the families; made with the first count, as most taps have none."""
        return [_metric(family, self._registry) for family in SEGMENTS]

    def fail(self, stage: str) -> None:
        """Count a failure of the tap itself."""
        self._failures[stage].inc()

    def show_launch(self, server: ServerFacts) -> None:
        """Show the settings of the server's launch, at 0."""
        for setting in server.launch:
            self._families["launch"].labels(setting)

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
        model_name = server.model_name
        for segment in segments:
            self._count_segment((model_name, *segment), outcome)
        child = self._children.get((model_name, bucket))
        if child is None:
            families = self._families
            child = cache(lambda of, *key: families[of].labels(model_name, bucket, *key))
            self._children[model_name, bucket] = child
        if outcome.finish_reason is not None:
            child("requests", outcome.finish_reason).inc()
        if outcome.tokens:
            child("generation_tokens").inc(outcome.tokens)
        if outcome.ttft is not None:
            child("ttft").observe(outcome.ttft)
        if outcome.tpot is not None:
            child("tpot").observe(outcome.tpot)
            if outcome.tokens is not None and outcome.tokens > 1:
                prompt_length = prompt_length_label(outcome.prompt_tokens)
                child("decode_seconds", prompt_length).inc(outcome.tpot * (outcome.tokens - 1))
                child("decode_tokens", prompt_length).inc(outcome.tokens - 1)
        if outcome.acceptance is not None:
            _count_acceptance(child, outcome.acceptance)
            if outcome.ending is not None:
                child("endings", outcome.ending).inc()
        elif outcome.uncovered is not None:
            child("uncovered", outcome.uncovered).inc()

    def _count_segment(self, labels: tuple[str, str, str], outcome: RequestOutcome) -> None:
        adders = self._segments.get(labels)
        if adders is None:
            adders = [family.labels(*labels).inc for family in self._of_segments]
            self._segments[labels] = adders
        drafts, draft_tokens, accepted_tokens, requests, decode_seconds, decode_tokens = adders
        if outcome.finish_reason is not None:
            requests()
        if outcome.tpot is not None and outcome.tokens is not None and outcome.tokens > 1:
            decode_seconds(outcome.tpot * (outcome.tokens - 1))
            decode_tokens(outcome.tokens - 1)
        if (acceptance := outcome.acceptance) is not None:
            drafts(acceptance.drafts)
            draft_tokens(acceptance.draft_tokens)
            accepted_tokens(acceptance.accepted_tokens)


def _count_acceptance(child: Callable[..., Any], acceptance: Acceptance) -> None:
    child("records", acceptance.method).inc()
    child("drafts").inc(acceptance.drafts)
    child("draft_tokens").inc(acceptance.draft_tokens)
    child("accepted_tokens").inc(acceptance.accepted_tokens)
    for position, kept in enumerate((acceptance.accepted_per_position or ())[:_MOST_POSITIONS]):
        counter = child("accepted_per_position", position)
        if kept:
            counter.inc(kept)
    if acceptance.draft_tokens:
        rate = acceptance.accepted_tokens / acceptance.draft_tokens
        child("request_acceptance").observe(rate)


def _metric(family: Family, registry: CollectorRegistry) -> Any:
    labels = ["model_name", "temperature"] if family.by_temperature else []
    if family.by_segment:
        labels = ["model_name", "segment", "value"]
    labels += [family.label] if family.label else []
    if family.kind == "counter":
        return Counter(family.exposed, family.help, labels, registry=registry)
    bounds = BOUNDS[family.quantity]
    return Histogram(family.exposed, family.help, labels, registry=registry, buckets=bounds)
