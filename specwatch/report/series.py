"""The points of the charts, each from the merged counts of its windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from specwatch.domain import histogram
from specwatch.domain.buckets import order_of
from specwatch.domain.histogram import Quantile
from specwatch.domain.model import ALL_TEMPERATURES, HOUR, MINUTE, Histogram, Mode
from specwatch.report import latencies
from specwatch.report.grouped_data import Drafted, WindowSlice, add_drafted, drafted_of
from specwatch.report.latencies import summed
from specwatch.report.model import AcceptancePoint, LatencyPoint, ReportSeries

MOST_POINTS = 200
_STEPS = (MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE)


def step_of(since: float, until: float, length: int) -> int:
    """Seconds of a point, for windows of that length: about two hundred points at most."""
    span = until - since
    if length < HOUR:
        for step in _STEPS:
            if span <= MOST_POINTS * step:
                return step
    return HOUR * max(1, math.ceil(span / (MOST_POINTS * HOUR)))


class Plots:
    """Collects the points of one model; slices come in the order of time."""

    def __init__(self, since: float, until: float) -> None:
        self._since = int(since)
        self._until = until
        self._step = 0
        self._start = 0
        self._slices: list[WindowSlice] = []
        self._acceptance: dict[str, list[AcceptancePoint]] = {}
        self._latency: list[LatencyPoint] = []

    def take(self, slices: Iterable[WindowSlice]) -> None:
        """Add slices of the period."""
        for piece in slices:
            if not self._step:
                length = (piece.wholes or piece.parts)[0].length
                self._step = step_of(self._since, self._until, length)
            start = self._since + (piece.start - self._since) // self._step * self._step
            if start != self._start:
                self._close()
                self._start = start
            self._slices.append(piece)

    def series(self) -> ReportSeries:
        """All that was collected."""
        self._close()
        labels = sorted(self._acceptance.keys() - {ALL_TEMPERATURES}, key=order_of)
        ordered = [ALL_TEMPERATURES, *labels] if self._acceptance else []
        return ReportSeries(
            step=self._step,
            acceptance={label: tuple(self._acceptance.get(label, ())) for label in ordered},
            latency=tuple(self._latency),
        )

    def _close(self) -> None:
        slices, self._slices = self._slices, []
        if not slices:
            return
        for label, (drafts, tokens, accepted) in _drafted(slices).items():
            rate = accepted / tokens if tokens else None
            point = AcceptancePoint(start=self._start, drafts=drafts, rate=rate)
            self._acceptance.setdefault(label, []).append(point)
        for mode in (Mode.ON, Mode.OFF):
            inside = [piece for piece in slices if piece.place.mode is mode]
            latency = _latency(self._start, mode, inside) if inside else None
            if latency is not None:
                self._latency.append(latency)


def _drafted(slices: Iterable[WindowSlice]) -> dict[str, Drafted]:
    """By temperature, if there are drafts."""
    drafted: dict[str, Drafted] = {}
    for piece in slices:
        counts = list(piece.drafted.items())
        if piece.wholes and piece.wholes[0].tally.drafts is None:  # only the tap counts them
            counts += [(ALL_TEMPERATURES, counted) for counted in piece.drafted.values()]
        counts += [(ALL_TEMPERATURES, drafted_of(window.tally)) for window in piece.wholes]
        for label, counted in counts:
            if counted[0]:
                add_drafted(drafted, label, counted)
    return drafted


def _latency(start: int, mode: Mode, slices: Sequence[WindowSlice]) -> LatencyPoint | None:
    requests = 0
    histograms: dict[str, list[Histogram | None]] = {"ttft": [], "tpot": []}
    for piece in slices:
        counted = [window.tally for window in piece.wholes]
        parts = [window.tally for window in piece.parts]
        # Whatever the server does not count comes from its buckets.
        counting = counted if any(tally.requests for tally in counted) or not counted else parts
        requests += sum(sum(tally.requests.values()) for tally in counting)
        for metric, pile in histograms.items():
            silent = counted and getattr(counted[0], metric) is None
            pile += [getattr(tally, metric) for tally in (parts if silent else counted)]
    quantiles: dict[str, Quantile | None] = {}
    for metric, pile in histograms.items():
        merged = summed(pile)
        p50, p99 = (merged and histogram.quantiles(merged, (0.5, 0.99))) or (None, None)
        quantiles |= {f"{metric}_p50": p50, f"{metric}_p99": p99}
    if not requests and not any(quantiles.values()):
        return None
    values = {name: quantile and quantile.value for name, quantile in quantiles.items()}
    beyond = latencies.beyond(quantiles)
    return LatencyPoint(start=start, mode=str(mode), requests=requests, beyond=beyond, **values)
