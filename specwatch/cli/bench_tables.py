"""A bench, and a comparison of two, as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from specwatch.domain.experiments import (
    LEAST_SPEEDUP,
    Bench,
    ComparedLevel,
    Comparison,
    Distribution,
    Estimate,
    Level,
    Subject,
    Verdict,
    Workload,
)
from specwatch.loadtest import verdicts
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, MOST_COLUMNS, shown, wrapped

Part = tuple[str, str]
"""Text and style."""
Line = tuple[Part, ...]

_LATENCIES = {
    "load": 7, "tok/s": 6, "per user": 8, "TTFT p50": 8, "p95": 7, "p99": 7, "TPOT p50": 8,
    " p95": 7, " p99": 7,
}  # fmt: skip
"""Headers and widths; with a space between them, at most 79 columns."""
_REQUESTS = {
    "load": 7, "requests": 8, "failed": 6, "in flight": 9, "latency p50": 11, "p99": 7,
    "late p99": 8, "accepted": 8, "tok/step": 8,
}  # fmt: skip
_SPEEDUPS = {
    "load": 7, "speedup": 16, "decoding": 16, "TTFT on/off": 16, "accepted": 8, "verdict": 12,
}  # fmt: skip
_LEGEND = (
    "speedup: of whole requests; decoding: after the first token; TTFT on/off: above 1 the first"
    " token is later with speculation"
)
_BOTH = {
    "load": 7, "tok/s off": 9, "on": 8, "per user off": 12, " on": 8, "TPOT p99 off": 12, "on ": 8,
}  # fmt: skip
_STYLES: dict[Verdict, str] = {
    "ship": "green", "not_worth_it": "yellow", "do_not": "red", "unknown": "",
}  # fmt: skip
_FIELD = 52
"""Columns of the chart's field."""


def bench_lines(bench: Bench) -> Iterator[Part]:
    """Yield lines and their styles."""
    yield _subject(bench.subject), "bold"
    yield from wrapped(_workload(bench.workload), "dim")
    yield _line(list(_LATENCIES), _LATENCIES), "dim"
    for level in bench.levels:
        yield _line(_latencies(level), _LATENCIES), ""
    yield _line(list(_REQUESTS), _REQUESTS), "dim"
    for level in bench.levels:
        yield _line(_requests(level), _REQUESTS), "red" if level.errors else ""
    for level in bench.levels:
        for note in (*level.notes, *_foreign(level)):
            yield from wrapped(f"note: {_load(level)} {_unit(level)}: {note}", "yellow")
    for note in bench.notes:
        yield from wrapped(f"note: {shown(note, LONGEST_SENTENCE)}", "yellow")


def comparison_lines(found: Comparison, *, fancy: bool) -> Iterator[Line]:
    """Yield lines of texts with their styles; ``fancy`` is whether line-drawing can be shown."""
    for subject in (found.off, found.on):
        yield ((_subject(subject), "bold"),)
    how = "measured in turns" if found.interleaved else "measured one after the other"
    for line in wrapped(f"{_workload(found.workload)}; {how}", "dim"):
        yield (line,)
    yield ((_line(list(_SPEEDUPS), _SPEEDUPS), "dim"),)
    for level in found.levels:
        yield ((_line(_speedups(level), _SPEEDUPS), _STYLES[level.verdict]),)
    for line in wrapped(_LEGEND, "dim"):
        yield (line,)
    yield ((_line(list(_BOTH), _BOTH), "dim"),)
    for level in found.levels:
        yield ((_line(_both(level), _BOTH), ""),)
    yield from _chart(found, fancy=fancy)
    if found.speedup is not None and len(found.levels) > 1:
        yield ((f"all loads, each counted alike: {between(found.speedup)}", ""),)
    for level in found.levels:
        if level.missing is not None:
            for line in wrapped(f"note: {_load(level)} {_unit(level)}: {level.missing}", "yellow"):
                yield (line,)
    for note in found.notes:
        for line in wrapped(f"note: {shown(note, LONGEST_SENTENCE)}", "yellow"):
            yield (line,)
    for line in wrapped(f"verdict: {_verdict(found)}", _STYLES[found.verdict] or "yellow"):
        yield (line,)


def between(estimate: Estimate | None) -> str:
    """``1.61 (1.50-1.72)``; without an interval ``1.61``."""
    if estimate is None:
        return figures.UNKNOWN
    if estimate.lower is None or estimate.upper is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.lower:.2f}-{estimate.upper:.2f})"


def _verdict(found: Comparison) -> str:
    """Its name and its sentence, which mostly begins with that."""
    label, said = verdicts.LABELS[found.verdict], shown(found.sentence, LONGEST_SENTENCE)
    began = f"{said[:1].lower()}{said[1:]}"
    return began if began.startswith(label) else f"{label}. {said}"


def _subject(subject: Subject) -> str:
    version = f", engine {shown(subject.engine_version)}" if subject.engine_version else ""
    if subject.mode == "off":
        what = "without speculation"
    else:
        what = "with speculation" + (f", k = {subject.k}" if subject.k else "")
    return f"{shown(subject.model_name, 30)} at {shown(subject.url, 40)}{version}, {what}"


def _workload(work: Workload) -> str:
    temperatures = ", ".join("default" if t is None else f"{t:g}" for t in work.temperatures)
    return (
        f"{figures.counted(work.prompts, 'prompt')} ({shown(work.source)}, {work.digest}),"
        f" {work.max_tokens} tokens, temperature {temperatures}, seed {work.seed}, {work.endpoint}"
    )


def _latencies(level: Level) -> list[str]:
    return [
        _load(level),
        figures.compact(level.throughput),
        _rate(_median(level.per_user)),
        *_quantiles(level.ttft),
        *_quantiles(level.tpot),
    ]


def _median(found: Distribution | None) -> float | None:
    return None if found is None else found.p50


def _quantiles(found: Distribution | None) -> list[str]:
    if found is None:
        return [figures.UNKNOWN] * 3
    return [figures.seconds(each) for each in (found.p50, found.p95, found.p99)]


def _requests(level: Level) -> list[str]:
    accepted = level.acceptance
    rate = None if accepted is None or accepted.rate is None else accepted.rate.value
    return [
        _load(level),
        figures.number(level.requests),
        figures.number(sum(level.errors.values())),
        figures.number(level.running, 2),
        figures.seconds(_median(level.latency)),
        _quantiles(level.latency)[2],
        _quantiles(level.lateness)[2],
        figures.percent(rate),
        figures.number(None if accepted is None else accepted.mean_length, 2),
    ]


def _foreign(level: Level) -> Sequence[str]:
    return ["others used the server meanwhile"] if level.alone is False else []


def _speedups(level: ComparedLevel) -> list[str]:
    return [
        _load(level),
        between(level.speedup),
        between(level.decode),
        between(level.ttft),
        figures.percent(level.acceptance_rate),
        verdicts.LABELS[level.verdict],
    ]


def _both(level: ComparedLevel) -> list[str]:
    return [
        _load(level),
        figures.compact(level.throughput_off),
        figures.compact(level.throughput_on),
        _rate(level.per_user_off),
        _rate(level.per_user_on),
        figures.seconds(level.tpot_p99_off),
        figures.seconds(level.tpot_p99_on),
    ]


def _chart(found: Comparison, *, fancy: bool) -> Iterator[Line]:
    """A line for each load: the speedup and its interval, between the lines at 1 and 1.3."""
    known = [
        (each, each.speedup)
        for each in found.levels
        if each.speedup is not None and each.speedup.value > 0
    ]
    if not known:
        return
    every = [bound for _, e in known for bound in (e.value, e.lower or e.value, e.upper or e.value)]
    low, high = min(0.9, *every), max(LEAST_SPEEDUP + 0.1, *every)

    def place(value: float) -> int:
        return round((value - low) / (high - low) * (_FIELD - 1))

    one, line = place(1.0), place(LEAST_SPEEDUP)
    unit = _unit(found.levels[0])
    head = [" "] * (_FIELD + 4)
    head[one] = "1"
    head[line : line + 3] = list(f"{LEAST_SPEEDUP:g}")
    yield ((f"{'load':>7}  {''.join(head).rstrip()}", "dim"),)
    for each, speedup in known:
        row = _row(speedup, place, one, line, fancy=fancy)
        label = f"{_load(each):>7}  "
        yield (label, ""), (row, _STYLES[each.verdict]), (f"  {speedup.value:.2f}", "")
    if found.rising is not None:
        yield ((f"the speedup rises to 1 at about {found.rising:.3g} {unit}", ""),)
    if found.crossing is not None:
        yield ((f"the speedup falls to 1 at about {found.crossing:.3g} {unit}", ""),)


def _row(
    speedup: Estimate, place: Callable[[float], int], one: int, line: int, *, fancy: bool
) -> str:
    even, worth, bar, left, right, point = "│┊─├┤●" if fancy else "|:---o"
    row = [" "] * _FIELD
    row[one], row[line] = even, worth
    if speedup.lower is not None and speedup.upper is not None:
        start, end = place(speedup.lower), place(speedup.upper)
        row[start : end + 1] = [bar] * (end + 1 - start)
        row[start], row[end] = left, right
    row[place(speedup.value)] = point
    return "".join(row)


def _load(level: Level | ComparedLevel) -> str:
    if level.concurrency is not None:
        return figures.number(level.concurrency)
    return f"{level.rate:g}/s"


def _unit(level: Level | ComparedLevel) -> str:
    return "requests at once" if level.concurrency is not None else "requests a second"


def _rate(value: float | None) -> str:
    """Tokens a second: ``8.31``, ``83.1``, ``831``."""
    if value is None:
        return figures.UNKNOWN
    if value >= 999.5:
        return figures.compact(value)
    return figures.number(value, 0 if value >= 99.95 else 1 if value >= 9.995 else 2)


def _line(cells: Sequence[str], columns: Mapping[str, int]) -> str:
    from specwatch.cli.terminal import row

    text = row(f"{cell:>{width}}" for cell, width in zip(cells, columns.values(), strict=True))
    return text[:MOST_COLUMNS]
