"""Simulated servers under traffic, whose truth is found by simulating them in both modes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tests.worlds.metrics_page import MetricsPage, Tap
from tests.worlds.serving import Engine
from tests.worlds.traffic import (
    HOUR,
    ClosedLoop,
    Conditions,
    OpenLoop,
    Regime,
    Request,
    Schedule,
    constant,
)

WARM_UP = 600.0
TRUTH_SEEDS = 6
TRUTH_REQUESTS = 20_000
"""Requests that a truth is the mean of, in each mode; in at least 4 hours for each seed."""
MOST, LEAST = 5.0, 0.2
"""A server that cannot keep up gets ever slower; its truth ends here."""
OUTAGE = 600.0
"""Seconds that scrapes fail for, where whole outages do."""


class ServedWorld:
    """A server whose regime changes with the time since the first page."""

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        seed: int,
        *,
        interval: float = 15.0,
        down: float = 60.0,
        coverage: Callable[[float], float] | None = None,
        deploys: Sequence[float] = (),
        lost: float = 0.0,
        outages: float = 0.0,
    ) -> None:
        """``down``: seconds that a restart takes.

        ``coverage``: the share of requests that the tap sees, by temperature; None: no tap.
        ``deploys``: times, in seconds since the first page, of restarts by another tool, always
        with speculation. ``lost``: share of the scrapes that fail singly. ``outages``: share of the
        ten minutes in which all scrapes fail.
        """
        self.name, self.interval = name, interval
        self._schedule, self._seed, self._down, self._coverage = schedule, seed, down, coverage
        self._deploys = sorted(deploys)
        self._lost, self._outages = lost, outages
        self._conditions = Conditions(schedule, seed)
        self._source = OpenLoop(schedule, seed, coverage or (lambda _: 0.0))
        self._zero: float | None = None
        self._engine: Engine | None = None
        self._text: MetricsPage | None = None
        self._processes = 0
        self._killed = -60.0
        self._up = 0.0
        self._speculation = True

    def page(self, now: float) -> str | None:
        """The metrics page; None while the server is down or where the scrape was lost."""
        time = self._advance(now)
        if self._text is None or self._is_lost(time):
            return None
        return self._text.text()

    def restart(self, now: float, speculation: bool) -> None:
        """Start again with or without speculation; all requests are lost."""
        self._kill(self._advance(now), speculation)

    def truth(self, now: float) -> float:
        """The speedup: mean request time without speculation over that with it."""
        return truth_of(self.regime(now))

    def regime(self, now: float) -> Regime:
        """What is in force."""
        return self._schedule(now - self._start(now))[0]

    def calibrate(
        self, load: int, prompt_tokens: int, output_tokens: int, seconds: float
    ) -> list[str]:
        """Pages of a fresh server without speculation under so many requests at a time."""
        regime = self._schedule(0.0)[0]
        seed = hash((self._seed, load, prompt_tokens, output_tokens)) % 2**31
        source = ClosedLoop(load, prompt_tokens, output_tokens, start=0.5)
        conditions = Conditions(constant(regime), seed)
        tap = Tap(0) if self._coverage else None
        engine = Engine(source, conditions, speculation=False, start=0.0, seed=seed, watcher=tap)
        text = MetricsPage(engine, (self._zero or 1.795e9) - 1000.0, tap)
        pages = []
        for index in range(int(seconds / self.interval + 1e-9) + 1):
            engine.advance(index * self.interval)
            pages.append(text.text())
        return pages

    def _start(self, now: float) -> float:
        if self._zero is None:
            self._zero = now
        return self._zero

    def _advance(self, now: float) -> float:
        """Bring the server to ``now``; returns it in seconds since the first page."""
        time = now - self._start(now)
        while self._deploys and self._deploys[0] <= time:
            deploy = self._deploys.pop(0)
            self._run(deploy)
            self._kill(deploy, speculation=True)
        self._run(time)
        return time

    def _run(self, time: float) -> None:
        if self._engine is None and time >= self._up:
            self._launch()
        if self._engine is not None:
            self._engine.advance(time)
        else:
            self._drop_arrivals(time)

    def _launch(self) -> None:
        self._drop_arrivals(self._up)
        self._processes += 1
        regime = self._schedule(self._up)[0]
        tap = Tap(regime.k if self._speculation else 0) if self._coverage else None
        self._engine = Engine(
            self._source,
            self._conditions,
            speculation=self._speculation,
            start=self._up,
            seed=1000 * self._seed + self._processes,
            watcher=tap,
        )
        started = (self._zero or 0.0) + self._killed + 2.0
        self._text = MetricsPage(self._engine, started, tap)

    def _kill(self, time: float, speculation: bool) -> None:
        self._engine = self._text = None
        self._killed, self._up, self._speculation = time, time + self._down, speculation

    def _drop_arrivals(self, time: float) -> None:
        while self._source.time <= time:
            self._source.take()

    def _is_lost(self, time: float) -> bool:
        if not self._lost and not self._outages:
            return False
        outage = random.Random(f"outage {self._seed} {int(time // OUTAGE)}").random()
        single = random.Random(f"lost {self._seed} {time}").random()
        return outage < self._outages or single < self._lost


class _Times:
    """Sums the times of the requests that arrived after the warm-up."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def __call__(self, request: Request, end: float, drafts_by_kept: np.ndarray | None) -> None:
        if request.arrival >= WARM_UP:
            self.sum += end - request.arrival
            self.count += 1


def request_time(regime: Regime, seed: int, *, speculation: bool, hours: float = 4.0) -> float:
    """Mean seconds of a request, arrival to end, of those that arrive in so many hours."""
    end = WARM_UP + hours * HOUR
    schedule = constant(regime)
    times = _Times()
    engine = Engine(
        OpenLoop(schedule, seed, end=end),
        Conditions(schedule, seed),
        speculation=speculation,
        start=0.0,
        seed=seed + 500,
        watcher=times,
    )
    engine.advance(end)
    while engine.running or engine.waiting:
        end += HOUR
        engine.advance(end)
    return times.sum / max(1, times.count)


@cache
def truth_of(regime: Regime) -> float:
    """The speedup under a regime that stays: the same requests with and without speculation.

    It is 1 where nobody asks anything.
    """
    rate = regime.traffic.rate
    if not rate:
        return 1.0
    hours = min(60.0, max(4.0, TRUTH_REQUESTS / TRUTH_SEEDS / rate / HOUR))
    off, on = (
        math.fsum(
            request_time(regime, 7000 + seed, speculation=speculation, hours=hours)
            for seed in range(TRUTH_SEEDS)
        )
        for speculation in (False, True)
    )
    return min(MOST, max(LEAST, off / on))
