"""What else was otherwise in one period than in another: it may explain what figures do not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specwatch.domain.model import HOUR, Environment, Histogram
from specwatch.domain.sample import Sample

_MARKED = 1.2
"""A mean that moved by less than this factor is not worth a look."""
_FULL = 0.9
"""KV cache usage from which on requests have to wait or give way."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure of both periods, None where unknown; ``changed`` says that it deserves a look."""

    name: str
    before: float | str | None
    now: float | str | None
    changed: bool
    sentence: str


def facts_of(now: Sequence[Sample], reference: Sequence[Sample]) -> tuple[Fact, ...]:
    """The facts of two periods: those that changed first, else in a fixed order.

    Only usable minutes with speculation count.
    """
    before, after = ([e for e in samples if e.usable()] for samples in (reference, now))
    sentences = [
        *_environment(before, after),
        _output_length(before, after),
        _kv_cache(before, after),
        _preemptions(before, after),
        _extent("minutes", before, after, len),
        _extent("drafts", before, after, _drafts),
        _extent("requests", before, after, _requests),
    ]
    return tuple(sorted(sentences, key=lambda fact: not fact.changed))


def _environment(before: Sequence[Sample], after: Sequence[Sample]) -> Iterable[Fact]:
    sides = _usual(before), _usual(after)
    parts: tuple[tuple[str, str, Callable[[Environment], str | None]], ...] = (
        ("engine_version", "engine version", lambda of: of.engine_version),
        ("configuration", "configuration", lambda of: of.configuration),
        ("draft_positions", "draft positions", _positions),
    )
    for name, words, part in parts:
        old, new = (part(side) for side in sides)
        changed = None not in (old, new) and old != new
        yield Fact(name, old, new, changed, f"{words} {old or 'unknown'} -> {new or 'unknown'}")


def _usual(samples: Sequence[Sample]) -> Environment:
    """The one of most minutes."""
    counts = Counter(sample.environment for sample in samples)
    if not counts:
        return Environment()
    return min(counts, key=lambda environment: (-counts[environment], str(environment)))


def _positions(environment: Environment) -> str | None:
    sentence = environment.fingerprint
    return None if sentence is None else sentence.partition("-")[2] or None


def _output_length(before: Sequence[Sample], after: Sequence[Sample]) -> Fact:
    old, new = (
        _mean_of([sample.tally.output_length for sample in side]) for side in (before, after)
    )
    sentence = f"output length {_number(old)} -> {_number(new)} tokens"
    return Fact("output_length", old, new, _moved(old, new), sentence)


def _kv_cache(before: Sequence[Sample], after: Sequence[Sample]) -> Fact:
    old, new = (_fullness(side) for side in (before, after))
    changed = new is not None and new >= _FULL and (old is None or old < _FULL)
    shown = ["unknown" if share is None else f"{share:.0%}" for share in (old, new)]
    return Fact("kv_cache_usage", old, new, changed, f"KV cache {shown[0]} -> {shown[1]} full")


def _fullness(samples: Sequence[Sample]) -> float | None:
    """The mean of the minutes' maxima: the maximum of a longer period would be greater."""
    known = [usage for sample in samples if (usage := sample.gauges.kv_cache_usage_max) is not None]
    return math.fsum(known) / len(known) if known else None


def _preemptions(before: Sequence[Sample], after: Sequence[Sample]) -> Fact:
    old, new = (_per_hour(side) for side in (before, after))
    changed = bool(new) and (old is None or (new or 0.0) > _MARKED * old)
    sentence = f"preemptions {_number(old)} -> {_number(new)} per hour"
    return Fact("preemptions", old, new, changed, sentence)


def _per_hour(samples: Sequence[Sample]) -> float | None:
    known = [sample for sample in samples if sample.tally.preemptions is not None]
    seconds = sum(sample.length for sample in known)
    return (
        sum(sample.tally.preemptions or 0 for sample in known) * HOUR / seconds if seconds else None
    )


def _extent(
    name: str,
    before: Sequence[Sample],
    after: Sequence[Sample],
    count: Callable[[Sequence[Sample]], int],
) -> Fact:
    old, new = count(before), count(after)
    return Fact(name, old, new, False, f"{name} {old:,} -> {new:,}")


def _drafts(samples: Sequence[Sample]) -> int:
    return sum(sample.tally.drafts or 0 for sample in samples)


def _requests(samples: Sequence[Sample]) -> int:
    return sum(sum(sample.tally.requests.values()) for sample in samples)


def _mean_of(histograms: Sequence[Histogram | None]) -> float | None:
    known = [histogram for histogram in histograms if histogram is not None]
    count = sum(observed.count for observed in known)
    return math.fsum(observed.sum for observed in known) / count if count else None


def _moved(old: float | None, new: float | None) -> bool:
    if not old or not new:
        return False
    return max(old / new, new / old) > _MARKED


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"
