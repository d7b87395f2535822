"""Figures as text; ``-`` means unknown or not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from specwatch.domain.experiments import Estimate
from specwatch.domain.histogram import wide
from specwatch.domain.interval import Interval
from specwatch.domain.model import EVENTS
from specwatch.wording.text import LONGEST_SENTENCE, shown

if TYPE_CHECKING:
    from specwatch.rules.decision_view import MeasuredSpeedup
    from specwatch.rules.summary import LatencyView, RequestAcceptance
    from specwatch.status import SourceStatus

UNKNOWN = "-"
_MOST_FILES = 3
_MOST_TIMES = 99
"""The largest multiple of a budget that is shown."""
_UNITS = ("", "k", "M", "G", "T", "P", "E")
HUGE = 1e15
"""Larger numbers are shown as unknown: no measured value is as large."""


def finite(value: float | None) -> float | None:
    """The number; None for NaN, infinity and numbers beyond :data:`HUGE`."""
    # Every comparison with NaN is false.
    return float(value) if value is not None and -HUGE < value < HUGE else None


def number(value: float | None, digits: int = 0) -> str:
    """``2,940``, ``3.37``."""
    value = finite(value)
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def compact(value: float | None) -> str:
    """At most five characters: ``940``, ``12.3k``, ``1.24M``, ``310G``."""
    if value is None or not abs(value) < 1000 ** len(_UNITS):
        return UNKNOWN
    if value < 1000:
        return f"{value:.0f}"
    thousands = min(len(_UNITS) - 1, int(math.log10(value) / 3 + 1e-9))
    scaled = value / 1000**thousands
    digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{digits}f}{_UNITS[thousands]}"


def percent(value: float | None, digits: int = 1) -> str:
    """``59.4%``."""
    value = finite(value)
    return UNKNOWN if value is None else f"{value:.{digits}%}"


def budget_spent(spent: float | None) -> str:
    """How much of an error budget was spent: ``40%``, ``66x``; beyond 99 times ``>99x``."""
    spent = finite(spent)
    if spent is None or spent <= 1:
        return UNKNOWN if spent is None else f"{spent:.0%}"
    return ">99x" if spent > _MOST_TIMES else f"{number(spent, 1 if spent < 9.95 else 0)}x"


def budget_left(left: float | None) -> str:
    """``20% of the error budget left``; ``used 66 times its error budget`` below nothing."""
    if left is None or left >= 0:
        return UNKNOWN if left is None else f"{left:.0%} of the error budget left"
    times = budget_spent(max(1 - left, 1.001)).rstrip("x").replace(">", "more than ")
    return f"used {times} times its error budget"


def percents(quantiles: RequestAcceptance | None, separator: str = "/") -> str:
    """P10, P50 and P90 of a ratio as whole percents, such as ``12/59/100``."""
    if quantiles is None:
        return UNKNOWN
    values = [value for value in (quantiles.p10, quantiles.p50, quantiles.p90) if value is not None]
    return separator.join(f"{100 * value:.0f}" for value in values) if len(values) == 3 else UNKNOWN


def rate(value: float | None, of: float | None) -> str:
    """A rate with the digits that fit the total ``of``: ``2.10`` of ``2.31``."""
    of = finite(of)
    if of is None:
        return UNKNOWN
    digits = 2 if of <= 0 else min(max(2 - math.floor(math.log10(of)), 0), 4)
    return number(value, digits)


def times(ratio: Estimate | Interval | MeasuredSpeedup) -> str:
    """How many times as fast: ``1.42x (1.30 to 1.55)``; ``1.42x`` without an interval."""
    if ratio.lower is None or ratio.upper is None:
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x ({ratio.lower:.2f} to {ratio.upper:.2f})"


def between(lower: str, upper: str) -> str:
    """``1.82 to 2.10``; one figure if both bounds look alike."""
    return lower if lower == upper else f"{lower} to {upper}"


def seconds(value: float | None) -> str:
    """Three digits of seconds in a fitting unit: ``5.90 ms``, ``235 ms``, ``10.0 s``."""
    value = finite(value)
    if value is None:
        return UNKNOWN
    if not value:
        return "0 s"
    scaled, unit = (value, "s") if abs(value) >= 0.9995 else (value * 1000, "ms")
    decimals = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
    return f"{scaled:,.{decimals}f} {unit}"


def bounded(value: float | None, *, beyond: bool) -> str:
    """Seconds, as a histogram knows them; ``> 10 s`` where they lie beyond its last bound."""
    value = finite(value)
    return f"> {value:,.5g} s" if beyond and value is not None else seconds(value)


def within(lower: float, upper: float) -> str:
    """The bounds of a bucket, in seconds: ``10 to 25 ms``, ``0.75 to 1 s``, ``up to 1 ms``."""
    factor, unit = (1, "s") if upper >= 1 else (1000, "ms")
    high = f"{upper * factor:,.4g} {unit}"
    return f"{lower * factor:,.4g} to {high}" if lower > 0 else f"up to {high}"


def quantile(latency: LatencyView | None, name: str) -> str:
    """A quantile of a latency, such as ``p99``: ``235 ms``; ``> 10 s`` beyond the last bound,
    ``~15 ms`` where its bucket is wide."""
    if latency is None:
        return UNKNOWN
    value: float | None = getattr(latency, name)
    bucket = latency.buckets.get(name)
    if bucket is not None and value and wide(*bucket):
        factor, unit = (1, "s") if value >= 0.995 else (1000, "ms")
        return f"~{float(f'{value * factor:.2g}'):,g} {unit}"
    # Beyond the last bound every quantile has that bound for its value.
    return bounded(value, beyond=latency.open_ended and value == latency.p99)


def mean(latency: LatencyView | None) -> str:
    """The mean of a latency."""
    if latency is None or not latency.count or latency.sum is None:
        return UNKNOWN
    return seconds(latency.sum / latency.count)


def span(length: float | None) -> str:
    """A length of time in seconds, roughly: ``3 s``, ``12 min``, ``5 h``, ``3 days``."""
    length = finite(length)
    if length is None:
        return UNKNOWN
    if length < 120:
        return f"{max(length, 0):.0f} s"
    if length < 7200:
        return f"{length / 60:.0f} min"
    return f"{length / 3600:.0f} h" if length < 172800 else f"{length / 86400:.0f} days"


def events(counts: Mapping[str, int | None], *, zero: bool = False) -> list[str]:
    """Counts of events by the name of the fact: ``3 preemptions``; those of none only if asked."""
    return [counted(count, fact.event) for fact in EVENTS if (count := counts[fact.name]) or zero]


def damaged_files(names: Sequence[str]) -> str:
    """Which damaged files were put aside, and what to do about them."""
    listed = ", ".join(shown(name) for name in names[:_MOST_FILES])
    more = f" and {len(names) - _MOST_FILES} more" if len(names) > _MOST_FILES else ""
    return (
        f"The database was damaged, and a new one was begun: {listed}{more} beside it. Check the"
        " disk; then move or delete it"
    )


def source_state(source: SourceStatus, now: float) -> str:
    """A source of discovery, its targets, and how reading it goes."""
    sentence = f"{shown(source.source, LONGEST_SENTENCE)}: "
    if source.failure is not None:
        why = shown(source.failure.detail, LONGEST_SENTENCE)
        kept = f", {counted(source.targets, 'target')} kept" if source.targets else ""
        return f"{sentence}failing for {span(now - source.failure.since)}{kept}: {why}"
    if source.last_success is None:
        return f"{sentence}not read yet"
    sentence += f"{counted(source.targets, 'target')}, read {span(now - source.last_success)} ago"
    if source.refused:
        refused = shown("; ".join(source.refused), LONGEST_SENTENCE)
        sentence += f"; listed, and not watched: {refused}"
    return sentence


def counted(count: float | None, noun: str) -> str:
    """``1 engine``, ``3 engines``."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def moment(time: float | None, *, seconds: bool = False) -> str:
    """A Unix time as ``2026-11-19 14:33 UTC``, with ``seconds`` as ``2026-11-19 14:33:05 UTC``; a
    day that no calendar has as the bare number."""
    time = finite(time)
    if time is None:
        return UNKNOWN
    try:
        return f"{datetime.fromtimestamp(time, UTC):{'%F %T' if seconds else '%F %H:%M'}} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{time:.0f}"
