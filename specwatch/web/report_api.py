"""``/api/v1/report``: the report as the API gives it, in any of its formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import QueryParams

from specwatch.domain.units import format_duration, quoted
from specwatch.errors import ConfigError
from specwatch.report.model import Report
from specwatch.web import query, runbook_page

FORMATS = {
    "json": "application/json",
    "html": "text/html",
    "md": "text/markdown",
    "text": "text/plain",
}
"""Media types by the name of the format."""
_LONGEST = 92 * 86400.0
"""Seconds: what is longer takes a thread for minutes, and is left to the command."""

ReportReader = Callable[..., Report]
"""Takes the period and the time as ``since``, ``until`` and ``now``, and the ``targets``."""


class Page(NamedTuple):
    """An answer; ``policy`` is its Content-Security-Policy."""

    body: bytes
    media_type: str
    policy: str | None = None


def page(read: ReportReader, params: QueryParams, now: float) -> Page:
    """The report that a query asks for. Raises ConfigError for what it cannot be, StoreError."""
    chosen = selection(params, now)
    form = chosen.pop("format")
    report = read(now=now, **chosen)
    if form == "json":
        return Page(msgspec.json.encode(report), FORMATS[form])
    if form == "html":
        from specwatch.pages.report_html import report_html

        return Page(report_html(report).encode(), FORMATS[form], runbook_page.POLICY)
    if form == "md":
        from specwatch.report.markdown import markdown

        return Page(markdown(report).encode(), FORMATS[form])
    from specwatch.report.text import plain

    return Page(plain(report).encode(), FORMATS[form])


def selection(params: QueryParams, now: float) -> dict[str, Any]:
    """The period, the targets (None for all) and the format that a query asks for.

    ``since`` and ``until`` are as :func:`specwatch.domain.units.parse_moment` reads them, dates in
    UTC (default: the last week), ``target`` may be given several times. Raises ConfigError.
    """
    chosen = query.chosen(params, (), ("target", "format"), now, since="7d")
    if chosen["until"] - chosen["since"] > _LONGEST:
        most = format_duration(_LONGEST)
        raise ConfigError(
            f"since: a report of more than {most} takes long; ask for less, or run specwatch report"
        )
    form = params.get("format", "json")
    if form not in FORMATS:
        raise ConfigError(f"format: {quoted(form)} is not one of {', '.join(FORMATS)}")
    return {**chosen, "format": form, "targets": params.getlist("target") or None}
