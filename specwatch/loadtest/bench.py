"""From the answers of a load to what clients saw at it: a level of a bench.

Counted are requests that were sent (closed loop) or due (open loop) while the load was constant,
each to its end: never the first request of a client, which is shorter, nor the ramp and the drain.
Counting those that ended instead would favour short ones; to the end of what was sent, sums over
requests have the mean of all (A. Wald, *On cumulative sums of random variables*, 1944).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from specwatch.domain.experiments import Acceptance, Batch, Level
from specwatch.domain.units import format_duration
from specwatch.errors import PageError
from specwatch.loadtest.acceptance import Part, acceptance_of
from specwatch.loadtest.calibration import MOST_ERRORS, Block, Stage
from specwatch.loadtest.common import distribution_of
from specwatch.loadtest.requests import Answer, ErrorKind, Prompt
from specwatch.scrape.counters import CounterTracker

BROKEN_OFF = "broken off: these are the requests before the first that was not answered"
MOST_BATCHES = 24
"""Of a level: more say nothing more of its noise."""
LEAST_TURN = 6.0
"""Mean latencies that a turn should last: in shorter ones each client sends few requests."""
_CACHED = 0.1
"""Share of prompt tokens from the prefix cache from which on it is said."""
_UNSTEADY = 4.0
"""Standard deviations by which the requests in flight may grow by chance."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a level puts on a server: so many requests at once, or so many a second."""

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"rate {self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Constant load without a break: what was answered, and the time of it that counts.

    Times are on the client's clock, ``in_flight`` is the time integral of our requests in it, all
    in seconds. ``asked`` is the length of a full answer, in tokens.
    """

    begin: float
    end: float
    in_flight: float
    answers: tuple[Answer, ...]
    asked: int

    @classmethod
    def of(cls, block: Block, asked: int, *, broken_off: float | None = None) -> Stretch | None:
        """Of a closed loop that ended, or was ``broken_off`` at that moment, in seconds of its
        clock; None where none of it counts. What was broken off counts until the first request
        began that was never answered: those after it are known only if they were fast."""
        inner = block.looks[1:] if broken_off is not None else block.looks[1:-1]
        if not inner:
            return None
        first, last = inner[0], inner[-1]
        if broken_off is not None:
            end = _answered_until(block, broken_off)
            return cls.between(block, first.clock, end, asked)
        in_flight = last.in_flight - first.in_flight
        return cls(first.clock, last.clock, in_flight, block.answers, asked)

    @classmethod
    def between(cls, block: Block, begin: float, end: float, asked: int) -> Stretch | None:
        """Of the time in which the requests of an open loop were due that count; only until the
        first of them that was never answered."""
        end = _answered_until(block, end)
        if end <= begin:
            return None
        return cls(begin, end, _in_flight(block.answers, begin, end), block.answers, asked)

    @property
    def counted(self) -> list[Answer]:
        """The requests that count, failed ones too, in their order."""
        whole = (answer for answer in self.answers if answer.ask.max_tokens == self.asked)
        answers = [answer for answer in whole if self.begin <= answer.began < self.end]
        return sorted(answers, key=lambda answer: answer.began)

    @property
    def tokens(self) -> float:
        """Output tokens in this time, of whatever request: decoding is taken to be even."""
        return math.fsum(_tokens_between(answer, self.begin, self.end) for answer in self.answers)

    @property
    def growth(self) -> int:
        """How many more requests were in flight at its end than at its beginning."""
        return self._running(self.end) - self._running(self.begin)

    def _running(self, time: float) -> int:
        return sum(answer.began <= time < answer.ended for answer in self.answers)


def level(
    load: Load, stage: Stage, stretches: Sequence[Stretch], *, turns: bool, whole: bool = True
) -> Level:
    """What was seen at one load; not ``whole`` is one that was broken off.

    ``turns`` is whether another server had its turns in between: then a stretch is a batch, so that
    those of both can be paired.
    """
    counted = [(stretch, one) for stretch in stretches for one in stretch.counted]
    good = [one for _, one in counted if error_of(one) is None]
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
        errors=dict(Counter(str(error) for _, one in counted if (error := error_of(one)))),
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in good),
        tokens=sum(answer.tokens or 0 for answer in good),
        throughput=math.fsum(stretch.tokens for stretch in stretches) / seconds if seconds else 0.0,
        per_user=distribution_of(1 / tpot for tpot in tpots if tpot),
        ttft=distribution_of(answer.ttft for answer in good),
        tpot=distribution_of(tpots),
        latency=distribution_of(answer.latency for answer in good),
        running=running,
        lateness=distribution_of(
            one.sent - one.due for _, one in counted if one.due is not None
        ),
        acceptance=accepted(stage),
        alone=_alone(stage) if whole else None,
        complete=whole,
        batches=tuple(batches),
        notes=(
            *(() if whole else (BROKEN_OFF,)),
            *_notes(load, stretches, running, [one for _, one in counted]),
            *(_short(stretches, good) if turns and whole and load.rate is None else ()),
            *_cached(stage),
        ),
    )  # fmt: skip


def batch(answers: Sequence[Answer]) -> Batch:
    """Sums over requests that ended well."""
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
    """Why an answer says nothing; one that does not tell its tokens is as good as unreadable."""
    return answer.error or (None if answer.tokens else ErrorKind.UNREADABLE)


def accepted(stage: Stage) -> Acceptance | None:
    """Drafts by the server's own counters, or by the records of its answers where it has none; None
    where neither tell of any."""
    part = Part.of_counters(stage.whole)
    if part is not None:
        return acceptance_of([part])
    records = [answer.acceptance for answer in stage.answers if answer.acceptance is not None]
    return acceptance_of([Part.of_record(record) for record in records])


def answered_well(block: Block) -> float:
    """Up to when a server answered that broke off: a time of the client's clock.

    Of one that was restarted it is before that, and before what was in flight then began.
    """
    since, good = _before_restart(block), [answer for answer in block.answers if answer.ok]
    if since is None:
        return max((answer.ended for answer in good), default=0.0)
    lost = [answer for answer in block.answers if not answer.ok and answer.ended >= since]
    crash = min((answer.ended for answer in lost), default=since)
    last = max((answer.ended for answer in good if answer.ended <= crash), default=0.0)
    return min((answer.began for answer in lost if answer.began < last), default=last)


def written(prompt: Prompt) -> str:
    """A prompt as text, of which a digest can be made."""
    if not prompt.messages:
        return prompt.text
    return msgspec.json.encode(prompt.messages, order="sorted").decode()


def _before_restart(block: Block) -> float | None:
    """The last look before the server was restarted; None where it was not."""
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
    """Groups of neighbours; requests that ran together are alike, and belong into one."""
    count = min(MOST_BATCHES, len(answers) // max(together, 1)) or min(1, len(answers))
    ends = [round(index * len(answers) / count) for index in range(count + 1)] if count else []
    return [answers[begin:end] for begin, end in pairwise(ends)]


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
    """Whether nobody else used the server; None where its page does not tell."""
    if stage.whole.generation_tokens is None and not stage.whole.requests:
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
            " the beginning, and latencies grow with the duration"
        )


def _short(stretches: Sequence[Stretch], good: Sequence[Answer]) -> Iterable[str]:
    """Turns that are shorter than they should be."""
    latency = math.fsum(answer.latency for answer in good) / len(good) if good else 0.0
    seconds = math.fsum(stretch.end - stretch.begin for stretch in stretches)
    if latency and seconds < LEAST_TURN * latency * len(stretches):
        wanted = math.ceil(LEAST_TURN * latency * len(stretches))
        yield (
            f"a turn lasted {seconds / len(stretches) / latency:.1f} mean latencies, and"
            f" {LEAST_TURN:g} make surer figures: give --duration {format_duration(wanted)}"
        )


def _cached(stage: Stage) -> Iterable[str]:
    whole = stage.whole
    if not whole.prefix_cache_queries or whole.prefix_cache_hits is None:
        return
    share = whole.prefix_cache_hits / whole.prefix_cache_queries
    if share >= _CACHED:
        yield (
            f"TTFT is that of prompts of which {share:.0%} came from the prefix cache; more prompts"
            " (--dataset) repeat less"
        )
