"""The baseline from a fixed workload on a server: slices, samples, measurements.

A slice is for calibration what a minute is for the daemon, and is counted in the same way: by the
increments of the server's counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from specwatch.domain import baseline, buckets
from specwatch.domain.baseline import BaselineKey, Measurement, Origin
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.merge import sum_tallies
from specwatch.domain.model import TEMPERATURE, Gauges, Mode, Segment, Series, Tally
from specwatch.domain.sample import Sample, SentLengths
from specwatch.errors import PageError, ScrapeReason
from specwatch.lab.loadtest.engine import MeasuredModel
from specwatch.lab.loadtest.requests import Answer
from specwatch.scrape import tally
from specwatch.scrape.counters import CounterTracker

MOST_ERRORS = 0.05
"""Share of failed requests above which a stage is not used."""
MOST_FOREIGN = 0.01
"""Share of the server's tokens that may seem to be of other clients, as counters lag."""
MOST_APART = 0.2
"""Share by which step times of rounds with the same prompts may differ without a note."""
MOST_DISTURBED = 1.0
"""The same, above which a stage is not used: what slowed the server may have affected one mode
more than the other."""
_LEAST_CACHED = 0.1
"""Share of prompt tokens from the prefix cache that is worth mentioning."""


class Look(NamedTuple):
    """A server's metrics page, and the load of this client until then.

    ``at`` is Unix time, ``clock`` is monotonic, ``in_flight`` is the time integral of the requests
    in flight; all in seconds.
    """

    samples: Mapping[Series, float]
    at: float
    clock: float
    in_flight: float


class Block(NamedTuple):
    """Uninterrupted load on one server: the looks before, between its slices, and after."""

    looks: tuple[Look, ...]
    answers: tuple[Answer, ...]
    unanswered: float | None = None
    """When the first request began that has no answer yet, on the client's clock."""


class Counts(NamedTuple):
    """Counts of the model between two looks, by temperature too if a tap counts."""

    tally: Tally
    buckets: Mapping[Segment, Sequence[Tally]]


class Meter:
    """The counters of one model from look to look."""

    def __init__(self, engine: MeasuredModel) -> None:
        self._engine = engine
        self._tracker = CounterTracker()

    def advance(self, samples: Mapping[Series, float]) -> Counts:
        """What was counted since the previous look; nothing at the first.

        Raises PageError for impossible counters, and if the engine was restarted since.
        """
        increments = self._tracker.advance(samples)
        if increments.restarted:
            raise PageError(ScrapeReason.INCONSISTENT, "the engine was restarted meanwhile")
        parts = tally.parts_of(increments.values)
        problems: list[str] = []
        by_temperature: dict[Segment, list[Tally]] = {}
        for (_, segment), series in buckets.by_bucket(parts.tap, problems).items():
            if segment.dimension == TEMPERATURE:
                by_temperature.setdefault(segment, []).append(tally.tally_of(series, problems))
        model = parts.models.get(self._engine.series_name, {})
        counted = tally.tally_of(model, problems)
        if problems:
            raise PageError(ScrapeReason.INCONSISTENT, problems[0])
        return Counts(counted, by_temperature)


class Slice(NamedTuple):
    """A part of a constant load, as a sample of the decision, like a minute of traffic."""

    sample: Sample
    length: int | None = None
    """Wanted length of its prompts, in tokens; None for prompts sent unchanged."""
    label: str | None = None
    """The temperature bucket, if all its requests have the same."""


@dataclass(slots=True)
class Stage:
    """All load of one concurrency on one server, without the warm-up."""

    engine: MeasuredModel
    concurrency: int
    must_be_steady: bool = False
    """Whether its rounds have the same prompts, so that it is not used if their step times differ
    too much."""
    slices: list[Slice] = field(default_factory=list)
    total: Tally = field(default_factory=Tally)
    """Counts of the server from the first request to the end of the last."""
    answers: list[Answer] = field(default_factory=list)

    def add(
        self, block: Block, meter: Meter, label: str | None = None, length: int | None = None
    ) -> None:
        """Add a block; ``label`` is the temperature bucket of all its requests, if the same, and
        ``length`` the wanted length of their prompts in tokens."""
        meter.advance(block.looks[0].samples)
        counts = [meter.advance(look.samples) for look in block.looks[1:]]
        self.answers += block.answers
        self.total = sum_tallies([self.total, *(count.tally for count in counts)])
        tapped: dict[Segment, list[Tally]] = {}
        for count in counts:
            for temperature, parts in count.buckets.items():
                tapped.setdefault(temperature, []).extend(parts)
        # A tap counts a request at its end: only over a whole block do its counts add up.
        by_tap = {temperature: sum_tallies(parts) for temperature, parts in tapped.items()}
        usual = _lengths(block.answers)
        inner = block.looks[1:-1]
        for (before, now), counted in zip(pairwise(inner), counts[1:-1], strict=True):
            by_label = by_tap if label is None else {Segment(TEMPERATURE, label): counted.tally}
            sample = self._sample(before, now, counted.tally, by_label, usual)
            self.slices.append(Slice(sample, length, label))

    def _sample(
        self,
        before: Look,
        now: Look,
        counted: Tally,
        by_temperature: Mapping[Segment, Tally],
        usual: SentLengths | None,
    ) -> Sample:
        seconds = now.clock - before.clock
        # What the server's queue had all the time.
        waiting = seconds * min(
            tally.sampled(self.engine.series(look.samples)).waiting or 0.0 for look in (before, now)
        )
        running = max(now.in_flight - before.in_flight - waiting, 0.0)
        length = max(1, round(seconds))
        return Sample(
            start=round(now.at) - length,
            length=length,
            mode=self.engine.mode,
            tally=counted,
            gauges=Gauges(
                sampled_seconds=seconds,
                busy_seconds=seconds,
                running_seconds=running,
                waiting_seconds=waiting,
                running_max=round(running / seconds),
            ),
            environment=self.engine.environment,
            segments={TEMPERATURE: by_temperature},
            closed_loop=True,
            usual=usual,
        )

    @property
    def samples(self) -> list[Sample]:
        """Its slices as samples of the decision."""
        return [one.sample for one in self.slices]

    @property
    def apart(self) -> float:
        """By how much longer a step took in the slowest slice than in the fastest one with the same
        prompts and temperature, as a share."""
        times: dict[tuple[int | None, str | None], list[float]] = {}
        for sample, length, label in self.slices:
            if (time := _step_time(sample)) is not None:
                times.setdefault((length, label), []).append(time)
        return max((max(alike) / min(alike) - 1 for alike in times.values()), default=0.0)

    @property
    def disturbed(self) -> bool:
        """Whether step times differ so much that it should be measured again."""
        return self.must_be_steady and self.apart > MOST_DISTURBED

    @property
    def errors(self) -> Counter[str]:
        """Failed requests by kind."""
        return Counter(str(answer.error) for answer in self.answers if answer.error is not None)

    @property
    def cached(self) -> float | None:
        """Share of the prompt tokens that came from the prefix cache; None if small or unknown."""
        queries, hits = self.total.prefix_cache_queries, self.total.prefix_cache_hits
        share = (hits or 0) / queries if queries else 0.0
        return share if share >= _LEAST_CACHED else None

    @property
    def title(self) -> str:
        """``concurrency 4 with speculation``."""
        what = "with" if self.engine.mode is Mode.ON else "without"
        return f"concurrency {self.concurrency} {what} speculation"

    @property
    def foreign_requests(self) -> int:
        """Requests of other clients that ended."""
        return max(sum(self.total.requests.values()) - len(self.answers), 0)

    @property
    def shared(self) -> bool:
        """Whether other clients used the server meanwhile."""
        own = sum(answer.tokens or 0 for answer in self.answers)
        all_known = all(answer.tokens is not None for answer in self.answers)
        tokens = self.total.generation_tokens or 0
        return self.foreign_requests > 0 or (all_known and tokens - own > MOST_FOREIGN * tokens)

    @property
    def shortfall(self) -> str | None:
        """Why it cannot be used, as words; None if it can."""
        if failures := failures_of(self.answers):
            return failures
        if self.total.inter_token is None and self.total.tpot is None:
            return "the server's page has neither the time between tokens nor TPOT"
        counted = sum(sample.pace is not None for sample in self.samples)
        if counted < LEAST_SAMPLES:
            return (
                f"tokens came in {counted} of {len(self.slices)} slices, {LEAST_SAMPLES} are"
                " needed; give a longer --duration"
            )
        if self.disturbed:
            return (
                f"a step took up to {1 + self.apart:.1f} times as long in one round as in"
                " another with the same prompts; repeat it while nothing else uses the machine, or"
                " with a longer --duration, or give --unsteady"
            )
        return None


def failures_of(answers: Sequence[Answer]) -> str | None:
    """How many requests failed and why, as words; None if so few that it does not matter."""
    errors = Counter(str(answer.error) for answer in answers if not answer.ok)
    if errors.total() <= MOST_ERRORS * len(answers):
        return None
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(errors.items()))
    return f"{errors.total()} of {len(answers)} requests failed ({kinds})"


def doubts_of(stages: Sequence[Stage]) -> list[str]:
    """Doubts about the measured stages, as words."""
    conditions = [
        sample.requests is not None
        for stage in stages
        if stage.engine.mode is Mode.OFF
        for sample in stage.samples
    ]
    doubts = []
    if not all(conditions):
        doubts.append(
            "the metrics page of the server without speculation has no prompt tokens or TTFT, so"
            " the baseline is compared with traffic regardless of prompt length"
        )
    apart = ", ".join(
        f"{stage.apart:.0%} at {stage.title}"
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
    """Seconds of a decoding step, which unlike the time of a token does not depend on acceptance;
    None if not known."""
    pace, steps = sample.pace, sample.steps
    if pace is None:
        return None
    length = 1.0
    if steps:
        accepted = sample.tally.accepted_tokens or 0
        length = pace.tokens / steps if pace.by_token else 1 + accepted / steps
    return pace.seconds / pace.tokens * length


def _lengths(answers: Iterable[Answer]) -> SentLengths | None:
    """Mean lengths of the requests sent, by the server's count; None if it does not report it."""
    lengths = [(answer.prompt_tokens, answer.ask.max_tokens) for answer in answers if answer.ok]
    prompts = [prompt for prompt, _ in lengths if prompt is not None]
    if not prompts:
        return None
    return SentLengths(
        sum(prompts) / len(prompts), sum(output for _, output in lengths) / len(lengths)
    )


def measurements(key: BaselineKey, stages: Iterable[Stage]) -> list[Measurement]:
    """The baseline from stages without speculation, one measurement for each load bin.

    Latencies are those of whole stages, so that all requests count.
    """
    usable = [stage for stage in stages if stage.shortfall is None]
    samples = [sample for stage in usable for sample in stage.samples]
    totals: dict[int | None, list[Tally]] = {}
    for stage in usable:
        bins = Counter(sample.load_bin for sample in stage.samples)
        totals.setdefault(bins.most_common(1)[0][0], []).append(stage.total)
    measured = [
        replace(
            one,
            ttft=sum_tallies(totals.get(one.load_bin, ())).ttft,
            tpot=sum_tallies(totals.get(one.load_bin, ())).tpot,
        )
        for one in baseline.measured(key, Origin.CALIBRATION, samples)
    ]
    return [one for one in measured if one.enough]
