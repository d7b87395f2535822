"""``specwatch bench compare``: compares two benches."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from specwatch import __version__
from specwatch.cli import load, options
from specwatch.domain.experiments import Bench, Comparison, Experiment, read
from specwatch.errors import ConfigError


@click.command(name="compare")
@click.argument("results", nargs=-1, metavar="A [B]")
@click.option("--force", is_flag=True, help="Compare although their workloads differ.")
@options.path("--plot", text="Draw the speedup, as .svg or .png.")
@options.path("--output", "-o", text="Write the comparison as JSON.")
@options.database_option
@options.file_option
@options.json_option
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Compare two benches: the speedup of speculation at each load, and whether to ship it.

    A and B are files that `specwatch bench` wrote (-o or --json), or numbers of stored results: one
    without speculation and one with it, in any order. A file of `specwatch bench --baseline` has
    both and can be given alone; beside another bench, its run with the other mode is used.

    Exit code 1 when the verdict is "do not", when requests failed at a load, or when no load was
    measured completely in both; 2 when they cannot be compared.
    """
    from specwatch.cli.load_results import deliver, require_outputs

    if not 1 <= len(given["results"]) <= 2:
        raise click.UsageError("give two results: files, or numbers of stored results", context)
    require_outputs(given["output"], given["plot"])
    results = [_result(name, given) for name in given["results"]]
    comparison = _comparison(given["results"], results, force=given["force"])
    failed = any("failed" in (level.missing or "") for level in comparison.levels)
    problems = []
    if comparison.verdict == "do_not" or failed or not comparison.levels:
        problems.append(f"verdict: {comparison.sentence}")
    deliver(comparison, problems, given)


def _comparison(names: tuple[str, ...], results: list[Experiment], *, force: bool) -> Comparison:
    from specwatch.lab.loadtest.compare import compare

    if len(results) == 1 and isinstance(results[0], Comparison):
        if not results[0].benches or not results[0].levels:
            return results[0]
        # If they were forced then, their notes say so.
        names, results, force = names * 2, list(results[0].benches), True
    # Of a comparison beside a bench, the run with the other mode is used.
    modes = {result.subject.mode for result in results if isinstance(result, Bench)}
    benches: list[Bench] = []
    for name, result in zip(names, results, strict=True):
        own = result.benches if isinstance(result, Comparison) and modes else (result,)
        fit = [one for one in own if isinstance(one, Bench)]
        if len(fit) > 1:
            fit = [one for one in fit if one.subject.mode not in modes]
        if not fit:
            raise ConfigError(f"{name} {_unfit(result)}")
        benches += fit
    if len(benches) < 2:
        raise ConfigError(f"{names[0]} is one bench; give another one to compare it with")
    return compare(*benches, version=__version__, force=force)


def _unfit(result: Experiment) -> str:
    """Why a result cannot be compared, and what to give instead."""
    if not isinstance(result, Comparison):
        kind = result.__struct_config__.tag
        return f"is a {kind}; give results of specwatch bench"
    if result.benches:
        return (
            "has a bench without speculation and one with it: give it alone, or with a file of one"
            " bench"
        )
    return (
        "is a comparison without its benches, like older files and stored comparisons: give the"
        " stored bench instead, or measure again with --baseline and -o"
    )


def _result(name: str, given: dict[str, Any]) -> Experiment:
    """The result in a file, or stored under a number. Raises ConfigError."""
    if not (name.isascii() and name.isdigit()) or Path(name).exists():
        return read(load.text_of(Path(name))[0], name)
    from specwatch.store.readers import Reader

    with closing(Reader.of(options.database_url(given["database"], given["file"]))) as reader:
        result = reader.experiment(int(name)) if reader.is_set_up() else None
    if result is None:
        raise ConfigError(f"no result is stored under {name}; give another --database, or a file")
    return result
