"""Service-level objectives: how much of the error budget is left, how fast it burns, and goodput.

The error ratio is the share of requests slower than the threshold, the budget what the objective
leaves for them, and the burn rate how many times faster than evenly it is used up (*The Site
Reliability Workbook*, 2018, ch. 5). Goodput is the number of requests a second that met all
objectives (Y. Zhong et al., *DistServe*, OSDI 2024). Speculation on or off is the same to an
objective.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specwatch.config.rules import Slo
from specwatch.config.rules.rule import Severity
from specwatch.domain.model import HOUR, MINUTE, Tally
from specwatch.domain.units import parse_duration

BURN_WINDOWS = (300, 1800, 3600, 7200, 21600, 86400, 259200)
"""Seconds: 5m, 30m, 1h, 2h, 6h, 1d, 3d."""
GOODPUT_WINDOWS = (300, 3600)
"""Seconds: 5m, 1h."""
_MINUTES_KEPT = 6 * HOUR


class Burn(NamedTuple):
    """A burn rate that alerts: ``factor`` times the even rate, over both windows."""

    factor: float
    long: str
    short: str
    for_: str
    severity: Severity


BURNS = (
    Burn(14.4, "1h", "5m", "2m", "critical"),
    Burn(6, "6h", "30m", "15m", "critical"),
    Burn(3, "1d", "2h", "1h", "warning"),
    Burn(1, "3d", "6h", "3h", "warning"),
)
"""Fastest first. Windows and factors are those of *The Site Reliability Workbook* (2018), ch. 5,
"Multiwindow, Multi-Burn-Rate Alerts"."""
LEAST_LONG, LEAST_SHORT, LEAST_WATCHED = 100, 10, 0.75
"""The least requests in the long and in the short window, and the share of the long one that must
have been watched: a burn rate of less is not significant."""


class Requests(NamedTuple):
    """Requests of a span: all, those certainly too slow, and those that may be too slow.

    ``watched`` is the time in seconds that they were counted in.
    """

    total: float = 0.0
    bad: float = 0.0
    unknown: float = 0.0
    watched: float = 0.0

    def plus(self, other: Requests) -> Requests:
        """Both together."""
        return Requests(*(a + b for a, b in zip(self, other, strict=True)))


class Goodput(NamedTuple):
    """How many requests of a span met all objectives of a model: at least and at most.

    ``requests`` are all that there were, ``watched`` is the time in seconds that they were counted
    in. The bounds are None where an objective was held against none of the requests.
    """

    watched: float
    requests: float
    lower: float | None
    upper: float | None

    def rate(self, requests: float | None) -> float | None:
        """So many of the requests as a number a second of the time watched; None without any."""
        return requests / self.watched if self.watched and requests is not None else None


@dataclass(frozen=True, slots=True)
class SloStatus:
    """An objective of one model over its window, up to now; numbers of requests may be fractions.

    Only requests that were certainly too slow use up the budget, so that alerts are not stricter
    than the objective. ``unknown`` of the good may have been too slow as well: the threshold lies
    inside their bucket of the histogram.
    """

    slo: Slo
    model_name: str
    good: float
    total: float
    unknown: float
    error_ratio: float | None
    """None without requests, as the two that follow."""
    budget_left: float | None
    """1 is untouched, below 0 overspent."""
    burn_rates: Mapping[int, float | None]
    """By the seconds of the window; None for one without requests."""
    requests: Mapping[int, float]
    """All of each of those windows."""
    watched: Mapping[int, float]
    """Seconds of each of those windows in which they were counted."""

    @property
    def burning(self) -> Burn | None:
        """The fastest of :data:`BURNS` that its budget burns at; None if at none."""
        return next(filter(self._burns, BURNS), None)

    def _burns(self, burn: Burn) -> bool:
        long, short = (int(parse_duration(window)) for window in (burn.long, burn.short))
        return (
            all((self.burn_rates.get(span) or 0.0) > burn.factor for span in (long, short))
            and self.requests[long] >= LEAST_LONG
            and self.requests[short] >= LEAST_SHORT
            and self.watched[long] >= LEAST_WATCHED * long
        )


@dataclass(slots=True)
class _Hour:
    """An hour's sums, one for each objective; ``seen`` has a bit for each minute in them."""

    sums: tuple[Requests, ...]
    seen: int = 0
    whole: bool = False
    minutes: dict[int, tuple[Requests, ...]] = field(default_factory=dict)
    """Sums of its minutes by start, while they are recent."""


class SloBook:
    """Requests of one model by objective: minutes of the last six hours, and hours."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._slos = tuple(slos)
        self._hours: dict[int, _Hour] = {}
        self._newest = 0

    def add(self, start: int, length: int, counted: Tally, watched: float | None = None) -> None:
        """Count a minute, or a part of an hour that a store has; times in seconds, Unix.

        ``watched`` is the time that the counts cover, outages included: all of it where None.
        A minute counts once, however late and often it comes. An hour may come in parts (one for
        each mode and load), but each only once; together they stand in place of its minutes.
        Raises ValueError for another length.
        """
        if length not in (MINUTE, HOUR):
            raise ValueError(f"a window of {length} s is neither a minute nor an hour")
        if start + self._span() <= self._newest:
            return
        hour_start = start - start % HOUR
        if hour_start not in self._hours:
            self._hours[hour_start] = _Hour(self._nothing())
            self._forget()
        hour = self._hours[hour_start]
        seconds = float(length) if watched is None else watched
        sums = tuple(requests_of(slo, counted, seconds) for slo in self._slos)
        bit = 1 << start % HOUR // MINUTE
        if length == HOUR:
            hour.sums = _added([hour.sums, sums]) if hour.whole else sums
            hour.whole = True
        elif not hour.seen & bit:
            hour.seen |= bit
            hour.minutes[start] = sums
            if not hour.whole:
                hour.sums = _added([hour.sums, sums])
        self._newest = max(self._newest, start + length)

    def statuses(self, model_name: str, now: float) -> Iterator[SloStatus]:
        """Each objective at ``now`` (Unix seconds, not before the newest window's end)."""
        if not self._slos:
            return
        spans = {*BURN_WINDOWS, *(slo.window for slo in self._slos)}
        sums = {span: self._within(now - span, now) for span in spans}
        for index, slo in enumerate(self._slos):
            allowed = 1 - slo.objective
            whole = sums[slo.window][index]
            errors = _share(whole)
            burns = {span: _share(sums[span][index]) for span in BURN_WINDOWS}
            yield SloStatus(
                slo=slo,
                model_name=model_name,
                good=whole.total - whole.bad,
                total=whole.total,
                unknown=whole.unknown,
                error_ratio=errors,
                budget_left=None if errors is None else 1 - errors / allowed,
                burn_rates={
                    span: None if share is None else share / allowed
                    for span, share in burns.items()
                },
                requests={span: sums[span][index].total for span in BURN_WINDOWS},
                watched={span: sums[span][index].watched for span in BURN_WINDOWS},
            )

    def goodput(self, now: float) -> dict[int, Goodput]:
        """Of the windows up to ``now``, by their seconds; of one objective at least."""
        return {
            span: goodput(self._slos, self._within(now - span, now)) for span in GOODPUT_WINDOWS
        }

    def _nothing(self) -> tuple[Requests, ...]:
        return (Requests(),) * len(self._slos)

    def _span(self) -> float:
        """Seconds that are remembered: an hour more, as the oldest counts in part."""
        return max([*BURN_WINDOWS, *(slo.window for slo in self._slos)]) + HOUR

    def _forget(self) -> None:
        for start in [hour for hour in self._hours if hour + self._span() <= self._newest]:
            del self._hours[start]
        for start, hour in self._hours.items():
            if hour.minutes and start + HOUR <= self._newest - _MINUTES_KEPT:
                hour.minutes = {}

    def _within(self, since: float, until: float) -> tuple[Requests, ...]:
        """The sums from ``since`` to ``until``.

        Of an hour that lies in it only partly, its minutes count where they are remembered; else
        all of it, if its middle lies inside.
        """
        counted = [self._nothing()]
        for start, hour in self._hours.items():
            if since <= start and start + HOUR <= until:
                counted.append(hour.sums)
            elif hour.minutes:
                counted += [
                    sums
                    for minute, sums in hour.minutes.items()
                    if since <= minute and minute + MINUTE <= until
                ]
            elif since < start + HOUR / 2 <= until:
                counted.append(hour.sums)
        return _added(counted)


def requests_of(slo: Slo, counted: Tally, watched: float) -> Requests:
    """Requests that a tally counted in ``watched`` seconds by what an objective asks of them."""
    observed = getattr(counted, slo.metric)
    if observed is None or not observed.bounds:
        return Requests(watched=watched)
    # The last bucket has no end.
    index = bisect.bisect_left(observed.bounds, slo.threshold)
    exact = index < len(observed.bounds) and observed.bounds[index] == slo.threshold
    unknown = 0 if exact else observed.counts[index]
    bad = sum(observed.counts[index + 1 :])
    return Requests(float(observed.count), float(bad), float(unknown), watched)


def goodput(slos: Sequence[Slo], counted: Sequence[Requests]) -> Goodput:
    """The goodput of a span, from what each of some objectives, one at least, says of it.

    Histograms do not say which request missed which objectives. The slow requests of two metrics
    may be the same, or all different: together at least the greater number of both, at most their
    sum (bounds of Fréchet and Boole). Those of one metric are the same, so that its strictest
    threshold decides. The metric with the most requests says how many there were: one without a
    value of another, as an output of one token has no time per token, meets its objectives.
    Requests in the bucket of a histogram that the threshold lies in may meet it.
    """
    slow: dict[str, float] = {}
    for slo, counts in zip(slos, counted, strict=True):
        slow[slo.metric] = max(slow.get(slo.metric, 0.0), counts.bad + counts.unknown)
    requests = max(counts.total for counts in counted)
    watched = max(counts.watched for counts in counted)
    if requests and not all(counts.total for counts in counted):
        return Goodput(watched, requests, None, None)
    least_slow = max(counts.bad for counts in counted)
    return Goodput(
        watched,
        requests,
        lower=max(0.0, requests - math.fsum(slow.values())),
        upper=max(0.0, requests - least_slow),
    )


def _added(sums: Sequence[tuple[Requests, ...]]) -> tuple[Requests, ...]:
    by_objective = zip(*sums, strict=True)
    return tuple(Requests(*map(math.fsum, zip(*parts, strict=True))) for parts in by_objective)


def _share(requests: Requests) -> float | None:
    return requests.bad / requests.total if requests.total else None
