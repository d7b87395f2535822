"""``specwatch calibrate``: a baseline, measured on purpose or imported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specwatch.cli import calibration_sources, load_options, load_process, load_sources, options
from specwatch.cli.calibration_sources import Sources
from specwatch.cli.load_sources import TooLittle, numbers, opened_store
from specwatch.errors import ConfigError, StoreError
from specwatch.temperature import Buckets

if TYPE_CHECKING:
    from specwatch.cli.calibrate_run import Calibration, Note, Step
    from specwatch.cli.load_server import Server
    from specwatch.core.baseline import Measurement, Point
    from specwatch.core.calibration import Stage
    from specwatch.edges.store import Store

_DAEMON = "specwatch calibrate"
_OF_ALL = (
    "a result does not say of which engine version and configuration it is: it is taken for any of"
    " the target's until it expires"
)


@click.command(name="calibrate")
@click.option("--off", metavar="URL", help="The server without speculation.")
@click.option(
    "--on", metavar="URL", help="The same with speculation: measures too what it brings, in turn."
)
@click.option(
    "--import", "imported", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="In place of measuring: a result of `vllm bench serve` or AIPerf. Repeatable.",
)  # fmt: skip
@click.option(
    "--target", metavar="NAME",
    help="Whose baseline it is.  [default: that of the configuration with this URL, or HOST:PORT]",
)  # fmt: skip
@click.option("--model", metavar="NAME", help="Which model, where there are several.")
@click.option(
    "--concurrency", metavar="N,N,...", callback=numbers(int, 1, "1,2,4"), default="1,2,4,8,16",
    show_default=True, help="Requests at once; with --import one number, in place of the file's.",
)  # fmt: skip
@click.option(
    "--duration", default="30s", show_default=True, callback=options.duration, metavar="TIME",
    help="How long to measure each concurrency on each server.",
)  # fmt: skip
@click.option("--shared", is_flag=True, help="Store although others used the server meanwhile.")
@load_options.loads
@load_options.workload
@options.database_option
@options.file_option
@options.json_option
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Measure what serving costs without speculation, by load.

    Sends a fixed workload, N requests at a time, and reads the server's own counters: the baseline
    that speedups are measured against. It takes the server for itself: about a minute for each
    concurrency, twice that with --on.

    Exit code 1 when it ran but measured too little, or not alone; 2 when it cannot be measured like
    that.
    """
    if bool(given["imported"]) == bool(given["off"]):
        raise click.UsageError("give --off URL to measure, or --import FILE", context)
    sources = calibration_sources.of(given)
    if given["imported"]:
        _import(context, sources, given)
    else:
        _measure(sources, given)


def _measure(sources: Sources, given: Mapping[str, Any]) -> None:
    from specwatch.cli.calibrate_run import Calibration, Plan
    from specwatch.core import calibration, calibration_report
    from specwatch.core.baseline import BaselineKey

    plan = Plan(
        given["concurrency"], given["temperatures"], load_sources.prompts(given["prompts"]),
        given["duration"], given["warm_up"], given["max_tokens"], given["seed"], given["endpoint"],
    )  # fmt: skip
    off, on = _servers(sources, given)
    doubts = calibration.check(off.engine, on.engine if on is not None else None)
    environment = off.engine.environment
    key = BaselineKey(
        sources.target, off.engine.model_name, environment.engine_version, environment.configuration
    )
    buckets = Buckets(sources.edges)
    with opened_store(sources.database, daemon=_DAEMON, dry_run=given["dry_run"]) as store:
        stages = _run(lambda note, step: Calibration(plan, off, on, buckets, note, step))
        found = calibration.measurements(key, stages)
        report = {
            **calibration_report.report(key, stages, found),
            "doubts": doubts,
            "off": off.url,
            "on": on.url if on is not None else None,
            "max_tokens": plan.max_tokens,
            "temperatures": list(plan.temperatures),
            "seed": plan.seed,
        }
        problems, alone = _problems(stages, shared=given["shared"])
        _finish(store, found if alone else [], report, problems, as_json=given["as_json"])


def _servers(sources: Sources, given: Mapping[str, Any]) -> tuple[Server, Server | None]:
    """The servers, asked who they are. Raises ConfigError where others use them."""
    from specwatch.cli.load_server import Server

    found = []
    for where, target in (("--off", sources.off), ("--on", sources.on)):
        if target is None:
            continue
        server = Server(target, model=given["model"], endpoint=given["endpoint"], where=where)
        if server.engine.busy and not given["shared"]:
            raise ConfigError(
                f"{where}: {server.engine.busy:g} requests of others are under way at {server.url};"
                " take its traffic away, or give --shared"
            )
        found.append(server)
    return found[0], found[1] if len(found) == 2 else None


def _run(prepare: Callable[[Note, Step], Calibration]) -> list[Stage]:
    from specwatch.cli.load_progress import Progress

    progress = Progress()
    try:
        calibration = prepare(progress.note, progress.step)
        with progress.over(calibration.slices):
            return load_process.run(calibration.run())
    except KeyboardInterrupt:
        raise TooLittle("interrupted: nothing was stored") from None


def _problems(stages: Sequence[Stage], *, shared: bool) -> tuple[list[str], bool]:
    """What was not measured as it should have been, and whether we were alone, or need not be."""
    found, alone = [], True
    for stage in stages:
        place = f"concurrency {stage.concurrency}, speculation {stage.engine.mode}"
        if stage.shortfall is not None:
            found.append(f"{place} is not usable: {stage.shortfall}")
        if stage.shared and not shared:
            alone = False
            count = stage.foreign_requests
            what = f"{count} requests of others ended" if count else "others had tokens generated"
            found.append(
                f"{place}: {what} meanwhile; nothing is stored: take that traffic away, or give"
                " --shared"
            )
    return found, alone


def _import(context: click.Context, sources: Sources, given: Mapping[str, Any]) -> None:
    from specwatch.core import bench_results, calibration_report
    from specwatch.core.baseline import BaselineKey

    source = context.get_parameter_source("concurrency")
    chosen = given["concurrency"] if source is ParameterSource.COMMANDLINE else (None,)
    if len(chosen) != 1:
        raise click.UsageError("with --import, --concurrency takes one number", context)
    points: list[Point] = []
    names: set[str | None] = set()
    for file in given["imported"]:
        text, written = load_sources.text_of(file)
        for result in bench_results.read(text, str(file), concurrency=chosen[0]):
            points += result.points(calibration_sources.ended(result.ended, written, time.time()))
            names.add(result.model_name)
    model = given["model"] or (names.pop() if len(names) == 1 else None)
    if model is None:
        raise ConfigError("--import: the results name no model, or several; give --model NAME")
    key = BaselineKey(sources.target, model)
    found, problems = bench_results.measurements(key, points)
    report = {
        **calibration_report.report(key, [], found),
        "doubts": [_OF_ALL],
        "imported": [str(file) for file in given["imported"]],
    }
    with opened_store(sources.database, daemon=_DAEMON, dry_run=given["dry_run"]) as store:
        _finish(store, found, report, problems, as_json=given["as_json"])


def _finish(
    store: Store | None,
    found: Sequence[Measurement],
    report: dict[str, Any],
    problems: list[str],
    *,
    as_json: bool,
) -> None:
    """Store all at once and print. Raises TooLittle for problems."""
    report["stored"] = None
    if store is not None and found:
        try:
            store.write_measurements(found, time.time())
            report["stored"] = store.where
        except StoreError as error:
            problems = [*problems, f"measured, but not stored: {error}"]
    if as_json:
        options.print_json(report)
    else:
        from specwatch.cli.calibration_tables import report_lines
        from specwatch.cli.terminal import Terminal

        terminal = Terminal()
        for line, style in report_lines(report):
            terminal.line((line, style))
    if problems:
        raise TooLittle("\n".join(problems))
