"""``specwatch calibrate``: measures a baseline, or imports it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from specwatch import __version__
from specwatch.cli import calibration_sources, load, options
from specwatch.cli.calibration_sources import CalibrationSources
from specwatch.errors import ConfigError, StoreError, TooLittle
from specwatch.lab.loadtest.prompts import LEAST_TOKENS

if TYPE_CHECKING:
    from specwatch.domain.baseline import Measurement
    from specwatch.domain.baseline_points import Point
    from specwatch.lab.loadtest.calibration import Stage
    from specwatch.lab.loadtest.server import Server
    from specwatch.store.repository import Store

_OF_ALL = (
    "a result does not contain the engine version and configuration; until it expires, it is used"
    " for every version and configuration of the target"
)
_BUILT_IN = (
    "the lengths of production traffic are unknown ({}); give --prompt-tokens and --output-tokens,"
    " or the --config and --target of its daemon"
)


@click.command(name="calibrate")
@click.option("--off", metavar="URL", help="The server without speculation.")
@click.option(
    "--on", metavar="URL", help="The same with speculation: measured alternately, and compared."
)
@options.path(
    "--import",
    "imported",
    multiple=True,
    text="In place of measuring: a result of `vllm bench serve` or AIPerf. Repeatable.",
)
@click.option(
    "--target",
    metavar="NAME",
    help="Target of the baseline.  [default: the configured one with this URL, or HOST:PORT]",
)
@click.option(
    "--concurrency",
    metavar="N,N,...",
    callback=options.numbers(int, 1, "1,2,4"),
    help="Requests at once; with --import one number, in place of the file's.  [default: up to 1.5"
    " times the load of the traffic, else 1,2,4,8,16]",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Mean length of prompts; half and twice that are sent as well.  [default: that of the"
    " traffic]",
)
@click.option(
    "--output-tokens",
    "--max-tokens",
    "max_tokens",
    type=click.IntRange(min=LEAST_TOKENS),
    metavar="N",
    help="Length of each answer.  [default: the mean of the traffic, else 128]",
)
@click.option(
    "--unsteady",
    is_flag=True,
    help="Use a load even if a step took more than twice as long in one round as in another;"
    " otherwise it is measured up to three times, then left out.",
)
@load.loads
@load.sending
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Measure what serving costs without speculation, by load.

    Sends requests, N at a time, and reads the server's own counters: the baseline that speedups are
    measured against. Lengths and loads are those of the target's stored traffic of the last 7 days,
    else those that the server of --on has counted since it started, else built in; options override
    each. Prompts of half, once and twice the mean length are sent alternately, to measure the cost
    of prompts. Nobody else may use the server for more than a minute for each concurrency, twice
    that with --on; with --shared, results are stored even if somebody did.

    Exit code 1 when too little was measured, or others used the server; 2 when nothing can be
    measured.
    """
    if bool(given["imported"]) == bool(given["off"]):
        raise click.UsageError("give --off URL to measure, or --import FILE", context)
    if given["prompts"] is not None and given["prompt_tokens"] is not None:
        raise click.UsageError("give --prompts FILE or --prompt-tokens N, not both", context)
    sources = calibration_sources.of(given)
    if given["imported"]:
        _import(context, sources, given)
    else:
        _measure(sources, given)


def _measure(sources: CalibrationSources, given: Mapping[str, Any]) -> None:
    from specwatch.cli import load_tables
    from specwatch.cli.progress import ProgressBar
    from specwatch.lab.loadtest import calibration, calibration_report, calibration_shape, engine
    from specwatch.lab.loadtest.calibration_run import CalibrationPlan, CalibrationRun
    from specwatch_tap.temperature import Buckets

    prompts = load.prompts(given["prompts"])
    servers = [load.free_server(target, given, where) for where, target in sources.servers.items()]
    off, *others = servers
    doubts = [
        f"{doubt}: the baseline will not be used for the one with speculation"
        for doubt in engine.check(*(server.engine for server in servers))
    ]
    key = off.engine.baseline_key(sources.target)
    with load.opened_store(given, "calibrate") as store:
        now = time.time()
        workload, lacking = calibration_sources.workload(sources, given, servers, now)
        limits = [server.longest for server in servers if server.longest]
        lengths = calibration_shape.fitted(
            workload.prompt_tokens, workload.output_tokens, min(limits, default=None)
        )
        doubts += lengths.notes
        if lacking is not None:
            doubts.append(_BUILT_IN.format(lacking))
        plan = CalibrationPlan(
            workload.loads,
            given["temperatures"],
            prompts,
            lengths.prompts,
            given["duration"],
            given["warm_up"],
            lengths.output,
            given["seed"],
            "" if given["prompts"] is not None else f"{int(now):x}",
            given["unsteady"],
        )
        shape = {
            **asdict(workload),
            "sent_prompt_tokens": lengths.prompts,
            "sent_output_tokens": lengths.output,
        }
        progress = ProgressBar()
        with (
            _interval_stored(store, sources.target, servers[-1]),
            load.StopSignals(keeps=False) as stop_signals,
        ):
            progress.note(": ".join(load_tables.shape_texts(shape)))
            run = CalibrationRun(
                plan, servers, Buckets(sources.edges), progress.note, progress.step
            )
            stages = stop_signals.run(run.run(), progress, run.slices)
        doubts += calibration.doubts_of(stages)
        measurements = calibration.measurements(key, stages)
        report = {
            **calibration_report.report(key, stages, measurements),
            "doubts": doubts,
            "off": off.url,
            "on": others[0].url if others else None,
            "shape": shape,
            "max_tokens": plan.max_tokens,
            "temperatures": list(plan.temperatures),
            "seed": plan.seed,
        }
        problems, usable = _problems(stages, shared=given["shared"])
        _finish(store, measurements if usable else [], report, problems, given)


@contextmanager
def _interval_stored(store: Store | None, target: str, server: Server) -> Iterator[None]:
    """Store when the block ran, however it ends: the requests of that time are not traffic."""
    from specwatch.domain.experiments import Calibration
    from specwatch.lab.loadtest.result_parts import subject_of

    began = time.time()
    try:
        yield
    finally:
        if store is not None:
            subject = subject_of(server.engine, target=target, url=server.url)
            ended = time.time()
            experiment = Calibration(version=__version__, began=began, ended=ended, subject=subject)
            try:
                store.add_experiment(experiment, ended)
            except StoreError as error:
                click.echo(f"the time of this calibration is not stored: {error}", err=True)


def _problems(stages: Sequence[Stage], *, shared: bool) -> tuple[list[str], bool]:
    """Problems of the measurement, and whether it can be stored: others did not use the server, or
    that is accepted."""
    problems, usable = [], True
    for stage in stages:
        place = f"concurrency {stage.concurrency}, speculation {stage.engine.mode}"
        if stage.shortfall is not None:
            problems.append(f"{place} is not usable: {stage.shortfall}")
        if stage.shared and not shared:
            usable = False
            count = stage.foreign_requests
            what = f"{count} requests of others ended" if count else "others had tokens generated"
            problems.append(
                f"{place}: {what} meanwhile, so nothing is stored; take that traffic away, or give"
                " --shared"
            )
    return problems, usable


def _import(context: click.Context, sources: CalibrationSources, given: Mapping[str, Any]) -> None:
    from specwatch.domain.baseline import BaselineKey
    from specwatch.lab.loadtest import calibration_report, imported_results

    chosen = given["concurrency"] or (None,)
    if len(chosen) != 1:
        raise click.UsageError("with --import, --concurrency takes one number", context)
    points: list[Point] = []
    names: set[str | None] = set()
    for file in given["imported"]:
        text, written = load.text_of(file)
        for result in imported_results.read(text, str(file), concurrency=chosen[0]):
            points += result.points(calibration_sources.ended(result.ended, written, time.time()))
            names.add(result.model_name)
    model = given["model"] or (names.pop() if len(names) == 1 else None)
    if model is None:
        raise ConfigError("--import: the results have no model name, or several; give --model NAME")
    key = BaselineKey(sources.target, model)
    measurements, problems = imported_results.measurements(key, points)
    report = {
        **calibration_report.report(key, [], measurements),
        "doubts": [_OF_ALL],
        "imported": [str(file) for file in given["imported"]],
    }
    with load.opened_store(given, "calibrate") as store:
        _finish(store, measurements, report, problems, given)


def _finish(
    store: Store | None,
    measurements: Sequence[Measurement],
    report: dict[str, Any],
    problems: list[str],
    given: Mapping[str, Any],
) -> None:
    """Store the measurements and print the report. Raises TooLittle for problems."""
    report["stored"] = None
    if store is not None and measurements:
        try:
            store.write_measurements(measurements, time.time())
            report["stored"] = store.where
        except StoreError as error:
            problems = [*problems, f"measured, but not stored: {error}"]
    if given["as_json"]:
        options.print_json(report)
    else:
        from specwatch.cli.load_tables import calibration_lines
        from specwatch.cli.terminal import Terminal

        terminal = Terminal()
        terminal.lines(calibration_lines(report, terminal.width))
    if problems:
        raise TooLittle("\n".join(problems))
