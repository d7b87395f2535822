"""What becomes of a bench: it is stored, written, drawn and printed, whole or not."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import click

from specwatch import __version__
from specwatch.cli import options, output_file
from specwatch.cli.bench_tables import bench_lines, comparison_lines
from specwatch.cli.load_sources import TooLittle
from specwatch.cli.terminal import Terminal
from specwatch.domain.baseline import BaselineKey, Measurement
from specwatch.domain.experiments import Bench, Comparison, Experiment, Level
from specwatch.domain.model import Mode, load_bin_label
from specwatch.errors import ConfigError, StoreError
from specwatch.loadtest import calibration
from specwatch.loadtest.compare import compare, uncompared, with_benches
from specwatch.report.charts import speedup_by_concurrency
from specwatch.wording.text import clean

if TYPE_CHECKING:
    from specwatch.cli.bench_run import BenchRun, Measured
    from specwatch.store.repository import Store

_WIDTH = 1200
"""Pixels."""
_FONTS = "DejaVu Sans"
"""What stands in for the system's own font, which has no name that a renderer knows."""
_FORMATS = (".svg", ".png")
_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'


@dataclass(frozen=True, slots=True)
class Findings:
    """A run, and the bench of each of its servers; ``target`` is what baselines are kept by."""

    run: BenchRun
    benches: Sequence[Bench]
    target: str

    def measurements(self) -> tuple[list[Measurement], list[str]]:
        """The baseline that the server without speculation is, or why it is none, if so."""
        off = [each for each in self.run.measured if each.server.engine.mode is Mode.OFF]
        for each in off:
            if (why := self._no_baseline(each)) is not None:
                return [], [f"no baseline stored: {why}"]
            engine = each.server.engine
            key = BaselineKey(
                self.target,
                engine.model_name,
                engine.environment.engine_version,
                engine.environment.configuration,
            )
            if found := calibration.measurements(key, each.stages):
                return found, []
            short = (stage.shortfall for stage in each.stages if stage.shortfall is not None)
            why = next(short, "too little was measured; give a longer --duration")
            return [], [f"no baseline stored: {why}"]
        return [], []

    def _no_baseline(self, measured: Measured) -> str | None:
        if self.run.broken_off is not None:
            return "not all was measured"
        if measured.server.engine.busy or any(stage.shared for stage in measured.stages):
            return "others used the server meanwhile, and at which load it ran is not known"
        return None

    def experiments(self) -> tuple[list[Experiment], list[str]]:
        """All to be stored, the main one last, and why there is no comparison, if so."""
        measured: list[Experiment] = [each for each in self.benches if each.levels]
        if len(self.benches) < 2:
            return measured, []
        try:
            return [*measured, compare(*self.benches, version=__version__)], []
        except ConfigError as error:
            return measured, [f"not compared: {error}"]

    def whole(self, main: Experiment) -> Experiment:
        """What a file has: of two servers both benches, be they compared or not."""
        if len(self.benches) < 2:
            return main
        if isinstance(main, Comparison):
            return with_benches(main, *self.benches)
        try:
            return uncompared(*self.benches, version=__version__)
        except ConfigError:  # Two of one mode, as their answers told later.
            return main


def require_outputs(output: Path | None, plot: Path | None) -> None:
    """Raise ConfigError before the work for files that cannot be written after it."""
    if output is not None:
        output_file.require_writable(output)
    if plot is not None:
        if plot.suffix.lower() not in _FORMATS:
            raise ConfigError(f"--plot {plot}: give a name that ends with .svg or .png")
        output_file.require_writable(plot, "--plot")
        if plot.suffix.lower() == ".png":
            _renderer()


def finish(
    found: Findings,
    store: Store | None,
    *,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Store, print, write and draw. Raises TooLittle for what is not as it should be."""
    experiments, problems = found.experiments()
    main = experiments[-1]
    written = found.whole(main)
    stored, failed = _store(store, experiments, *found.measurements())
    problems += failed
    told = experiments if len(experiments) < 3 else [main]
    show([written] if as_json else told, stored, as_json=as_json)
    problems += keep(written, output=output, plot=plot)
    if found.run.broken_off is not None:
        problems.append(found.run.broken_off)
    for bench in found.benches:
        problems += _failures(bench.levels)
    if isinstance(main, Comparison) and main.verdict == "do_not":
        problems.append(f"verdict: {main.sentence}")
    if problems:
        raise TooLittle("\n".join(problems))


def keep(found: Experiment, *, output: Path | None, plot: Path | None) -> list[str]:
    """Write and draw what was printed already; returns what could not be, as sentences."""
    problems = []
    try:
        if output is not None:
            output_file.write(output, output_file.json_text(found))
    except ConfigError as error:
        problems.append(f"measured, but not written: {error}")
    if plot is None:
        return problems
    if not isinstance(found, Comparison) or not _drawable(found):
        click.echo(f"note: nothing to draw in {clean(str(plot))}: no speedup is known", err=True)
        return problems
    try:
        _draw(plot, found)
    except ConfigError as error:
        problems.append(f"measured, but not drawn: {error}")
    return problems


def _store(
    store: Store | None,
    experiments: Sequence[Experiment],
    measured: Sequence[Measurement],
    lacking: Sequence[str],
) -> tuple[list[str], list[str]]:
    """What was stored, and what could not be, as sentences; ``lacking`` is why no baseline is."""
    if store is None:
        return ["nothing stored"], []
    said = []
    try:
        numbers = [store.add_experiment(each, time.time()) for each in experiments]
        said.append(f"stored as result {', '.join(map(str, numbers))} in {store.where}")
        said += lacking
        if measured:
            store.write_measurements(measured, time.time())
            bins = ", ".join(load_bin_label(each.load_bin) for each in measured)
            said.append(f"baseline of {measured[0].key.target} at load {bins} stored")
    except StoreError as error:
        return said, [f"measured, but not stored: {error}"]
    return said, []


def show(experiments: Sequence[Experiment], more: Iterable[str] = (), *, as_json: bool) -> None:
    """Print results; as JSON the last one alone, with ``more`` on standard error."""
    if as_json:
        options.print_json(experiments[-1])
        for said in more:
            click.echo(said, err=True)
        return
    terminal = Terminal()
    for each in experiments:
        if isinstance(each, Bench):
            for line in bench_lines(each):
                terminal.line(line)
        elif isinstance(each, Comparison):
            for parts in comparison_lines(each, fancy=terminal.bar != "#"):
                terminal.line(*parts)
    for said in more:
        terminal.line(said)


def _failures(levels: Iterable[Level]) -> list[str]:
    """Levels of which nothing, or little, can be told."""
    return [
        f"{_name(each)}: {note}" for each in levels for note in each.notes if "failed" in note
    ] + [f"{_name(each)}: no request ended well" for each in levels if not each.requests]


def _name(level: Level) -> str:
    if level.concurrency is not None:
        return f"concurrency {level.concurrency}"
    return f"rate {level.rate:g}/s"


def _drawable(comparison: Comparison) -> bool:
    """Whether a speedup is known at any load."""
    return any(level.speedup is not None and level.speedup.value > 0 for level in comparison.levels)


def _draw(path: Path, comparison: Comparison) -> None:
    """Draw the speedup into a file. Raises ConfigError where it cannot be written."""
    drawn = speedup_by_concurrency(comparison.levels, comparison.crossing, rising=comparison.rising)
    if path.suffix.lower() == ".svg":
        output_file.write(path, _XML + _on_white(drawn) + "\n", "--plot")
        return
    resvg = _renderer()
    data = resvg.svg_to_bytes(
        svg_string=drawn,
        background="#ffffff",
        width=_WIDTH,
        font_family=_FONTS,
        sans_serif_family=_FONTS,
    )
    output_file.write(path, bytes(data), "--plot")


def _on_white(drawn: str) -> str:
    """With a ground of its own: the page that shows the file may be dark."""
    opened, rest = drawn.split(">", 1)
    return f'{opened}><rect width="100%" height="100%" fill="#ffffff"/>{rest}'


def _renderer() -> ModuleType:
    try:
        import resvg_py
    except ModuleNotFoundError:
        raise ConfigError(
            "--plot: a PNG needs the package resvg-py; install it:"
            f" {sys.executable} -m pip install resvg-py, or write an .svg"
        ) from None
    return resvg_py
