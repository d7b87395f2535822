"""The last hour of each model, from its minutes, for the status page.

Sums begin with the last restart or change of mode: latencies of different processes or modes are
not mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from specwatch.domain import histogram
from specwatch.domain.acceptance import acceptance_rate
from specwatch.domain.buckets import order_of
from specwatch.domain.merge import merge_windows, present_since
from specwatch.domain.model import (
    ALL,
    MINUTE,
    TEMPERATURE,
    Histogram,
    Mode,
    Segment,
    Window,
)
from specwatch.scrape.coverage import Coverage, coverages

Points = tuple[tuple[float, float | None], ...]
"""Unix times and the acceptance rate of the minute that begins there; None without drafts."""


@dataclass(frozen=True, slots=True)
class ModelHour:
    """One model over a span of minutes.

    ``whole`` is of all requests, ``segments`` are in order, all summed over the minutes of the
    present process in its present mode, which is with speculation where ``on``.
    """

    whole: Window | None
    segments: tuple[Window, ...]
    points: Mapping[Segment, Points]
    """Of each segment, and of all requests."""
    on: bool
    coverage: Coverage | None
    start: int
    """Unix time at which the first of the minutes that were summed begins."""
    end: int
    """Unix time at which the last of them ends; between the two some may be missing."""
    seconds: int
    """How long they are together."""
    request_acceptance: Histogram | None
    """Of all requests: of the temperature buckets where only their source has it."""

    def share(self, segment: Window) -> float | None:
        """Share of a segment of the drafts of its dimension."""
        dimension = segment.series.segment.dimension
        drafts = sum(
            window.tally.drafts or 0
            for window in self.segments
            if window.series.segment.dimension == dimension
        )
        return (segment.tally.drafts or 0) / drafts if drafts else None


def last_hour(
    windows: Iterable[Window], since: float, until: float
) -> dict[str, dict[str, ModelHour]]:
    """Sums of minutes by target and model; ``since`` and ``until`` are Unix seconds.

    A model without a whole minute since its last restart or change of mode is left out. Minutes
    outside that span are left out; a sum of minutes counts as one, as long as it begins in
    it. Windows of several daemons count alike: each minute of a series is stored once.
    """
    held: dict[str, dict[str, dict[Segment, list[Window]]]] = {}
    for window in windows:
        if since <= window.start < until:
            one = window.series
            models = held.setdefault(one.target, {})
            models.setdefault(one.model_name, {}).setdefault(one.segment, []).append(
                msgspec.structs.replace(window, series=msgspec.structs.replace(one, daemon=""))
            )
    return {
        target: {
            model: hour
            for model, parts in sorted(models.items())
            if (hour := _model(parts)) is not None
        }
        for target, models in held.items()
    }


def _model(parts: Mapping[Segment, list[Window]]) -> ModelHour | None:
    wholes = sorted(parts.get(ALL, ()), key=lambda window: window.start)
    begin = present_since(wholes)
    chosen = {
        label: [window for window in windows if window.start >= begin]
        for label, windows in parts.items()
    }
    if not any(chosen.values()):
        return None
    sums = {label: _sum(windows) for label, windows in chosen.items() if windows}
    starts = [window.start for windows in parts.values() for window in windows]
    kept = [window for windows in chosen.values() for window in windows]
    spans = sorted({(window.start, window.start + window.length) for window in kept})
    seconds = reached = 0
    for start, end in spans:  # sums of minutes may overlap
        seconds += max(0, end - max(start, reached))
        reached = max(reached, end)
    return ModelHour(
        whole=sums.get(ALL),
        segments=tuple(sums[segment] for segment in sorted(sums, key=order_of) if segment != ALL),
        points={
            label: _points(windows, min(starts), max(starts)) for label, windows in parts.items()
        },
        on=any(window.mode is Mode.ON for window in kept),
        coverage=next(iter(coverages(sums.values(), None).values()), None),
        start=spans[0][0],
        end=reached,
        seconds=seconds,
        request_acceptance=_request_acceptance(sums),
    )


def _request_acceptance(sums: Mapping[Segment, Window]) -> Histogram | None:
    own = None if ALL not in sums else sums[ALL].tally.request_acceptance
    if own is not None and own.count:
        return own
    return histogram.merge_all(
        one.tally.request_acceptance
        for label, one in sums.items()
        if label.dimension == TEMPERATURE and one.tally.request_acceptance is not None
    )


def _sum(windows: list[Window]) -> Window:
    start = min(window.start for window in windows)
    end = max(window.start + window.length for window in windows)
    return merge_windows(windows, start=start, length=end - start)


def _points(windows: Iterable[Window], first: int, last: int) -> Points:
    """A point for each minute from the first to the last; None in gaps."""
    rates = {window.start: acceptance_rate(window.tally) for window in windows}
    return tuple((float(minute), rates.get(minute)) for minute in range(first, last + 1, MINUTE))
