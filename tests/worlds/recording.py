"""A world's server run in virtual time, and its counters read once a minute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from specwatch.model import Mode
from specwatch.simulated.counters import SimulatedCounters, SimulatedHistogram
from specwatch.simulated.engine import SimulatedEngine
from specwatch.simulated.sequence import SimulatedSequence
from specwatch.temperature import Buckets
from tests.worlds.trace import HISTOGRAMS, SINGLES, Columns, Trace
from tests.worlds.world import World

_SCRAPE = 5.0


def record(
    world: World,
    mode: Mode,
    hours: float,
    *,
    seed: int | None = None,
    progress: Callable[[int], object] = lambda minutes: None,
) -> Trace:
    """Run a world for so many hours; ``progress`` is told the minutes done, once an hour."""
    engine = world.engine(speculating=mode is Mode.ON, seed=seed)
    k = engine.cores[0].k
    taps = _Taps(world, k)
    counters = engine.cores[0].counters
    gauges, rows, lengths = [], [np.array(_of_engine(counters))], [[0.0, 0.0]]
    for minute in range(round(60 * hours)):
        gauges.append(_minute(engine, 60.0 * minute))
        taps.read(engine)
        rows.append(np.array(_of_engine(counters)))
        lengths.append([taps.ended, taps.accepted_length])
        if minute % 60 == 59:
            progress(minute + 1)
    return Trace(
        mode, k, engine.settings.max_model_len, np.array(gauges),
        np.diff(np.array(rows), axis=0), np.diff(np.array(lengths), axis=0), taps.columns(),
    )  # fmt: skip


class _Taps:
    """Counters by temperature, read once a minute."""

    def __init__(self, world: World, k: int) -> None:
        buckets = Buckets()
        temperatures = [each for each, _ in world.settings.traffic.temperatures]
        self._label = {each: buckets.of(each) for each in temperatures}
        self._counts = {label: _Counts(k) for label in dict.fromkeys(self._label.values())}
        self._rows = {label: [np.array(each.row())] for label, each in self._counts.items()}
        self.ended, self.accepted_length = 0.0, 0.0

    def read(self, engine: SimulatedEngine) -> None:
        """Count the requests that have ended, and forget them."""
        for each in engine.log:
            if each.finished_reason is not None:
                self._counts[self._label[each.request.temperature]].add(each)
                if each.drafts:
                    self.ended += 1
                    self.accepted_length += each.accepted_tokens / each.drafts
        engine.log[:] = [each for each in engine.log if each.finished_reason is None]
        for label, counts in self._counts.items():
            self._rows[label].append(np.array(counts.row()))

    def columns(self) -> dict[str, Columns]:
        return {label: np.diff(np.array(rows), axis=0) for label, rows in self._rows.items()}


def _minute(engine: SimulatedEngine, begins: float) -> list[float]:
    """Gauges of one minute, sampled as the daemon does: the mean of both ends of an interval."""
    looks = list(_looks(engine, begins))
    ends = list(itertools.pairwise(looks))
    return [
        sum(_SCRAPE * ((a[0] > 0) + (b[0] > 0)) / 2 for a, b in ends),
        sum(_SCRAPE * (a[0] + b[0]) / 2 for a, b in ends),
        sum(_SCRAPE * (a[1] + b[1]) / 2 for a, b in ends),
        max(look[0] for look in looks),
        max(look[1] for look in looks),
    ]


def _looks(engine: SimulatedEngine, begins: float) -> Iterator[tuple[int, int]]:
    yield engine.running, engine.waiting
    for look in range(1, round(60 / _SCRAPE) + 1):
        engine.advance(begins + look * _SCRAPE)
        yield engine.running, engine.waiting


class _Counts:
    """Counters of one temperature bucket, as a tap has them: a request counts when it ended."""

    def __init__(self, k: int) -> None:
        self.singles = dict.fromkeys(SINGLES, 0)
        self.positions = [0] * k
        self.requests = {"stop": 0, "length": 0}
        self.histograms = {name: SimulatedHistogram(b) for name, b in HISTOGRAMS.items()}

    def add(self, ended: SimulatedSequence) -> None:
        for name in SINGLES[:3] + SINGLES[4:]:
            self.singles[name] += getattr(ended, name)
        self.singles["prompt_tokens"] += ended.request.prompt_tokens
        for position in range(len(self.positions)):
            self.positions[position] += sum(ended.accepted_histogram[position + 1 :])
        self.requests[ended.finished_reason or ""] += 1
        self.histograms["ttft"].observe(ended.ttft or 0.0)
        if ended.generation_tokens > 1:
            self.histograms["tpot"].observe(ended.tpot or 0.0)
        if ended.draft_tokens:
            rate = ended.accepted_tokens / ended.draft_tokens
            self.histograms["request_acceptance"].observe(rate)

    def row(self) -> list[float]:
        return _row(self.singles.values(), self.positions, self.requests, self.histograms)


def _of_engine(counters: SimulatedCounters) -> list[float]:
    histograms = {"ttft": counters.ttft, "tpot": counters.tpot}
    requests = {reason: counters.requests[reason] for reason in ("stop", "length")}
    singles = [getattr(counters, name) for name in SINGLES]
    return _row(singles, counters.accepted_per_position, requests, histograms) + [
        counters.inter_token.count, counters.inter_token.sum, counters.busy,
        *counters.output_length.counts, counters.output_length.sum,
    ]  # fmt: skip


def _row(
    singles: Iterable[int],
    positions: list[int],
    requests: Mapping[str, int],
    histograms: Mapping[str, SimulatedHistogram],
) -> list[float]:
    row: list[float] = [*singles, *positions, *requests.values()]
    for each in histograms.values():
        row += [*each.counts, each.sum]
    return row
