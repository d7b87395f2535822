"""The views ``minutes`` and ``hours``: what people read with SQL, the same on SQLite and Postgres.

Their names, and those of their columns, are stable from version 1.0 on.
"""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from specwatch.domain.facts import Fact
from specwatch.domain.model import FACTS


class Quantile(NamedTuple):
    """A quantile that is stored beside the histogram that it is of."""

    name: str
    histogram: Fact
    percent: int

    @property
    def label(self) -> str:
        """Its name in the views: ``ttft_p99``."""
        return f"{self.name}_p{self.percent}"

    @property
    def column(self) -> str:
        """Its column in the tables."""
        return self.label + self.histogram.suffix


_FACTS = {fact.name: fact for fact in FACTS}
QUANTILES = {
    name: tuple(Quantile(name, _FACTS[histogram], percent) for percent in percents)
    for name, histogram, percents in (
        ("acceptance", "request_acceptance", (10, 50, 90)),
        ("ttft", "ttft", (50, 95, 99)),
        ("tpot", "tpot", (50, 95, 99)),
    )
}
"""By what their names begin with."""


class ViewColumn(NamedTuple):
    """A column of both views: its expression in SQL, and a sentence for the reference pages.

    Where the two dialects differ, ``sqlite`` is the expression for SQLite.
    """

    name: str
    sql: str
    help: str
    sqlite: str = ""


def _ratio(of: str, by: str) -> str:
    return f"CAST(counts.{of} AS double precision) / NULLIF(counts.{by}, 0)"


def _quantiles(name: str, words: str) -> list[ViewColumn]:
    return [
        ViewColumn(
            each.label,
            f"CAST(counts.{each.column} AS double precision) / {each.histogram.scale}",
            f"P{each.percent} of {words}.",
        )
        for each in QUANTILES[name]
    ]


_POSTGRES_LENGTHS = """CASE WHEN counts.drafts IS NOT NULL
        AND counts.accepted_per_position IS NOT NULL THEN (
        SELECT array_agg(before - after ORDER BY length)
        FROM unnest(array_prepend(counts.drafts, counts.accepted_per_position),
                    array_append(counts.accepted_per_position, 0::bigint))
            WITH ORDINALITY AS positions(before, after, length)
        HAVING min(before - after) >= 0
    ) END"""
_SQLITE_LENGTHS = """CASE WHEN counts.drafts IS NOT NULL THEN (
        SELECT CASE WHEN min(count) >= 0 THEN json_group_array(count) END
        FROM (
            SELECT coalesce(lag(position.value) OVER (ORDER BY position.key), counts.drafts)
                - position.value AS count
            FROM json_each(json_insert(counts.accepted_per_position, '$[#]', 0)) AS position
            ORDER BY position.key
        )
    ) END"""

COLUMNS = (
    ViewColumn(
        "time",
        "to_timestamp(counts.start)",
        "When the minute or the hour began (UTC; ISO 8601 text in SQLite).",
        "strftime('%Y-%m-%dT%H:%M:%SZ', counts.start, 'unixepoch')",
    ),
    ViewColumn(
        "start",
        "counts.start",
        "The same in Unix seconds. Restrict this column: the rows are sorted by it.",
    ),
    ViewColumn("daemon", "series.daemon", "The daemon that wrote it (`daemon.name`)."),
    ViewColumn("target", "series.target", "The server."),
    ViewColumn("model", "series.model_name", "The model, as the server calls it."),
    ViewColumn(
        "dimension",
        "series.dimension",
        "What requests are grouped by: `temperature`, the kind of a segment such as"
        " `prompt_length`, or `all` for all requests.",
    ),
    ViewColumn(
        "value",
        "series.value",
        "The value of the dimension, such as `(0,0.3]`; `all`; `unknown`.",
    ),
    ViewColumn(
        "mode", "contexts.mode", "Whether speculation ran: `on`, `off`, `standby`, `mixed`, ..."
    ),
    ViewColumn(
        "load",
        _ratio("running_us", "sampled_us"),
        "Mean of the running requests of the whole server, in the row of each value: the values of"
        " a dimension share a batch.",
    ),
    ViewColumn("requests", "counts.requests", "Finished requests."),
    ViewColumn("prompt_tokens", "counts.prompt_tokens", "Tokens of prompts."),
    ViewColumn("generated_tokens", "counts.generation_tokens", "Tokens that were generated."),
    ViewColumn("drafts", "counts.drafts", "Drafts: speculation steps of one request."),
    ViewColumn("draft_tokens", "counts.draft_tokens", "Tokens that drafts proposed."),
    ViewColumn("accepted_tokens", "counts.accepted_tokens", "Tokens that the target kept."),
    ViewColumn(
        "acceptance",
        _ratio("accepted_tokens", "draft_tokens"),
        "Acceptance rate: accepted tokens / draft tokens.",
    ),
    *_quantiles("acceptance", "the acceptance rate of single requests (needs a tap)"),
    ViewColumn(
        "tau",
        "1 + " + _ratio("accepted_tokens", "drafts"),
        "Mean acceptance length: tokens a step, with the bonus token.",
    ),
    ViewColumn(
        "accepted_lengths",
        _POSTGRES_LENGTHS,
        "Number of drafts that had 0, 1, 2, ... tokens accepted (`bigint[]`; JSON text in SQLite).",
        _SQLITE_LENGTHS,
    ),
    *_quantiles("ttft", "the time to first token, in seconds"),
    *_quantiles("tpot", "the time per output token, in seconds"),
    ViewColumn(
        "coverage",
        _ratio("source_drafts", "server_drafts"),
        "Part of the server's drafts that the source saw, where it is not the server itself.",
    ),
)

VIEWS = {"minutes": "minute_counts", "hours": "hour_counts"}
"""By the name of each view, the table that it shows."""


def make(connection: sa.Connection) -> None:
    """Make the views, after all tables."""
    postgres = connection.dialect.name == "postgresql"
    for view, table in VIEWS.items():
        columns = ",\n    ".join(
            f"{column.sql if postgres else column.sqlite or column.sql} AS {column.name}"
            for column in COLUMNS
        )
        connection.exec_driver_sql(
            f"CREATE VIEW {view} AS SELECT\n    {columns}\nFROM {table} AS counts\n"
            "JOIN series ON series.id = counts.series_id\n"
            "JOIN contexts ON contexts.id = counts.context_id"
        )


def drop(connection: sa.Connection) -> None:
    """Drop the views, before tables are changed."""
    for view in VIEWS:
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {view}")
