"""``specwatch bench``: what clients get at each load, and what speculation brings there."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from specwatch import __version__
from specwatch.cli import commands, load, options
from specwatch.cli.load import Asked, numbers
from specwatch.errors import ConfigError, TooLittle
from specwatch.loadtest.prompts import LEAST_TOKENS

if TYPE_CHECKING:
    from specwatch.config.target import Target
    from specwatch.domain.baseline import Measurement
    from specwatch.domain.experiments import Bench, Experiment
    from specwatch.loadtest.bench_run import BenchPlan, BenchRun
    from specwatch.loadtest.server import Server

_CONCURRENCIES = "1,2,4,8,16,32"
_LEAST_RATE = 0.001
_OTHER_FILES = 64
"""Open files of this process that are no requests."""


@click.group(
    name="bench",
    cls=commands.LazyGroup,
    summaries={"compare": "two benches: what speculation brings, and whether to ship it"},
    modules="specwatch.cli.bench_",
    invoke_without_command=True,
)
@click.option("--target", metavar="URL", help="The server, or a target of the configuration.")
@click.option(
    "--baseline", metavar="URL",
    help="The same with speculation the other way: both are measured, in turns, and compared.",
)  # fmt: skip
@load.model_option
@click.option(
    "--concurrency", "concurrencies", metavar="N,N,...", callback=numbers(int, 1, "1,2,4"),
    default=_CONCURRENCIES, show_default=True,
    help="Requests at once: each client asks again as soon as it is answered.",
)  # fmt: skip
@click.option(
    "--rate", "rates", metavar="R,R,...",
    callback=lambda c, p, text: (
        None if text is None else numbers(float, _LEAST_RATE, "0.5,1,2")(c, p, text)
    ),
    help="Requests a second in place of that, which come whether others are answered or not.",
)  # fmt: skip
@click.option(
    "--duration", default="60s", show_default=True, callback=options.duration, metavar="TIME",
    help="How long to measure each load on each server.",
)  # fmt: skip
@click.option(
    "--dataset", metavar="FILE",
    help="Prompts from JSON or JSON lines: ShareGPT, messages, prompt, turns; or random:IN,OUT,"
    " about so many tokens in and out.",
)  # fmt: skip
@click.option("--shared", is_flag=True, help="Measure although others use the server.")
@load.file(
    "--output", "-o",
    text="Write the result as JSON, for `specwatch bench compare`; with --baseline both.",
)  # fmt: skip
@load.file("--plot", text="With --baseline: draw the speedup, as .svg or .png.")
@load.loads
@load.max_tokens_option
@load.sending
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Measure what clients get from a server at each load.

    Sends a fixed workload, N requests at a time or R a second, and times every stream: tokens a
    second for each user and in all, TTFT and TPOT at P50, P95 and P99, and errors. It takes the
    server for itself: about 70 seconds for each load, twice that and more with --baseline.

    A result without speculation becomes the baseline that speedups are measured against, unless
    others used the server. Ctrl-C and SIGTERM keep what was measured; only the third ends it at
    once.

    Exit code 1 when not all was measured, or, with --baseline, when the verdict is "do not"; 2 when
    it cannot be measured like that.
    """
    from specwatch.cli import load_results
    from specwatch.cli.progress import Progress
    from specwatch.domain.experiments import Comparison
    from specwatch.loadtest.bench_run import BenchRun

    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if given["target"] is None:
        raise click.UsageError("give --target URL", context)
    for name, other in (("concurrencies", "rates"), ("prompts", "dataset")):
        if given[other] is not None and _is_given(context, name):
            flags = {"concurrencies": "--concurrency", "rates": "--rate"}
            both = (flags.get(option, f"--{option}") for option in (name, other))
            raise click.UsageError(f"give {' or '.join(both)}, not both", context)
    if given["plot"] is not None and given["baseline"] is None:
        raise click.UsageError("--plot draws a comparison: give --baseline URL", context)
    asked = load.asked(given)
    load_results.require_outputs(given["output"], given["plot"])
    plan, source = _plan(context, given)
    servers = _servers(asked, given)
    progress = Progress()
    with (
        load.opened_store(
            asked.database, daemon="specwatch bench", dry_run=given["dry_run"]
        ) as store,
        load.Ending() as ending,
    ):
        began = time.time()
        run = BenchRun(plan, servers, progress.note, progress.step)
        ending.run(run.run(), progress, run.slices)
        if not any(measured.levels for measured in run.measured):
            raise TooLittle(f"{run.broken_off}; there is nothing to keep")
        benches = _benches(run, asked, given, source, began)
        experiments, problems = _experiments(benches)
        main = experiments[-1]
        whole = _with_benches(main, benches)
        stored, failed = load_results.store_all(
            store, experiments, *_baseline_of(run, asked.server.name)
        )
        shown = [whole] if given["as_json"] else experiments if len(experiments) < 3 else [main]
        load_results.show(shown, stored, as_json=given["as_json"])
        problems += [*failed, *load_results.keep(whole, given["output"], given["plot"])]
    if run.broken_off is not None:
        problems.append(run.broken_off)
    for bench in benches:
        problems += _failures(bench)
    if isinstance(main, Comparison) and main.verdict == "do_not":
        problems.append(f"verdict: {main.sentence}")
    if problems:
        raise TooLittle("\n".join(problems))


def _refuse_options(context: click.Context) -> None:
    """Options of a bench have no effect on the command after them."""
    name = context.invoked_subcommand
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name and _is_given(context, option.name)
    ]
    if given:
        raise click.UsageError(
            f"{', '.join(given)} before {name} is an option of the bench; write those of {name}"
            f" after it: specwatch bench {name} .. {given[0]}",
            context,
        )


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


# --- what is sent, and to which servers


def _plan(context: click.Context, given: Mapping[str, Any]) -> tuple[BenchPlan, str]:
    """What to send, and where its prompts come from. Raises ConfigError."""
    from specwatch.loadtest import dataset
    from specwatch.loadtest.bench import Load
    from specwatch.loadtest.bench_run import BenchPlan
    from specwatch.loadtest.common import BUILT_IN
    from specwatch.loadtest.requests import Prompt

    name: str | None = given["dataset"]
    prompts: tuple[Prompt, ...] = ()
    source, tokens, max_tokens = name or BUILT_IN, None, given["max_tokens"]
    if name is not None and name.startswith(dataset.RANDOM):
        tokens, out = dataset.random_lengths(name)
        if _is_given(context, "max_tokens") and max_tokens != out:
            raise ConfigError(f"--dataset {name} says {out} tokens out, --max-tokens {max_tokens}")
        max_tokens = max(out, LEAST_TOKENS)
    elif name is not None and name != BUILT_IN:
        data = load.data_of(Path(name))
        chat = given["endpoint"] == "chat"
        prompts = dataset.read(data, f"--dataset {name}", seed=given["seed"], chat=chat)
    else:
        source = BUILT_IN if given["prompts"] is None else str(given["prompts"])
        prompts = tuple(map(Prompt, load.prompts(given["prompts"])))
    if given["rates"] is None:
        loads = tuple(Load(concurrency=number) for number in given["concurrencies"])
        most = _connections(given["concurrencies"])
    else:
        loads = tuple(Load(rate=rate) for rate in given["rates"])
        most = _connections(())
    plan = BenchPlan(
        loads, prompts, given["temperatures"], given["duration"], given["warm_up"],
        max_tokens, given["seed"], tokens, most,
    )  # fmt: skip
    return plan, source


def _connections(concurrencies: Sequence[int]) -> int:
    """How many requests this process may have in flight. Raises ConfigError for more."""
    from specwatch.loadtest.open_loop import MOST_IN_FLIGHT

    load.raise_file_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_IN_FLIGHT if limit < 0 else max(limit - _OTHER_FILES, 1)
    if max(concurrencies, default=0) > most and limit >= 0:
        raise ConfigError(
            f"--concurrency {max(concurrencies)}: this process may have {limit} open files, and"
            f" each request is one; raise that (ulimit -n), or give at most {most}"
        )
    return min(most, MOST_IN_FLIGHT)


def _servers(asked: Asked, given: Mapping[str, Any]) -> list[Server]:
    """The server, and the baseline's. Raises ConfigError where others use them, and for two that
    cannot be compared."""
    servers = [load.free_server(asked.server, given, "--target")]
    if given["baseline"] is None:
        return servers
    servers.append(load.free_server(_baseline_target(asked, given), given, "--baseline"))
    model, other = (server.engine.model_name for server in servers)
    if model != other:
        raise ConfigError(f"--baseline serves {other} and --target {model}: compare the same model")
    return servers


def _baseline_target(asked: Asked, given: Mapping[str, Any]) -> Target:
    """The other server: as the configuration has it, else with the target's own credentials.

    Raises ConfigError.
    """
    url = load.server_at(given["baseline"], "--baseline", given["bearer_token_file"]).url
    if load.known_target(options.loaded(given["file"]), None, [url]) is not None:
        return load.asked({**given, "target": url}, "--baseline").server
    return asked.server.model_copy(update={"url": url, "proxy": None})


# --- results


def _benches(
    run: BenchRun, asked: Asked, given: Mapping[str, Any], source: str, began: float
) -> list[Bench]:
    from specwatch.domain.experiments import Bench
    from specwatch.loadtest.bench import written
    from specwatch.loadtest.common import subject_of, workload_of

    workload = workload_of(
        [written(prompt) for prompt in run.prompts],
        source=source,
        endpoint=given["endpoint"],
        max_tokens=run.max_tokens,
        temperatures=given["temperatures"],
        seed=given["seed"],
    )
    ended = time.time()
    return [
        Bench(
            version=__version__,
            began=began,
            ended=ended,
            complete=run.broken_off is None,
            subject=subject_of(
                measured.server.engine, target=asked.server.name, url=measured.server.url
            ),
            workload=workload,
            levels=tuple(measured.levels),
            interleaved=len(run.measured) > 1,
            notes=() if run.broken_off is None else (run.broken_off,),
        )
        for measured in run.measured
    ]


def _baseline_of(run: BenchRun, target: str) -> tuple[list[Measurement], list[str]]:
    """The baseline that the server without speculation is, or why it is none, if so."""
    from specwatch.domain.baseline import BaselineKey
    from specwatch.domain.model import Mode
    from specwatch.loadtest import calibration

    for measured in run.measured:
        engine = measured.server.engine
        if engine.mode is not Mode.OFF:
            continue
        environment = engine.environment
        baseline: list[Measurement] = []
        if run.broken_off is not None:
            why = "not all was measured"
        elif engine.busy or any(stage.shared for stage in measured.stages):
            why = "others used the server meanwhile, and at which load it ran is not known"
        else:
            key = BaselineKey(
                target, engine.model_name, environment.engine_version, environment.configuration
            )
            baseline = calibration.measurements(key, measured.stages)
            shortfalls = [stage.shortfall for stage in measured.stages if stage.shortfall]
            why = (*shortfalls, "too little was measured; give a longer --duration")[0]
        return baseline, [] if baseline else [f"no baseline stored: {why}"]
    return [], []


def _experiments(benches: Sequence[Bench]) -> tuple[list[Experiment], list[str]]:
    """What is to be stored, the main result last; and why nothing could be compared, or None."""
    from specwatch.loadtest.compare import compare

    measured: list[Experiment] = [bench for bench in benches if bench.levels]
    if len(benches) < 2:
        return measured, []
    try:
        return [*measured, compare(*benches, version=__version__)], []
    except ConfigError as error:
        return measured, [f"not compared: {error}"]


def _with_benches(main: Experiment, benches: Sequence[Bench]) -> Experiment:
    """What a file has: of two servers both benches, be they compared or not."""
    from specwatch.domain.experiments import Comparison
    from specwatch.loadtest.compare import uncompared, with_benches

    if len(benches) < 2:
        return main
    if isinstance(main, Comparison):
        return with_benches(main, *benches)
    try:
        return uncompared(*benches, version=__version__)
    except ConfigError:  # Two of one mode, as their answers told later.
        return main


def _failures(bench: Bench) -> list[str]:
    """What failed at levels of which nothing, or little, is known."""
    problems = []
    for level in bench.levels:
        at_once = level.concurrency is not None
        name = f"concurrency {level.concurrency}" if at_once else f"rate {level.rate:g}/s"
        problems += [f"{name}: {note}" for note in level.notes if "failed" in note]
        if not level.requests:
            problems.append(f"{name}: no request ended well")
    return problems
