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
from specwatch.cli import commands, load_process, load_sources, options
from specwatch.cli.load_sources import (
    Asked,
    TooLittle,
    known_target,
    numbers,
    opened_store,
    server_at,
)
from specwatch.errors import ConfigError
from specwatch.loadtest.prompts import LEAST_TOKENS

if TYPE_CHECKING:
    from specwatch.cli.bench_run import BenchRun, Plan
    from specwatch.cli.load_process import Ending
    from specwatch.cli.load_server import Server
    from specwatch.config.target import Target
    from specwatch.domain.experiments import Bench

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
@click.option("--model", metavar="NAME", help="Which model, where there are several.")
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
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE",
    help="Write the result as JSON, for `specwatch bench compare`; with --baseline both.",
)  # fmt: skip
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE",
    help="With --baseline: draw the speedup, as .svg or .png.",
)  # fmt: skip
@load_sources.loads
@load_sources.workload
@options.database_option
@options.file_option
@options.json_option
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
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    if given["target"] is None:
        raise click.UsageError("give --target URL", context)
    _require_one(context, given, "concurrencies", "rates", "--concurrency", "--rate")
    _require_one(context, given, "prompts", "dataset", "--prompts", "--dataset")
    if given["plot"] is not None and given["baseline"] is None:
        raise click.UsageError("--plot draws a comparison: give --baseline URL", context)
    _measure(context, given)


def _refuse_options(context: click.Context) -> None:
    """Those of a bench say nothing to the command after them."""
    name = context.invoked_subcommand
    given = [
        each.opts[0] for each in context.command.params if each.name and _chosen(context, each.name)
    ]
    if given:
        raise click.UsageError(
            f"{', '.join(given)} before {name} is an option of the bench; write those of {name}"
            f" after it: specwatch bench {name} .. {given[0]}",
            context,
        )


def _require_one(
    context: click.Context, given: Mapping[str, Any], one: str, other: str, *names: str
) -> None:
    if given[other] is not None and _chosen(context, one):
        raise click.UsageError(f"give {' or '.join(names)}, not both", context)


def _chosen(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _measure(context: click.Context, given: Mapping[str, Any]) -> None:
    from specwatch.cli.bench_out import Findings, finish, require_outputs

    asked = load_sources.asked(given)
    require_outputs(given["output"], given["plot"])
    plan, source = _plan(context, given)
    servers = _servers(asked, given)
    with (
        opened_store(asked.database, daemon="specwatch bench", dry_run=given["dry_run"]) as store,
        load_process.Ending() as ending,
    ):
        began = time.time()
        run = _run(plan, servers, ending)
        found = _benches(run, asked, given, source, began)
        finish(
            Findings(run, found, asked.name),
            store,
            output=given["output"],
            plot=given["plot"],
            as_json=given["as_json"],
        )


def _plan(context: click.Context, given: Mapping[str, Any]) -> tuple[Plan, str]:
    """What to send, and where its prompts come from. Raises ConfigError."""
    from specwatch.cli.bench_run import Plan
    from specwatch.loadtest import dataset
    from specwatch.loadtest.bench import Load
    from specwatch.loadtest.common import BUILT_IN
    from specwatch.loadtest.requests import Prompt

    name: str | None = given["dataset"]
    prompts: tuple[Prompt, ...] = ()
    source, tokens, max_tokens = name or BUILT_IN, None, given["max_tokens"]
    if name is not None and name.startswith(dataset.RANDOM):
        tokens, out = dataset.random_lengths(name)
        if _chosen(context, "max_tokens") and max_tokens != out:
            raise ConfigError(f"--dataset {name} says {out} tokens out, --max-tokens {max_tokens}")
        max_tokens = max(out, LEAST_TOKENS)
    elif name is not None and name != BUILT_IN:
        data = load_sources.data_of(Path(name))
        chat = given["endpoint"] == "chat"
        prompts = dataset.read(data, f"--dataset {name}", seed=given["seed"], chat=chat)
    else:
        source = BUILT_IN if given["prompts"] is None else str(given["prompts"])
        prompts = tuple(map(Prompt, load_sources.prompts(given["prompts"])))
    loads = (
        [Load(concurrency=each) for each in given["concurrencies"]]
        if given["rates"] is None
        else [Load(rate=each) for each in given["rates"]]
    )
    most = _connections(given["concurrencies"] if given["rates"] is None else ())
    plan = Plan(
        tuple(loads), prompts, given["temperatures"], given["duration"], given["warm_up"],
        max_tokens, given["seed"], tokens, most,
    )  # fmt: skip
    return plan, source


def _connections(concurrencies: Sequence[int]) -> int:
    """How many requests this process may have in flight. Raises ConfigError for more."""
    from specwatch.loadtest.open_loop import MOST_IN_FLIGHT

    load_process.raise_file_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_IN_FLIGHT if limit < 0 else max(limit - _OTHER_FILES, 1)
    if max(concurrencies, default=0) > most and limit >= 0:
        raise ConfigError(
            f"--concurrency {max(concurrencies)}: this process may have {limit} open files, and"
            f" each request is one; raise that (ulimit -n), or give at most {most}"
        )
    return min(most, MOST_IN_FLIGHT)


def _servers(asked: Asked, given: Mapping[str, Any]) -> list[Server]:
    """The server, and the baseline's, asked who they are.

    Raises ConfigError where others use them, and for two that cannot be compared.
    """
    from specwatch.cli.load_server import Server

    targets = [("--target", asked.server)]
    if given["baseline"] is not None:
        targets.append(("--baseline", _baseline(asked, given)))
    servers = []
    for where, target in targets:
        server = Server(target, model=given["model"], endpoint=given["endpoint"], where=where)
        if server.engine.busy and not given["shared"]:
            raise ConfigError(
                f"{where}: {server.engine.busy:g} requests of others are under way at {server.url};"
                " take its traffic away, or give --shared"
            )
        servers.append(server)
    if len(servers) == 2:
        _require_pair(*servers)
    return servers


def _baseline(asked: Asked, given: Mapping[str, Any]) -> Target:
    """The other server: as the configuration has it, else with the target's own credentials.

    Raises ConfigError.
    """
    url = server_at(given["baseline"], "--baseline", given["bearer_token_file"]).url
    if known_target(options.loaded(given["file"]), None, [url]) is not None:
        return load_sources.asked({**given, "target": url}, "--baseline").server
    return asked.server.model_copy(update={"url": url, "proxy": None})


def _require_pair(first: Server, second: Server) -> None:
    if first.engine.model_name != second.engine.model_name:
        raise ConfigError(
            f"--baseline serves {second.engine.model_name} and --target"
            f" {first.engine.model_name}: compare the same model"
        )


def _run(plan: Plan, servers: Sequence[Server], ending: Ending) -> BenchRun:
    from specwatch.cli.bench_run import BenchRun
    from specwatch.cli.load_progress import Progress

    progress = Progress()
    run = BenchRun(plan, servers, progress.note, progress.step)
    try:
        with progress.over(run.slices):
            ending.run(run.run())
    except KeyboardInterrupt:
        raise TooLittle("interrupted: nothing was kept") from None
    if not any(each.levels for each in run.measured):
        raise TooLittle(f"{run.broken_off}; there is nothing to keep")
    return run


def _benches(
    run: BenchRun, asked: Asked, given: Mapping[str, Any], source: str, began: float
) -> list[Bench]:
    from specwatch.domain.experiments import Bench
    from specwatch.loadtest.bench import written
    from specwatch.loadtest.common import subject_of, workload_of

    work = workload_of(
        [written(each) for each in run.prompts],
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
            subject=subject_of(each.server.engine, target=asked.name, url=each.server.url),
            workload=work,
            levels=tuple(each.levels),
            interleaved=len(run.measured) > 1,
            notes=() if run.broken_off is None else (run.broken_off,),
        )
        for each in run.measured
    ]
