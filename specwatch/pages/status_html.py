"""The status page: the state of a daemon, what is wrong first. It needs no script; with one it
follows the daemon."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from specwatch.domain.interval import Interval
from specwatch.domain.model import HOUR, TEMPERATURE
from specwatch.pages import status_health, status_table, status_view
from specwatch.pages.environment import markup, render
from specwatch.pages.status_model import NOT_SHOWN, answer_of, models_of, shown_name
from specwatch.pages.status_table import Selection, page_of
from specwatch.pages.status_view import Change, Hours
from specwatch.problems import HARMFUL, problems
from specwatch.report import charts
from specwatch.report.model import Report
from specwatch.rules.last_hour import Points
from specwatch.status import DaemonStatus
from specwatch.wording import figures, groups, lease
from specwatch.wording.headline import headlines, no_problem
from specwatch.wording.speculation import outcome_of
from specwatch.wording.text import shown

if TYPE_CHECKING:
    from markupsafe import Markup

PLOTTED = 6.0 * HOUR
"""Seconds of the plots of a target's page."""
_MOST_HEADLINES = 3
_MOST_GROUPS = 50
"""Groups that the page shows, those with a server that loses or stands out first."""
_WHOLE = Selection()

Plots = dict[str, dict[str, "Markup"]]
"""The plots of each model by what they are of; models by the name that is shown."""


@dataclass(frozen=True, slots=True)
class StatusHistory:
    """What the page shows beside the status: the last hour of the targets that it shows in full,
    and the last changes.

    ``missing`` says why the store could not be read; the hours are then those in memory.
    """

    hours: Hours = field(default_factory=dict)
    plots: Plots = field(default_factory=dict)
    """Of the chosen target."""
    changes: Sequence[Change] = ()
    missing: str | None = None


def status_html(status: DaemonStatus, history: StatusHistory, asked: Selection = _WHOLE) -> str:
    """The page of all targets, or of the one that is asked for, of which ``status`` then is."""
    chosen = asked.target
    names = status_view.detailed(status)
    known = problems(status)
    texts = headlines(known, status.now, _MOST_HEADLINES)
    rows = () if chosen is not None else status_table.rows(status)
    return render(
        "status.html.j2",
        status=status,
        version=version_of(status),
        asked=asked,
        chosen=None if chosen is None else shown(chosen),
        headlines=[
            (problem.kind in HARMFUL, text, page_of(problem.target) if chosen is None else "")
            for problem, text in texts
        ],
        problems=len(known),
        no_problem=no_problem(_outcomes(status)),
        trouble=status_health.headline(status) if chosen is None else (),
        modes=status_view.modes(status),
        table=status_table.table(rows, asked),
        rows=len(rows),
        states=status_table.STATES,
        sorts=status_table.SORTS,
        groupings=status_table.GROUPS,
        details=status_view.details(status, names, history.hours),
        history=history,
        scrapes=status_health.scrapes(status, names),
        store=(
            *status_health.store_lines(status),
            *status_health.delivery_lines(status),
            *status_health.source_lines(status),
        ),
        pager_state=status_health.pager_state,
        charts=history.plots,
        group_servers=groups.group_servers,
        most_groups=_MOST_GROUPS,
        outcome_of=outcome_of,
        standing_by=lease.standing_by,
        plotted=PLOTTED / HOUR,
        spark=_spark,
        course=_course,
        against_one=_against_one,
        iso=_iso,
        outcomes=_OUTCOMES,
    )


def version_of(status: DaemonStatus) -> str:
    """What changes when the page has something new to show: a minute, a problem, a mode."""
    seen = [
        (one.name, one.last_window, sorted(one.models.items()), getattr(one.guard, "state", None))
        for one in status.targets
    ]
    known = [(one.kind, one.target, one.model_name) for one in problems(status)]
    holder = replace(status.lease, left=None)  # which changes all the time
    present = (seen, known, holder, status.store.error)
    return hashlib.sha256(repr(present).encode()).hexdigest()[:16]


def _outcomes(status: DaemonStatus) -> list[str]:
    return [
        status.attempt(target.name, partial(answer_of, target, model, status), NOT_SHOWN).outcome
        for target in status.servers
        for model in models_of(target) or [""]
    ]


def refusal_html(status: DaemonStatus, title: str, message: str) -> str:
    """A page that explains an error, with links to the targets."""
    known = [target.name for target in status.targets[: status_view.MOST_KNOWN]]
    return render(
        "status_refusal.html.j2",
        chart_style="",
        title=title,
        said=message,
        targets=[(shown(name), page_of(name)) for name in known],
        left_out=len(status.targets) - len(known),
    )


def policy(page: str) -> str:
    """The Content-Security-Policy of a page: its own style and script, by their hashes, and what
    the script reads from here."""
    style, script = (
        base64.b64encode(hashlib.sha256(_within(page, tag).encode()).digest()).decode()
        for tag in ("style", "script")
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}';"
        " connect-src 'self'; img-src 'none'; base-uri 'none'; form-action 'self';"
        " frame-ancestors 'none'"
    )


def _within(page: str, tag: str) -> str:
    return page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


_OUTCOMES = {
    "pays": ("good", "pays"),
    "not_worth_it": ("warn", "pays little"),
    "even": ("warn", "even"),
    "loses": ("bad", "loses"),
    "off": ("", "off"),
    "no_traffic": ("", "no traffic"),
    "unjudged": ("warn", "unjudged"),
    "unknown": ("warn", "not measured"),
    "not_read": ("bad", "not read"),
    "failed": ("bad", "not shown"),
}
"""Class of the answer's badge, and its text unless the answer has one."""


def _spark(points: Points, name: str) -> Markup:
    """The acceptance over an hour."""
    known = [value for _, value in points if value is not None]
    label = f"Acceptance of {name} by the minute: "
    if known:
        lowest, highest = figures.percent(min(known)), figures.percent(max(known))
        label += f"{lowest} to {highest}, last {figures.percent(known[-1])}"
    else:
        label += "nothing was drafted"
    return markup(charts.sparkline(points, label))


def plots(plotted: Report) -> Plots:
    """The plots of the report of a target."""
    drawn: Plots = {}
    since, until = plotted.since, plotted.until
    for number, model in enumerate(plotted.targets):
        series, name = model.series, f"plot-{number}"
        of_model = {
            "Speedup": charts.speedup_over_time(
                series, model.incidents, since, until, f"{name}-speedup"
            ),
            "Acceptance by temperature": charts.acceptance(
                series, since, until, f"{name}-acceptance", segments=model.of(TEMPERATURE)
            ),
            "Time per output token": charts.latency(series, "tpot", since, until, f"{name}-tpot"),
            "Time to the first token": charts.latency(series, "ttft", since, until, f"{name}-ttft"),
            "Load": charts.load(series, since, until, f"{name}-load"),
        }
        drawn[shown_name(model.model_name)] = {
            what: markup(plot) for what, plot in of_model.items()
        }
    return drawn


def _course(points: Sequence[tuple[float, float]]) -> Markup:
    """The speedup over the last hour, 0.25 to 4, with a line at 1."""
    label = "not measured"
    if points:
        values = [value for _, value in points]
        label = f"Speedup of the last hour: {min(values):.2f} to {max(values):.2f}"
    return markup(charts.sparkline(points, label, edges=(0.25, 4.0), line=1.0))


def _against_one(speedup: Interval | None) -> str:
    """The class of a speedup by its interval."""
    if speedup is None:
        return ""
    return "loss" if speedup.below(1) else "gain" if speedup.above(1) else ""


def _iso(time: float) -> str:
    """For ``datetime`` attributes; empty for a time outside the calendar."""
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, OSError, ValueError):
        return ""
