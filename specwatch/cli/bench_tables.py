"""A bench, and a comparison of two, as lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable

from specwatch.cli.load_tables import (
    engine_version,
    interval,
    latency_columns,
    notes,
    quantile,
)
from specwatch.cli.tables import known
from specwatch.cli.terminal import Columns, Lines, paragraph, table
from specwatch.domain.experiments import (
    LEAST_SPEEDUP,
    Bench,
    ComparedLevel,
    Comparison,
    Estimate,
    Level,
    Subject,
    Verdict,
    Workload,
)
from specwatch.wording import experiment_verdicts, figures
from specwatch.wording.text import LONGEST_SENTENCE, shown

_STYLES: dict[Verdict, str] = {
    "ship": "green",
    "not_worth_it": "yellow",
    "do_not": "red",
    "unknown": "",
}
_CHART = 52
"""Greatest width of the chart, without the load and the speedup beside it."""
_LEAST_CHART, _BESIDE_CHART = 20, 16


def _load(level: Level | ComparedLevel) -> str:
    if level.concurrency is not None:
        return figures.number(level.concurrency)
    return f"{level.rate:g}/s"


def _rate(value: float | None) -> str:
    """Tokens a second: ``8.31``, ``83.1``, ``831``."""
    if value is None or value >= 999.5:
        return figures.compact(value)
    return figures.number(value, 0 if value >= 99.95 else 1 if value >= 9.995 else 2)


_LATENCIES: Columns[Level] = {
    "load": _load,
    "tok/s": lambda level: figures.compact(level.throughput),
    "per user": lambda level: _rate(getattr(level.per_user, "p50", None)),
    **latency_columns("TTFT", lambda level: level.ttft),
    **latency_columns("TPOT", lambda level: level.tpot),
}
_REQUESTS: Columns[Level] = {
    "load": _load,
    "requests": lambda level: figures.number(level.requests),
    "failed": lambda level: figures.number(sum(level.errors.values())),
    "in flight": lambda level: figures.number(level.running, 2),
    "latency p50": lambda level: quantile(level.latency, "p50"),
    "p99": lambda level: quantile(level.latency, "p99"),
    "late p99": lambda level: quantile(level.lateness, "p99"),
    "accepted": lambda level: figures.percent(
        getattr(getattr(level.acceptance, "rate", None), "value", None)
    ),
    "tok/step": lambda level: figures.number(getattr(level.acceptance, "mean_length", None), 2),
}
_SPEEDUPS: Columns[ComparedLevel] = {
    "load": _load,
    "speedup": lambda level: interval(level.speedup),
    "decoding": lambda level: interval(level.decode),
    "TTFT on/off": lambda level: interval(level.ttft),
    "accepted": lambda level: figures.percent(level.acceptance_rate),
    "verdict": lambda level: experiment_verdicts.LABELS[level.verdict],
}
_BOTH: Columns[ComparedLevel] = {
    "load": _load,
    "tok/s off": lambda level: figures.compact(level.throughput_off),
    "tok/s on": lambda level: figures.compact(level.throughput_on),
    "per user off": lambda level: _rate(level.per_user_off),
    "per user on": lambda level: _rate(level.per_user_on),
    "TPOT p99 off": lambda level: figures.seconds(level.tpot_p99_off),
    "TPOT p99 on": lambda level: figures.seconds(level.tpot_p99_on),
}


def bench_lines(bench: Bench, width: int) -> Lines:
    """Yield the lines of a bench, the answer first."""
    yield from paragraph(_answer(bench), "bold", width)
    yield from paragraph(_subject(bench.subject), width=width)
    yield from paragraph(_workload(bench.workload), "dim", width)
    yield from table(_LATENCIES, bench.levels, width)
    yield from table(_REQUESTS, bench.levels, width, lambda level: "red" if level.errors else "")
    for level in bench.levels:
        shared = ["others used the server meanwhile"] if level.alone is False else []
        place = experiment_verdicts.place(level)
        yield from notes((f"{place}: {note}" for note in (*level.notes, *shared)), width)
    yield from notes(bench.notes, width)


def comparison_lines(comparison: Comparison, width: int, *, fancy: bool) -> Lines:
    """Yield the lines of a comparison, the verdict first; ``fancy``: line-drawing can be shown."""
    sentence = shown(comparison.sentence, 3 * LONGEST_SENTENCE)
    yield from paragraph(sentence, _STYLES[comparison.verdict] or "yellow", width)
    for subject in (comparison.off, comparison.on):
        yield from paragraph(_subject(subject), width=width)
    how = "measured alternately" if comparison.interleaved else "measured one after the other"
    yield from paragraph(f"{_workload(comparison.workload)}; {how}", "dim", width)
    yield from table(_SPEEDUPS, comparison.levels, width, lambda level: _STYLES[level.verdict])
    yield from paragraph(
        "speedup: of whole requests, with its 95% interval; decoding: after the first token; TTFT"
        " on/off: above 1, the first token comes later with speculation",
        "dim",
        width,
    )
    yield from table(_BOTH, comparison.levels, width)
    yield from _chart(comparison, min(_CHART, width - _BESIDE_CHART), fancy=fancy)
    if comparison.speedup is not None and len(comparison.levels) > 1:
        yield f"all loads, with equal weights: {interval(comparison.speedup)}", ""
    missing = (
        f"{experiment_verdicts.place(level)}: {level.missing}"
        for level in comparison.levels
        if level.missing is not None
    )
    yield from notes((*missing, *comparison.notes), width)


def _answer(bench: Bench) -> str:
    """The highest throughput, what its users get, and how many requests failed."""
    if not bench.levels:
        return "Nothing was measured."
    best = max(bench.levels, key=lambda level: level.throughput or 0.0)
    requests = sum(level.requests + sum(level.errors.values()) for level in bench.levels)
    failed = sum(sum(level.errors.values()) for level in bench.levels)
    parts = [
        f"{_rate(getattr(best.per_user, 'p50', None))} for each user",
        f"TTFT {quantile(best.ttft, 'p50')}",
        f"TPOT {quantile(best.tpot, 'p50')}",
        f"{failed} of {requests} requests failed" if failed else "no request failed",
    ]
    most = f"Up to {figures.compact(best.throughput)} tokens a second"
    return f"{most}, at {experiment_verdicts.place(best)}: {known(parts)}."


def _subject(subject: Subject) -> str:
    mode = "with speculation" if subject.mode == "on" else "without speculation"
    k = f", k = {subject.k}" if subject.mode == "on" and subject.k else ""
    server = f"{shown(subject.model_name, 30)} at {shown(subject.url, 40)}"
    return f"{server}{engine_version(subject.engine_version)}, {mode}{k}"


def _workload(work: Workload) -> str:
    temperatures = ", ".join("default" if t is None else f"{t:g}" for t in work.temperatures)
    return (
        f"{figures.counted(work.prompts, 'prompt')} ({shown(work.source)}, {work.digest}),"
        f" {work.max_tokens} tokens, temperature {temperatures}, seed {work.seed}, {work.endpoint}"
    )


def _chart(comparison: Comparison, width: int, *, fancy: bool) -> Lines:
    """A line for each load: the speedup and its interval, with marks at 1 and 1.3."""
    known = [
        (level, level.speedup)
        for level in comparison.levels
        if level.speedup is not None and level.speedup.value > 0
    ]
    if not known or width < _LEAST_CHART:
        return
    bounds = [
        bound for _, e in known for bound in (e.value, e.lower or e.value, e.upper or e.value)
    ]
    low, high = min(0.9, *bounds), max(LEAST_SPEEDUP + 0.1, *bounds)

    def place(value: float) -> int:
        return round((value - low) / (high - low) * (width - 1))

    even, worth = place(1.0), place(LEAST_SPEEDUP)
    head = [" "] * (width + 4)
    head[even] = "1"
    head[worth : worth + 3] = list(f"{LEAST_SPEEDUP:g}")
    yield f"{'load':>7}  {''.join(head).rstrip()}", "dim"
    for level, speedup in known:
        bar = "".join(_bar(speedup, [" "] * width, place, fancy=fancy))
        value = f"  {speedup.value:.2f}"
        yield (f"{_load(level):>7}  ", ""), (bar, _STYLES[level.verdict]), (value, "")
    unit = experiment_verdicts.unit(comparison.levels[0])
    for verb, load in (("rises", comparison.rising), ("falls", comparison.crossing)):
        if load is not None:
            yield f"the speedup {verb} to 1 at about {load:.3g} {unit}", ""


def _bar(
    speedup: Estimate, row: list[str], place: Callable[[float], int], *, fancy: bool
) -> list[str]:
    even, worth, bar, left, right, point = "│┊─├┤●" if fancy else "|:---o"
    row[place(1.0)], row[place(LEAST_SPEEDUP)] = even, worth
    if speedup.lower is not None and speedup.upper is not None:
        start, end = place(speedup.lower), place(speedup.upper)
        row[start : end + 1] = [bar] * (end + 1 - start)
        row[start], row[end] = left, right
    row[place(speedup.value)] = point
    return row
