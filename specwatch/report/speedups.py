"""The measured speedup of a period: each window against the baseline of its environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import specwatch.domain.baseline as baselines
from specwatch.domain import breakeven, draft_lengths
from specwatch.domain.acceptance import lengths_vary
from specwatch.domain.baseline import MOST_POINTS, Baseline, BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point, point_at
from specwatch.domain.breakeven import Assessment
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.interval import LEAST_SAMPLES
from specwatch.domain.merge import sum_tallies
from specwatch.domain.model import HOUR, Environment, Mode, Objective
from specwatch.domain.sample import Sample
from specwatch.report.estimates import Ratio, ratio_of
from specwatch.report.latencies import summed
from specwatch.report.window_sums import Ledger, LedgerCell

_STRETCHES = 60
"""Windows of one load are compared as this many stretches at most: an hour minute by minute. With
fewer, correlation cannot be measured."""

_LITTLE = 0.05
"""Share of the tokens that a speedup may leave out without a warning."""


class Chosen:
    """The baseline of each environment, chosen once; ``now`` is a Unix time in seconds."""

    def __init__(self, known: Sequence[Measurement], now: float, max_age: float) -> None:
        self._known = known
        self._past = [measured for one in known if (measured := _until(one, now + HOUR)).points]
        self._now = now
        self._max_age = max_age
        self._found: dict[Environment, Baseline] = {}
        self.later: set[Environment] = set()
        """Environments with loads that were measured after ``now`` only."""

    def __call__(self, environment: Environment) -> Baseline:
        """The baseline of windows of that environment."""
        baseline = self._found.get(environment)
        if baseline is None:
            chosen = self._chosen(self._past, environment)
            # A later measurement is better than none, load by load.
            later = self._chosen(self._known, environment)
            if later.bins.keys() - chosen.bins.keys():
                self.later.add(environment)
                chosen = Baseline(
                    {**later.bins, **chosen.bins},
                    {**later.own, **chosen.own},
                    others=later.others + chosen.others,
                )
            baseline = self._found[environment] = chosen
        return baseline

    def _chosen(self, among: Sequence[Measurement], environment: Environment) -> Baseline:
        return baselines.choose(among, environment, now=self._now, max_age=self._max_age)


@dataclass(frozen=True, slots=True)
class Speedups:
    """The measured speedup, or why it is missing, and what may be assumed instead.

    ``samples`` are those with speculation, ``present`` is the newest environment of them;
    ``later`` is whether a baseline was measured after the period.
    """

    assessment: Assessment
    baseline: Callable[[Environment], Baseline]
    samples: Sequence[Sample] = ()
    assumed: float | None = None
    present: Environment | None = None
    later: bool = False
    draft_lengths: DraftLengths | None = None
    """Why drafts vary in length at the end of the period; then nothing is assumed."""

    def knows(self, environment: Environment, bin_: int) -> bool:
        """Whether there is a baseline of a load of that environment, or of both beside it."""
        bins = self.baseline(environment).bins
        return bin_ in bins or (bin_ - 1 in bins and bin_ + 1 in bins)

    @property
    def overall(self) -> Ratio | None:
        """Measured, else assumed."""
        if self.assessment.speedup is not None:
            return ratio_of(self.assessment.speedup)
        return None if self.assumed is None else Ratio(value=self.assumed, basis="assumed")

    @property
    def caveats(self) -> tuple[str, ...]:
        """Warnings about a measured speedup."""
        if self.assessment.speedup is None:
            return ()
        warnings: list[str] = []
        unknown = 1 - self.assessment.covered
        if self.later:
            warnings.append(
                "part of the baseline was measured after this period, as nothing was measured"
                " before"
            )
        if unknown >= _LITTLE:
            warnings.append(
                f"{unknown:.0%} of the tokens came at loads or with prompts that the baseline does"
                " not cover: the speedup and the hours saved are those of the others"
            )
        return tuple(warnings)


def speedups(
    ledger: Ledger,
    cells: Sequence[LedgerCell],
    stored: Iterable[Measurement],
    *,
    target: str,
    now: float,
    max_age: float,
    draft_cost_ratio: float,
    objective: Objective,
) -> Speedups:
    """Measure the period; ``now`` (Unix seconds) is the end of it.

    If the store has no measurement of a load, the windows without speculation are used.
    """
    samples = ledger.samples(_STRETCHES)
    measurements = [
        measurement for measurement in stored if measurement.key.model_name == ledger.name
    ]
    own = _own(ledger, cells, target, measurements, (now - max_age, now + HOUR))
    baseline = Chosen([*measurements, *own], now, max_age)
    environments = {sample.environment for sample in samples}
    assessment = breakeven.assess(samples, baseline, objective=objective, given_loads=True)
    if assessment.measured and len({e.fingerprint for e in environments}) > 1:
        # The others may have had another number of draft tokens.
        newest = [sample for sample in samples if sample.environment == ledger.present]
        present = breakeven.assess(newest, baseline, objective=objective)
        assessment = replace(
            assessment, best_k=present.best_k, best_k_unknown=present.best_k_unknown
        )
    newest_drafts = sum_tallies(
        cell.all for cell in cells if cell.place.now and cell.place.environment == ledger.present
    )
    varying = draft_lengths.shown_by(ledger.present or Environment())
    if varying is None and lengths_vary(newest_drafts):
        varying = DraftLengths.UNEXPLAINED
    assumed = None
    if varying is None and not any(baseline(environment).known for environment in environments):
        tallies = [cell.all for cell in cells if cell.place.now]
        counted = [tally for tally in tallies if tally.accepted_tokens is not None]
        assumed = breakeven.assumed_speedup(sum_tallies(counted), draft_cost_ratio)
    later = bool(baseline.later & environments)
    return Speedups(assessment, baseline, samples, assumed, ledger.present, later, varying)


def _own(
    ledger: Ledger,
    cells: Sequence[LedgerCell],
    target: str,
    stored: Sequence[Measurement],
    span: tuple[float, float],
) -> list[Measurement]:
    """Measurements from windows without speculation, for loads that the store has none of.

    Stored points count if they are within ``span`` (Unix seconds).
    """
    oldest, newest = span
    kept = {
        (measurement.key, measurement.load_bin)
        for measurement in stored
        if measurement.origin is Origin.WINDOWS
        and sum(oldest <= point.at <= newest for point in measurement.points) >= LEAST_SAMPLES
    }
    points: dict[tuple[BaselineKey, int], list[Point]] = {}
    for (mode, bin_, environment, _, _), minutes in ledger.minutes.items():
        key = BaselineKey(
            target, ledger.name, environment.engine_version, environment.configuration
        )
        if mode is Mode.OFF and (key, bin_) not in kept:
            points.setdefault((key, bin_), []).extend(
                point_at(
                    float(minute.start + minute.length),
                    minute.gauges.running_seconds / minute.gauges.busy_seconds,
                    minute.pace,
                    float(minute.length),
                    minute.requests,
                )
                for minute in minutes
            )
    stretches = []
    for (key, bin_), own in points.items():
        off = [
            cell.all
            for cell in cells
            if cell.place.mode is Mode.OFF
            and cell.place.load_bin == bin_
            and cell.place.environment.engine_version == key.engine_version
            and cell.place.environment.configuration == key.configuration
        ]
        stretches.append(
            Measurement(
                key,
                bin_,
                Origin.WINDOWS,
                tuple(sorted(own)[-MOST_POINTS:]),
                summed(cell.ttft for cell in off),
                summed(cell.tpot for cell in off),
                len(own),
            )
        )
    return stretches


def _until(one: Measurement, end: float) -> Measurement:
    """Without points of after a time."""
    if all(point.at <= end for point in one.points):
        return one
    return replace(one, points=tuple(point for point in one.points if point.at <= end))
