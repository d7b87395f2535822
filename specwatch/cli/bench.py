"""``specwatch bench``: speed and latency at each load, and the speedup of speculation."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specwatch import __version__
from specwatch.cli import commands, load, options
from specwatch.errors import ConfigError, TooLittle
from specwatch.lab.loadtest.prompts import LEAST_TOKENS

if TYPE_CHECKING:
    from specwatch.config.target import Target
    from specwatch.domain.baseline import Measurement
    from specwatch.domain.experiments import Bench, Experiment
    from specwatch.lab.loadtest.bench import Load
    from specwatch.lab.loadtest.bench_run import BenchPlan, BenchRun
    from specwatch.lab.loadtest.server import Server

_CONCURRENCIES = "1,2,4,8,16,32"
_LEAST_RATE = 0.001
_OTHER_FILES = 64
"""Open files of this process that are not connections of requests."""


@click.group(
    name="bench",
    cls=commands.LazyGroup,
    summaries={"compare": "two benches: the speedup of speculation, and whether to ship it"},
    modules="specwatch.cli.bench_",
    invoke_without_command=True,
)
@click.option("--target", metavar="URL", help="The server, or a target of the configuration.")
@click.option(
    "--baseline",
    metavar="URL",
    help="The same model with speculation the other way: both servers are measured alternately, and"
    " compared.",
)
@click.option(
    "--concurrency",
    "concurrencies",
    metavar="N,N,...",
    callback=options.numbers(int, 1, "1,2,4"),
    default=_CONCURRENCIES,
    show_default=True,
    help="Clients: each sends the next request as soon as it has its answer.",
)
@click.option(
    "--rate",
    "rates",
    metavar="R,R,...",
    callback=options.numbers(float, _LEAST_RATE, "0.5,1,2"),
    help="Requests a second (Poisson arrivals), in place of --concurrency.",
)
@click.option(
    "--dataset",
    metavar="FILE",
    help="Prompts from JSON or JSON lines: ShareGPT, messages, prompt, turns; or random:IN,OUT"
    " for prompts and answers of about so many tokens.",
)
@options.path(
    "--output",
    "-o",
    text="Write the result (with --baseline both) as JSON, for `specwatch bench compare`.",
)
@options.path("--plot", text="With --baseline: draw the speedup, as .svg or .png.")
@load.loads
@load.max_tokens_option
@load.sending
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Measure what clients get from a server at each load.

    Sends a fixed workload, N requests at a time or R a second, and times every stream: tokens a
    second for each user and in total, TTFT and TPOT at P50, P95 and P99, and errors. Nobody else
    may use the server for about 70 seconds for each load, more than twice that with --baseline.

    A result without speculation becomes the baseline that speedups are measured against, unless
    others used the server. Ctrl-C and SIGTERM keep what was measured; a third one ends it at once.

    Exit code 1 when not everything was measured, or, with --baseline, when the verdict is "do not";
    2 when nothing can be measured.
    """
    from specwatch.cli import load_results
    from specwatch.cli.progress import ProgressBar
    from specwatch.domain.experiments import Comparison
    from specwatch.lab.loadtest.bench_run import BenchRun

    flags = options.given_options(context)
    _refuse_contradictions(context, given, flags)
    if context.invoked_subcommand is not None:
        return
    target = load.measured_target(given)
    load_results.require_outputs(given["output"], given["plot"])
    plan, source = _plan(given, own_length="max_tokens" in flags)
    servers = _servers(target, given)
    progress = ProgressBar()
    with load.opened_store(given, "bench") as store, load.StopSignals() as stop_signals:
        began = time.time()
        run = BenchRun(plan, servers, progress.note, progress.step)
        stop_signals.run(run.run(), progress, run.slices)
        if not any(measured.levels for measured in run.measured):
            raise TooLittle(f"{run.broken_off}; there is nothing to keep")
        benches = _benches(run, plan, target.name, given, source, began)
        experiments, result, problems = _results(benches)
        stored, failed = load_results.store_all(store, experiments, *_baseline_of(run, target.name))
        problems += failed
        if run.broken_off is not None:
            problems.append(run.broken_off)
        for bench in benches:
            problems += _failures(bench)
        if isinstance(result, Comparison) and result.verdict == "do_not":
            problems.append(f"verdict: {result.sentence}")
        load_results.deliver(result, problems, given, stored)


def _refuse_contradictions(
    context: click.Context, given: Mapping[str, Any], flags: Mapping[str, str]
) -> None:
    """Raise UsageError for options that exclude each other, or have no effect."""
    name = context.invoked_subcommand
    if name is not None and flags:
        first = next(iter(flags.values()))
        raise click.UsageError(
            f"{', '.join(flags.values())} before {name} is an option of the bench; write those of"
            f" {name} after it: specwatch bench {name} .. {first}",
            context,
        )
    if name is None and given["target"] is None:
        raise click.UsageError("give --target URL", context)
    for pair in (("concurrencies", "rates"), ("prompts", "dataset")):
        both = [flags[option] for option in pair if option in flags]
        if len(both) > 1:
            raise click.UsageError(f"give {' or '.join(both)}, not both", context)
    if given["plot"] is not None and given["baseline"] is None:
        raise click.UsageError("--plot draws a comparison: give --baseline URL", context)


# --- workload and servers


def _plan(given: Mapping[str, Any], *, own_length: bool) -> tuple[BenchPlan, str]:
    """The workload, and the source of its prompts; ``own_length``: --max-tokens is given.

    Raises ConfigError.
    """
    from specwatch.lab.loadtest import dataset
    from specwatch.lab.loadtest.bench import Load
    from specwatch.lab.loadtest.bench_run import BenchPlan
    from specwatch.lab.loadtest.requests import Prompt
    from specwatch.lab.loadtest.result_parts import BUILT_IN

    name: str | None = given["dataset"]
    prompts: tuple[Prompt, ...] = ()
    source, tokens, max_tokens = name or BUILT_IN, None, given["max_tokens"]
    if name is not None and name.startswith(dataset.RANDOM):
        tokens, out = dataset.random_lengths(name)
        if own_length and max_tokens != out:
            raise ConfigError(f"--dataset {name} says {out} tokens out, --max-tokens {max_tokens}")
        max_tokens = max(out, LEAST_TOKENS)
    elif name is not None and name != BUILT_IN:
        data = load.data_of(Path(name))
        chat = given["endpoint"] == "chat"
        prompts = dataset.read(data, f"--dataset {name}", seed=given["seed"], chat=chat)
    else:
        source = BUILT_IN if given["prompts"] is None else str(given["prompts"])
        prompts = tuple(map(Prompt, load.prompts(given["prompts"])))
    loads = tuple(Load(rate=rate) for rate in given["rates"] or ())
    loads = loads or tuple(Load(concurrency=number) for number in given["concurrencies"])
    plan = BenchPlan(
        loads,
        prompts,
        given["temperatures"],
        given["duration"],
        given["warm_up"],
        max_tokens,
        given["seed"],
        tokens,
        _connections(loads),
    )
    return plan, source


def _connections(loads: Sequence[Load]) -> int:
    """How many requests this process can have in flight. Raises ConfigError if that is too few."""
    from specwatch.lab.loadtest.load_generator import MOST_IN_FLIGHT

    load.raise_file_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_IN_FLIGHT if limit < 0 else max(limit - _OTHER_FILES, 1)
    highest = max(one.concurrency or 0 for one in loads)
    if highest > most and limit >= 0:
        raise ConfigError(
            f"--concurrency {highest}: each request is an open file, and this process may have"
            f" {limit}; raise that limit (ulimit -n), or give at most {most}"
        )
    return min(most, MOST_IN_FLIGHT)


def _servers(target: Target, given: Mapping[str, Any]) -> list[Server]:
    """The server, and that of ``--baseline``. Raises ConfigError if others use them, and for two
    that cannot be compared."""
    servers = [load.free_server(target, given, "--target")]
    if given["baseline"] is None:
        return servers
    second = load.second_target(target, "--baseline", given["baseline"], given)
    servers.append(load.free_server(second, given, "--baseline"))
    model, other = (server.engine.model_name for server in servers)
    if model != other:
        raise ConfigError(f"--baseline serves {other} and --target {model}: compare the same model")
    return servers


# --- results


def _benches(
    run: BenchRun, plan: BenchPlan, target: str, given: Mapping[str, Any], source: str, began: float
) -> list[Bench]:
    from specwatch.domain.experiments import Bench
    from specwatch.lab.loadtest.result_parts import subject_of, workload_of

    workload = workload_of(
        run.prompts,
        source=source,
        endpoint=given["endpoint"],
        max_tokens=plan.max_tokens,
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
            subject=subject_of(measured.server.engine, target=target, url=measured.server.url),
            workload=workload,
            levels=tuple(measured.levels),
            interleaved=len(run.measured) > 1,
            notes=() if run.broken_off is None else (run.broken_off,),
        )
        for measured in run.measured
    ]


def _baseline_of(run: BenchRun, target: str) -> tuple[list[Measurement], list[str]]:
    """The baseline from the server without speculation, or the reason for its lack."""
    from specwatch.domain.model import Mode
    from specwatch.lab.loadtest import calibration

    for measured in run.measured:
        engine = measured.server.engine
        if engine.mode is not Mode.OFF:
            continue
        if run.broken_off is not None:
            why = "not everything was measured"
        elif engine.busy or any(stage.shared for stage in measured.stages):
            why = "others used the server meanwhile, so its load is unknown"
        else:
            baseline = calibration.measurements(engine.baseline_key(target), measured.stages)
            if baseline:
                return baseline, []
            shortfalls = [stage.shortfall for stage in measured.stages if stage.shortfall]
            why = (*shortfalls, "too little was measured; give a longer --duration")[0]
        return [], [f"no baseline stored: {why}"]
    return [], []


def _results(benches: Sequence[Bench]) -> tuple[list[Experiment], Experiment, list[str]]:
    """The results to store, the one to print, and problems of the comparison."""
    from specwatch.lab.loadtest.compare import compare, uncompared

    measured: list[Experiment] = [bench for bench in benches if bench.levels]
    if len(benches) < 2:
        return measured, benches[0], []
    try:
        comparison = compare(*benches, version=__version__)
    except ConfigError as error:
        return measured, uncompared(*benches, version=__version__), [f"not compared: {error}"]
    return [*measured, comparison], comparison, []


def _failures(bench: Bench) -> Iterator[str]:
    """Problems of levels with failed requests, or without any that succeeded."""
    from specwatch.lab.loadtest.bench import Load

    for level in bench.levels:
        place = Load.of(level)
        yield from (f"{place}: {note}" for note in level.notes if "failed" in note)
        if not level.requests:
            yield f"{place}: no request succeeded"
