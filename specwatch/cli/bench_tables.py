"""A bench, and a comparison of two, as lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Callable

from specwatch.cli.load_tables import (
    engine_version,
    interval,
    latency_columns,
    notes,
    paragraph,
    quantile,
)
from specwatch.cli.terminal import Columns, Lines, table
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
from specwatch.loadtest import verdicts
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown

_STYLES: dict[Verdict, str] = {
    "ship": "green", "not_worth_it": "yellow", "do_not": "red", "unknown": "",
}  # fmt: skip
_CHART = 52
"""Width of the chart."""


def _load(level: Level | ComparedLevel) -> str:
    if level.concurrency is not None:
        return figures.number(level.concurrency)
    return f"{level.rate:g}/s"


def _place(level: Level | ComparedLevel) -> str:
    return f"{level.concurrency or level.rate or 0:g} {verdicts.unit(level)}"


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
    "verdict": lambda level: verdicts.LABELS[level.verdict],
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
    """Yield the lines of a bench."""
    yield from paragraph(_subject(bench.subject), width, "bold")
    yield from paragraph(_workload(bench.workload), width, "dim")
    yield from table(_LATENCIES, bench.levels, width)
    yield from table(_REQUESTS, bench.levels, width, lambda level: "red" if level.errors else "")
    for level in bench.levels:
        shared = ["others used the server meanwhile"] if level.alone is False else []
        yield from notes((f"{_place(level)}: {note}" for note in (*level.notes, *shared)), width)
    yield from notes(bench.notes, width)


def comparison_lines(comparison: Comparison, width: int, *, fancy: bool) -> Lines:
    """Yield the lines of a comparison; ``fancy`` is whether line-drawing can be shown."""
    for subject in (comparison.off, comparison.on):
        yield from paragraph(_subject(subject), width, "bold")
    how = "measured alternately" if comparison.interleaved else "measured one after the other"
    yield from paragraph(f"{_workload(comparison.workload)}; {how}", width, "dim")
    yield from table(_SPEEDUPS, comparison.levels, width, lambda level: _STYLES[level.verdict])
    yield from paragraph(
        "speedup: of whole requests; decoding: after the first token; TTFT on/off: above 1, the"
        " first token comes later with speculation",
        width,
        "dim",
    )
    yield from table(_BOTH, comparison.levels, width)
    yield from _chart(comparison, fancy=fancy)
    if comparison.speedup is not None and len(comparison.levels) > 1:
        yield f"all loads, with equal weights: {interval(comparison.speedup)}", ""
    missing = (
        f"{_place(level)}: {level.missing}"
        for level in comparison.levels
        if level.missing is not None
    )
    yield from notes((*missing, *comparison.notes), width)
    # Most sentences begin with the verdict itself.
    label = verdicts.LABELS[comparison.verdict]
    sentence = shown(comparison.sentence, LONGEST_SENTENCE)
    lowered = f"{sentence[:1].lower()}{sentence[1:]}"
    verdict = lowered if lowered.startswith(label) else f"{label}. {sentence}"
    yield from paragraph(f"verdict: {verdict}", width, _STYLES[comparison.verdict] or "yellow")


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


def _chart(comparison: Comparison, *, fancy: bool) -> Lines:
    """A line for each load: the speedup and its interval, with marks at 1 and 1.3."""
    known = [
        (level, level.speedup)
        for level in comparison.levels
        if level.speedup is not None and level.speedup.value > 0
    ]
    if not known:
        return
    bounds = [
        bound for _, e in known for bound in (e.value, e.lower or e.value, e.upper or e.value)
    ]
    low, high = min(0.9, *bounds), max(LEAST_SPEEDUP + 0.1, *bounds)

    def place(value: float) -> int:
        return round((value - low) / (high - low) * (_CHART - 1))

    even, worth = place(1.0), place(LEAST_SPEEDUP)
    head = [" "] * (_CHART + 4)
    head[even] = "1"
    head[worth : worth + 3] = list(f"{LEAST_SPEEDUP:g}")
    yield f"{'load':>7}  {''.join(head).rstrip()}", "dim"
    for level, speedup in known:
        bar = _bar(speedup, place, fancy=fancy)
        value = f"  {speedup.value:.2f}"
        yield (f"{_load(level):>7}  ", ""), (bar, _STYLES[level.verdict]), (value, "")
    unit = verdicts.unit(comparison.levels[0])
    for verb, load in (("rises", comparison.rising), ("falls", comparison.crossing)):
        if load is not None:
            yield f"the speedup {verb} to 1 at about {load:.3g} {unit}", ""


def _bar(speedup: Estimate, place: Callable[[float], int], *, fancy: bool) -> str:
    even, worth, bar, left, right, point = "│┊─├┤●" if fancy else "|:---o"
    row = [" "] * _CHART
    row[place(1.0)], row[place(LEAST_SPEEDUP)] = even, worth
    if speedup.lower is not None and speedup.upper is not None:
        start, end = place(speedup.lower), place(speedup.upper)
        row[start : end + 1] = [bar] * (end + 1 - start)
        row[start], row[end] = left, right
    row[place(speedup.value)] = point
    return "".join(row)
