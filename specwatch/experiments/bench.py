"""From the answers of a load to what clients saw at it: a level of a bench.

Counted are requests that ended while the load was constant (closed loop), or that were due then
(open loop): never the first request of a client, which is shorter, nor the ramp and the drain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from specwatch.core.calibration import MOST_ERRORS, Block, Stage
from specwatch.core.load import Answer, Prompt
from specwatch.experiments.acceptance import Part, acceptance_of
from specwatch.experiments.common import distribution_of
from specwatch.experiments.model import Acceptance, Batch, Level
from specwatch.model import Tally

MOST_BATCHES = 24
"""Of a level: more say nothing more of its noise."""
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
        clock; None where none of it counts."""
        inner = block.looks[1:] if broken_off is not None else block.looks[1:-1]
        if not inner:
            return None
        first, last = inner[0], inner[-1]
        if broken_off is not None:
            return cls.between(block, first.clock, broken_off, asked)
        in_flight = last.in_flight - first.in_flight
        return cls(first.clock, last.clock, in_flight, block.answers, asked)

    @classmethod
    def between(cls, block: Block, begin: float, end: float, asked: int) -> Stretch | None:
        """Of the time in which the requests of an open loop were due that count."""
        if end <= begin:
            return None
        return cls(begin, end, _in_flight(block.answers, begin, end), block.answers, asked)

    @property
    def counted(self) -> list[Answer]:
        """The requests that count, failed ones too, in their order."""
        whole = (each for each in self.answers if each.ask.max_tokens == self.asked)
        at = ((each.ended if each.due is None else each.due, each) for each in whole)
        found = [(when, each) for when, each in at if self.begin <= when < self.end]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    @property
    def tokens(self) -> float:
        """Output tokens in this time, of whatever request: decoding is taken to be even."""
        return math.fsum(_tokens_between(each, self.begin, self.end) for each in self.answers)

    @property
    def growth(self) -> int:
        """How many more requests were in flight at its end than at its beginning."""
        return self._running(self.end) - self._running(self.begin)

    def _running(self, at: float) -> int:
        return sum(each.began <= at < each.ended for each in self.answers)


def level(
    load: Load, stage: Stage, stretches: Sequence[Stretch], *, turns: bool, whole: bool = True
) -> Level:
    """What was seen at one load; not ``whole`` is one that was broken off.

    ``turns`` is whether another server had its turns in between: then a stretch is a batch, so that
    those of both can be paired.
    """
    counted = [(each, one) for each in stretches for one in each.counted]
    good = [one for _, one in counted if one.ok and one.tokens]
    seconds = math.fsum(each.end - each.begin for each in stretches)
    running = math.fsum(each.in_flight for each in stretches) / seconds if seconds else None
    if turns:
        batches = [batch([one for one in each.counted if one.ok]) for each in stretches]
    else:
        together = load.concurrency or math.ceil(running or 1.0)
        batches = [batch(each) for each in _cut(good, together)]
    tpots = [each.tpot for each in good]
    return Level(
        concurrency=load.concurrency,
        rate=load.rate,
        seconds=seconds,
        requests=len(good),
        errors=dict(Counter(str(one.error) for _, one in counted if one.error is not None)),
        prompt_tokens=sum(each.prompt_tokens or 0 for each in good),
        tokens=sum(each.tokens or 0 for each in good),
        throughput=math.fsum(each.tokens for each in stretches) / seconds if seconds else 0.0,
        per_user=distribution_of(1 / each for each in tpots if each),
        ttft=distribution_of(each.ttft for each in good),
        tpot=distribution_of(tpots),
        latency=distribution_of(each.latency for each in good),
        running=running,
        lateness=distribution_of(
            one.sent - one.due for _, one in counted if one.due is not None
        ),
        acceptance=accepted(stage.whole),
        alone=_alone(stage) if whole else None,
        batches=tuple(batches),
        notes=tuple(_notes(load, stretches, running, [one for _, one in counted])),
    )  # fmt: skip


def batch(answers: Sequence[Answer]) -> Batch:
    """Sums over requests that ended well."""
    good = [each for each in answers if each.tokens]
    decoded = [each for each in good if each.tpot is not None]
    return Batch(
        requests=len(good),
        tokens=sum(each.tokens or 0 for each in good),
        request_seconds=math.fsum(each.latency for each in good),
        decode_tokens=sum((each.tokens or 1) - 1 for each in decoded),
        decode_seconds=math.fsum((e.last or 0.0) - (e.first or 0.0) for e in decoded),
        first_seconds=math.fsum(each.ttft or 0.0 for each in good),
    )


def accepted(whole: Tally) -> Acceptance | None:
    """Drafts by the server's own counters; None where it counted none."""
    part = Part.of_counters(whole)
    return None if part is None else acceptance_of([part])


def written(prompt: Prompt) -> str:
    """A prompt as text, of which a digest can be made."""
    if not prompt.messages:
        return prompt.text
    return msgspec.json.encode(prompt.messages, order="sorted").decode()


def _cut(answers: Sequence[Answer], together: int) -> list[Sequence[Answer]]:
    """Groups of neighbours; requests that ran together are alike, and belong into one."""
    count = min(MOST_BATCHES, len(answers) // max(together, 1)) or min(1, len(answers))
    ends = [round(at * len(answers) / count) for at in range(count + 1)] if count else []
    return [answers[begin:end] for begin, end in pairwise(ends)]


def _tokens_between(answer: Answer, begin: float, end: float) -> float:
    first, last, tokens = answer.first, answer.last, answer.tokens
    if first is None or last is None or not tokens:
        return 0.0
    found = 1.0 if begin <= first < end else 0.0
    if last > first:
        found += (tokens - 1) * max(min(last, end) - max(first, begin), 0.0) / (last - first)
    elif begin <= last < end:
        found += tokens - 1
    return found


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
    failed = sum(not each.ok for each in counted)
    if failed > MOST_ERRORS * len(counted):
        yield f"{failed} of {len(counted)} requests failed"
    growth = sum(each.growth for each in stretches)
    if load.rate is not None and growth > _UNSTEADY * math.sqrt(2 * max(running or 0.0, 1.0)):
        yield (
            f"the server did not keep up: {growth} more requests were in flight at the end than at"
            " the beginning, and latencies grow with the duration"
        )
