"""The status page: the state of a daemon, the answer first, as one page without scripts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from specwatch.pages import status_health, status_view
from specwatch.pages.environment import markup, render
from specwatch.pages.status_view import Change, Hours
from specwatch.report.charts import sparkline
from specwatch.rules.last_hour import Points
from specwatch.status import DaemonStatus
from specwatch.wording import figures
from specwatch.wording.text import shown

if TYPE_CHECKING:
    from markupsafe import Markup

REFRESH = 30
"""Seconds between refreshes, unless the page is paused."""


@dataclass(frozen=True, slots=True)
class StatusHistory:
    """What the page shows beside the status: the last hour of the targets that it shows in full,
    and the last changes.

    ``missing`` says why the store could not be read; the hours are then those in memory.
    """

    hours: Hours = field(default_factory=dict)
    changes: Sequence[Change] = ()
    missing: str | None = None


def status_html(
    status: DaemonStatus,
    history: StatusHistory,
    *,
    chosen: str | None = None,
    refresh: int = REFRESH,
) -> str:
    """The page of all targets, or of the chosen one, which has to be one of them.

    ``refresh`` is the number of seconds between refreshes, 0 for none.
    """
    names = status_view.detailed(status, chosen)
    return render(
        "status.html.j2",
        status=status,
        chosen=None if chosen is None else shown(chosen),
        refresh=refresh,
        other_pace=_address(chosen, 0 if refresh else REFRESH),
        headline=status_health.headline(status),
        modes=status_view.modes(status),
        rows=status_view.rows(status) if chosen is None else (),
        details=status_view.details(status, names, history.hours),
        left_out=0 if chosen is not None else len(status.targets) - len(names),
        history=history,
        scrapes=status_health.scrapes(status, names),
        store=(*status_health.store_lines(status), *status_health.delivery_lines(status)),
        pager_state=status_health.pager_state,
        spark=_spark,
        iso=_iso,
        outcomes=_OUTCOMES,
    )


def refusal_html(status: DaemonStatus, title: str, message: str) -> str:
    """A page that explains an error, with links to the targets."""
    known = [target.name for target in status.targets[: status_view.MOST_KNOWN]]
    return render(
        "status_refusal.html.j2",
        chart_style="",
        title=title,
        said=message,
        targets=[(shown(name), status_view.page_of(name)) for name in known],
        left_out=len(status.targets) - len(known),
    )


def policy(page: str) -> str:
    """The Content-Security-Policy of a page: its own style, by its hash, and nothing else."""
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src 'none'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    )


_OUTCOMES = {
    "pays": ("good", "pays"),
    "not_worth_it": ("warn", "pays little"),
    "even": ("warn", "even"),
    "loses": ("bad", "loses"),
    "off": ("", "off"),
    "no_traffic": ("", "no traffic"),
    "unknown": ("warn", "not measured"),
    "not_read": ("bad", "not read"),
    "failed": ("bad", "not shown"),
}
"""Class of the answer's badge, and its text unless the answer has one."""


def _spark(points: Points, temperature: str) -> Markup:
    """The acceptance over an hour."""
    known = [value for _, value in points if value is not None]
    label = f"Acceptance at {temperature} by the minute: "
    if known:
        lowest, highest = figures.percent(min(known)), figures.percent(max(known))
        label += f"{lowest} to {highest}, last {figures.percent(known[-1])}"
    else:
        label += "nothing was drafted"
    return markup(sparkline(points, label))


def _address(chosen: str | None, refresh: int) -> str:
    query = {} if chosen is None else {"target": chosen}
    if refresh != REFRESH:
        query["refresh"] = str(refresh)
    return f"/?{urlencode(query, errors='replace')}" if query else "/"


def _iso(time: float) -> str:
    """For ``datetime`` attributes; empty for a time outside the calendar."""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, OSError, ValueError):
        return ""
