"""A level of a bench, as clients saw it: latencies, throughput, acceptance.

Requests count that were sent (closed loop) or due (open loop) while the load was constant, each
until its end. The first request of a client, which is shorter, the ramp and the drain do not count.
Counting the requests that ended in that time instead would favour short ones (A. Wald, *On
cumulative sums of random variables*, 1944).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specwatch.domain.experiments import Acceptance, Batch, ComparedLevel, Level
from specwatch.domain.units import format_duration
from specwatch.errors import PageError
from specwatch.lab.loadtest.acceptance import DraftCounts, acceptance_of
from specwatch.lab.loadtest.calibration import MOST_ERRORS, Block, Stage
from specwatch.lab.loadtest.requests import Answer
from specwatch.lab.loadtest.result_parts import cut, distribution_of
from specwatch.scrape.counters import CounterTracker

BROKEN_OFF = "broken off: these are the requests before the first that was not answered"
MOST_BATCHES = 24
"""Batches of a level, at most."""
LEAST_TURN = 6.0
"""Mean latencies that a turn should last, so that each client sends several requests."""
_UNSTEADY = 4.0
"""Standard deviations by which the requests in flight may grow by chance."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a level: a number of requests at once, or a number of requests a second."""

    concurrency: int | None = None
    rate: float | None = None

    @classmethod
    def of(cls, level: Level | ComparedLevel) -> Load:
        """The load of a level."""
        return cls(level.concurrency, level.rate)

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"rate {self.rate or 0.0:g}/s"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Answers under a constant load, and the time that counts, in seconds of the client's clock.

    ``full_length`` is the length of a full answer, in tokens.
    """

    begin: float
    end: float
    answers: tuple[Answer, ...]
    full_length: int

    @classmethod
    def of(
        cls,
        block: Block,
        full_length: int,
        *,
        planned: tuple[float, float] | None = None,
        broken_off: float | None = None,
    ) -> Stretch | None:
        """Of a load that ended, or was ``broken_off`` at that time; None if none of it counts.

        ``planned`` is the time that counts of an open loop, in seconds from its first look. A load
        that was broken off counts until the first request began that was never answered: of those
        after it only the fast ones have an answer.
        """
        inner = block.looks[1:] if broken_off is not None else block.looks[1:-1]
        if planned is not None and block.looks:
            begin, end = (block.looks[0].clock + seconds for seconds in planned)
        elif planned is None and inner:
            begin, end = inner[0].clock, inner[-1].clock if broken_off is None else math.inf
        else:
            return None
        ends = (end, broken_off, block.unanswered)
        end = min(time for time in ends if time is not None)
        return cls(begin, end, block.answers, full_length) if begin < end else None

    @property
    def counted(self) -> list[Answer]:
        """The requests that count, including failed ones, by their beginning."""
        full = (answer for answer in self.answers if answer.ask.max_tokens == self.full_length)
        answers = [answer for answer in full if self.begin <= answer.began < self.end]
        return sorted(answers, key=lambda answer: answer.began)

    @property
    def tokens(self) -> float:
        """Output tokens in this time, of all requests, if each decodes at a constant speed."""
        return math.fsum(self._tokens_of(answer) for answer in self.answers)

    @property
    def in_flight(self) -> float:
        """The time integral of the requests in flight, in seconds."""
        return math.fsum(self._overlap(answer.sent, answer.ended) for answer in self.answers)

    @property
    def growth(self) -> int:
        """By how many the requests in flight increased from its beginning to its end."""
        return self._running(self.end) - self._running(self.begin)

    def _running(self, time: float) -> int:
        return sum(answer.began <= time < answer.ended for answer in self.answers)

    def _overlap(self, begin: float, end: float) -> float:
        return max(min(end, self.end) - max(begin, self.begin), 0.0)

    def _tokens_of(self, answer: Answer) -> float:
        first, last, tokens = answer.first, answer.last, answer.tokens
        if first is None or last is None or not tokens:
            return 0.0
        starts_inside = self.begin <= first < self.end
        if last == first:
            return tokens if starts_inside else 0.0
        return starts_inside + (tokens - 1) * self._overlap(first, last) / (last - first)


def level(
    load: Load, stage: Stage, stretches: Sequence[Stretch], *, turns: bool, complete: bool = True
) -> Level:
    """The figures at one load; ``complete`` is False if it was broken off.

    ``turns`` is whether another server was measured alternately: then each stretch is a batch, so
    that those of both can be paired.
    """
    counted = [answer for stretch in stretches for answer in stretch.counted]
    good = [answer for answer in counted if answer.ok]
    seconds = math.fsum(stretch.end - stretch.begin for stretch in stretches)
    running = math.fsum(stretch.in_flight for stretch in stretches) / seconds if seconds else None
    groups: Sequence[Sequence[Answer]] = [stretch.counted for stretch in stretches]
    if not turns:  # each group at least as large as the number of requests that ran together
        together = load.concurrency or math.ceil(running or 1.0)
        groups = cut(good, min(MOST_BATCHES, len(good) // max(together, 1)) or min(1, len(good)))
    notes = [] if complete else [BROKEN_OFF]
    notes += _notes(load, stretches, running, counted)
    if turns and complete and load.rate is None:
        notes += _short_turns(seconds, len(stretches), good)
    if stage.cached is not None:
        notes.append(
            f"TTFT is of prompts of which {stage.cached:.0%} came from the prefix cache; use more"
            " prompts (--dataset)"
        )
    has_counts = stage.total.generation_tokens is not None or bool(stage.total.requests)
    tpots = [answer.tpot for answer in good]
    return Level(
        concurrency=load.concurrency,
        rate=load.rate,
        seconds=seconds,
        requests=len(good),
        errors=dict(Counter(str(answer.error) for answer in counted if not answer.ok)),
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in good),
        tokens=sum(answer.tokens or 0 for answer in good),
        throughput=math.fsum(stretch.tokens for stretch in stretches) / seconds if seconds else 0.0,
        per_user=distribution_of(1 / tpot for tpot in tpots if tpot),
        ttft=distribution_of(answer.ttft for answer in good),
        tpot=distribution_of(tpots),
        latency=distribution_of(answer.latency for answer in good),
        running=running,
        lateness=distribution_of(
            answer.sent - answer.due for answer in counted if answer.due is not None
        ),
        acceptance=_accepted(stage),
        alone=not stage.shared if complete and has_counts else None,
        complete=complete,
        batches=tuple(map(_batch, groups)),
        notes=tuple(notes),
    )


def answered_well(block: Block) -> float:
    """Until when a server that failed has answered, on the client's clock.

    If it was restarted, this is before the restart, and before the first request began that the
    restart interrupted.
    """
    good = [answer for answer in block.answers if answer.ok]
    tracker, since = CounterTracker(), 0.0
    for look in block.looks:
        try:
            if tracker.advance(look.samples).restarted:
                break
        except PageError:
            return max((answer.ended for answer in good), default=0.0)
        since = look.clock
    else:
        return max((answer.ended for answer in good), default=0.0)
    lost = [answer for answer in block.answers if not answer.ok and answer.ended >= since]
    crash = min((answer.ended for answer in lost), default=since)
    last = max((answer.ended for answer in good if answer.ended <= crash), default=0.0)
    return min((answer.began for answer in lost if answer.began < last), default=last)


def _batch(answers: Sequence[Answer]) -> Batch:
    """Sums over requests without an error."""
    good = [answer for answer in answers if answer.ok]
    decoded = [answer for answer in good if answer.tpot is not None]
    return Batch(
        requests=len(good),
        tokens=sum(answer.tokens or 0 for answer in good),
        request_seconds=math.fsum(answer.latency for answer in good),
        decode_tokens=sum((answer.tokens or 1) - 1 for answer in decoded),
        decode_seconds=math.fsum((e.last or 0.0) - (e.first or 0.0) for e in decoded),
        first_seconds=math.fsum(answer.ttft or 0.0 for answer in good),
    )


def _accepted(stage: Stage) -> Acceptance | None:
    """Acceptance by the server's counters, else by the records of its answers, else None."""
    counted = DraftCounts.of_counters(stage.total)
    if counted is not None:
        return acceptance_of([counted])
    records = [answer.acceptance for answer in stage.answers if answer.acceptance is not None]
    return acceptance_of([DraftCounts.of_record(record) for record in records])


def _notes(
    load: Load, stretches: Sequence[Stretch], running: float | None, counted: Sequence[Answer]
) -> Iterator[str]:
    failed = sum(not answer.ok for answer in counted)
    if failed > MOST_ERRORS * len(counted):
        yield f"{failed} of {len(counted)} requests failed"
    growth = sum(stretch.growth for stretch in stretches)
    if load.rate is not None and growth > _UNSTEADY * math.sqrt(2 * max(running or 0.0, 1.0)):
        yield (
            f"the server did not keep up: {growth} more requests were in flight at the end than at"
            " the beginning, so latencies depend on the duration"
        )


def _short_turns(seconds: float, turns: int, good: Sequence[Answer]) -> Iterator[str]:
    """A note if turns, which last ``seconds`` together, are too short."""
    latency = math.fsum(answer.latency for answer in good) / len(good) if good else 0.0
    wanted = LEAST_TURN * latency * turns
    if latency and seconds < wanted:
        yield (
            f"a turn lasted {seconds / turns / latency:.1f} mean latencies, and {LEAST_TURN:g} are"
            f" recommended: give --duration {format_duration(math.ceil(wanted))}"
        )
