"""Service-level objectives: how much of their budgets the period used up, and its goodput."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from specwatch.config.rules import Slo
from specwatch.domain.model import ALL, HOUR, Mode, Tally, Window
from specwatch.domain.sample import samples_of
from specwatch.report.estimates import Bounds
from specwatch.report.model import ReportGoodput, ReportObjective, WorstHour
from specwatch.rules import objectives as core
from specwatch.rules.objectives import Requests, SloBook, requests_of


class _Counted(NamedTuple):
    """Counts of a window; ``length`` and ``watched`` are seconds."""

    start: int
    length: int
    mode: Mode
    tally: Tally
    watched: float


def objectives(
    slos: Sequence[Slo], windows: Sequence[Window], since: float, until: float
) -> tuple[ReportObjective, ...]:
    """Each objective over ``since`` to ``until`` (Unix seconds), in every mode.

    ``windows`` are hours or minutes of one model, as far back as there are any: the budget left is
    that of the objective's own window, or of the part of it that they reach back to.
    """
    if not slos:
        return ()
    counted = list(_counted(slos, windows, until))
    book = SloBook(slos)
    for sample in counted:
        book.add(sample.start, sample.length, sample.tally, sample.watched)
    end = max([until, *(sample.start + sample.length for sample in counted)])
    left = {status.slo.name: status.budget_left for status in book.statuses("", end)}
    inside = [sample for sample in counted if sample.start >= since]
    return tuple(_objective(slo, inside, left[slo.name]) for slo in slos)


def goodput(
    slos: Sequence[Slo], windows: Sequence[Window], since: float, until: float
) -> tuple[ReportGoodput, ...]:
    """The requests of ``since`` to ``until`` (Unix seconds) that met all objectives.

    First of all modes; then with speculation and without, where there were requests of both.
    Windows are those of :func:`objectives`; the formula is in
    :func:`specwatch.rules.objectives.goodput`.
    """
    if not slos:
        return ()
    nothing = (Requests(),) * len(slos)
    sums = dict.fromkeys(Mode, nothing)
    for sample in _counted(slos, (window for window in windows if window.start >= since), until):
        counted = (requests_of(slo, sample.tally, sample.watched) for slo in slos)
        sums[sample.mode] = tuple(
            a.plus(b) for a, b in zip(sums[sample.mode], counted, strict=True)
        )
    total = tuple(
        Requests(*map(math.fsum, zip(*parts, strict=True)))
        for parts in zip(*sums.values(), strict=True)
    )
    of_all = _goodput("all", core.goodput(slos, total))
    by_mode = (
        _goodput("on", core.goodput(slos, sums[Mode.ON])),
        _goodput("off", core.goodput(slos, sums[Mode.OFF])),
    )
    return (of_all, *by_mode) if all(one.requests for one in by_mode) else (of_all,)


def _goodput(mode: Literal["all", "on", "off"], goodput: core.Goodput) -> ReportGoodput:
    return ReportGoodput(
        mode=mode,
        requests=goodput.requests,
        watched=goodput.watched,
        offered=goodput.rate(goodput.requests),
        met=_bounds(goodput, goodput.watched),
        share=_bounds(goodput, goodput.requests),
    )


def _bounds(goodput: core.Goodput, by: float) -> Bounds | None:
    if not by or goodput.lower is None or goodput.upper is None:
        return None
    return Bounds(lower=goodput.lower / by, upper=goodput.upper / by)


def _objective(slo: Slo, inside: Sequence[_Counted], left: float | None) -> ReportObjective:
    hours: dict[int, Requests] = {}
    for sample in inside:
        hour = sample.start - sample.start % HOUR
        counted = requests_of(slo, sample.tally, sample.watched)
        hours[hour] = hours.get(hour, Requests()).plus(counted)
    summed = Requests()
    for part in hours.values():
        summed = summed.plus(part)
    allowed = summed.total * (1 - slo.objective)
    # The first of equals; None where nothing was bad.
    worst = min(hours, key=lambda hour: (-hours[hour].bad, hour)) if summed.bad else None
    return ReportObjective(
        name=slo.name,
        metric=slo.metric,
        threshold=slo.threshold,
        objective=slo.objective,
        window=slo.window,
        requests=summed.total,
        bad=summed.bad,
        unknown=summed.unknown,
        spent=summed.bad / allowed if allowed else None,
        budget_left=left,
        worst_hour=None
        if worst is None
        else WorstHour(start=worst, requests=hours[worst].total, bad=hours[worst].bad),
    )


def _counted(slos: Sequence[Slo], windows: Iterable[Window], until: float) -> Iterator[_Counted]:
    """Yield what was counted, by start; what the server does not count is from its buckets."""
    metrics = {slo.metric for slo in slos}
    begun = [window for window in windows if window.start < until]
    if all(
        window.series.segment == ALL
        and all(getattr(window.tally, metric) is not None for metric in metrics)
        for window in begun
    ):
        for window in sorted(begun, key=lambda one: one.start):
            watched = window.observed_seconds + window.down_seconds
            yield _Counted(window.start, window.length, window.mode, window.tally, watched)
        return
    for sample in samples_of(begun):
        yield _Counted(sample.start, sample.length, sample.mode, sample.tally, sample.watched)
