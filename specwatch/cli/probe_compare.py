"""``specwatch probe --compare``: whether answers with speculation are those without it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from specwatch import __version__
from specwatch.cli import load, load_tables, options, output
from specwatch.cli.progress import ProgressBar
from specwatch.cli.terminal import Columns, Lines, Terminal, paragraph, table
from specwatch.config.target import Target
from specwatch.errors import ConfigError, TooLittle
from specwatch.lab.loadtest import answers, engine, server
from specwatch.lab.loadtest.answers import AnswerComparison, Differences
from specwatch.lab.loadtest.answers_run import AnswersRun
from specwatch.lab.loadtest.prompts import endless
from specwatch.lab.loadtest.requests import Ask, Prompt
from specwatch.lab.loadtest.result_parts import BUILT_IN, subject_of, workload_of
from specwatch.wording import figures
from specwatch.wording.text import shown

_SHOWN = 3
"""Partings that are printed; the JSON has all."""
_LONGEST_EXCERPT = 60
_OUTCOMES = {
    "more": "Answers differ more often with speculation than the server without it differs from"
    " itself.",
    "no_more": "Answers do not certainly differ more often with speculation than the server without"
    " it differs from itself.",
    "unknown": "No prompt has all its answers.",
}
_STYLES = {"more": "red", "no_more": "green", "unknown": "yellow"}


def run(target: Target, given: Mapping[str, Any]) -> None:
    """Ask both servers, print the comparison and write it.

    Raises ConfigError for servers that cannot be compared, TooLittle if answers differ more often,
    or not everything was answered.
    """
    settings = {"model": given["model"], "endpoint": given["endpoint"]}
    other = load.second_target(target, "--compare", given["compare"], given)
    on = server.Server(target, where="--target", **settings)
    off = server.Server(other, where="--compare", **settings)
    doubts = engine.check(off.engine, on.engine, options=("--compare", "--target"))
    known = load.prompts(given["prompts"])
    # The same prompt again would say nothing new.
    count = min(given["requests"], len(known))
    chosen = list(itertools.islice(endless(known, given["seed"]), count))
    asks = [Ask(prompt, given["max_tokens"], 0.0, read_text=True) for prompt in chosen]
    progress = ProgressBar()
    began = time.time()
    asking = AnswersRun(on, off, asks, given["concurrency"], progress.note, progress.step)
    with load.StopSignals() as stop_signals:
        stop_signals.run(asking.run(), progress, len(answers.AnswerSet._fields) * len(asks))
    compared = answers.compare(asking.sets)
    result = AnswerComparison(
        version=__version__,
        began=began,
        ended=time.time(),
        complete=asking.problem is None,
        on=subject_of(on.engine, target=target.name, url=target.url),
        off=subject_of(off.engine, target=other.name, url=other.url),
        workload=workload_of(
            list(map(Prompt, chosen)),
            source=BUILT_IN if given["prompts"] is None else str(given["prompts"]),
            endpoint=given["endpoint"],
            max_tokens=given["max_tokens"],
            temperatures=[0.0],
            seed=given["seed"],
        ),
        concurrency=given["concurrency"],
        again_concurrency=asking.again_concurrency,
        compared=sum(one.ok for one in asking.sets),
        notes=tuple(doubts),
        errors=compared.errors,
        differences=compared.differences,
        differences_again=compared.again,
        outcome=compared.outcome,
        at_limit=compared.at_limit,
        partings=compared.partings,
    )
    _deliver(result, asking.problem, given)


def _deliver(result: AnswerComparison, problem: str | None, given: Mapping[str, Any]) -> None:
    if given["as_json"]:
        options.print_json(result)
    else:
        terminal = Terminal()
        terminal.lines(_lines(result, terminal.width))
    problems = [problem] if problem else []
    if result.errors:
        failed = ", ".join(f"{count} {kind}" for kind, count in sorted(result.errors.items()))
        problems.append(f"requests failed: {failed}")
    if result.outcome == "more":
        problems.append(f"verdict: {_OUTCOMES['more']}")
    try:
        if given["output"] is not None:
            output.write(given["output"], output.json_text(result))
    except ConfigError as error:
        problems.append(f"compared, but not written: {error}")
    if problems:
        raise TooLittle("\n".join(problems))


def _share(row: tuple[str, int, Differences]) -> str:
    _, prompts, differences = row
    share = differences.share
    low, high = (figures.percent(end, 0) for end in (share.lower, share.upper))
    return f"{differences.count} of {prompts} ({low} to {high})"


_COLUMNS: Columns[tuple[str, int, Differences]] = {
    "answers": lambda row: row[0],
    "that differ": _share,
    "first at character": lambda row: figures.number(row[2].first_position),
    "median": lambda row: figures.number(row[2].median_position),
}


def _lines(result: AnswerComparison, width: int) -> Lines:
    """Yield the comparison, the answer first."""
    yield from paragraph(_OUTCOMES[result.outcome], _STYLES[result.outcome], width)
    work, again = result.workload, result.again_concurrency
    title = f"{shown(result.on.model_name)} on {shown(result.on.target)} and {result.off.url}"
    yield from paragraph(
        f"{title}: {figures.counted(result.compared, 'prompt')} at temperature 0, up to"
        f" {work.max_tokens} tokens, {result.concurrency} at a time, the last time {again}",
        width=width,
    )
    rows = [
        (name, result.compared, differences)
        for name, differences in (
            ("with, without", result.differences),
            ("without, again", result.differences_again),
        )
        if differences is not None
    ]
    yield from table(_COLUMNS, rows, width)
    if rows:
        limit = result.at_limit
        yield from paragraph(
            f"ended at the limit of length: {limit['on']} with, {limit['off']} without,"
            f" {limit['again']} again",
            width=width,
        )
    for parting in result.partings[:_SHOWN]:
        place = figures.number(parting.position)
        yield from paragraph(f"prompt {parting.prompt}, from character {place}", width=width)
        for name, text in (("with", parting.on), ("without", parting.off)):
            excerpt = shown(text, _LONGEST_EXCERPT) or "(ends)"
            yield from paragraph(f"  {name}: {excerpt}", width=width)
    yield from load_tables.notes(result.notes, width)
