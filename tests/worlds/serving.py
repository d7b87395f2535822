"""A simulated vLLM engine: continuous batching by steps, advanced many steps at once.

Between two events (an arrival, the end of a sequence, a change of the hardware, the next scrape)
the batch stays the same, so that its steps are advanced together. A step that computes prompt
tokens is its own event. How many tokens each step of a request yields is drawn when its
decoding begins, so all counts are those of single steps.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from typing import Protocol

import numpy as np

from tests.worlds.traffic import Conditions, Costs, Machine, Regime, Request

LATENCIES = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
TOKEN_TIMES = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
FIRST_TOKEN_TIMES = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
LENGTHS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


WARMER = 10.0
"""Seconds for which the steps of a new process take equally long."""


class Histogram:
    """Observations by upper bound, the last bucket being everything above."""

    __slots__ = ("bounds", "buckets", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.buckets[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.buckets)


class Counts:
    """What the engine has counted since its start."""

    def __init__(self, k: int) -> None:
        self.ttft = Histogram(FIRST_TOKEN_TIMES)
        self.inter_token = Histogram(TOKEN_TIMES)
        self.tpot = Histogram(TOKEN_TIMES)
        self.e2e = Histogram(LATENCIES)
        self.output_length = Histogram(LENGTHS)
        self.prompt_length = Histogram(LENGTHS)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.requests = {"stop": 0, "length": 0}
        self.steps_by_kept = np.zeros(k + 1, dtype=np.int64)
        """Drafts by how many of their tokens were kept."""


class Source(Protocol):
    """Where requests come from."""

    @property
    def time(self) -> float: ...

    def take(self) -> Request: ...

    def finished(self, time: float) -> None: ...


class Watcher(Protocol):
    """Is called with each request that is done."""

    def __call__(self, request: Request, end: float, drafts_by_kept: np.ndarray | None) -> None: ...


class Engine:
    """One process of the server. Times are seconds since the start of its world."""

    def __init__(
        self,
        source: Source,
        conditions: Conditions,
        *,
        speculation: bool,
        start: float,
        seed: int,
        watcher: Watcher | None = None,
    ) -> None:
        self._source, self._conditions, self._watcher = source, conditions, watcher
        self._random = np.random.default_rng(seed)
        self._draws = np.empty(0)
        self._next_draw = 0
        self._start = self.time = start
        regime: Regime = conditions.at(start)[0]
        self.positions = regime.k if speculation else 0
        self.k = self.positions if regime.proposes else 0
        self.speculation = speculation
        machine: Machine = regime.machine
        self._machine = machine
        self._hits = 0.0
        self.blocks = machine.blocks_on if speculation else machine.blocks_off
        self._free_blocks = self.blocks
        self.counts = Counts(self.k)
        self.waiting: deque[Request] = deque()
        self._prefilling: list[Request] = []
        self._decoding: list[tuple[int, int, Request]] = []
        self._order = 0
        self._steps = 0
        self._context = 0.0
        self._growth = 0.0
        self._flight: list[tuple[Request, int]] | None = None
        """The step under way that computes prompt tokens: how many, of which requests."""
        self._flight_end = 0.0
        self._costs: Costs = regime.costs
        self._factor = 1.0
        self._changes = -math.inf

    @property
    def running(self) -> int:
        """Requests that have been admitted and are not done."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def shown_running(self) -> int:
        """Running requests as vLLM's gauge has them: those of the last step that ended."""
        return self.running - sum(not request.begun for request in self._prefilling)

    @property
    def cache_usage(self) -> float:
        """Share of the cache in use."""
        tokens = self._context + sum(r.prompt - r.left for r in self._prefilling)
        return min(1.0, tokens / 16 / self.blocks)

    def advance(self, until: float) -> None:
        """Run all steps that end until then."""
        source, waiting, decoding = self._source, self.waiting, self._decoding
        itl = self.counts.inter_token
        while True:
            if self._flight is not None:
                if self._flight_end > until:
                    break
                self._complete()
            time = self.time
            if time >= self._changes:
                self._refresh()
            while source.time <= time:
                waiting.append(source.take())
            blocked = False
            if self._prefilling or (waiting and waiting[0].arrival <= time):
                self._begin_prefill()
                if self._flight is not None:
                    continue
                blocked = bool(waiting) and waiting[0].arrival <= time
            arrival = waiting[0].arrival if waiting else source.time
            if not decoding:
                if arrival > until:
                    self.time = max(time, until)
                    break
                self.time = arrival
                continue
            number = len(decoding)
            first = self._step(number)
            slope = self._factor * self._costs.per_context_token * self._growth
            fitting = int(_steps_within(until - time, first, slope) + 1e-9)
            steps = min(decoding[0][0] - self._steps, fitting)
            if steps <= 0:
                break
            edge = self._changes if blocked else min(arrival, self._changes)
            if edge < until:
                steps = min(steps, max(1, math.ceil(_steps_within(edge - time, first, slope))))
            took = steps * first + slope * steps * (steps - 1) / 2
            self._steps += steps
            self.time = time + took
            self._context += self._growth * steps
            itl.buckets[bisect.bisect_left(itl.bounds, took / steps)] += number * steps
            itl.sum += number * took
            while decoding and decoding[0][0] <= self._steps:
                self._finish(heapq.heappop(decoding)[2])
        while source.time <= until:
            waiting.append(source.take())

    def flush(self) -> None:
        """Count the tokens of the requests under way."""
        for _, _, request in self._decoding:
            self._flush(request, self._steps - request.joined)

    def _refresh(self) -> None:
        regime, noise, self._changes = self._conditions.at(self.time)
        costs = regime.costs
        self._costs = costs
        by_mode = costs.factor_on if self.speculation else costs.factor_off
        self._factor = noise * costs.factor * by_mode
        self._hits = regime.traffic.hits_on if self.speculation else regime.traffic.hits_off
        age = self.time - self._start
        if age < costs.warm_up:
            self._factor *= costs.cold + (1.0 - costs.cold) * age / costs.warm_up
            self._changes = min(self._changes, self.time + WARMER)

    def _step(self, number: int, prompt_tokens: int = 0, starting: int = 0) -> float:
        """Seconds of a step: sequences that decode, prompt tokens, and of how many requests."""
        costs, k = self._costs, self.k
        sequences = number + starting
        time = (
            costs.base
            + costs.per_sequence * sequences
            + costs.per_context_token * self._context
            + costs.per_prefill_token * prompt_tokens
        )
        beyond = number * (k + 1) - costs.free_tokens
        if beyond > 0:
            time += costs.per_token * beyond
        if k:
            time += k * (costs.draft_base + costs.draft_per_sequence * sequences)
            time += costs.draft_per_prefill_token * prompt_tokens
        return time * self._factor

    def _begin_prefill(self) -> None:
        """Put a step under way that computes prompt tokens, where there are any to compute."""
        number = len(self._decoding)
        budget = self._machine.most_batched_tokens - number * (self.k + 1)
        waiting, prefilling = self.waiting, self._prefilling
        chunks: list[tuple[Request, int]] = []
        total = 0
        for request in prefilling:
            chunk = min(request.left, budget - total)
            if chunk <= 0:
                break
            chunks.append((request, chunk))
            total += chunk
        while waiting and waiting[0].arrival <= self.time and total < budget:
            request = waiting[0]
            blocks = -(-(request.prompt + request.output) // 16)
            full = blocks > self._free_blocks or self.running >= self._machine.most_sequences
            if full and self.running:
                break
            waiting.popleft()
            self._free_blocks -= blocks
            hits = self._cached(request)
            request.blocks, request.left = blocks, request.prompt - hits
            self.counts.prefix_queries += request.prompt
            self.counts.prefix_hits += hits
            prefilling.append(request)
            chunk = min(request.left, budget - total)
            chunks.append((request, chunk))
            total += chunk
        if chunks:
            self._flight = chunks
            self._flight_end = self.time + self._step(number, total, len(chunks))

    def _cached(self, request: Request) -> int:
        """Tokens of a prompt that are in the prefix cache, in whole blocks."""
        if not self._hits:
            return 0
        filled = 1.0 - math.exp((self._start - self.time) / self._machine.filling)
        return min(int(self._hits * filled * request.prompt), request.prompt - 1) // 16 * 16

    def _complete(self) -> None:
        """End the step under way."""
        chunks = self._flight or []
        decoding, counts = self._decoding, self.counts
        number = len(decoding)
        took = self._flight_end - self.time
        self.time = self._flight_end
        self._flight = None
        self._steps += 1
        self._context += self._growth
        if number:
            itl = counts.inter_token
            itl.buckets[bisect.bisect_left(itl.bounds, took)] += number
            itl.sum += number * took
            while decoding and decoding[0][0] <= self._steps:
                self._finish(heapq.heappop(decoding)[2])
        for request, chunk in chunks:
            request.begun = True
            request.left -= chunk
            if not request.left:
                self._prefilling.remove(request)
                self._start_decoding(request)

    def _start_decoding(self, request: Request) -> None:
        counts = self.counts
        request.first = self.time
        counts.ttft.observe(self.time - request.arrival)
        counts.prompt_tokens += request.prompt
        counts.generation_tokens += 1
        request.joined = self._steps
        remaining = request.output - 1
        self._context += request.prompt + 1
        if not remaining:
            self._finish(request)
            return
        if self.k:
            self._draw_steps(request, remaining)
        else:
            request.steps = remaining
        request.growth = remaining / request.steps
        self._growth += request.growth
        self._order += 1
        heapq.heappush(self._decoding, (self._steps + request.steps, self._order, request))

    def _draw_steps(self, request: Request, remaining: int) -> None:
        """Draw how many tokens each step accepts: each further one with the same chance."""
        scale = -1.0 / math.log(request.acceptance)
        start, stop = self._next_draw, self._next_draw + remaining
        if stop > len(self._draws):
            self._draws = self._random.standard_exponential(max(50_000, remaining))
            start, stop = 0, remaining
        kept = np.minimum(self._draws[start:stop] * scale, self.k).astype(np.int64)
        ends = (kept + 1).cumsum()
        steps = int(ends.searchsorted(remaining)) + 1
        self._next_draw = start + steps
        request.steps, request.kept, request.ends = steps, kept[:steps], ends

    def _flush(self, request: Request, done: int) -> None:
        before = request.flushed
        if done == before:
            return
        request.flushed = done
        counts = self.counts
        if not self.k:
            counts.generation_tokens += done - before
            return
        ends = request.ends
        most = request.output - 1
        tokens = min(most, int(ends[done - 1]))
        counts.generation_tokens += tokens - (int(ends[before - 1]) if before else 0)
        counts.steps_by_kept += np.bincount(request.kept[before:done], minlength=self.k + 1)

    def _finish(self, request: Request) -> None:
        counts, end = self.counts, self.time
        self._flush(request, request.steps)
        self._free_blocks += request.blocks
        if request.steps:
            self._growth -= request.growth
        self._context -= request.prompt + request.output
        if not self._decoding:
            self._growth = self._context = 0.0
        output = request.output
        counts.tpot.observe((end - request.first) / (output - 1) if output > 1 else 0.0)
        counts.e2e.observe(end - request.arrival)
        counts.output_length.observe(output)
        counts.prompt_length.observe(request.prompt)
        counts.requests[request.reason] += 1
        self._source.finished(end)
        if self._watcher is not None:
            kept = None
            if self.k and request.tapped and request.steps:
                kept = np.bincount(request.kept, minlength=self.k + 1)
            self._watcher(request, end, kept)


def _steps_within(seconds: float, first: float, slope: float) -> float:
    """Steps in so many seconds, the first taking ``first`` and each next ``slope`` more."""
    if seconds <= 0:
        return 0.0
    linear = first - slope / 2
    return 2 * seconds / (linear + math.sqrt(linear * linear + 2 * slope * seconds))
