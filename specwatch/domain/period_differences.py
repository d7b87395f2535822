"""Other differences between two periods, which may explain a change of the speedup."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specwatch.domain.model import EVENTS, HOUR, Environment
from specwatch.domain.sample import Sample

_MARKED = 1.2
"""Factor by which a mean has to change to be reported as changed."""
_FULL = 0.9
"""KV cache usage from which on requests wait or are preempted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of both periods, None if unknown; ``changed`` marks a notable difference."""

    name: str
    before: float | str | None
    now: float | str | None
    changed: bool
    sentence: str


def differences(now: Sequence[Sample], reference: Sequence[Sample]) -> tuple[Difference, ...]:
    """The differences of two periods: those that changed first, else in a fixed order.

    Only usable minutes with speculation count.
    """
    before, after = ([e for e in samples if e.usable()] for samples in (reference, now))
    found = [
        *_environment(before, after),
        _output_length(_mean_output(before), _mean_output(after)),
        _kv_cache(_fullness(before), _fullness(after)),
        *(
            _event(fact.name, _per_hour(fact.name, before), _per_hour(fact.name, after))
            for fact in EVENTS
        ),
        _extent("minutes", len(before), len(after)),
        _extent("drafts", *(sum(e.tally.drafts or 0 for e in side) for side in (before, after))),
        _extent(
            "requests",
            *(sum(sum(e.tally.requests.values()) for e in side) for side in (before, after)),
        ),
    ]
    return tuple(sorted(found, key=lambda each: not each.changed))


def _environment(before: Sequence[Sample], after: Sequence[Sample]) -> Iterable[Difference]:
    parts: tuple[tuple[str, str, Callable[[Environment], str | None]], ...] = (
        ("engine_version", "engine version", lambda of: of.engine_version),
        ("configuration", "configuration", lambda of: of.configuration),
        ("draft_positions", "draft positions", lambda of: of.drafting or None),
    )
    for name, words, part in parts:
        old, new = part(_usual(before)), part(_usual(after))
        changed = None not in (old, new) and old != new
        yield Difference(
            name, old, new, changed, f"{words} {old or 'unknown'} -> {new or 'unknown'}"
        )


def _usual(samples: Sequence[Sample]) -> Environment:
    """The environment of most minutes."""
    counts = Counter(sample.environment for sample in samples)
    if not counts:
        return Environment()
    return min(counts, key=lambda environment: (-counts[environment], str(environment)))


def _output_length(old: float | None, new: float | None) -> Difference:
    changed = bool(old and new and max(old / new, new / old) > _MARKED)
    sentence = f"output length {_number(old)} -> {_number(new)} tokens"
    return Difference("output_length", old, new, changed, sentence)


def _mean_output(samples: Sequence[Sample]) -> float | None:
    """Tokens."""
    lengths = [length for e in samples if (length := e.tally.output_length) is not None]
    count = sum(length.count for length in lengths)
    return math.fsum(length.sum for length in lengths) / count if count else None


def _kv_cache(old: float | None, new: float | None) -> Difference:
    changed = new is not None and new >= _FULL and (old is None or old < _FULL)
    shown = ["unknown" if share is None else f"{share:.0%}" for share in (old, new)]
    return Difference(
        "kv_cache_usage", old, new, changed, f"KV cache {shown[0]} -> {shown[1]} full"
    )


def _fullness(samples: Sequence[Sample]) -> float | None:
    """The mean of the minutes' maxima: the maximum of a longer period would be greater."""
    maxima = [usage for e in samples if (usage := e.gauges.kv_cache_usage_max) is not None]
    return math.fsum(maxima) / len(maxima) if maxima else None


def _event(name: str, old: float | None, new: float | None) -> Difference:
    changed = bool(new and (old is None or new > _MARKED * old))
    words = name.replace("_", " ")
    sentence = f"{words} {_number(old)} -> {_number(new)} per hour"
    return Difference(name, old, new, changed, sentence)


def _per_hour(name: str, samples: Sequence[Sample]) -> float | None:
    """Events per hour of the minutes that count them."""
    counts = [
        (count, sample.length)
        for sample in samples
        if (count := getattr(sample.tally, name)) is not None
    ]
    seconds = sum(length for _, length in counts)
    return sum(count for count, _ in counts) * HOUR / seconds if seconds else None


def _extent(name: str, old: int, new: int) -> Difference:
    return Difference(name, old, new, False, f"{name} {old:,} -> {new:,}")


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"
