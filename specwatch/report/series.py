"""The points of the charts, each from the merged counts of its windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from specwatch.domain import histogram
from specwatch.domain.buckets import order_of
from specwatch.domain.histogram import Quantile
from specwatch.domain.model import ALL_TEMPERATURES, HOUR, MINUTE, Histogram, Mode, Window
from specwatch.report import latencies
from specwatch.report.latencies import summed
from specwatch.report.model import AcceptancePoint, LatencyPoint, ReportSeries
from specwatch.report.sources import Drafted, WindowSlice, add_drafted

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
    """By temperature, where there are drafts."""
    drafted: dict[str, Drafted] = {}
    for piece in slices:
        for window in piece.wholes:
            counted = window.tally
            _count(
                drafted,
                ALL_TEMPERATURES,
                (counted.drafts or 0, counted.draft_tokens or 0, counted.accepted_tokens or 0),
            )
        silent = piece.wholes and piece.wholes[0].tally.drafts is None
        for label, counts in piece.drafted.items():
            _count(drafted, label, counts)
            if silent:
                _count(drafted, ALL_TEMPERATURES, counts)
    return drafted


def _count(drafted: dict[str, Drafted], label: str, counts: Drafted) -> None:
    if counts[0]:
        add_drafted(drafted, label, counts)


def _latency(start: int, mode: Mode, slices: Sequence[WindowSlice]) -> LatencyPoint | None:
    requests = sum(
        sum(window.tally.requests.values()) for piece in slices for window in _asked(piece)
    )
    ttft, tpot = (_quantiles(slices, metric) for metric in ("ttft", "tpot"))
    if not requests and ttft is None and tpot is None:
        return None
    ttft_p50, ttft_p99 = ttft or (None, None)
    tpot_p50, tpot_p99 = tpot or (None, None)
    quantiles = {
        "ttft_p50": ttft_p50, "ttft_p99": ttft_p99, "tpot_p50": tpot_p50, "tpot_p99": tpot_p99,
    }  # fmt: skip
    return LatencyPoint(
        start=start,
        mode=str(mode),
        requests=requests,
        **{
            name: None if quantile is None else quantile.value
            for name, quantile in quantiles.items()
        },
        beyond=latencies.beyond(quantiles),
    )


def _quantiles(slices: Iterable[WindowSlice], metric: str) -> Sequence[Quantile] | None:
    """P50 and P99; None of no observations."""
    histograms: list[Histogram | None] = []
    for piece in slices:
        wholes = [getattr(window.tally, metric) for window in piece.wholes]
        if wholes and wholes[0] is None:
            wholes = [getattr(window.tally, metric) for window in piece.parts]
        histograms += wholes
    whole = summed(histograms)
    return None if whole is None else histogram.quantiles(whole, (0.5, 0.99)) or None


def _asked(one: WindowSlice) -> Sequence[Window]:
    """The windows that count the requests of all temperatures."""
    text = any(window.tally.requests for window in one.wholes)
    return one.wholes if text or not one.wholes else one.parts
