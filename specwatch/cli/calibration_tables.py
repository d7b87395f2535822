"""A calibration as lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specwatch.cli.calibration_sources import SHAPE_DAYS
from specwatch.loadtest.calibration_report import LOSES, PAYS
from specwatch.wording import figures, speculation
from specwatch.wording.text import LONGEST_SENTENCE, shown

Json = Mapping[str, Any]
Line = tuple[str, str]
"""Text and style."""

_STAGES = {
    "at once": 7, "slices": 6, "tokens": 7, "time/token": 10, "TTFT p50": 8, "p99": 7,
    "TPOT p50": 8, " p99": 7,
}  # fmt: skip
_IMPORTED = {"load": 7, "points": 6, "tokens": 7, "time/token": 10}
_COMPARED = {
    "at once": 7, "off": 8, "on": 8, "tok/step": 8, "step cost": 16, "break-even": 10,
    "speedup": 16,
}  # fmt: skip
"""Headers and widths; with a space between them, 79 columns."""
_TEMPERATURES = {"temp": 9, "at once": 7, "acceptance": 10, "speedup": 16}
_SHAPES = {
    "windows": f"shape of the traffic of the last {SHAPE_DAYS} days",
    "page": "shape of the traffic of --on since its start",
    "built-in": "built-in workload",
    "options": "workload as given",
}
_PARTS = {"prompt_tokens": "prompts", "output_tokens": "outputs", "loads": "loads"}
_STYLES = {PAYS: "green", LOSES: "red"}


def report_lines(report: Json) -> Iterator[Line]:
    """Yield lines and their styles for a report as ``--json`` prints it."""
    version = report["engine_version"]
    engine = f", engine {shown(version)}" if version else ""
    yield f"{shown(report['model_name'])}{engine}", "bold"
    if report.get("shape") is not None:
        said, sent = _shape_words(report["shape"])
        yield f"{said}:", ""
        yield f"  {sent}", ""
    for mode, title in (("off", "without speculation"), ("on", "with speculation")):
        stages = [stage for stage in report["stages"] if stage["mode"] == mode]
        if stages:
            yield title, ""
            yield _line(list(_STAGES), _STAGES), "dim"
            for stage in stages:
                yield _line(_stage_cells(stage), _STAGES), ""
    if not report["stages"] and report["measurements"]:
        yield _line(list(_IMPORTED), _IMPORTED), "dim"
        for one in report["measurements"]:
            yield _line(_imported_cells(one), _IMPORTED), ""
    comparison = report["comparison"]
    if comparison is not None:
        yield from _comparison(report, comparison)
    for doubt in report["doubts"]:
        yield f"note: {shown(doubt, LONGEST_SENTENCE)}", "yellow"
    yield _stored(report), ""


def shape_line(shape: Json) -> str:
    """What is sent, and what says so."""
    return ": ".join(_shape_words(shape))


def _shape_words(shape: Json) -> tuple[str, str]:
    loads, prompt = shape["loads"], shape["prompt_tokens"]
    prompts = "prompts as they stand" if prompt is None else f"prompts of {prompt} tokens"
    span = f"load {loads[0]}" if len(loads) == 1 else f"loads {loads[0]} to {loads[-1]}"
    said = _SHAPES[shape["source"]]
    given = [_PARTS[each] for each in shape["given"]]
    if given and shape["source"] != "options":
        said += f" ({' and '.join(given)} given)"
    if shape["left_out"]:
        said += f" without {figures.span(shape['left_out'])} of measuring"
    return said, f"{prompts}, outputs of {shape['output_tokens']}, {span}"


def _stored(report: Json) -> str:
    if report["stored"] is None:
        return "nothing stored"
    bins = ", ".join(one["load_bin"] for one in report["measurements"])
    return f"baseline of {shown(report['target'])} at load {bins} stored in {report['stored']}"


def _imported_cells(one: Json) -> list[str]:
    return [
        one["load_bin"],
        figures.number(one["points"]),
        figures.compact(one["tokens"]),
        figures.seconds(one["seconds_per_token"]),
    ]


def _stage_cells(stage: Json) -> list[str]:
    return [
        figures.number(stage["concurrency"]),
        figures.number(stage["slices"]),
        figures.compact(stage["tokens"]),
        figures.seconds(stage["seconds_per_token"]),
        figures.quantile(stage["ttft"], "p50"),
        figures.quantile(stage["ttft"], "p99"),
        figures.quantile(stage["tpot"], "p50"),
        figures.quantile(stage["tpot"], "p99"),
    ]


def _comparison(report: Json, comparison: Json) -> Iterator[Line]:
    paces = {
        (stage["concurrency"], stage["mode"]): stage["seconds_per_token"]
        for stage in report["stages"]
    }
    yield "time per token, and what a speculative step costs in plain ones", ""
    yield _line(list(_COMPARED), _COMPARED), "dim"
    for one in comparison["concurrencies"]:
        level = one["concurrency"]
        bins = one["bins"]
        line = bins[0] if len(bins) == 1 else None
        yield (
            _line(
                [
                    figures.number(level),
                    figures.seconds(paces.get((level, "off"))),
                    figures.seconds(paces.get((level, "on"))),
                    figures.number(line and line["acceptance_length"], 2),
                    between(line and line["step_cost"]),
                    figures.percent(line and line["break_even_acceptance"]["value"]),
                    between(one["speedup"]),
                ],
                _COMPARED,
            ),
            _STYLES.get(one["verdict"], ""),
        )
    yield "speedup by temperature", ""
    yield _line(list(_TEMPERATURES), _TEMPERATURES), "dim"
    rows = [(str(one["concurrency"]), one) for one in comparison["concurrencies"]]
    if len(rows) > 1:
        rows.insert(0, ("all", comparison))
    for label in [each["temperature"] for each in comparison["buckets"]]:
        for level, one in rows:
            yield from _temperature(label, level, one)
    yield from _best_k(comparison)
    yield verdict_line(comparison), _STYLES.get(comparison["verdict"], "yellow")


def _temperature(label: str, level: str, one: Json) -> Iterator[Line]:
    for found in one["buckets"]:
        if found["temperature"] == label:
            cells = [
                shown(label, _TEMPERATURES["temp"]),
                level,
                figures.percent(found["acceptance_rate"]),
                between(found["speedup"]),
            ]
            yield _line(cells, _TEMPERATURES), _STYLES.get(found["verdict"], "")


def _best_k(comparison: Json) -> Iterator[Line]:
    best, unknown = comparison["best_k"], comparison["best_k_unknown"]
    if unknown is not None:
        yield f"best k: not known, {speculation.BEST_K_UNKNOWN[unknown]}", ""
    if best is None:
        return
    speedups: Sequence[float] = best["speedups"]
    now = len(speedups) - 1
    if best["k"] == now:
        yield f"best k: {now}, as it is", ""
        return
    what, then = speculation.best_of(best["k"]), speedups[best["k"]]
    said = f"best k: {what} (predicted speedup per token {then:.2f}"
    yield f"{said}, with {now} now {speedups[now]:.2f})", ""


def verdict_line(comparison: Json) -> str:
    """Whether speculation pays, as a sentence."""
    speedup = comparison["speedup"]
    if speedup is None:
        return f"no verdict: {comparison['missing']}"
    times = f"{between(speedup)} times as fast, 95% interval"
    if comparison["verdict"] == PAYS:
        return f"speculation pays on this workload: {times}"
    if comparison["verdict"] == LOSES:
        return f"speculation loses on this workload: {times}"
    return f"speculation makes no difference that can be told: {times}"


def between(interval: Json | None) -> str:
    """``1.61 (1.50-1.72)``."""
    if interval is None:
        return figures.UNKNOWN
    return f"{interval['value']:.2f} ({interval['lower']:.2f}-{interval['upper']:.2f})"


def _line(cells: Sequence[str], columns: Mapping[str, int]) -> str:
    from specwatch.cli.terminal import row

    return row(f"{cell:>{width}}" for cell, width in zip(cells, columns.values(), strict=True))
