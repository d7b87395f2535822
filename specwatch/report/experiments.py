"""What was measured on purpose: the headline of each probe, bench and comparison."""

from __future__ import annotations

from collections.abc import Sequence

from specwatch.domain import experiments as measured
from specwatch.loadtest.zones import by_zone, line_sentence
from specwatch.report.model import Experiment, MeasuredLoad, ProbedTemperature, Ratio
from specwatch.wording import figures
from specwatch.wording.figures import finite
from specwatch.wording.moments import moment
from specwatch.wording.text import shown

MOST = 5
"""Experiments of one model that are told."""
_Load = measured.Level | measured.ComparedLevel | MeasuredLoad


def newest(found: Sequence[measured.Experiment]) -> tuple[tuple[Experiment, ...], int]:
    """Of experiments, which come oldest first, the newest and how many others there are."""
    told = tuple(experiment(each) for each in reversed(found[-MOST:]))
    return told, len(found) - len(told)


def notes(
    target: str, model_name: str, told: Sequence[Experiment], left_out: int
) -> tuple[str, ...]:
    """What is said of the experiments of a model that was not watched."""
    of = f"{shown(target)}, {shown(model_name)}"
    said = tuple(f"{of}: {headline(each)}" for each in told)
    return (*said, f"{of}: {others(left_out)}") if left_out else said


def headline(found: Experiment) -> str:
    """An experiment in a sentence or two."""
    where = _where([each for each in found.loads if not each.complete])
    until = f", broken off{where}: what follows is what was measured until then"
    partly = "" if found.complete else until
    return f"{moment(found.at)}, {found.kind} {found.asked}{partly}. {found.sentence}"


def others(left_out: int) -> str:
    """How many are not told."""
    return f"{figures.counted(left_out, 'older experiment')} of this period"


def experiment(found: measured.Experiment) -> Experiment:
    """What the report says of one."""
    if isinstance(found, measured.Probe):
        return _probe(found)
    return _bench(found) if isinstance(found, measured.Bench) else _comparison(found)


def _probe(found: measured.Probe) -> Experiment:
    said = "; ".join([line_sentence(found.line), *by_zone(found.temperatures).values()])
    at_once = figures.counted(found.concurrency, "request")
    return Experiment(
        at=found.ended,
        kind="probe",
        complete=found.complete,
        speculation=found.subject.mode == "on",
        asked=f"at {_temperatures(found.workload)}, {at_once} at a time",
        sentence=f"{said[:1].upper()}{said[1:]}.",
        temperatures=tuple(
            ProbedTemperature(
                temperature=each.temperature,
                acceptance_rate=None if each.acceptance is None else _ratio(each.acceptance.rate),
                zone=each.zone,
                speedup=_ratio(each.speedup),
            )
            for each in found.temperatures
        ),
        break_even_acceptance=_line(found.line),
    )


def _bench(found: measured.Bench) -> Experiment:
    # A part of a load says less than a whole one.
    best = max(found.levels, key=lambda each: (each.complete, each.throughput), default=None)
    how = "with" if found.subject.mode == "on" else "without"
    said = "Nothing was measured."
    if best is not None:
        most = figures.compact(best.throughput)
        said = f"At most {most} tokens a second, at {_loads([best])}."
    return Experiment(
        at=found.ended,
        kind="bench",
        complete=found.complete,
        speculation=found.subject.mode == "on",
        asked=f"{how} speculation{_where(found.levels)}, {_temperatures(found.workload)}",
        sentence=said,
        loads=tuple(
            MeasuredLoad(
                concurrency=each.concurrency,
                rate=each.rate,
                throughput=each.throughput,
                per_user=None if each.per_user is None else each.per_user.p50,
                tpot_p99=None if each.tpot is None else each.tpot.p99,
                complete=each.complete,
            )
            for each in found.levels
        ),
    )


def _comparison(found: measured.Comparison) -> Experiment:
    return Experiment(
        at=found.ended,
        kind="comparison",
        complete=found.complete,
        speculation=True,
        asked=f"with and without speculation{_where(found.levels)},"
        f" {_temperatures(found.workload)}",
        sentence=found.sentence,
        loads=tuple(
            MeasuredLoad(
                concurrency=each.concurrency,
                rate=each.rate,
                throughput=each.throughput_on,
                per_user=each.per_user_on,
                tpot_p99=each.tpot_p99_on,
                throughput_off=each.throughput_off,
                speedup=_ratio(each.speedup),
                verdict=each.verdict,
            )
            for each in found.levels
        ),
        speedup=_ratio(found.speedup),
        crossing=found.crossing,
        verdict=found.verdict,
    )


def _ratio(found: measured.Estimate | None) -> Ratio | None:
    if found is None:
        return None
    return Ratio(value=found.value, lower=found.lower, upper=found.upper)


def _line(found: measured.Line) -> Ratio:
    if found.basis == "assumed":
        # Its ends are no interval: they are what people call near the line.
        return Ratio(value=found.acceptance.value, basis="assumed")
    return Ratio(
        value=found.acceptance.value, lower=found.acceptance.lower, upper=found.acceptance.upper
    )


def _temperatures(work: measured.Workload) -> str:
    said = ", ".join("default" if each is None else f"{each:g}" for each in work.temperatures)
    return f"temperature {said}" if len(work.temperatures) == 1 else f"temperatures {said}"


def _where(levels: Sequence[_Load]) -> str:
    return f" at {_loads(levels)}" if levels else ""


def _loads(levels: Sequence[_Load]) -> str:
    closed = [str(each.concurrency) for each in levels if each.concurrency is not None]
    rates = [finite(each.rate) for each in levels if each.concurrency is None]
    opened = [figures.UNKNOWN if each is None else f"{each:g}" for each in rates]
    said = [f"concurrency {', '.join(closed)}"] if closed else []
    return " and ".join([*said, *([f"{', '.join(opened)} requests a second"] if opened else [])])
