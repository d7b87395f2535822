"""The points of the charts, each from the merged counts of its windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from specwatch.domain import histogram
from specwatch.domain.buckets import order_of
from specwatch.domain.histogram import Quantile
from specwatch.domain.model import (
    ALL,
    HOUR,
    MINUTE,
    TEMPERATURE,
    Histogram,
    Mode,
    Segment,
    Window,
)
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import Comparison
from specwatch.report import latencies
from specwatch.report.grouped_data import Drafted, WindowSlice, add_drafted, drafted_of
from specwatch.report.latencies import summed
from specwatch.report.model import (
    AcceptancePoint,
    Gap,
    LatencyPoint,
    LoadPoint,
    ReportSeries,
    SpeedupPoint,
)
from specwatch.report.speedups import Speedups
from specwatch.report.window_sums import Ledger

MOST_POINTS = 200
MOST_SPEEDUPS = 56
"""Points of the speedup at most: a week in stretches of three hours."""
_QUANTILES = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99")
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
        self._acceptance: dict[Segment, list[AcceptancePoint]] = {}
        self._latency: list[LatencyPoint] = []
        self._load: list[LoadPoint] = []
        self._off: list[Window] = []

    def take(self, slices: Iterable[WindowSlice]) -> None:
        """Add slices of the period."""
        for piece in slices:
            if not self._step:
                length = piece.first.length
                self._step = step_of(self._since, self._until, length)
            start = self._since + (piece.start - self._since) // self._step * self._step
            if start != self._start:
                self._close()
                self._start = start
            self._slices.append(piece)
            if piece.place.mode.speculates is False:
                self._off += piece.wholes[:1]

    def series(self, ledger: Ledger, measured: Speedups) -> ReportSeries:
        """All that was collected; speedups are of ``ledger``, by the baseline of ``measured``."""
        self._close()
        span = self._until - self._since
        least = 10 * MINUTE if span <= 6 * HOUR else math.ceil(span / MOST_SPEEDUPS / HOUR) * HOUR
        step = max(self._step, least)
        return ReportSeries(
            step=self._step,
            acceptance={
                segment.value: tuple(self._acceptance[segment])
                for segment in sorted(self._acceptance, key=order_of)
            },
            latency=tuple(self._latency),
            load=tuple(self._load),
            speedup=tuple(
                _speedups(ledger.samples_in(step, self._since), step, measured, self._since)
            ),
            speedup_step=step,
            off=tuple(_merged(self._off)),
        )

    def _close(self) -> None:
        slices, self._slices = self._slices, []
        if not slices:
            return
        for label, (drafts, tokens, accepted) in _drafted(slices).items():
            rate = accepted / tokens if tokens else None
            point = AcceptancePoint(start=self._start, drafts=drafts, rate=rate)
            self._acceptance.setdefault(label, []).append(point)
        gauges = [window.gauges for piece in slices for window in piece.wholes]
        sampled = math.fsum([gauge.sampled_seconds for gauge in gauges])
        if sampled:
            running = math.fsum([gauge.running_seconds for gauge in gauges]) / sampled
            self._load.append(LoadPoint(start=self._start, running=running))
        for mode in (Mode.ON, Mode.OFF):
            inside = [piece for piece in slices if piece.place.mode is mode]
            latency = _latency(self._start, mode, inside) if inside else None
            if latency is not None:
                self._latency.append(latency)


def _speedups(
    samples: Sequence[Sample], step: int, measured: Speedups, since: int
) -> Iterator[SpeedupPoint]:
    """Yield the time without speculation over that with it, of each step that the baselines know.

    Nothing where the speedup of the whole period is not measured.
    """
    if measured.assessment.speedup is None:
        return
    objective = measured.assessment.objective
    compared = Comparison(samples, measured.baseline, objective=objective, given_loads=True)
    sides: dict[int, tuple[float, float]] = {}
    for minute, plain in zip(compared.known, compared.plain, strict=True):
        start = since + (minute.sample.start - since) // step * step
        without, took = sides.get(start, (0.0, 0.0))
        sides[start] = (
            without + plain.seconds(compared.objective),
            took + minute.took(compared.objective),
        )
    for start, (without, took) in sorted(sides.items()):
        if took > 0:
            yield SpeedupPoint(start=start, value=without / took)


def _merged(windows: Iterable[Window]) -> Iterator[Gap]:
    """Yield the times of windows in their order, neighbours as one."""
    begin = end = None
    for window in windows:
        if end is not None and begin is not None and window.start > end:
            yield Gap(start=begin, end=end)
            begin = None
        begin = float(window.start) if begin is None else begin
        end = float(window.start + window.length)
    if begin is not None and end is not None:
        yield Gap(start=begin, end=end)


def _drafted(slices: Iterable[WindowSlice]) -> dict[Segment, Drafted]:
    """By temperature, if there are drafts."""
    drafted: dict[Segment, Drafted] = {}
    for piece in slices:
        counts = [each for each in piece.drafted.items() if each[0].dimension == TEMPERATURE]
        if piece.wholes and piece.wholes[0].tally.drafts is None:  # only the tap counts them
            counts += [(ALL, counted) for _, counted in counts]
        counts += [(ALL, drafted_of(window.tally)) for window in piece.wholes]
        for label, counted in counts:
            if counted[0]:
                add_drafted(drafted, label, counted)
    return drafted


def _latency(start: int, mode: Mode, slices: Sequence[WindowSlice]) -> LatencyPoint | None:
    requests = 0
    ttft: list[Histogram | None] = []
    tpot: list[Histogram | None] = []
    for piece in slices:
        counted = [window.tally for window in piece.wholes]
        parts = [window.tally for window in piece.parts]
        # Whatever the server does not count comes from its buckets.
        counting = counted if not counted or any(tally.requests for tally in counted) else parts
        requests += sum([sum(tally.requests.values()) for tally in counting])
        silent = bool(counted) and counted[0].ttft is None
        ttft += [tally.ttft for tally in (parts if silent else counted)]
        silent = bool(counted) and counted[0].tpot is None
        tpot += [tally.tpot for tally in (parts if silent else counted)]
    quantiles = dict(zip(_QUANTILES, (*_p50_and_p99(ttft), *_p50_and_p99(tpot)), strict=True))
    if not requests and not any(quantiles.values()):
        return None
    values = {name: quantile and quantile.value for name, quantile in quantiles.items()}
    beyond = latencies.beyond(quantiles)
    return LatencyPoint(start=start, mode=str(mode), requests=requests, beyond=beyond, **values)


def _p50_and_p99(observed: Iterable[Histogram | None]) -> Sequence[Quantile | None]:
    merged = summed(observed)
    return (merged and histogram.quantiles(merged, (0.5, 0.99))) or (None, None)
