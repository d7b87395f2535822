"""From a fixed workload on a server to its baseline: slices, samples, measurements.

A slice is to calibration what a minute is to the daemon, and is counted in the same way: by the
increments of the server's own counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

from specwatch.domain import baseline, buckets, histogram
from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.merge import merge_tallies
from specwatch.domain.model import Gauges, Mode, Series, Tally
from specwatch.domain.sample import Sample, SentLengths
from specwatch.errors import PageError, ScrapeReason
from specwatch.loadtest.engine import Engine
from specwatch.loadtest.requests import Answer
from specwatch.scrape import tally
from specwatch.scrape.counters import CounterTracker

MOST_ERRORS = 0.05
"""Share of failed requests beyond which a stage says nothing of the server."""
MOST_FOREIGN = 0.01
"""Share of the server's tokens that may be of requests that were not ours: counting lags."""
MOST_APART = 0.2
"""By how much more time a step may take in one round than in another with the same prompts."""
MOST_DISTURBED = 1.0
"""The same, beyond which a stage says nothing of the server: what slowed it may have met one mode
more than the other."""


class Look(NamedTuple):
    """A server's page, and the load that we put on it up to then.

    ``at`` is Unix time, ``clock`` never steps, ``in_flight`` is the time integral of our requests;
    all in seconds.
    """

    samples: Mapping[Series, float]
    at: float
    clock: float
    in_flight: float


class Block(NamedTuple):
    """Load on one server without a break: the looks before it, between its slices and after it."""

    looks: tuple[Look, ...]
    answers: tuple[Answer, ...]
    unanswered: float | None = None
    """When the first request began that has no answer yet: a time of the client's clock."""


class Counts(NamedTuple):
    """What was counted of the model between two looks, by temperature too where a tap counts."""

    tally: Tally
    buckets: Mapping[str, Tally]


class Meter:
    """The counters of one model from look to look."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tracker = CounterTracker()

    def advance(self, samples: Mapping[Series, float]) -> Counts:
        """What was counted since the look before; nothing at the first.

        Raises PageError for counters that cannot be, and when the engine was restarted meanwhile.
        """
        increments = self._tracker.advance(samples)
        if increments.restarted:
            raise PageError(ScrapeReason.INCONSISTENT, "the engine was restarted meanwhile")
        parts = tally.parts_of(increments.values)
        problems: list[str] = []
        by_temperature: dict[str, Tally] = {}
        for (_, temperature), series in buckets.by_bucket(parts.tap, problems).items():
            part = tally.tally_of(series, problems)
            by_temperature[temperature] = merge_tallies(
                by_temperature.get(temperature, Tally()), part
            )
        model = parts.models.get(self._engine.series_name, {})
        whole = tally.tally_of(model, problems)
        if problems:
            raise PageError(ScrapeReason.INCONSISTENT, problems[0])
        return Counts(whole, by_temperature)


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of constant load: ``at`` is the Unix time of its end, ``seconds`` its length.

    ``in_flight`` is the time integral of our requests, in seconds; ``waiting`` is how many of them
    the server kept waiting all the time. ``buckets`` are what is known by temperature.
    """

    at: float
    seconds: float
    in_flight: float
    waiting: float
    tally: Tally
    buckets: Mapping[str, Tally]
    usual: SentLengths | None = None
    """Mean lengths of the requests that were sent meanwhile."""
    length: int | None = None
    """Tokens that their prompts were made to have; None of prompts as they stand."""
    label: str | None = None
    """The temperature bucket of all of them, where there is one."""

    def sample(self, engine: Engine) -> Sample:
        """As the decision sees a minute."""
        length = max(1, round(self.seconds))
        running = max(self.in_flight - self.waiting * self.seconds, 0.0)
        return Sample(
            start=round(self.at) - length,
            length=length,
            mode=engine.mode,
            tally=self.tally,
            gauges=Gauges(
                sampled_seconds=self.seconds,
                busy_seconds=self.seconds,
                running_seconds=running,
                waiting_seconds=self.waiting * self.seconds,
                running_max=round(running / self.seconds),
            ),
            environment=engine.environment,
            buckets=self.buckets,
            closed_loop=True,
            usual=self.usual,
        )


@dataclass(slots=True)
class Stage:
    """All load of one concurrency on one server, the warm-up left out."""

    engine: Engine
    concurrency: int
    must_be_steady: bool = False
    """Whether its rounds have the same prompts, so that it is of no use where something slowed the
    server in some of them."""
    slices: list[Slice] = field(default_factory=list)
    whole: Tally = field(default_factory=Tally)
    """All that the server counted, from the first request to the end of the last."""
    answers: list[Answer] = field(default_factory=list)

    def add(
        self, block: Block, meter: Meter, label: str | None = None, length: int | None = None
    ) -> None:
        """Take in a block; ``label`` is the temperature bucket of all its requests, if one, and
        ``length`` the tokens that their prompts were made to have."""
        meter.advance(block.looks[0].samples)
        counts = [meter.advance(look.samples) for look in block.looks[1:]]
        self.answers += block.answers
        self.whole = reduce(merge_tallies, (count.tally for count in counts), self.whole)
        by_tap: dict[str, Tally] = {}
        for count in counts:
            for temperature, part in count.buckets.items():
                by_tap[temperature] = merge_tallies(by_tap.get(temperature, Tally()), part)
        usual = _lengths(block.answers)
        inner = block.looks[1:-1]
        for (before, now), counted in zip(pairwise(inner), counts[1:-1], strict=True):
            # A tap counts a request at its end: only over a whole block do its counts add up.
            known = {label: counted.tally} if label is not None else by_tap
            self.slices.append(
                Slice(
                    at=now.at,
                    seconds=now.clock - before.clock,
                    in_flight=now.in_flight - before.in_flight,
                    waiting=min(self._waiting(before), self._waiting(now)),
                    tally=counted.tally,
                    buckets=known,
                    usual=usual,
                    length=length,
                    label=label,
                )
            )

    def _waiting(self, look: Look) -> float:
        model = tally.parts_of(look.samples).models.get(self.engine.series_name, {})
        return tally.sampled(model).waiting or 0.0

    @property
    def samples(self) -> list[Sample]:
        """Its slices as the decision sees them."""
        return [one.sample(self.engine) for one in self.slices]

    @property
    def apart(self) -> float:
        """By how much more time a step took in the slowest slice than in the fastest one with the
        same prompts and temperature, as a share."""
        times: dict[tuple[int | None, str | None], list[float]] = {}
        for one, sample in zip(self.slices, self.samples, strict=True):
            if (time := _step_time(sample)) is not None:
                times.setdefault((one.length, one.label), []).append(time)
        return max((max(alike) / min(alike) - 1 for alike in times.values()), default=0.0)

    @property
    def disturbed(self) -> bool:
        """Whether something slowed the server for a while, so that it should be measured again."""
        return self.must_be_steady and self.apart > MOST_DISTURBED

    @property
    def errors(self) -> Counter[str]:
        """Failed requests by kind."""
        return Counter(str(answer.error) for answer in self.answers if answer.error is not None)

    @property
    def foreign_requests(self) -> int:
        """Requests that the server ended and that were not ours."""
        return max(sum(self.whole.requests.values()) - len(self.answers), 0)

    @property
    def shared(self) -> bool:
        """Whether others used the server meanwhile."""
        ours = sum(answer.tokens or 0 for answer in self.answers)
        known = all(answer.tokens is not None for answer in self.answers)
        tokens = self.whole.generation_tokens or 0
        return self.foreign_requests > 0 or (known and tokens - ours > MOST_FOREIGN * tokens)

    @property
    def shortfall(self) -> str | None:
        """Why it cannot be used, as words; None if it can."""
        failed = sum(self.errors.values())
        if failed > MOST_ERRORS * len(self.answers):
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.errors.items()))
            return f"{failed} of {len(self.answers)} requests failed ({kinds})"
        if self.whole.inter_token is None and self.whole.tpot is None:
            return "the server's page has neither the time between tokens nor TPOT"
        counted = sum(sample.pace is not None for sample in self.samples)
        if counted < LEAST_SAMPLES:
            return (
                f"tokens came in {counted} of {len(self.slices)} slices, and {LEAST_SAMPLES} are"
                " the least; give a longer --duration"
            )
        if self.disturbed:
            return (
                f"a step took up to {1 + self.apart:.1f} times as long in one round as in"
                " another with the same prompts; repeat it while nothing else uses the machine, or"
                " with a longer --duration, or give --unsteady"
            )
        return None


def doubts_of(stages: Sequence[Stage]) -> list[str]:
    """What is doubtful of what was measured, as words."""
    conditions = [
        sample.requests is not None
        for stage in stages
        if stage.engine.mode is Mode.OFF
        for sample in stage.samples
    ]
    doubts = []
    if not all(conditions):
        doubts.append(
            "the page of the server without speculation does not tell prompt tokens or TTFT: the"
            " baseline is compared with traffic of any prompt length as if it were the same"
        )
    apart = ", ".join(
        f"{stage.apart:.0%} at concurrency {stage.concurrency}"
        f" {'with' if stage.engine.mode is Mode.ON else 'without'} speculation"
        for stage in stages
        if stage.apart > MOST_APART and not stage.disturbed
    )
    if apart:
        doubts.append(
            "a step took longer in one round than in another with the same prompts, by up to"
            f" {apart}; something slowed the server for a while, or slices are too short: repeat it"
            " on a quiet server, or with a longer --duration"
        )
    return doubts


def _step_time(sample: Sample) -> float | None:
    """Seconds of a decoding step, which unlike those of a token do not depend on what was accepted;
    None where they are not known."""
    pace, steps = sample.pace, sample.steps
    if pace is None:
        return None
    length = 1.0
    if steps:
        accepted = sample.tally.accepted_tokens or 0
        length = pace.tokens / steps if pace.by_token else 1 + accepted / steps
    return pace.seconds / pace.tokens * length


def _lengths(answers: Iterable[Answer]) -> SentLengths | None:
    """Mean lengths of what was asked for, by the server's count; None where it does not say."""
    lengths = [(answer.prompt_tokens, answer.ask.max_tokens) for answer in answers if answer.ok]
    prompts = [prompt for prompt, _ in lengths if prompt is not None]
    if not prompts:
        return None
    return SentLengths(
        sum(prompts) / len(prompts), sum(output for _, output in lengths) / len(lengths)
    )


def measurements(key: BaselineKey, stages: Iterable[Stage]) -> list[Measurement]:
    """The baseline that stages without speculation are, one for each load bin.

    Latencies are those of whole stages: of all requests, not of those that a slice happens to hold.
    """
    usable = [stage for stage in stages if stage.shortfall is None]
    samples = [sample for stage in usable for sample in stage.samples]
    measured = []
    for one in baseline.measured(key, Origin.CALIBRATION, samples):
        own = [stage.whole for stage in usable if _main_bin(stage) == one.load_bin]
        measured.append(
            replace(
                one,
                ttft=histogram.merge_all(one.ttft for one in own if one.ttft is not None),
                tpot=histogram.merge_all(one.tpot for one in own if one.tpot is not None),
            )
        )
    return [one for one in measured if one.enough]


def _main_bin(stage: Stage) -> int | None:
    bins = Counter(sample.load_bin for sample in stage.samples)
    return bins.most_common(1)[0][0] if bins else None
