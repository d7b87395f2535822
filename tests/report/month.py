"""Days of a simulated server in virtual time, watched and stored as the daemon does it.

Each working hour has some minutes of traffic at a rate of its own; some days are idle, some are
served without speculation, once the server is restarted and once it gets another draft length. What
is known of every request is in the log, from which :mod:`tests.report.truth` computes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from specwatch.domain.model import HOUR, MINUTE, Batch, Moment, Series
from specwatch.lab.simulator.acceptance import SimulatedAcceptance
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.counters import INTER_TOKEN_BOUNDS, TTFT_BOUNDS, SimulatedHistogram
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.page import SimulatedPage
from specwatch.lab.simulator.sequence import SimulatedSequence
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedTraffic, SimulatedWorkload
from specwatch.rules.judge import Judge
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.store import rollups_and_retention
from specwatch.store.batches import PackedBatch, pack_batch
from specwatch.store.repository import Store
from specwatch_tap.temperature import Buckets
from tests.segments import segment

DAY = 24 * HOUR
TARGET, MODEL = "chat", "simulated"
START = int(datetime(2026, 10, 5, tzinfo=UTC).timestamp())
"""A Monday, 0:00 UTC."""
K, SHORTER_K = 4, 3
"""Draft tokens, and those of the shorter drafts."""
BURST_AT = 5 * MINUTE
"""Seconds in an hour with traffic at which it begins."""
RATES = (0.15, 0.4, 0.9, 1.6, 2.4, 3.6)
"""Requests a second: each hour has one, and each hour of the day has all of them in turn."""
OFF_RATES = (0.5, 1.2, 2.0, 3.2, 4.8, 6.4)
"""The same of days without speculation: as much at once as there is with it."""
SCRAPE, IDLE_SCRAPE = 10.0, 30 * MINUTE
"""Seconds from look to look; a minute without a look has no window, its hour is whole."""


@dataclass(frozen=True)
class Plan:
    """What happens when; days are counted from 0."""

    days: int
    last: tuple[int, int]
    """The days of the shorter one of two reports; the other is of all days."""
    off_days: tuple[int, ...]
    idle_days: tuple[int, ...]
    shorter: int
    """Seconds after the start at which it drafts fewer tokens at a time, from then on."""
    restart: int
    """And those after which it is started again as it was, just before the daemon looks."""
    open: range
    """Hours of the day with traffic, UTC."""
    burst: float
    """Seconds that the traffic of an hour lasts."""

    @property
    def end(self) -> int:
        return START + self.days * DAY

    def rate(self, at: float) -> float:
        """Requests a second, so many seconds after the start."""
        day, second = divmod(at, DAY)
        hour, second = divmod(second, HOUR)
        busy = hour in self.open and BURST_AT <= second < BURST_AT + self.burst
        if day in self.idle_days or not busy:
            return 0.0
        rates = OFF_RATES if day in self.off_days else RATES
        return rates[int(hour + day) % len(rates)]

    def looks(self, day: int) -> Iterator[float]:
        """When the daemon looks: now and then, and as usual while there is traffic."""
        at = float(day * DAY)
        while at < (day + 1) * DAY:
            yield at
            after = at % HOUR - BURST_AT
            if self.rate(at - after) and 0 <= after < self.burst + MINUTE:
                at += SCRAPE
            else:
                at += IDLE_SCRAPE if at % HOUR else BURST_AT
                at -= at % HOUR % BURST_AT


MONTH = Plan(
    days=28,
    last=(21, 28),
    off_days=(1, 2, 16),
    idle_days=(12, 13),
    shorter=23 * DAY,
    restart=9 * DAY + 12 * HOUR + 35 * MINUTE,
    open=range(10, 14),
    burst=3 * MINUTE,
)
FOUR_DAYS = Plan(
    days=4,
    last=(2, 4),
    off_days=(1,),
    idle_days=(),
    shorter=3 * DAY,
    restart=2 * DAY + 12 * HOUR + 5 * MINUTE,
    open=range(10, 12),
    burst=2 * MINUTE,
)

COSTS = SimulatedCosts(
    base=0.1,
    per_sequence=0.0005,
    per_token=0.006,
    free_tokens=8,
    prefill_per_token=0.00002,
    draft_base=0.008,
    draft_per_sequence=0.0001,
)
"""A large model on a small machine: it pays at one or two requests, and loses at eight."""
_SINGLES = ("drafts", "draft_tokens", "accepted_tokens", "generation_tokens")


class Request(NamedTuple):
    """An entry of the request log; times are Unix seconds."""

    arrival: float
    scheduled: float
    first: float
    last: float
    temperature: float
    prompt_tokens: int
    tokens: int
    k: int
    """Draft tokens of a draft; 0 without speculation."""
    accepted: tuple[int, ...]
    """Drafts that had 0, 1, .. k tokens accepted."""
    draft_tokens: int
    reason: str


@dataclass
class Month:
    """What is left of a plan: a database, and the request log."""

    url: str
    plan: Plan
    log: list[Request] = field(default_factory=list)
    pages: int = 0


class _Workload(SimulatedWorkload):
    """Arrivals at the rate of a plan, without a draw for the hours in which there are none."""

    plan = MONTH

    def _arrival_after(self, time: float) -> float:
        rate, end = self.plan.rate, self.plan.days * DAY
        while time < end:
            now = rate(time)
            if now:
                drawn = time + self._random.expovariate(now)
                if rate(drawn) == now:
                    return drawn
            hour = math.floor(time / HOUR)
            begins = hour * HOUR + BURST_AT
            time = begins if time < begins else begins + HOUR
            time = next((at for at in _hours_from(time, end) if rate(at)), math.inf)
            if time < math.inf:
                time = math.nextafter(time, math.inf)
                drawn = time + self._random.expovariate(rate(time))
                if rate(drawn):
                    return drawn
        return math.inf


def _hours_from(time: float, end: float) -> Iterator[float]:
    while time < end:
        yield time
        time += HOUR


def engine(plan: Plan, seed: int = 1) -> SimulatedEngine:
    settings = SimulatedSettings(
        model=MODEL,
        speculation=SimulatedSpeculation(K),
        costs=COSTS,
        acceptance=SimulatedAcceptance(scale=0.85),
        traffic=SimulatedTraffic(
            rate=1.0,
            prompt_tokens=60.0,
            output_tokens=18.0,
            length_shape=0.5,
            max_tokens=60,
            temperatures=((0.0, 0.45), (0.6, 0.35), (1.2, 0.2)),
            shared_prefix=0.0,
        ),
        seed=seed,
        keep_log=True,
    )
    made = SimulatedEngine(settings, process_start=float(START))
    made.workload = _Workload(settings.traffic, seed, settings.max_model_len)
    made.workload.plan = plan
    return made


def run(folder: Path, plan: Plan, seed: int = 1) -> Month:
    """Simulate it, watch it, store it."""
    month = Month(f"sqlite:///{folder}/month-{seed}.db", plan)
    store = Store(month.url, daemon="d", host="h", pid=1)
    store.open(START)
    server, daemon = Server(engine(plan, seed), plan, month.log), _Daemon(store)
    try:
        for day in range(plan.days):
            server.begin(day)
            for at in plan.looks(day):
                if at >= plan.restart and not server.restarted_as_it_was:
                    server.restart(at)
                daemon.look(server.page(at), START + at)
                month.pages += 1
            daemon.write(START + (day + 1) * DAY)
        daemon.look(server.page(plan.days * DAY + 0.5), plan.end + 0.5)
        daemon.write(plan.end + DAY)
        assert not server.running, "a request would be half in the month"
    finally:
        store.close(plan.end + DAY)
    return month


class _Daemon:
    """Watches, judges and writes as ``specwatch run`` does."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._watch = WindowBuilder("d", TARGET, max_gap=3 * SCRAPE)
        self._judge = Judge(TARGET, (), ())
        self._packed: list[PackedBatch] = []

    def look(self, page: Mapping[Series, float], wall: float) -> None:
        seen = self._watch.observe(page, Moment(wall, wall - START))
        assert seen.error is None
        assert seen.problems == ()
        if seen.batch is not None:
            self._close(seen.batch, wall)

    def write(self, now: float) -> None:
        """Write a day."""
        self._store.write(self._packed, now)
        self._packed = []
        self._store.write_measurements(self._judge.take_measurements(), now)
        with mock.patch.object(rollups_and_retention, "_PAUSE", 0.0):  # nobody else is there
            self._store.roll_up(now)

    def _close(self, batch: Batch, now: float) -> None:
        self._packed.append(pack_batch(Batch(batch.windows, None)))
        self._judge.observe(batch.windows, now)


class Server:
    """The engine and its tap, as the samples of a page."""

    def __init__(self, engine: SimulatedEngine, plan: Plan, log: list[Request]) -> None:
        self._engine = engine
        self._plan = plan
        self._log = log
        self._text = SimulatedPage(engine)
        self.restarted_as_it_was = False
        self._restarted()

    @property
    def running(self) -> int:
        return self._engine.running + self._engine.waiting

    def begin(self, day: int) -> None:
        """The night before a day: what it is to be served with."""
        off_days = self._plan.off_days
        if day * DAY == self._plan.shorter:
            self._begin(day * DAY, SimulatedSpeculation(SHORTER_K))
        elif day in off_days or day - 1 in off_days:
            speculation = False if day in off_days else SimulatedSpeculation(K)
            self._begin(day * DAY, speculation)

    def restart(self, at: float) -> None:
        self.restarted_as_it_was = True
        self._begin(at, None)

    def page(self, at: float) -> Mapping[Series, float]:
        """Its samples, so many seconds after the start."""
        self._engine.advance(at)
        if self._engine.log or self.running or self._stale:
            self._stale = bool(self._engine.log)
            self._read()
        return self._samples

    def _begin(self, at: float, speculation: bool | SimulatedSpeculation | None) -> None:
        self._engine.advance(at)
        assert not self.running, "requests would be lost"
        self._engine.restart(speculation)
        self._restarted()

    def _restarted(self) -> None:
        template = PageReader().read(self._text.render())
        self._fixed = dict(template)
        self._paths = [(s, reader) for s in template if (reader := _reader_of(s)) is not None]
        self._taps: dict[str, _Tap] = {}
        self._stale = True
        self._samples: Mapping[Series, float] = {}

    def _read(self) -> None:
        ended = [request for request in self._engine.log if request.finished_reason is not None]
        self._engine.log[:] = [e for e in self._engine.log if e.finished_reason is None]
        for sequence in ended:
            label = _BUCKETS.of(sequence.request.temperature)
            if label not in self._taps:
                self._taps[label] = _Tap(label, self._engine.cores[0].k)
            self._taps[label].add(sequence)
            self._log.append(_entry(sequence))
        core = self._engine.cores[0]
        samples = dict(self._fixed)
        for series, read in self._paths:
            samples[series] = read(core)
        for tap in self._taps.values():
            samples.update(tap.samples())
        self._samples = samples


_BUCKETS = Buckets()


def _entry(sequence: SimulatedSequence) -> Request:
    moments = (sequence.arrival, sequence.scheduled, sequence.first_token, sequence.last_token)
    assert None not in moments
    return Request(
        *(START + (moment or 0.0) for moment in moments),
        temperature=sequence.request.temperature,
        prompt_tokens=sequence.request.prompt_tokens,
        tokens=sequence.generation_tokens,
        k=len(sequence.accepted_histogram) - 1,
        accepted=tuple(sequence.accepted_histogram),
        draft_tokens=sequence.draft_tokens,
        reason=sequence.finished_reason or "",
    )


def _reader_of(series: Series) -> Callable[[Any], float] | None:
    """How to read a sample that changes from an engine core; None of one that does not."""
    quantity, part, key = series.quantity, series.part, series.key
    if quantity in ("process_start", "cache_config", "sleep_state"):
        return None
    if quantity == "running":
        return lambda core: float(core.running_shown)
    if quantity == "waiting":
        return lambda core: float(len(core.waiting))
    if quantity == "kv_cache_usage":
        return lambda core: float(core.kv_cache_usage)
    if part:
        return _of_histogram(quantity, part, key)
    if quantity == "requests":
        return lambda core: float(core.counters.requests[key])
    if quantity == "accepted_per_position":
        return lambda core: float(core.counters.accepted_per_position[int(key)])
    return lambda core: float(getattr(core.counters, quantity))


def _of_histogram(name: str, part: str, key: str) -> Callable[[Any], float]:
    if part == "sum":
        return lambda core: float(getattr(core.counters, name).sum)
    if part == "count" or key == "+Inf":
        return lambda core: float(getattr(core.counters, name).count)
    bound = float(key)

    def read(core: Any) -> float:
        observed = getattr(core.counters, name)
        return float(sum(observed.counts[: observed.bounds.index(bound) + 1]))

    return read


class _Tap:
    """What a tap counts for one temperature bucket: requests that ended."""

    def __init__(self, label: str, k: int) -> None:
        self._segment, self._k = segment(label), k
        self._plain: dict[tuple[str, str], float] = {}
        self._histograms = {
            "ttft": SimulatedHistogram(TTFT_BOUNDS),
            "tpot": SimulatedHistogram(INTER_TOKEN_BOUNDS),
        }
        if k:
            bounds = tuple(step / 20 for step in range(1, 21))
            self._histograms["request_acceptance"] = SimulatedHistogram(bounds)

    def add(self, ended: SimulatedSequence) -> None:
        counts = {
            ("generation_tokens", ""): ended.generation_tokens,
            ("requests", ended.finished_reason or ""): 1,
        }
        if self._k:
            counts |= {(name, ""): getattr(ended, name) for name in _SINGLES[:3]}
            counts |= {
                ("accepted_per_position", str(at)): sum(ended.accepted_histogram[at + 1 :])
                for at in range(self._k)
            }
            counts["records", "record"] = 1
        for key, count in counts.items():
            self._plain[key] = self._plain.get(key, 0.0) + count
        self._histograms["ttft"].observe(ended.ttft or 0.0)
        if ended.generation_tokens > 1:
            self._histograms["tpot"].observe(ended.tpot or 0.0)
        if ended.draft_tokens:
            rate = ended.accepted_tokens / ended.draft_tokens
            self._histograms["request_acceptance"].observe(rate)

    def samples(self) -> Iterator[tuple[Series, float]]:
        for (quantity, key), value in self._plain.items():
            yield Series(quantity, "", MODEL, "", key, self._segment), value
        for quantity, observed in self._histograms.items():
            below = itertools.accumulate(observed.counts)
            for bound, count in zip((*observed.bounds, "+Inf"), below, strict=True):
                yield Series(quantity, "bucket", MODEL, "", str(bound), self._segment), float(count)
            yield Series(quantity, "sum", MODEL, "", "", self._segment), observed.sum
            yield Series(quantity, "count", MODEL, "", "", self._segment), float(observed.count)
