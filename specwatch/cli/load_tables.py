"""Probes and calibrations as lines that fit a terminal, and parts shared with benches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from specwatch.cli.terminal import Columns, Lines, paragraph, table
from specwatch.domain.experiments import (
    Distribution,
    Estimate,
    Line,
    Probe,
    ProbeTemperature,
    Zone,
)
from specwatch.domain.interval import Interval
from specwatch.lab.loadtest.calibration_report import LOSES, PAYS
from specwatch.lab.loadtest.calibration_shape import TRAFFIC_DAYS
from specwatch.report.columns import cut
from specwatch.wording import figures, speculation
from specwatch.wording.break_even_zones import answer, percents
from specwatch.wording.text import LONGEST_SENTENCE, shown

Json = Mapping[str, Any]
_Row = TypeVar("_Row")

# --- shared


def notes(texts: Iterable[str], width: int) -> Lines:
    """Yield notes, which may hold foreign text."""
    for text in texts:
        yield from paragraph(f"note: {shown(text, LONGEST_SENTENCE)}", "yellow", width)


def interval(estimate: Estimate | Interval | None) -> str:
    """``1.61 (1.50-1.72)``; without an interval ``1.61``."""
    if estimate is None:
        return figures.UNKNOWN
    if estimate.lower is None or estimate.upper is None:
        return f"{estimate.value:.2f}"
    return f"{estimate.value:.2f} ({estimate.lower:.2f}-{estimate.upper:.2f})"


def engine_version(version: str | None) -> str:
    """``, engine 0.32.0``; nothing if it is unknown."""
    return f", engine {shown(version)}" if version else ""


def quantile(values: Distribution | None, name: str) -> str:
    """A quantile such as ``p99`` of a latency of clients."""
    return figures.seconds(None if values is None else getattr(values, name))


def latency_columns(title: str, values_of: Callable[[_Row], Distribution | None]) -> Columns[_Row]:
    """The columns of a latency: its median, P95 and P99."""

    def column(name: str) -> Callable[[_Row], str]:
        return lambda row: quantile(values_of(row), name)

    return {f"{title} {name}": column(name) for name in ("p50", "p95", "p99")}


# --- a probe

_ZONE_STYLES: dict[Zone, str] = {"loses": "red", "near": "yellow", "wins": "green", "unknown": ""}
_LABEL = 5
"""Width of a temperature before a bar; a rate and a zone follow the bar."""
_BEHIND = len(" 100.0% unknown")
_LEAST_BAR = 10
_MOST_BAR = 80


class Marks(NamedTuple):
    """Characters of bars: up to the lower end of the interval, up to the upper one; the break-even
    line, and the ends of the range near it."""

    sure: str
    unsure: str
    line: str
    edge: str


FANCY, PLAIN = Marks("█", "▒", "│", "┊"), Marks("#", "-", "|", ":")
_ACCEPTANCE: Columns[ProbeTemperature] = {
    "temp": lambda row: f"{row.temperature:g}",
    "acceptance": lambda row: percents(row.acceptance.rate) if row.acceptance else figures.UNKNOWN,
    "tok/step": lambda row: figures.number(getattr(row.acceptance, "mean_length", None), 2),
    "speedup": lambda row: interval(row.speedup),
    "drafts": lambda row: figures.compact(getattr(row.acceptance, "drafts", None)),
    "requests": lambda row: figures.number(row.requests),
    "failed": lambda row: figures.number(sum(row.errors.values()) or None),
}
_LATENCIES: Columns[ProbeTemperature] = {
    "temp": _ACCEPTANCE["temp"],
    **latency_columns("TTFT", lambda row: row.ttft),
    **latency_columns("TPOT", lambda row: row.tpot),
}


def probe_lines(probe: Probe, width: int, *, fancy: bool) -> Lines:
    """Yield lines of at most ``width`` columns, the answer first; foreign text in them is clean."""
    zones = {row.zone for row in probe.temperatures}
    style = next((style for zone, style in _ZONE_STYLES.items() if zone in zones), "")
    yield from paragraph(answer(probe.temperatures, probe.line), style, width)
    subject, work = probe.subject, probe.workload
    k = f", k = {subject.k}" if subject.k is not None else ""
    title = f"{shown(subject.model_name)} on {shown(subject.target)}"
    yield from paragraph(f"{title}{engine_version(subject.engine_version)}{k}", width=width)
    sent = max((row.requests + sum(row.errors.values()) for row in probe.temperatures), default=0)
    yield from paragraph(
        f"{figures.counted(sent, 'request')} at each temperature, {probe.concurrency} at a time,"
        f" {work.max_tokens} tokens each; prompts: {shown(work.source)}",
        "dim",
        width,
    )
    measured = [row for row in probe.temperatures if row.acceptance is not None]
    yield from _bars(measured, probe.line, width, FANCY if fancy else PLAIN)
    yield ()
    red = {True: "red", False: ""}
    yield from table(_ACCEPTANCE, probe.temperatures, width, lambda row: red[bool(row.errors)])
    yield ()
    yield from table(_LATENCIES, probe.temperatures, width)
    for title, first, field, text in (
        ("accepted by position in the draft", 1, "per_position", "{:.0%}".format),
        ("drafts by accepted tokens", 0, "histogram", figures.compact),
    ):
        yield from _by_position(measured, title, first, field, text, width)
    yield ()
    yield from notes(probe.notes, width)


def _by_position(
    rows: Sequence[ProbeTemperature],
    title: str,
    first: int,
    field: str,
    text: Callable[[Any], str],
    width: int,
) -> Lines:
    """A table with a column for each value of a field of the acceptance, counted from ``first``."""
    values = [(row, getattr(row.acceptance, field)) for row in rows]
    values = [(row, numbers) for row, numbers in values if numbers]
    if not values:
        return
    yield ()
    yield from paragraph(title, width=width)

    def column(place: int) -> Callable[[tuple[ProbeTemperature, Sequence[Any]]], str]:
        return lambda row: text(row[1][place]) if place < len(row[1]) else ""

    count = max(len(numbers) for _, numbers in values)
    columns = {str(first + place): column(place) for place in range(count)}
    yield from table({"temp": lambda row: f"{row[0].temperature:g}", **columns}, values, width)


def _bars(rows: Sequence[ProbeTemperature], line: Line, width: int, marks: Marks) -> Lines:
    """Rates as bars; in a narrow terminal only as numbers."""
    room = min(width - _LABEL - 1 - _BEHIND, _MOST_BAR)
    room = room if room >= _LEAST_BAR else 0
    places = _places(line.acceptance, marks, room)
    if rows:
        scale = [" "] * room
        for share, text in ((0.0, "0%"), (0.5, "50%"), (1.0, "100%")) if room else ():
            begin = min(round(share * room), room - len(text))
            scale[begin : begin + len(text)] = text
        yield f"{'temp':>{_LABEL}} {''.join(scale)}", "dim"
    for row in rows:
        rate = row.acceptance.rate if row.acceptance is not None else None
        if rate is None:
            continue
        style = _ZONE_STYLES[row.zone]
        sure = round((rate.value if rate.lower is None else rate.lower) * room)
        end = round((rate.value if rate.upper is None else rate.upper) * room)
        bar = f"{marks.sure * sure}{marks.unsure * (end - sure)}".ljust(room)
        yield (
            (f"{cut(f'{row.temperature:g}', _LABEL):>{_LABEL}} ", ""),
            *(
                (places.get(place, mark), "bold" if place in places else style)
                for place, mark in enumerate(bar)
            ),
            (f" {figures.percent(rate.value):>6} ", ""),
            (row.zone, style),
        )
    if rows and room:
        legend = f"{marks.sure} and {marks.unsure} end at the bounds of the 95% interval"
        if marks.line in places.values():
            legend += f"; {marks.line} is break-even"
        if marks.edge in places.values():
            legend += f", {marks.edge} the end of the range near it"
        yield from paragraph(legend, "dim", width)


def _places(line: Estimate, marks: Marks, room: int) -> dict[int, str]:
    """Positions and characters in a bar: the line, and the ends of the range near it."""
    ends = ((line.lower, marks.edge), (line.upper, marks.edge), (line.value, marks.line))
    return {
        min(round(value * room), room - 1): mark
        for value, mark in ends
        if room and value is not None and 0 < value < 1
    }


# --- a calibration


_STAGES: Columns[Json] = {
    "at once": lambda stage: figures.number(stage["concurrency"]),
    "slices": lambda stage: figures.number(stage["slices"]),
    "tokens": lambda stage: figures.compact(stage["tokens"]),
    "time/token": lambda stage: figures.seconds(stage["seconds_per_token"]),
    "TTFT p50": lambda stage: figures.quantile(stage["ttft"], "p50"),
    "TTFT p99": lambda stage: figures.quantile(stage["ttft"], "p99"),
    "TPOT p50": lambda stage: figures.quantile(stage["tpot"], "p50"),
    "TPOT p99": lambda stage: figures.quantile(stage["tpot"], "p99"),
}
_IMPORTED: Columns[Json] = {
    "load": lambda measurement: measurement["load_bin"],
    "points": lambda measurement: figures.number(measurement["points"]),
    "tokens": lambda measurement: figures.compact(measurement["tokens"]),
    "time/token": lambda measurement: figures.seconds(measurement["seconds_per_token"]),
}
_COMPARED: Columns[Json] = {
    "at once": lambda row: figures.number(row["concurrency"]),
    "off": lambda row: figures.seconds(row["off"]),
    "on": lambda row: figures.seconds(row["on"]),
    "tok/step": lambda row: figures.number(getattr(row["bin"], "acceptance_length", None), 2),
    "step cost": lambda row: interval(getattr(row["bin"], "step_cost", None)),
    "break-even": lambda row: (
        figures.percent(row["bin"].break_even_acceptance.value) if row["bin"] else figures.UNKNOWN
    ),
    "speedup": lambda row: interval(row["speedup"]),
}
_TEMPERATURES: Columns[Json] = {
    "temp": lambda row: shown(row["temperature"], 9),
    "at once": lambda row: row["load"],
    "acceptance": lambda row: figures.percent(row["acceptance_rate"]),
    "speedup": lambda row: interval(row["speedup"]),
}
_SHAPES = {
    "windows": f"workload like the traffic of the last {TRAFFIC_DAYS} days",
    "page": "workload like the traffic of --on since its start",
    "built-in": "built-in workload",
    "options": "workload as given",
}
_PARTS = {"prompt_tokens": "prompts", "output_tokens": "outputs", "loads": "loads"}
_VERDICT_STYLES = {PAYS: "green", LOSES: "red"}
_OUTCOMES = {PAYS: "pays", LOSES: "loses"}


def calibration_lines(report: Json, width: int) -> Lines:
    """Yield the lines of what :func:`specwatch.lab.loadtest.calibration_report.report` makes, the
    answer first."""
    if report["comparison"] is None:
        yield from paragraph(_baseline(report), "bold", width)
    else:
        style = _VERDICT_STYLES.get(report["comparison"]["verdict"], "yellow")
        yield from paragraph(_verdict(report["comparison"]), style, width)
    yield f"{shown(report['model_name'])}{engine_version(report['engine_version'])}", ""
    if report.get("shape") is not None:
        title, sent = shape_texts(report["shape"])
        yield from paragraph(f"{title}: {sent}", width=width)
    for mode, title in (("off", "without speculation"), ("on", "with speculation")):
        stages = [stage for stage in report["stages"] if stage["mode"] == mode]
        if stages:
            yield title, ""
            yield from table(_STAGES, stages, width)
    if not report["stages"] and report["measurements"]:
        yield from table(_IMPORTED, report["measurements"], width)
    if report["comparison"] is not None:
        yield from _comparison(report, report["comparison"], width)
    yield from notes(report["doubts"], width)
    if report["stored"] is None:
        yield "nothing stored", ""
    else:
        bins = ", ".join(measurement["load_bin"] for measurement in report["measurements"])
        yield (
            f"baseline of {shown(report['target'])} at load {bins} stored in {report['stored']}",
            "",
        )


def shape_texts(shape: Json) -> tuple[str, str]:
    """The origin of the workload, and the workload."""
    loads, prompt = shape["loads"], shape["prompt_tokens"]
    prompts = "unchanged prompts" if prompt is None else f"prompts of {prompt} tokens"
    span = f"load {loads[0]}" if len(loads) == 1 else f"loads {loads[0]} to {loads[-1]}"
    title = _SHAPES[shape["source"]]
    given = [_PARTS[part] for part in shape["given"]]
    if given and shape["source"] != "options":
        title += f" ({' and '.join(given)} given)"
    if shape["left_out"]:
        title += f" without {figures.span(shape['left_out'])} of measuring"
    return title, f"{prompts}, outputs of {shape['output_tokens']}, {span}"


def _comparison(report: Json, comparison: Json, width: int) -> Lines:
    paces = {
        (stage["concurrency"], stage["mode"]): stage["seconds_per_token"]
        for stage in report["stages"]
    }
    levels = comparison["concurrencies"]
    rows = [
        {
            **level,
            "bin": level["bins"][0] if len(level["bins"]) == 1 else None,
            **{mode: paces.get((level["concurrency"], mode)) for mode in ("off", "on")},
        }
        for level in levels
    ]
    yield "time per token, and the cost of a speculative step in steps without speculation", ""
    yield from table(_COMPARED, rows, width, _verdict_style)
    yield "speedup by temperature", ""
    loads = [(str(level["concurrency"]), level) for level in levels]
    if len(loads) > 1:
        loads.insert(0, ("all", comparison))
    buckets = [
        {**bucket, "load": load}
        for label in [bucket["temperature"] for bucket in comparison["buckets"]]
        for load, level in loads
        for bucket in level["buckets"]
        if bucket["temperature"] == label
    ]
    yield from table(_TEMPERATURES, buckets, width, _verdict_style, keys=2)
    yield from _best_k(comparison)


def _verdict_style(row: Json) -> str:
    return _VERDICT_STYLES.get(row["verdict"], "")


def _best_k(comparison: Json) -> Iterator[tuple[str, str]]:
    best, unknown = comparison["best_k"], comparison["best_k_unknown"]
    if unknown is not None:
        yield f"best k: unknown, {speculation.BEST_K_UNKNOWN[unknown]}", ""
    if best is None:
        return
    speedups: Sequence[float] = best["speedups"]
    now = len(speedups) - 1
    if best["k"] == now:
        yield f"best k: {now}, as now", ""
        return
    text = f"best k: {speculation.best_of(best['k'])} (predicted speedup per token"
    yield f"{text} {speedups[best['k']]:.2f}, with {now} now {speedups[now]:.2f})", ""


def _verdict(comparison: Json) -> str:
    """Whether speculation pays, as a sentence."""
    if comparison["speedup"] is None:
        return f"Whether speculation pays is not known: {comparison['missing']}."
    outcome = _OUTCOMES.get(comparison["verdict"], "makes no measurable difference")
    speedup = figures.times(comparison["speedup"])
    return f"Speculation {outcome} on this workload: {speedup}, with its 95% interval."


def _baseline(report: Json) -> str:
    """How long a token takes without speculation, by load."""
    paces = [
        f"{figures.seconds(one['seconds_per_token'])} at load {one['load_bin']}"
        for one in report["measurements"]
    ]
    if not paces:
        return "Nothing that can be used as a baseline was measured."
    return f"Without speculation a token takes {', '.join(paces)}."
