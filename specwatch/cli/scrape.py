"""``specwatch scrape``: reads and shows one metrics page."""

from __future__ import annotations

import os
import sys
import zlib
from contextlib import closing
from pathlib import Path
from typing import IO

import click

from specwatch.cli import options, tables
from specwatch.cli.terminal import Columns, Lines, Terminal, paragraph, table
from specwatch.domain.model import Mode
from specwatch.domain.units import parse_engine_url
from specwatch.engines.sample_names import engine_of, mode_of
from specwatch.engines.sglang import SGLANG
from specwatch.errors import ConfigError, PageError, ScrapeError, ScrapeReason
from specwatch.rules import summary
from specwatch.rules.summary import LatencyView, ScrapedModel
from specwatch.scrape import engine_info, tally
from specwatch.scrape.engine_info import EngineInfo
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import BlockingPageClient
from specwatch.scrape.tally import no_engine
from specwatch.wording import figures, speculation
from specwatch.wording.speculation import MODE_NOT_KNOWN, MODE_REMEDY
from specwatch.wording.text import LONGEST_SENTENCE, shown

_LARGEST_PAGE = 16 << 20
_MOST_BAR, _BESIDE_BAR = 40, 22
"""The longest bar, and the columns of the figures beside it."""
_GZIP = b"\x1f\x8b"
_LATENCIES: Columns[tuple[str, LatencyView | None]] = {
    "latency": lambda row: row[0],
    "count": lambda row: figures.number(None if row[1] is None else row[1].count),
    "mean": lambda row: figures.mean(row[1]),
    **{
        name: lambda row, name=name: figures.quantile(row[1], name)  # type: ignore[misc]
        for name in summary.QUANTILES
    },
}


@click.command(name="scrape")
@click.argument("source")
@options.time_option("--timeout", "5s", "Time limit for a URL.")
@options.json_option
def command(source: str, timeout: float, as_json: bool) -> None:
    """Show the contents of one metrics page.

    SOURCE is the URL of a server or of its /metrics, a saved page (gzip or not), or - for
    standard input.

    Values are totals since the engine started. JSON has latencies in seconds; "open_ended" means
    that a quantile is beyond the last bound of its histogram, and that bound is given.

    Exit code 1 when the page cannot be read, or is not from an engine.
    """
    problems: list[str] = []
    samples = PageReader().read(_page(source, timeout))
    engine = EngineInfo(None, ())
    parts = tally.parts_of(samples).models
    if "://" in source and any(
        not name or mode_of(part) is Mode.UNKNOWN or engine_of(part) is SGLANG
        for name, part in parts.items()
    ):
        with closing(_client(source, timeout)) as client:
            try:
                engine = engine_info.ask(client.fetch)
            except ScrapeError as error:
                click.echo(f"the server did not report its model: {error}", err=True)
    unnamed = next(iter(engine.models), "")
    models = summary.models_of(
        samples,
        problems,
        unnamed=unnamed,
        drafting=engine.drafting,
        draft_lengths=engine.draft_lengths,
        prefills=engine.prefills,
    )
    if not models:
        raise PageError(ScrapeReason.NO_ENGINE, f"{source}: {no_engine(tally.parts_of(samples))}")
    for problem in problems:
        click.echo(f"left out: {shown(problem, LONGEST_SENTENCE)}", err=True)
    if as_json:
        named = os.fsencode(source).decode("utf-8", "replace")
        options.print_json({"source": named, "models": models})
    else:
        terminal = Terminal()
        terminal.blocks(_lines(model, terminal.bar) for model in models)


def _page(source: str, timeout: float) -> bytes:
    if "://" in source:
        with closing(_client(source, timeout)) as client:
            return client.fetch("/metrics")
    try:
        if source == "-":
            return _read(sys.stdin.buffer, "standard input")
        with Path(source).open("rb") as file:
            return _read(file, source)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        hint = "" if source == "-" else "; give a URL (http://...), a file or -"
        raise ScrapeError(
            ScrapeReason.UNREACHABLE, f"cannot read {source}: {reason}{hint}"
        ) from error


def _client(source: str, timeout: float) -> BlockingPageClient:
    try:
        url = parse_engine_url(source)
    except ValueError as error:
        raise ConfigError(f"SOURCE: {error}") from error
    return BlockingPageClient(url, timeout=timeout, max_size=_LARGEST_PAGE)


def _read(file: IO[bytes], name: str) -> bytes:
    page = file.read(_LARGEST_PAGE + 1)
    if page.startswith(_GZIP):
        unzip = zlib.decompressobj(wbits=31)
        try:
            page = unzip.decompress(page, _LARGEST_PAGE + 1)
        except zlib.error as error:
            raise PageError(ScrapeReason.MALFORMED, f"{name}: broken gzip: {error}") from error
        if not unzip.eof and len(page) <= _LARGEST_PAGE:
            raise PageError(ScrapeReason.TRUNCATED, f"{name}: the gzip file is incomplete")
    if len(page) > _LARGEST_PAGE:
        raise PageError(ScrapeReason.TOO_LARGE, f"{name} is longer than {_LARGEST_PAGE} bytes")
    return page


def _lines(model: ScrapedModel, bar: str) -> Lines:
    """Yield lines about one model; ``bar`` is the character of bars."""
    yield shown(model.model_name) or "(unnamed model)", "bold"
    parts = (
        f"speculation {model.speculation}",
        figures.counted(model.engine_count, "engine"),
        f"{figures.number(model.running)} running",
        f"{figures.number(model.waiting)} waiting",
        f"KV cache {figures.percent(model.kv_cache_usage)}",
        *figures.events(model.events, zero=True),
    )
    yield tables.known(parts), ""
    if model.speculation is Mode.UNKNOWN:
        yield from paragraph(f"It is {MODE_NOT_KNOWN}. {MODE_REMEDY}", "yellow")
    if model.speculation.unjudged:
        yield from paragraph(f"not judged: {model.speculation.unjudged}", "yellow")
    yield from paragraph(speculation.draft_lengths(model.draft_lengths) or "", "yellow")
    if model.speculation in (Mode.ON, Mode.STANDBY):
        yield from _acceptance_lines(model, bar)
    latencies = [("TTFT", model.ttft), ("TPOT", model.tpot), ("inter-token", model.inter_token)]
    if any(latency for _, latency in latencies):
        yield from table(_LATENCIES, latencies)
    if model.tap:
        yield from tables.coverage_lines(model.tap)
        if model.tap.failures:
            yield f"tap failed: {figures.number(model.tap.failures)}", "red"
        yield from tables.segment_lines(
            tables.SegmentRow(segment, segment.share) for segment in model.segments
        )


def _acceptance_lines(model: ScrapedModel, bar: str) -> Lines:
    if model.drafts and model.draft_tokens is None:
        counted = figures.counted(model.drafts, "draft")
        yield f"{counted}; the engine does not count their tokens, so acceptance is not known", ""
        return
    rate = f"acceptance rate {figures.percent(model.acceptance_rate)}"
    if model.accepted_tokens is not None:
        accepted, drafted = map(figures.number, (model.accepted_tokens, model.draft_tokens))
        rate += f" ({accepted} of {drafted} draft tokens)"
    if model.mean_acceptance_length is not None:
        rate += f", mean acceptance length {figures.number(model.mean_acceptance_length, 2)}"
    yield rate, ""
    lengths = model.accepted_length_histogram
    if lengths and sum(lengths):
        room = min(_MOST_BAR, Terminal().width - _BESIDE_BAR)
        yield f"{'accepted':12}  drafts", "dim"
        for kept, drafts in enumerate(lengths):
            label = f"{kept} of {len(lengths) - 1}"
            drawn = bar * round(room * drafts / max(lengths))
            yield f"{label:12}  {drafts / sum(lengths):6.1%}  {drawn}", ""
