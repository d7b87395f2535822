"""The acceptance rate over time, a line for each temperature bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specwatch.report.charts.frame import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Field,
    Ink,
    broken,
    days,
    legend,
    levels,
)
from specwatch.report.charts.scale import Scale, known, moment, ticks
from specwatch.report.charts.style import INK
from specwatch.report.charts.svg import document, sentence
from specwatch.report.model import AcceptancePoint, Series
from specwatch.wording.figures import finite, percent
from specwatch.wording.text import shown

_MOST = 6
"""Lines of buckets: more cannot be told apart."""
_ALL = "all"
_BOTTOM = 190.0
_NAME = 24


def acceptance(series: Series, since: float, until: float, prefix: str = "acceptance") -> str:
    """Lines from ``since`` to ``until`` (Unix seconds), broken where there was no traffic.

    A sentence where nothing was drafted. Where there are more than six buckets, those with the
    most drafts are drawn.
    """
    chosen = _chosen(series.acceptance)
    if not chosen:
        return sentence("No drafts, so no acceptance over time.")
    top = ticks(0, max(_rates(chosen[0][1]) + [r for _, p in chosen for r in _rates(p)]), 5)[-1]
    field = Field(Scale(since, until, LEFT, WIDTH - RIGHT), Scale(0, min(top, 1.0), _BOTTOM, TOP))
    drawn = [
        *levels(field, ticks(0, min(top, 1.0), 5), lambda value: f"{value:.0%}"),
        *days(field, since, until),
    ]
    entries = []
    for number, (label, points) in enumerate(chosen):
        ink = Ink(INK, 0, 2.4) if label == _ALL else Ink(number, number)
        places = ((each.start + series.step / 2, finite(each.rate)) for each in points)
        drawn.append(ink.drawn(broken(places, 1.5 * series.step, field)))
        entries.append((ink, shown(label, _NAME)))
    listed, bottom = legend(entries, _BOTTOM + 36)
    title = "Acceptance rate over time, by temperature"
    told = "; ".join(_told(label, points) for label, points in chosen)
    between = f"{moment(since)} to {moment(until)} UTC"
    return document(prefix, (WIDTH, round(bottom)), title, f"{between}. {told}.", [*drawn, listed])


def _chosen(
    by_bucket: Mapping[str, Sequence[AcceptancePoint]],
) -> list[tuple[str, Sequence[AcceptancePoint]]]:
    """The buckets to draw, in their order, ``all`` last: on top of the others."""
    some = {label: points for label, points in by_bucket.items() if _rates(points)}
    busiest = sorted(
        (label for label in some if label != _ALL),
        key=lambda label: -sum(each.drafts for each in some[label]),
    )[:_MOST]
    names = [label for label in some if label in busiest]
    # The only bucket is all of it: one line, not two.
    if _ALL in some and len(names) != 1:
        names.append(_ALL)
    return [(label, some[label]) for label in names]


def _rates(points: Sequence[AcceptancePoint]) -> list[float]:
    return known(each.rate for each in points)


def _told(label: str, points: Sequence[AcceptancePoint]) -> str:
    rates = _rates(points)
    drafts = sum(each.drafts for each in points if finite(each.rate) is not None)
    whole = sum(each.drafts * (finite(each.rate) or 0.0) for each in points)
    mean = whole / drafts if drafts > 0 else sum(rates) / len(rates)
    name = "all temperatures" if label == _ALL else f"temperature {shown(label)}"
    return f"{name}: {percent(mean)} on average, {percent(min(rates))} to {percent(max(rates))}"
