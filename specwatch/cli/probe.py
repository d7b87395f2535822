"""``specwatch probe``: what drafts are worth at each sampling temperature."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from specwatch import __version__
from specwatch.cli import load, options
from specwatch.errors import StoreError, TooLittle

if TYPE_CHECKING:
    from specwatch.config.target import Target
    from specwatch.domain.baseline import Baseline
    from specwatch.domain.experiments import Probe
    from specwatch.lab.loadtest.engine import MeasuredModel
    from specwatch.lab.loadtest.probe import Sweep
    from specwatch.lab.loadtest.probe_run import ProbePlan


@click.command(name="probe")
@click.option(
    "--target", required=True, metavar="URL", help="The server, or a target of the configuration."
)
@click.option(
    "--compare",
    metavar="URL",
    help="The same model without speculation: ask both at temperature 0, and show where the answers"
    " part.",
)
@click.option(
    "--temperatures",
    metavar="T,T,...",
    callback=options.numbers(float, 0, "0,0.7,1"),
    default="0,0.2,0.4,0.7,1.0,1.3",
    show_default=True,
    help="Sampling temperatures.",
)
@click.option(
    "--requests",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Requests at each temperature, with the same prompts.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    metavar="N",
    help="Requests at once; the break-even line is that of this load.",
)
@options.path("--output", "-o", text="Write the result as JSON.")
@load.max_tokens_option
@load.sending
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Measure the acceptance of drafts at each sampling temperature.

    Sends the same prompts at each temperature, alternately, and reads the server's record of each
    request. Without records it reads the counters, and nobody else may use the server meanwhile.
    Shows which temperatures win and lose against the break-even line, which is measured if there is
    a baseline at this load (`specwatch calibrate`, `specwatch bench`), else assumed.

    With --compare it asks two servers the same prompts at temperature 0, the one without
    speculation twice: what differs then is the noise to compare with, as no engine promises equal
    bits. Nothing is stored, and both servers may be in use.

    Ctrl-C and SIGTERM keep what was measured; a third one ends it at once. Exit code 1 when not
    everything was measured, or the acceptance is unknown, or with --compare more answers differ
    than by that noise; 2 when nothing can be measured, such as on a server without speculation.
    """
    from specwatch.cli import load_results
    from specwatch.cli.progress import ProgressBar
    from specwatch.lab.loadtest import server as servers
    from specwatch.lab.loadtest.probe import problems_of
    from specwatch.lab.loadtest.probe_run import ProbePlan, ProbeRun

    target = load.measured_target(given)
    load_results.require_outputs(given["output"])
    if given["compare"] is not None:
        from specwatch.cli import probe_compare

        flags = options.given_options(context)
        if "temperatures" in flags:
            raise click.UsageError("--compare asks at temperature 0; leave --temperatures out")
        probe_compare.run(target, given)
        return
    plan = ProbePlan(
        given["temperatures"],
        given["requests"],
        load.prompts(given["prompts"]),
        given["max_tokens"],
        given["concurrency"],
        given["seed"],
    )
    server = servers.Server(
        target, model=given["model"], endpoint=given["endpoint"], where="--target"
    )
    progress = ProgressBar()
    with load.opened_store(given, "probe") as store, load.StopSignals() as stop_signals:
        began = time.time()
        probing = ProbeRun(server, plan, progress.note, progress.step)
        sweep = stop_signals.run(probing.run(), progress, plan.total)
        if not any(answer.ok for answers in sweep.answers.values() for answer in answers):
            raise TooLittle(
                "\n".join([*sweep.problems, "nothing was measured, and nothing stored"])
            )
        baseline = _baseline(target, server.engine, given)
        probe = _probe(sweep, baseline, plan, target, given, began)
        stored, failed = load_results.store_all(store, [probe])
        load_results.deliver(probe, [*problems_of(sweep), *failed], given, stored)


def _baseline(target: Target, engine: MeasuredModel, given: Mapping[str, Any]) -> Baseline | str:
    """The cost of serving this model without speculation, or the reason why it is unknown."""
    from specwatch.domain import baseline
    from specwatch.store.readers import Reader

    config = options.loaded(given["file"])
    max_age = config.baseline.max_age if config is not None else baseline.MAX_AGE
    try:
        url = options.database_url(given["database"], given["file"])
        with closing(Reader.of(url)) as reader:
            stored = reader.measurements(target.name)
    except StoreError as error:
        return str(error)
    own = [one for one in stored if one.key.model_name == engine.model_name]
    chosen = baseline.choose(own, engine.environment, now=time.time(), max_age=max_age)
    if chosen:
        return chosen
    if chosen.expired:
        return "the baseline has expired"
    return "its baselines are from another version or configuration" if own else "no baseline"


def _probe(
    sweep: Sweep,
    baseline: Baseline | str,
    plan: ProbePlan,
    target: Target,
    given: Mapping[str, Any],
    began: float,
) -> Probe:
    import msgspec

    from specwatch.domain.experiments import Probe
    from specwatch.lab.loadtest import probe
    from specwatch.lab.loadtest.requests import Prompt
    from specwatch.lab.loadtest.result_parts import BUILT_IN, subject_of, workload_of

    cost = probe.cost_of(sweep, baseline) if not isinstance(baseline, str) else baseline
    notes = [*probe.notes_of(sweep), *probe.problems_of(sweep)]
    if isinstance(cost, str):
        measure = (
            "; to measure it: specwatch calibrate --off URL"
            f" --target {target.name} --concurrency {plan.concurrency}"
        )
        remedy = "" if cost == probe.shortfall_of(sweep) else measure
        notes.append(f"the break-even line is assumed: {cost}{remedy}")
    # The records show that this server speculates, even if its metrics page does not.
    subject = subject_of(sweep.stage.engine, target=target.name, url=target.url)
    return Probe(
        version=__version__,
        began=began,
        ended=time.time(),
        complete=sweep.complete,
        subject=msgspec.structs.replace(subject, mode="on"),
        workload=workload_of(
            list(map(Prompt, plan.prompts)),
            source=BUILT_IN if given["prompts"] is None else str(given["prompts"]),
            endpoint=given["endpoint"],
            max_tokens=plan.max_tokens,
            temperatures=plan.temperatures,
            seed=plan.seed,
        ),
        concurrency=plan.concurrency,
        temperatures=probe.temperatures_of(sweep, cost, target.draft_cost_ratio, seed=plan.seed),
        line=probe.line_of(cost, target.draft_cost_ratio),
        alone=sweep.alone,
        notes=tuple(notes),
    )
