"""Probes, benches and comparisons, each with a headline, and the experiment on live traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specwatch.domain import experiments as measured
from specwatch.domain.interval import Interval
from specwatch.domain.switchback import ALL_TRAFFIC, LAUNCH, Grouping, Switchback
from specwatch.domain.switchback_results import compared_episodes, results
from specwatch.report.estimates import Ratio, ratio_of
from specwatch.report.experiment_model import (
    Experiment,
    LiveArm,
    LiveExperiment,
    LiveGroup,
    MeasuredLoad,
    ProbedTemperature,
)
from specwatch.wording import experiment as wording
from specwatch.wording import figures
from specwatch.wording.break_even_zones import answer
from specwatch.wording.figures import finite, moment
from specwatch.wording.text import shown

MOST = 5
"""Experiments of one model that are reported."""
_Load = measured.Level | measured.ComparedLevel | MeasuredLoad


def newest(experiments: Sequence[measured.Experiment]) -> tuple[tuple[Experiment, ...], int]:
    """Of experiments, which come oldest first, the newest and how many others there are."""
    chosen = experiments[-MOST:]
    return tuple(map(experiment, reversed(chosen))), len(experiments) - len(chosen)


def notes(
    target: str, model_name: str, experiments: Sequence[Experiment], left_out: int
) -> tuple[str, ...]:
    """Notes on the experiments of a model that was not watched."""
    of = f"{shown(target)}, {shown(model_name)}"
    headlines = tuple(f"{of}: {headline(one)}" for one in experiments)
    return (*headlines, f"{of}: {others(left_out)}") if left_out else headlines


def headline(experiment: Experiment) -> str:
    """An experiment in a sentence or two."""
    where = _where([load for load in experiment.loads if not load.complete])
    until = f", broken off{where}: what follows is what was measured until then"
    partly = "" if experiment.complete else until
    kind = f"{moment(experiment.at)}, {experiment.kind} {experiment.asked}"
    return f"{kind}{partly}. {experiment.sentence}"


def others(left_out: int) -> str:
    """How many are left out."""
    return f"{figures.counted(left_out, 'older experiment')} of this period"


def experiment(one: measured.Experiment) -> Experiment:
    """One experiment, as the report has it."""
    if isinstance(one, measured.Probe):
        return _probe(one)
    return _bench(one) if isinstance(one, measured.Bench) else _comparison(one)


def _probe(probe: measured.Probe) -> Experiment:
    line = probe.line
    # The ends of an assumed line are not an interval: they limit the zone near the line.
    assumed = Ratio(value=line.acceptance.value, basis="assumed")
    at_once = figures.counted(probe.concurrency, "request")
    return Experiment(
        at=probe.ended,
        kind="probe",
        complete=probe.complete,
        speculation=probe.subject.mode == "on",
        asked=f"at {_temperatures(probe.workload)}, {at_once} at a time",
        sentence=answer(probe.temperatures, line),
        temperatures=tuple(
            ProbedTemperature(
                temperature=bucket.temperature,
                acceptance_rate=None
                if bucket.acceptance is None
                else ratio_of(bucket.acceptance.rate),
                zone=bucket.zone,
                speedup=ratio_of(bucket.speedup),
            )
            for bucket in probe.temperatures
        ),
        break_even_acceptance=assumed if line.basis == "assumed" else ratio_of(line.acceptance),
    )


def _bench(bench: measured.Bench) -> Experiment:
    # A part of a load says less than a whole one.
    best = max(bench.levels, key=lambda level: (level.complete, level.throughput), default=None)
    how = "with" if bench.subject.mode == "on" else "without"
    text = "Nothing was measured."
    if best is not None:
        text = f"At most {figures.compact(best.throughput)} tokens a second, at {_loads([best])}."
    return Experiment(
        at=bench.ended,
        kind="bench",
        complete=bench.complete,
        speculation=bench.subject.mode == "on",
        asked=f"{how} speculation{_where(bench.levels)}, {_temperatures(bench.workload)}",
        sentence=text,
        loads=tuple(
            MeasuredLoad(
                concurrency=level.concurrency,
                rate=level.rate,
                throughput=level.throughput,
                per_user=None if level.per_user is None else level.per_user.p50,
                tpot_p99=None if level.tpot is None else level.tpot.p99,
                complete=level.complete,
            )
            for level in bench.levels
        ),
    )


def _comparison(comparison: measured.Comparison) -> Experiment:
    return Experiment(
        at=comparison.ended,
        kind="comparison",
        complete=comparison.complete,
        speculation=True,
        asked=f"with and without speculation{_where(comparison.levels)},"
        f" {_temperatures(comparison.workload)}",
        sentence=comparison.sentence,
        loads=tuple(
            MeasuredLoad(
                concurrency=level.concurrency,
                rate=level.rate,
                throughput=level.throughput_on,
                per_user=level.per_user_on,
                tpot_p99=level.tpot_p99_on,
                throughput_off=level.throughput_off,
                speedup=ratio_of(level.speedup),
                verdict=level.verdict,
            )
            for level in comparison.levels
        ),
        speedup=ratio_of(comparison.speedup),
        crossing=comparison.crossing,
        verdict=comparison.verdict,
    )


def _temperatures(work: measured.Workload) -> str:
    text = ", ".join("default" if bucket is None else f"{bucket:g}" for bucket in work.temperatures)
    return f"temperature {text}" if len(work.temperatures) == 1 else f"temperatures {text}"


def _where(levels: Sequence[_Load]) -> str:
    return f" at {_loads(levels)}" if levels else ""


def _loads(levels: Sequence[_Load]) -> str:
    closed = ", ".join(str(one.concurrency) for one in levels if one.concurrency is not None)
    rates = [finite(level.rate) for level in levels if level.concurrency is None]
    opened = ", ".join(figures.UNKNOWN if rate is None else f"{rate:g}" for rate in rates)
    texts = (closed and f"concurrency {closed}", opened and f"{opened} requests a second")
    return " and ".join(filter(None, texts))


def live_experiment(stored: Switchback) -> LiveExperiment:
    """An experiment as it is stored, with ``all`` first in its groups."""
    state, design = stored.state, stored.design
    known = results(state, design, LAUNCH)

    def arms(group: str, speedups: Mapping[str, Interval | None]) -> tuple[LiveArm, ...]:
        return tuple(
            LiveArm(
                arm=arm,
                speedup=ratio_of(speedup),
                episodes=compared_episodes(state, arm, known.reference, group=group),
            )
            for arm, speedup in speedups.items()
        )

    groups = [
        LiveGroup(by="all", value="all", share=1.0, arms=arms(ALL_TRAFFIC, known.speedups)),
        *(
            LiveGroup(
                by=by.value,
                value=value,
                share=group.share,
                arms=arms(by.group(value), group.speedups),
            )
            for by, values in known.groups.items()
            for value, group in values.items()
        ),
    ]
    return LiveExperiment(
        sentence=wording.answer(state, known),
        began=state.began,
        episodes=state.episodes,
        excluded=state.excluded,
        usual=design.usual,
        share=state.other_share,
        share_allowed=design.share,
        regret=state.lost_share,
        regret_allowed=design.regret,
        covered=sum(group.share for group in known.groups[Grouping.TEMPERATURE].values()),
        dropped=state.dropped.get(design.usual, ()),
        stopped=stored.stopped,
        groups=tuple(groups),
    )
