"""A level of a bench, as clients saw it: latencies, throughput, acceptance.

Requests count that were sent (closed loop) or due (open loop) while the load was constant, each
until its end. The first request of a client, which is shorter, the ramp and the drain do not count.
Counting the requests that ended in that time instead would favour short ones (A. Wald, *On
cumulative sums of random variables*, 1944).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from specwatch.domain.experiments import Acceptance, Batch, Level
from specwatch.domain.units import format_duration
from specwatch.errors import PageError
from specwatch.loadtest.acceptance import DraftCounts, acceptance_of
from specwatch.loadtest.calibration import MOST_ERRORS, Block, Stage
from specwatch.loadtest.common import cut, distribution_of
from specwatch.loadtest.requests import Answer, ErrorKind, Prompt
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

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"rate {self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Answers under a constant load, and the time that counts.

    Times are on the client's clock, ``in_flight`` is the time integral of the requests in flight,
    all in seconds. ``full_length`` is the length of a full answer, in tokens.
    """

    begin: float
    end: float
    in_flight: float
    answers: tuple[Answer, ...]
    full_length: int

    @classmethod
    def of(
        cls, block: Block, full_length: int, *, broken_off: float | None = None
    ) -> Stretch | None:
        """Of a closed loop that ended, or was ``broken_off`` at that time of its clock; None if
        none of it counts. A load that was broken off counts until the first request began that was
        never answered: of those after it only the fast ones have an answer."""
        inner = block.looks[1:] if broken_off is not None else block.looks[1:-1]
        if not inner:
            return None
        first, last = inner[0], inner[-1]
        if broken_off is not None:
            end = _answered_until(block, broken_off)
            return cls.between(block, first.clock, end, full_length)
        in_flight = last.in_flight - first.in_flight
        return cls(first.clock, last.clock, in_flight, block.answers, full_length)

    @classmethod
    def between(cls, block: Block, begin: float, end: float, full_length: int) -> Stretch | None:
        """Of an open loop, for requests that were due in this time; only until the first of them
        that was never answered."""
        end = _answered_until(block, end)
        if end <= begin:
            return None
        return cls(begin, end, _in_flight(block.answers, begin, end), block.answers, full_length)

    @property
    def counted(self) -> list[Answer]:
        """The requests that count, including failed ones, by their beginning."""
        full = (answer for answer in self.answers if answer.ask.max_tokens == self.full_length)
        answers = [answer for answer in full if self.begin <= answer.began < self.end]
        return sorted(answers, key=lambda answer: answer.began)

    @property
    def tokens(self) -> float:
        """Output tokens in this time, of all requests, if each decodes at a constant speed."""
        return math.fsum(_tokens_between(answer, self.begin, self.end) for answer in self.answers)

    @property
    def growth(self) -> int:
        """By how many the requests in flight increased from its beginning to its end."""
        return self._running(self.end) - self._running(self.begin)

    def _running(self, time: float) -> int:
        return sum(answer.began <= time < answer.ended for answer in self.answers)


def level(
    load: Load, stage: Stage, stretches: Sequence[Stretch], *, turns: bool, complete: bool = True
) -> Level:
    """The figures at one load; ``complete`` is False if it was broken off.

    ``turns`` is whether another server was measured alternately: then each stretch is a batch, so
    that those of both can be paired.
    """
    counted = [answer for stretch in stretches for answer in stretch.counted]
    good = [answer for answer in counted if error_of(answer) is None]
    seconds = math.fsum(stretch.end - stretch.begin for stretch in stretches)
    running = math.fsum(stretch.in_flight for stretch in stretches) / seconds if seconds else None
    if turns:
        batches = [batch(stretch.counted) for stretch in stretches]
    else:
        together = load.concurrency or math.ceil(running or 1.0)
        batches = [batch(group) for group in _cut(good, together)]
    tpots = [answer.tpot for answer in good]
    return Level(
        concurrency=load.concurrency,
        rate=load.rate,
        seconds=seconds,
        requests=len(good),
        errors=dict(Counter(str(error) for error in map(error_of, counted) if error)),
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
        acceptance=accepted(stage),
        alone=_alone(stage) if complete else None,
        complete=complete,
        batches=tuple(batches),
        notes=(
            *(() if complete else (BROKEN_OFF,)),
            *_notes(load, stretches, running, counted),
            *(_short(stretches, good) if turns and complete and load.rate is None else ()),
            *_cached(stage),
        ),
    )  # fmt: skip


def batch(answers: Sequence[Answer]) -> Batch:
    """Sums over requests without an error."""
    good = [answer for answer in answers if error_of(answer) is None]
    decoded = [answer for answer in good if answer.tpot is not None]
    return Batch(
        requests=len(good),
        tokens=sum(answer.tokens or 0 for answer in good),
        request_seconds=math.fsum(answer.latency for answer in good),
        decode_tokens=sum((answer.tokens or 1) - 1 for answer in decoded),
        decode_seconds=math.fsum((e.last or 0.0) - (e.first or 0.0) for e in decoded),
        first_seconds=math.fsum(answer.ttft or 0.0 for answer in good),
    )


def error_of(answer: Answer) -> ErrorKind | None:
    """Why an answer does not count; one without a token count is unreadable."""
    return answer.error or (None if answer.tokens else ErrorKind.UNREADABLE)


def accepted(stage: Stage) -> Acceptance | None:
    """Acceptance by the server's counters, else by the records of its answers, else None."""
    part = DraftCounts.of_counters(stage.total)
    if part is not None:
        return acceptance_of([part])
    records = [answer.acceptance for answer in stage.answers if answer.acceptance is not None]
    return acceptance_of([DraftCounts.of_record(record) for record in records])


def answered_well(block: Block) -> float:
    """Until when a server that failed has answered, on the client's clock.

    If it was restarted, this is before the restart, and before the first request began that the
    restart interrupted.
    """
    since, good = _before_restart(block), [answer for answer in block.answers if answer.ok]
    if since is None:
        return max((answer.ended for answer in good), default=0.0)
    lost = [answer for answer in block.answers if not answer.ok and answer.ended >= since]
    crash = min((answer.ended for answer in lost), default=since)
    last = max((answer.ended for answer in good if answer.ended <= crash), default=0.0)
    return min((answer.began for answer in lost if answer.began < last), default=last)


def written(prompt: Prompt) -> str:
    """A prompt as text, for the digest of a workload."""
    if not prompt.messages:
        return prompt.text
    return msgspec.json.encode(prompt.messages, order="sorted").decode()


def _before_restart(block: Block) -> float | None:
    """Time of the last look before the server was restarted; None if it was not."""
    tracker = CounterTracker()
    before = None
    for look in block.looks:
        try:
            if tracker.advance(look.samples).restarted:
                return before
        except PageError:
            return None
        before = look.clock
    return None


def _answered_until(block: Block, end: float) -> float:
    return end if block.unanswered is None else min(end, block.unanswered)


def _cut(answers: Sequence[Answer], together: int) -> list[Sequence[Answer]]:
    """Groups of neighbours, each at least as large as the number of requests that ran together."""
    count = min(MOST_BATCHES, len(answers) // max(together, 1)) or min(1, len(answers))
    return cut(answers, count)


def _tokens_between(answer: Answer, begin: float, end: float) -> float:
    first, last, tokens = answer.first, answer.last, answer.tokens
    if first is None or last is None or not tokens:
        return 0.0
    inside = 1.0 if begin <= first < end else 0.0
    if last > first:
        inside += (tokens - 1) * max(min(last, end) - max(first, begin), 0.0) / (last - first)
    elif begin <= last < end:
        inside += tokens - 1
    return inside


def _in_flight(answers: Iterable[Answer], begin: float, end: float) -> float:
    return math.fsum(max(min(e.ended, end) - max(e.sent, begin), 0.0) for e in answers)


def _alone(stage: Stage) -> bool | None:
    """Whether only this client used the server; None if its page has no counts."""
    if stage.total.generation_tokens is None and not stage.total.requests:
        return None
    return not stage.shared


def _notes(
    load: Load, stretches: Sequence[Stretch], running: float | None, counted: Sequence[Answer]
) -> Iterable[str]:
    failed = sum(error_of(answer) is not None for answer in counted)
    if failed > MOST_ERRORS * len(counted):
        yield f"{failed} of {len(counted)} requests failed"
    growth = sum(stretch.growth for stretch in stretches)
    if load.rate is not None and growth > _UNSTEADY * math.sqrt(2 * max(running or 0.0, 1.0)):
        yield (
            f"the server did not keep up: {growth} more requests were in flight at the end than at"
            " the beginning, so latencies depend on the duration"
        )


def _short(stretches: Sequence[Stretch], good: Sequence[Answer]) -> Iterable[str]:
    """A note if turns are too short."""
    latency = math.fsum(answer.latency for answer in good) / len(good) if good else 0.0
    seconds = math.fsum(stretch.end - stretch.begin for stretch in stretches)
    if latency and seconds < LEAST_TURN * latency * len(stretches):
        wanted = math.ceil(LEAST_TURN * latency * len(stretches))
        yield (
            f"a turn lasted {seconds / len(stretches) / latency:.1f} mean latencies, and"
            f" {LEAST_TURN:g} are recommended: give --duration {format_duration(wanted)}"
        )


def _cached(stage: Stage) -> Iterable[str]:
    if stage.cached is not None:
        yield (
            f"TTFT is of prompts of which {stage.cached:.0%} came from the prefix cache; use more"
            " prompts (--dataset)"
        )
