"""What is true of a simulated month, computed from its request log alone.

The time that work would have taken without speculation is that of the simulator's own costs, at the
batch that there was: ``plain(b)`` for each step, and a step for each token.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specwatch.lab.simulator.costs import SimulatedCosts
from tests.report.month import COSTS, Request

Column = npt.NDArray[np.float64]
Chosen = npt.NDArray[np.bool_]
MINUTE, HOUR = 60.0, 3600.0
BINS = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, math.inf))
BUCKETS = {0.0: "0", 0.6: "(0.3,0.7]", 1.2: ">1"}


@dataclass(frozen=True)
class Counts:
    """Of some requests, to the last token."""

    requests: int
    prompt_tokens: int
    generation_tokens: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    histogram: tuple[int, ...]

    @property
    def rate(self) -> float:
        return self.accepted_tokens / self.draft_tokens


def counts(log: Iterable[Request]) -> Counts:
    log = list(log)
    pairs = [list(enumerate(entry.accepted)) for entry in log if entry.k]
    histogram: Counter[int] = Counter()
    for pair in itertools.chain.from_iterable(pairs):
        histogram[pair[0]] += pair[1]
    longest = max((request.k for request in log), default=0)
    return Counts(
        requests=len(log),
        prompt_tokens=sum(entry.prompt_tokens for entry in log),
        generation_tokens=sum(item.tokens for item in log),
        drafts=sum(histogram.values()),
        draft_tokens=sum(entry.draft_tokens for entry in log),
        accepted_tokens=sum(length * count for length, count in histogram.items()),
        histogram=tuple(histogram[at] for at in range(longest + 1)) if longest else (),
    )


def during(log: Iterable[Request], since: float, until: float) -> list[Request]:
    """Those that began and ended in a period: none of a month lies across midnight."""
    return [request for request in log if since <= request.arrival and request.last < until]


def nearest_rank(values: Sequence[float], q: float) -> float:
    """The least value that a share ``q`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1]


def bucket(bounds: Sequence[float], value: float) -> tuple[float, float]:
    """The ends of the histogram bucket that a value falls into."""
    ends = [0.0, *bounds, math.inf]
    at = next(at for at, end in enumerate(ends[1:], 1) if value <= end)
    return ends[at - 1], ends[at]


def ttft(request: Request) -> float:
    return request.first - request.arrival


def tpot(request: Request) -> float:
    return (request.last - request.first) / (request.tokens - 1) if request.tokens > 1 else 0.0


@dataclass
class Timeline:
    """The log as stretches of time in which nothing began or ended, as columns.

    ``batch`` are the running requests, ``decoding`` those that have their first token, ``rates``
    the tokens a second that these get, by temperature.
    """

    log: Sequence[Request]
    costs: SimulatedCosts = COSTS
    start: Column = field(init=False)
    seconds: Column = field(init=False)
    batch: Column = field(init=False)
    decoding: dict[float, Column] = field(init=False)
    rates: dict[float, Column] = field(init=False)
    on: Chosen = field(init=False)
    load: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        log = self.log
        first, last = (_column(log, name) for name in ("first", "last"))
        scheduled = _column(log, "scheduled")
        minutes = np.arange(scheduled.min() // MINUTE, last.max() // MINUTE + 2) * MINUTE
        edges = np.unique(np.concatenate([scheduled, first, last, minutes]))
        self.start, self.seconds = edges[:-1], np.diff(edges)
        self.batch = _sum_over(edges, scheduled, last, np.ones(len(log)))
        temperature = _column(log, "temperature")
        rate = (_column(log, "tokens") - 1) / np.maximum(last - first, 1e-9)
        self.decoding, self.rates = {}, {}
        for item in sorted(set(temperature)):
            mine = temperature == item
            ones = np.ones(int(mine.sum()))
            self.decoding[item] = _sum_over(edges, first[mine], last[mine], ones)
            self.rates[item] = _sum_over(edges, first[mine], last[mine], rate[mine])
        speculates = np.array([request.k > 0 for request in log], dtype=float)
        self.on = _sum_over(edges, scheduled, last, speculates) > 0.5
        self.load = self._loads()

    def _loads(self) -> npt.NDArray[np.int64]:
        """Load bin of the minute that each stretch lies in, by its true mean while busy."""
        minute = (self.start // MINUTE).astype(np.int64)
        minute -= minute.min()
        running = np.bincount(minute, self.batch * self.seconds)
        busy = np.bincount(minute, (self.batch > 0) * self.seconds)
        mean = np.divide(running, busy, out=np.zeros_like(running), where=busy > 0)
        ends = np.array([end for _, end in BINS])
        return np.searchsorted(ends, np.maximum(np.rint(mean), 1))[minute].astype(np.int64)

    def chosen(self, since: float, until: float) -> Chosen:
        """Stretches of a period with speculation."""
        return self.on & (self.start >= since) & (self.start < until) & (self.batch > 0)

    def speedup(self, where: Chosen, temperatures: Iterable[float] | None = None) -> float:
        """Time that decoding would have taken without speculation, over that which it took."""
        wanted = list(self.rates) if temperatures is None else list(temperatures)
        plain = self._plain()[where]
        would = sum(
            (self.rates[item][where] * plain * self.seconds[where]).sum() for item in wanted
        )
        took = sum(
            (self.decoding[temperature][where] * self.seconds[where]).sum()
            for temperature in wanted
        )
        return float(would / took)

    def loads_of(self, log: Sequence[Request]) -> npt.NDArray[np.int64]:
        """Load bin of the minute in which each request had its first token."""
        at = np.searchsorted(self.start, _column(log, "first"), side="right") - 1
        return np.asarray(self.load[at])

    def busy(self, where: Chosen) -> float:
        """Seconds with a running request."""
        return float(self.seconds[where].sum())

    def running(self, where: Chosen) -> float:
        """Mean of running requests."""
        return float((self.batch * self.seconds)[where].sum() / self.seconds[where].sum())

    def seconds_saved(self, where: Chosen, step: float = 0.0) -> float:
        """Seconds of the server that the same work would have taken longer without speculation.

        Each stretch is as much longer as its requests would have decoded more slowly; with
        ``step`` stretches are put together by so many seconds, which is all that is known to
        somebody who counts by the minute.
        """
        decoding = sum(self.decoding.values())
        rate = sum(self.rates.values())
        where = where & (decoding > 0)
        at = np.unique(
            self.start[where] // step if step else self.start[where], return_inverse=True
        )
        stretch, seconds = at[1], self.seconds[where]
        would = np.bincount(stretch, (rate * self._plain())[where] * seconds)
        took = np.bincount(stretch, decoding[where] * seconds)
        return float(((would / took - 1) * np.bincount(stretch, seconds)).sum())

    def _plain(self) -> Column:
        """Seconds of a plain step of the batch."""
        costs, batch = self.costs, self.batch
        compute = costs.per_token * np.maximum(batch - costs.free_tokens, 0)
        return np.asarray(costs.base + costs.per_sequence * batch + compute)


def _column(log: Sequence[Request], name: str) -> Column:
    return np.array([getattr(request, name) for request in log], dtype=float)


def _sum_over(edges: Column, begins: Column, ends: Column, amounts: Column) -> Column:
    """For each stretch between edges the sum of the amounts that last over it."""
    delta = np.zeros(len(edges))
    np.add.at(delta, np.searchsorted(edges, begins), amounts)
    np.subtract.at(delta, np.searchsorted(edges, ends), amounts)
    summed = np.cumsum(delta)[:-1]
    return np.where(np.abs(summed) < 1e-6, 0.0, summed)


def by_hour(
    log: Iterable[Request], when: Callable[[Request], float]
) -> Iterator[tuple[int, list[Request]]]:
    """Requests by the start of the hour in which something became of them."""
    hours: dict[int, list[Request]] = {}
    for request in log:
        hours.setdefault(int(when(request) // HOUR * HOUR), []).append(request)
    yield from sorted(hours.items())


def inside(ratio: Any, value: float) -> bool:
    """Whether a figure's interval holds the truth."""
    return bool(ratio.lower <= value <= ratio.upper)
