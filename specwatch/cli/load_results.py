"""Storing, printing, writing and drawing results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from specwatch.cli import options, output
from specwatch.cli.bench_tables import bench_lines, comparison_lines
from specwatch.cli.load_tables import probe_lines
from specwatch.cli.terminal import Lines, Terminal
from specwatch.domain.baseline import Measurement
from specwatch.domain.experiments import Bench, Comparison, Experiment, Probe
from specwatch.domain.model import load_bin_label
from specwatch.errors import ConfigError, StoreError, TooLittle
from specwatch.report.charts import png, speedup_by_concurrency
from specwatch.wording.text import clean

if TYPE_CHECKING:
    from specwatch.store.repository import Store

_WIDTH = 1200
"""Pixels."""
_FORMATS = (".svg", ".png")


def require_outputs(file: Path | None, plot: Path | None = None) -> None:
    """Raise ConfigError, before the work, for files that could not be written after it."""
    if file is not None:
        output.require_writable(file)
    if plot is not None:
        if plot.suffix.lower() not in _FORMATS:
            raise ConfigError(f"--plot {plot}: give a name that ends with .svg or .png")
        output.require_writable(plot, "--plot")


def store_all(
    store: Store | None,
    experiments: Sequence[Experiment],
    baseline: Sequence[Measurement] = (),
    no_baseline: Sequence[str] = (),
) -> tuple[list[str], list[str]]:
    """Store results; returns sentences about what was stored, and about what was not.

    ``no_baseline`` are the reasons without a baseline. A comparison is stored beside its benches.
    """
    if store is None:
        return ["nothing stored"], []
    stored: list[str] = []
    try:
        numbers = [
            store.add_experiment(
                replace(one, benches=()) if isinstance(one, Comparison) else one, time.time()
            )
            for one in experiments
        ]
        stored.append(f"stored as result {', '.join(map(str, numbers))} in {store.where}")
        stored += no_baseline
        if baseline:
            store.write_measurements(baseline, time.time())
            bins = ", ".join(load_bin_label(one.load_bin) for one in baseline)
            stored.append(f"baseline of {baseline[0].key.target} at load {bins} stored")
    except StoreError as error:
        return stored or ["nothing stored"], [f"measured, but not stored: {error}"]
    return stored, []


def deliver(
    result: Experiment,
    problems: Sequence[str],
    given: Mapping[str, Any],
    stored: Sequence[str] = (),
) -> None:
    """Print a result, and what was stored; write and draw it, if the options say so.

    Raises TooLittle for problems.
    """
    if given["as_json"]:
        options.print_json(result)
        for text in stored:
            click.echo(text, err=True)
    else:
        terminal = Terminal()
        # Problems are printed as the error message.
        notes = tuple(note for note in result.notes if note not in problems)
        terminal.lines(_lines(replace(result, notes=notes), terminal))
        terminal.lines((text, "") for text in stored)
    problems = [*problems, *_written(result, given["output"], given.get("plot"))]
    if problems:
        raise TooLittle("\n".join(problems))


def _lines(result: Experiment, terminal: Terminal) -> Lines:
    fancy = terminal.bar != "#"
    if isinstance(result, Probe):
        yield from probe_lines(result, terminal.width, fancy=fancy)
    elif isinstance(result, Bench):
        yield from bench_lines(result, terminal.width)
    elif result.levels or not any(bench.levels for bench in result.benches):
        yield from comparison_lines(result, terminal.width, fancy=fancy)
    else:  # without common loads
        for bench in result.benches:
            if bench.levels:
                yield from bench_lines(bench, terminal.width)


def _written(result: Experiment, file: Path | None, plot: Path | None) -> list[str]:
    """Write and draw a result; returns sentences about what failed."""
    problems = []
    try:
        if file is not None:
            output.write(file, output.json_text(result))
    except ConfigError as error:
        problems.append(f"measured, but not written: {error}")
    if plot is None:
        return problems
    if not isinstance(result, Comparison) or not any(
        level.speedup is not None and level.speedup.value > 0 for level in result.levels
    ):
        click.echo(f"note: nothing to draw in {clean(str(plot))}: the speedup is unknown", err=True)
        return problems
    try:
        output.write(plot, _drawing(result, plot.suffix.lower()), "--plot")
    except ConfigError as error:
        problems.append(f"measured, but not drawn: {error}")
    return problems


def _drawing(comparison: Comparison, suffix: str) -> str | bytes:
    """The speedup by load, as the content of an image file."""
    svg = speedup_by_concurrency(comparison.levels, comparison.crossing, rising=comparison.rising)
    if suffix == ".svg":
        # A white background, because the page that shows the file may be dark.
        start, content = svg.split(">", 1)
        background = '<rect width="100%" height="100%" fill="#ffffff"/>'
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{start}>{background}{content}\n'
    return png(svg, _WIDTH)
