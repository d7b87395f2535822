"""Increments of a server's counters from page to page, through restarts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from specwatch.domain.model import Series
from specwatch.engines.sample_names import GAUGES
from specwatch.errors import PageError, ScrapeReason

MOST_SERIES = 100_000
"""Counters that are remembered of one server, including those no longer on its page."""


MOST_PROCESSES = 1000
"""Processes at one URL that are remembered."""


class Increments(NamedTuple):
    """What a server counted between two pages."""

    values: dict[Series, float]
    restarted: bool


class CounterTracker:
    """Turns the counters of one server into increments, through restarts.

    A page comes from one process. If any counter fell, the process start time changed, or no
    earlier counter is left, there was a restart: all counters began again at zero, and the new
    value is the increment. On a page without a process start time, a single histogram bucket that
    fell is a restart as well. A counter that is missing from a page keeps its last value, so that
    it is not counted twice when it comes back.

    The sum of a histogram is not a true counter: an observation may be negative (a latency across a
    clock step), and the sums of several processes are added in any order, which changes the last
    digits. So a fallen sum is a restart only on a page without a process start time, and only
    beyond rounding.
    """

    def __init__(
        self, last: Mapping[Series, float] | None = None, process_start: float | None = None
    ) -> None:
        self.last = last
        self.process_start = process_start

    def advance(self, samples: Mapping[Series, float]) -> Increments:
        """Increments since the page before; empty for the first page.

        Raises PageError(``not_a_number``) and changes nothing when a counter is NaN, infinite or
        negative (the sum of a histogram may be negative).
        """
        counters = {s: v for s, v in samples.items() if s.quantity not in GAUGES}
        start = process_start(samples)
        if self.last is None:
            check(counters.items(), LARGEST)
            self.last, self.process_start = counters, start
            return Increments({}, restarted=False)
        known = start is not None and self.process_start is not None
        restarted = (
            (known and start != self.process_start)
            or (bool(counters and self.last) and counters.keys().isdisjoint(self.last))
            or (not known and _bounds_changed(counters, self.last))
        )
        increments = counters if restarted else _subtract(counters, self.last, same_process=known)
        if increments is None or (not known and _bucket_fell(increments, counters)):
            increments, restarted = counters, True
        if restarted:
            check(counters.items(), LARGEST)
        elif any(series not in counters for series in self.last):
            counters = self._with_missing(counters)
        self.last = counters
        self.process_start = start if start is not None or restarted else self.process_start
        return Increments(increments, restarted)

    def _with_missing(self, counters: Mapping[Series, float]) -> dict[Series, float]:
        known = {**(self.last or {}), **counters}
        if len(known) > MOST_SERIES:
            raise PageError(
                ScrapeReason.INCONSISTENT,
                f"{len(known)} counters came and went: expected at most {MOST_SERIES} on one"
                " server, the same on every page",
            )
        return known


def process_start(samples: Mapping[Series, float]) -> float | None:
    """``process_start_time_seconds`` of a page; None in multi-process mode or if not finite."""
    start = samples.get(_PROCESS_START)
    return start if start is not None and math.isfinite(start) else None


class Processes:
    """Which processes answer at one URL: more than one at a time where it is a load balancer's."""

    def __init__(self) -> None:
        self._left: set[float] = set()
        """Starts of processes after which another one answered."""
        self.alternated_at: float | None = None
        """When one of them answered again last, in Unix seconds."""

    def is_another(
        self, before: float | None, start: float | None, seen_at: float | None, now: float
    ) -> bool:
        """Whether a page is of a process that has run beside that of the page before, at
        ``seen_at``: nothing that it has counted by ``now`` was counted here.

        ``before`` and ``start`` are the starts of both. All times are in Unix seconds;
        ``seen_at`` is None if the clock was set since.
        """
        if before is None or start is None or start == before:
            return False
        if len(self._left) == MOST_PROCESSES:
            self._left.clear()
        self._left.add(before)
        if start in self._left:
            self.alternated_at = now
            return True
        return seen_at is not None and start < seen_at - _CLOCKS


_CLOCKS = 120.0
"""Seconds by which the clocks of a server and of this machine may differ."""
_ROUNDING = 1e-9
"""Largest fall of a sum, as a share of it, that rounding alone explains."""

LARGEST = 2.0**62
"""No server counts this far; larger values would neither add up nor fit into a database."""

_PROCESS_START = Series("process_start", "", "", "", "")


def _subtract(
    counters: Mapping[Series, float], last: Mapping[Series, float], *, same_process: bool
) -> dict[Series, float] | None:
    """Differences, or None when a counter fell as it does in a restart."""
    increments: dict[Series, float] = {}
    fell = False
    for series, value in counters.items():
        increment = value - last.get(series, 0.0)
        if not (increment >= 0.0 and value < LARGEST):
            check([(series, value)], LARGEST)
            noise = math.inf if same_process else _ROUNDING * abs(last.get(series, 0.0))
            fell = fell or series.part != "sum" or -increment > noise
        increments[series] = increment
    return None if fell else increments


def increments_of(
    counters: Mapping[Series, float], last: Mapping[Series, float]
) -> dict[Series, float] | None:
    """What was counted since an earlier page; None where a counter fell. Neither page says when its
    process started. Raises PageError(``not_a_number``)."""
    increments = _subtract(counters, last, same_process=False)
    if increments is None or counters.keys().isdisjoint(last) or _bucket_fell(increments, counters):
        return None
    return increments


def _bucket_fell(increments: Mapping[Series, float], counters: Mapping[Series, float]) -> bool:
    """Whether a bucket lost observations although no cumulative count fell."""
    return not _cumulative(increments) and _cumulative(counters)


def _cumulative(values: Mapping[Series, float]) -> bool:
    """Whether the counts of every histogram grow with the bound."""
    histograms: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for series, value in values.items():
        if series.part == "bucket":
            try:
                bound = float(series.key)
            except ValueError:
                continue  # reported when the histogram is read
            key = (series.quantity, series.model_name, series.engine, series.segment)
            histograms.setdefault(key, []).append((bound, value))
    return all(
        lower[1] <= upper[1]
        for buckets in histograms.values()
        for lower, upper in pairwise(sorted(buckets))
    )


def _bounds_changed(counters: Mapping[Series, float], last: Mapping[Series, float]) -> bool:
    """Whether a histogram lost bounds and has new ones, as after an upgrade."""
    lost = {s[:4] for s in last if s.part == "bucket" and s not in counters}
    return bool(lost) and any(
        s.part == "bucket" and s[:4] in lost and s not in last for s in counters
    )


def check(counters: Iterable[tuple[Series, float]], largest: float = 2 * LARGEST) -> None:
    """Raise PageError(``not_a_number``) for a value that a counter cannot have.

    Rounding may make a sum of increments exceed the largest counter.
    """
    for series, value in counters:
        if not 0.0 <= value < largest and not (series.part == "sum" and abs(value) < largest):
            raise PageError(
                ScrapeReason.NOT_A_NUMBER,
                f"{series.quantity} of model {series.model_name!r} is {value}: expected a finite,"
                " non-negative number below 2^62",
            )
