"""The table of all targets on the status page: chosen, in order, grouped, a part at a time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple
from urllib.parse import urlencode

from specwatch.domain import histogram
from specwatch.domain.acceptance import acceptance_rate
from specwatch.domain.interval import Interval
from specwatch.domain.model import Histogram, Window
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.pages.status_model import (
    NOT_SHOWN,
    StatusAnswer,
    answer_of,
    models_of,
    recent_of,
    unread,
)
from specwatch.problems import Problem, problems
from specwatch.rules.decisions import ModelDecision
from specwatch.status import DaemonStatus, TargetStatus
from specwatch.wording import figures, guard
from specwatch.wording.headline import headline, since
from specwatch.wording.text import shown

MOST_MODELS = 5
"""Models of a target in the table, and sections of the target's page."""
MOST_ROWS = 50
"""Rows of one page of the table."""
REFRESH = 30
"""Seconds between refreshes, unless the page is paused."""
PACES = range(10, 3601)
"""Allowed seconds between refreshes, besides 0 for none."""
STATES = {
    "loses": "loses",
    "not_read": "not read",
    "failed": "not shown",
    "even": "even",
    "not_worth_it": "pays little",
    "unjudged": "unjudged",
    "unknown": "not measured",
    "pays": "pays",
    "off": "off",
    "no_traffic": "no traffic",
}
"""Outcomes by which rows can be chosen, the worst first, and what they are called."""
SORTS = {
    "problem": "worst first",
    "speedup": "lowest speedup first",
    "target": "name",
    "running": "most running requests first",
    "acceptance": "lowest acceptance first",
}
GROUPS = {"": "not grouped", "group": "by group", "model": "by model", "state": "by state"}


class Selection(NamedTuple):
    """What a viewer asks for: a target alone, or a part of the table of all."""

    target: str | None = None
    refresh: int = REFRESH
    state: str = ""
    model: str = ""
    search: str = ""
    sort: str = "problem"
    group: str = ""
    page: int = 1

    def address(self, **changes: object) -> str:
        """The path of the page with changes."""
        asked = self._replace(**changes)._asdict()  # type: ignore[arg-type]
        default = Selection()._asdict()
        query = {key: str(value) for key, value in asked.items() if value != default[key]}
        return f"/?{urlencode(query, errors='replace')}" if query else "/"


def selection(query: Mapping[str, str]) -> Selection:
    """The selection of a query string; ConfigError for nonsense."""
    for key, value in query.items():
        if key not in Selection._fields:
            names = ", ".join(Selection._fields)
            raise ConfigError(f"{quoted(key)}: unknown parameter; known are {names}")
        known = _CHOICES.get(key)
        if known is not None and value not in known:
            listed = ", ".join(filter(None, known))
            raise ConfigError(f"{key}: {quoted(value)} is not one of {listed}")
    asked = dict(query)
    refresh = _whole(asked, "refresh", REFRESH)
    if refresh and refresh not in PACES:
        raise ConfigError(
            f"refresh: {quoted(query['refresh'])} is not a number from {PACES.start} to"
            f" {PACES.stop - 1}, nor 0"
        )
    page = max(1, _whole(asked, "page", 1))
    return Selection(**(asked | {"refresh": refresh, "page": page}))  # type: ignore[arg-type]


_CHOICES = {"state": ("", *STATES), "sort": (*SORTS,), "group": (*GROUPS,)}


def _whole(query: Mapping[str, str], key: str, default: int) -> int:
    value = query.get(key, str(default))
    if value.isascii() and value.isdigit() and len(value) <= 4:
        return int(value)
    raise ConfigError(f"{key}: {quoted(value)} is not a number from 0 to 9999")


@dataclass(frozen=True, slots=True)
class Row:
    """One model of one target. Texts are shown as they are; ``speedup`` is that of the last hour,
    ``present`` that of the last minutes, and ``points`` its course.
    """

    target: str
    href: str
    model: str
    group: str = ""
    labels: str = ""
    answer: StatusAnswer = NOT_SHOWN
    since: str = ""
    present: Interval | None = None
    speedup: Interval | None = None
    points: tuple[tuple[float, float], ...] = ()
    tpot: str = figures.UNKNOWN
    ttft: str = figures.UNKNOWN
    acceptance: float | None = None
    running: float | None = None
    guard: str = ""
    problem: str = "cannot be shown"
    harm: float = math.inf
    """Place among the problems; infinite without one."""

    @property
    def searched(self) -> str:
        """The words by which it is found, in lower case."""
        return f"{self.target} {self.model} {self.group} {self.labels}".lower()


class Table(NamedTuple):
    """The part of the table on a page; ``groups`` have a title, which is empty where there are no
    groups, and their rows. ``states`` and ``models`` count the rows of each among all."""

    groups: tuple[tuple[str, tuple[Row, ...]], ...]
    states: dict[str, int]
    models: dict[str, int]
    chosen: int
    pages: int


def page_of(target: str) -> str:
    """The address of a target's own page."""
    return f"/?{urlencode({'target': target}, errors='replace')}"


def table(rows: Sequence[Row], asked: Selection) -> Table:
    """The rows that are asked for."""
    states = Counter(row.answer.outcome for row in rows)
    models = Counter(row.model for row in rows)
    words = asked.search.lower().split()
    chosen = [
        row
        for row in rows
        if asked.state in ("", row.answer.outcome)
        and asked.model in ("", row.model)
        and all(word in row.searched for word in words)
    ]
    chosen.sort(key=_SORT_KEYS[asked.sort])
    grouped: Callable[[Row], str] = _GROUP_KEYS[asked.group]
    if asked.group == "state":
        chosen.sort(key=lambda row: [*STATES].index(row.answer.outcome))
    elif asked.group:  # in the order of their first rows
        first_seen = {
            title: place for place, title in enumerate(dict.fromkeys(map(grouped, chosen)))
        }
        chosen.sort(key=lambda row: first_seen[grouped(row)])
    pages = max(1, math.ceil(len(chosen) / MOST_ROWS))
    first = (min(asked.page, pages) - 1) * MOST_ROWS
    part = chosen[first : first + MOST_ROWS]
    return Table(
        tuple((title, tuple(group)) for title, group in groupby(part, grouped)),
        {state: states[state] for state in STATES if states[state]},
        dict(models.most_common(_MOST_CHOICES)),
        len(chosen),
        pages,
    )


_MOST_CHOICES = 30
"""Models that can be chosen from a list; all can be searched for."""


def _speedup(row: Row) -> float | None:
    speedup = row.present or row.speedup
    return None if speedup is None else speedup.value


def _or_last(value: float | None) -> float:
    return math.inf if value is None else value


_SORT_KEYS: Mapping[str, Callable[[Row], tuple[float, str]]] = {
    "problem": lambda row: (row.harm, row.target),
    "speedup": lambda row: (_or_last(_speedup(row)), row.target),
    "target": lambda row: (0.0, row.target),
    "running": lambda row: (-(row.running or 0.0), row.target),
    "acceptance": lambda row: (_or_last(row.acceptance), row.target),
}
_GROUP_KEYS: Mapping[str, Callable[[Row], str]] = {
    "": lambda _: "",
    "group": lambda row: row.group,
    "model": lambda row: row.model,
    "state": lambda row: STATES[row.answer.outcome],
}


def rows(status: DaemonStatus) -> tuple[Row, ...]:
    """A row for each model of each target, in the order of the targets."""
    places: dict[tuple[str, str], tuple[float, Problem]] = {}
    for place, problem in enumerate(problems(status)):
        # A problem of a whole target is one of each of its models.
        places.setdefault((problem.target, problem.model_name), (float(place), problem))
    return tuple(
        status.attempt(
            target.name,
            partial(_row, target, name, status, places),
            Row(shown(target.name), page_of(target.name), _model(name), _model(target.group)),
        )
        for target in status.targets
        for name in models_of(target)[:MOST_MODELS] or [""]
    )


def _model(name: str) -> str:
    return shown(name) if name else figures.UNKNOWN


def _row(
    target: TargetStatus,
    name: str,
    status: DaemonStatus,
    places: Mapping[tuple[str, str], tuple[float, Problem]],
) -> Row:
    now = status.now
    row = Row(
        shown(target.name),
        page_of(target.name),
        _model(name),
        _model(target.group),
        " ".join(f"{label}={shown(text)}" for label, text in target.labels.items()),
        answer_of(target, name, status),
        problem="",
    )
    own = [place for key in ((target.name, name), (target.name, "")) if (place := places.get(key))]
    if own:
        harm, problem = min(own, key=lambda place: place[0])
        began = since(problem.since, now).strip()
        row = replace(row, harm=harm, problem=headline(problem, now).words, since=began)
    state = None if target.guard is None else target.guard.state
    row = replace(row, guard="" if state is None else guard.state_word(state))
    if unread(target, status.stuck, now) is not None:
        return row
    known, recent = target.decision.models.get(name), recent_of(target, name)
    if known is not None:
        measured = known.assessment.speedup if known.current(now) else None
        row = replace(
            row,
            present=known.present.speedup,
            speedup=measured,
            points=known.present.course,
        )
    if recent is not None:
        row = replace(
            row,
            tpot=_latency(recent, known, "tpot"),
            ttft=_latency(recent, known, "ttft"),
            acceptance=acceptance_rate(recent.tally),
            running=recent.gauges.running_mean,
        )
    return row


def _latency(recent: Window, known: ModelDecision | None, metric: str) -> str:
    """The mean of the last minutes, and the change against that without speculation."""
    now: Histogram | None = getattr(recent.tally, metric)
    before = None if known is None else known.baseline_latencies.get(metric)
    mean = None if now is None else histogram.mean(now)
    off = None if before is None else histogram.mean(before)
    text = figures.seconds(mean)
    return text if mean is None or not off else f"{text} ({mean / off - 1:+.0%})"
