"""Service-level objectives: what the period used up of their budgets, and what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specwatch.core.sample import samples_of
from specwatch.core.slo import Requests, SloBook, requests_of
from specwatch.model import ALL_TEMPERATURES, HOUR, Tally, Window
from specwatch.report.model import Objective, WorstHour
from specwatch.ruling import Slo

_Counted = tuple[int, int, Tally]
"""Start and length in seconds, and what was counted."""


def objectives(
    slos: Sequence[Slo], windows: Sequence[Window], since: float, until: float
) -> tuple[Objective, ...]:
    """Each objective over ``since`` to ``until`` (Unix seconds), in every mode.

    ``windows`` are hours or minutes of one model, as far back as there are any: the budget left is
    that of the objective's own window, or of the part of it that they reach back to.
    """
    if not slos:
        return ()
    counted = list(_counted(slos, windows, until))
    book = SloBook(slos)
    for start, length, tally in counted:
        book.add(start, length, tally)
    end = max([until, *(start + length for start, length, _ in counted)])
    left = {found.slo.name: found.budget_left for found in book.statuses("", end)}
    inside = [each for each in counted if each[0] >= since]
    return tuple(_objective(slo, inside, left[slo.name]) for slo in slos)


def _objective(slo: Slo, inside: Sequence[_Counted], left: float | None) -> Objective:
    hours: dict[int, Requests] = {}
    for start, _, tally in inside:
        hour = start - start % HOUR
        hours[hour] = hours.get(hour, Requests()).plus(requests_of(slo, tally))
    whole = Requests()
    for each in hours.values():
        whole = whole.plus(each)
    allowed = whole.total * (1 - slo.objective)
    return Objective(
        name=slo.name,
        metric=slo.metric,
        threshold=slo.threshold,
        objective=slo.objective,
        window=slo.window,
        requests=whole.total,
        bad=whole.bad,
        spent=whole.bad / allowed if allowed else None,
        budget_left=left,
        worst_hour=_worst(hours),
    )


def _worst(hours: dict[int, Requests]) -> WorstHour | None:
    """The first of equals; None where nothing was bad."""
    start = min(hours, key=lambda at: (-hours[at].bad, at), default=None)
    if start is None or not hours[start].bad:
        return None
    return WorstHour(start=start, requests=hours[start].total, bad=hours[start].bad)


def _counted(slos: Sequence[Slo], windows: Sequence[Window], until: float) -> Iterator[_Counted]:
    """Yield what was counted, by start; what the server does not count is from its buckets."""
    metrics = {slo.metric for slo in slos}
    begun = [each for each in windows if each.start < until]
    wholes = [each for each in begun if each.series.temperature == ALL_TEMPERATURES]
    if all(getattr(each.tally, metric) is not None for each in wholes for metric in metrics):
        yield from sorted(
            ((each.start, each.length, each.tally) for each in wholes), key=lambda each: each[0]
        )
        return
    yield from ((each.start, each.length, each.tally) for each in samples_of(begun))
