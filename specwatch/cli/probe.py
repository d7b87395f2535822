"""``specwatch probe``: what drafts are worth at each sampling temperature."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specwatch import __version__
from specwatch.cli import load_process, load_sources, options, output_file
from specwatch.cli.load_sources import Asked, TooLittle, numbers, opened_store
from specwatch.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from specwatch.cli.load_process import Ending
    from specwatch.cli.load_server import Server
    from specwatch.cli.probe_run import Plan
    from specwatch.domain.baseline import Baseline
    from specwatch.domain.experiments import Probe
    from specwatch.loadtest.calibration import Engine
    from specwatch.loadtest.probe import Sweep
    from specwatch.store.repository import Store


@click.command(name="probe")
@click.option(
    "--target", required=True, metavar="URL", help="The server, or a target of the configuration."
)
@click.option(
    "--temperatures", metavar="T,T,...", callback=numbers(float, 0, "0,0.7,1"),
    default="0,0.2,0.4,0.7,1.0,1.3", show_default=True, help="Sampling temperatures.",
)  # fmt: skip
@click.option(
    "--requests", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
    help="Requests at each temperature: the same prompts.",
)  # fmt: skip
@click.option("--model", metavar="NAME", help="Which model, where there are several.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N",
    help="Requests at once: the load of which the break-even line is.",
)  # fmt: skip
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the result as JSON.",
)  # fmt: skip
@load_sources.workload
@options.database_option
@options.file_option
@options.json_option
def command(**given: Any) -> None:
    """Measure the acceptance of drafts at each sampling temperature.

    Sends the same prompts at each temperature, in turn, and reads the server's record of each
    request; without records its counters, and then it must have the server for itself. Says which
    temperatures win and which lose against the break-even line: measured where there is a baseline
    at this load (`specwatch calibrate`, `specwatch bench`), else assumed.

    Ctrl-C and SIGTERM keep what was measured; only the third ends it at once. Exit code 1 when not
    all was measured, or nobody can tell the acceptance; 2 when it cannot be measured like that, as
    on a server without speculation.
    """
    from specwatch.cli.load_server import Server
    from specwatch.cli.probe_run import Plan
    from specwatch.loadtest.requests import Prompt

    asked = load_sources.asked(given)
    if given["output"] is not None:
        output_file.require_writable(given["output"])
    plan = Plan(
        given["temperatures"], given["requests"],
        tuple(map(Prompt, load_sources.prompts(given["prompts"]))),
        given["max_tokens"], given["concurrency"], given["seed"],
    )  # fmt: skip
    server = Server(
        asked.server, model=given["model"], endpoint=given["endpoint"], where="--target"
    )
    with (
        opened_store(asked.database, daemon="specwatch probe", dry_run=given["dry_run"]) as store,
        load_process.Ending() as ending,
    ):
        began = time.time()
        sweep = _run(server, plan, ending)
        baseline = _baseline(asked, store, server.engine, given["file"])
        probe = _probe(sweep, baseline, plan, asked, given, began)
        _finish(probe, sweep, store, given)


def _run(server: Server, plan: Plan, ending: Ending) -> Sweep:
    """Raises TooLittle where nothing was measured at all."""
    from specwatch.cli.load_progress import Progress
    from specwatch.cli.probe_run import Probing

    progress = Progress()
    try:
        with progress.over(plan.total):
            sweep = ending.run(Probing(server, plan, progress.note, progress.step).run())
    except KeyboardInterrupt:
        raise TooLittle("interrupted; nothing was stored") from None
    if not any(answer.ok for answers in sweep.answers.values() for answer in answers):
        raise TooLittle("\n".join([*sweep.problems, "nothing was measured, and nothing stored"]))
    return sweep


def _baseline(
    asked: Asked, store: Store | None, engine: Engine, file: Path | None
) -> Baseline | str:
    """What serving this model costs without speculation, or why that is not known, as words."""
    from specwatch.domain import baseline
    from specwatch.store.database import Database
    from specwatch.store.readers import Reader

    loaded = options.loaded(file)
    max_age = loaded.baseline.max_age if loaded is not None else baseline.MAX_AGE
    reader = Reader.of(asked.database) if store is None else store.reader
    try:
        if store is None and not Database(asked.database).exists():
            return "there is no database"
        found = reader.measurements(asked.name)
    except StoreError as error:
        return str(error)
    finally:
        if store is None:
            reader.close()
    own = [each for each in found if each.key.model_name == engine.model_name]
    chosen = baseline.choose(own, engine.environment, now=time.time(), max_age=max_age)
    if chosen:
        return chosen
    if chosen.expired:
        return "the baseline has expired"
    return "its baselines are of another version or configuration" if own else "no baseline"


def _probe(
    sweep: Sweep,
    baseline: Baseline | str,
    plan: Plan,
    asked: Asked,
    given: Mapping[str, Any],
    began: float,
) -> Probe:
    import msgspec

    from specwatch.domain.experiments import Probe
    from specwatch.loadtest import probe
    from specwatch.loadtest.bench import written
    from specwatch.loadtest.common import BUILT_IN, subject_of, workload_of

    cost = probe.cost_of(sweep, baseline) if not isinstance(baseline, str) else baseline
    notes = [*probe.notes_of(sweep), *probe.problems_of(sweep)]
    if isinstance(cost, str):
        measure = (
            "; to measure it: specwatch calibrate --off URL"
            f" --target {asked.name} --concurrency {plan.concurrency}"
        )
        remedy = "" if cost == probe.shortfall_of(sweep) else measure
        notes.append(f"the break-even line is assumed: {cost}{remedy}")
    source = BUILT_IN if given["prompts"] is None else str(given["prompts"])
    return Probe(
        version=__version__,
        began=began,
        ended=time.time(),
        complete=sweep.complete,
        # Records tell that a server speculates whose page does not.
        subject=msgspec.structs.replace(
            subject_of(sweep.stage.engine, target=asked.name, url=asked.server.url), mode="on"
        ),
        workload=workload_of(
            list(map(written, plan.prompts)),
            source=source,
            endpoint=given["endpoint"],
            max_tokens=plan.max_tokens,
            temperatures=plan.temperatures,
            seed=plan.seed,
        ),
        concurrency=plan.concurrency,
        temperatures=probe.temperatures_of(
            sweep, cost, asked.server.draft_cost_ratio, seed=plan.seed
        ),
        line=probe.line_of(cost, asked.server.draft_cost_ratio),
        alone=sweep.alone,
        notes=tuple(notes),
    )


def _finish(probe: Probe, sweep: Sweep, store: Store | None, given: Mapping[str, Any]) -> None:
    """Store, write and print. Raises TooLittle for what is not as it should be."""
    import msgspec

    from specwatch.loadtest.probe import problems_of

    problems = problems_of(sweep)
    said = "nothing stored"
    if store is not None:
        try:
            number = store.add_experiment(probe, time.time())
            said = f"stored as result {number} in {store.where}"
        except StoreError as error:
            problems.append(f"measured, but not stored: {error}")
    if given["output"] is not None:
        try:
            output_file.write(given["output"], output_file.json_text(probe))
        except ConfigError as error:
            problems.append(f"measured, but not written: {error}")
    if given["as_json"]:
        options.print_json(probe)
        click.echo(said, err=True)
    else:
        from specwatch.cli.probe_tables import probe_lines
        from specwatch.cli.terminal import Terminal

        terminal = Terminal()
        # Problems are the error message.
        rest = tuple(note for note in probe.notes if note not in problems)
        told = msgspec.structs.replace(probe, notes=rest)
        for parts in probe_lines(told, terminal.width, fancy=terminal.bar != "#"):
            terminal.line(*parts)
        terminal.line(said)
    if problems:
        raise TooLittle("\n".join(problems))
