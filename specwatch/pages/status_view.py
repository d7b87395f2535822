"""What the status page shows, as plain text and figures: all but the markup."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlencode

from specwatch.domain.acceptance import acceptance_rate
from specwatch.domain.model import ALL_TEMPERATURES, Mode, Window
from specwatch.guard.state import Phase
from specwatch.guard.status import StepRecord, guard_view
from specwatch.pages.status_model import (
    NOT_SHOWN,
    StatusAnswer,
    StatusModel,
    model_of,
    shown_name,
    unread,
)
from specwatch.rules.decision_view import model_view
from specwatch.rules.decisions import Decision
from specwatch.rules.last_hour import ModelHour
from specwatch.rules.verdicts import Verdict
from specwatch.status import DaemonStatus, TargetStatus
from specwatch.wording import experiment, figures, guard, speculation
from specwatch.wording.text import LONGEST_SENTENCE, shown

MOST_DETAILED = 8
"""Targets that the page of all targets shows in full; each other one has its own page."""
MOST_MODELS = 5
"""Models of a target in the table of all targets, and sections of the target's page."""
MOST_KNOWN = 200
MOST_CHANGES = 20
_URGENT = ("critical", "warning")

Hours = Mapping[str, Mapping[str, ModelHour]]


@dataclass(frozen=True, slots=True)
class Row:
    """One model of one target among all."""

    target: str
    href: str
    model: str
    answer: StatusAnswer = NOT_SHOWN
    mode: str = figures.UNKNOWN
    acceptance: str = figures.UNKNOWN
    running: str = figures.UNKNOWN
    guard: str = figures.UNKNOWN
    troubles: tuple[str, ...] = ("cannot be shown",)


@dataclass(frozen=True, slots=True)
class Detail:
    """One target in full. ``notes`` are sentences about what is wrong."""

    anchor: str
    name: str
    links: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    facts: str = ""
    guard: str | None = None
    guard_notes: tuple[str, ...] = ()
    experiment: str | None = None
    models: tuple[StatusModel, ...] = ()
    left_out: int = 0


def detailed(status: DaemonStatus, chosen: str | None) -> tuple[str, ...]:
    """The targets that are shown in full: the chosen one; else all if they are few, else those
    with problems."""
    if chosen is not None:
        return (chosen,)
    ordered = in_order(status)
    if len(ordered) > MOST_DETAILED:
        ordered = [target for target in ordered if troubles(target, status)]
    return tuple(target.name for target in ordered[:MOST_DETAILED])


def in_order(status: DaemonStatus) -> list[TargetStatus]:
    """All targets: those that cannot be read, those with other problems, the rest."""

    def place(target: TargetStatus) -> int:
        if target.failure is not None or target.name in status.stuck:
            return 0
        return 1 if troubles(target, status) else 2

    return sorted(status.targets, key=place)


def troubles(target: TargetStatus, status: DaemonStatus) -> tuple[str, ...]:
    """The problems of a target, in a few words each."""
    return status.attempt(target.name, partial(_troubles, target, status), ("cannot be shown",))


def _troubles(target: TargetStatus, status: DaemonStatus) -> tuple[str, ...]:
    reasons = []
    if target.name in status.stuck:
        reasons.append("stuck")
    if target.failure is not None:
        reasons.append(f"cannot be read: {shown(str(target.failure.reason)).replace('_', ' ')}")
    if target.tap.proxy is not None and target.tap.proxy.failure is not None:
        reasons.append("its proxy cannot be read")
    breaches = [
        finding for finding in target.decision.findings if finding.verdict is Verdict.BREACH
    ]
    read = target.failure is None and target.name not in status.stuck
    if read and any(_loses(target, model, status.now) for model in target.decision.models):
        reasons.append("speculation loses")
    urgent = sum(breach.rule.severity in _URGENT for breach in breaches)
    if urgent:
        reasons.append(f"{figures.counted(urgent, 'rule')} in breach")
    if target.guard is not None:
        state = target.guard.state
        if target.guard.error:
            reasons.append("guard failing")
        if state is not None and state.phase is not Phase.OBSERVING:
            reasons.append(f"guard {guard.phase(state.phase)}")
    spent = sum((slo.budget_left or 0.0) < 0 for slo in target.decision.slos)
    if spent:
        reasons.append(f"{figures.counted(spent, 'error budget')} spent")
    if target.tap.trouble:
        reasons.append("temperatures in doubt")
    return tuple(reasons)


def _loses(target: TargetStatus, model: str, now: float) -> bool:
    known = target.decision.models[model]
    measured = known.assessment.speedup
    loses = known.current(now) and measured is not None and measured.upper < 1
    return loses and target.models.get(model) not in (Mode.OFF, Mode.STANDBY, Mode.DEEP)


def selections(target: TargetStatus) -> Iterator[dict[str, str]]:
    """Yield queries for the store: all of a target, or each of its models that is shown."""
    names = _models_of(target)
    if len(names) <= MOST_MODELS:
        yield {"target": target.name}
    else:
        yield from ({"target": target.name, "model_name": name} for name in names[:MOST_MODELS])


def page_of(target: str) -> str:
    """The address of a target's own page."""
    return f"/?{urlencode({'target': target}, errors='replace')}"


def rows(status: DaemonStatus) -> tuple[Row, ...]:
    """The table of all."""
    return tuple(
        status.attempt(target.name, partial(_row, target, name, status), _unknown_row(target, name))
        for target in in_order(status)
        for name in _models_of(target)[:MOST_MODELS] or [""]
    )


def _row(target: TargetStatus, name: str, status: DaemonStatus) -> Row:
    state = None if target.guard is None else target.guard.state
    dead = unread(target, status.stuck, status.now) is not None
    recent = None if dead else _recent(target, name)
    rate = None if recent is None else acceptance_rate(recent.tally)
    running = None if recent is None else recent.gauges.running_mean
    return replace(
        _unknown_row(target, name),
        answer=_answer(target, name, status),
        mode=figures.UNKNOWN if dead else str(target.models.get(name, figures.UNKNOWN)),
        acceptance=figures.percent(rate),
        running=figures.number(running, 1),
        guard=figures.UNKNOWN if state is None else guard.phase(state.phase),
        troubles=troubles(target, status),
    )


def _unknown_row(target: TargetStatus, name: str) -> Row:
    """The row of a model that cannot be shown."""
    model = shown(name) if name else figures.UNKNOWN
    return Row(shown(target.name), page_of(target.name), model)


def _models_of(target: TargetStatus) -> list[str]:
    judged = {finding.model_name for finding in target.decision.findings}
    seen = {window.series.model_name for window in target.recent}
    return sorted({*target.models, *judged, *seen})


def _recent(target: TargetStatus, model: str) -> Window | None:
    """The last minutes of a model, of all temperatures."""
    return next(
        (
            window for window in target.recent
            if window.series.model_name == model and window.series.temperature == ALL_TEMPERATURES
        ),
        None,
    )  # fmt: skip


def _answer(target: TargetStatus, model: str, status: DaemonStatus) -> StatusAnswer:
    silent = unread(target, status.stuck, status.now)
    if silent == math.inf:
        return StatusAnswer("not_read", "The target has not been read yet.")
    if silent is not None:
        sentence = "The target cannot be read, so its present state is not known."
        return StatusAnswer("not_read", sentence, f"not read for {figures.span(silent)}")
    known = target.decision.models.get(model)
    answer = None if known is None else model_view(known, status.now)
    return StatusAnswer(*speculation.answer(answer, target.models.get(model)))


def details(status: DaemonStatus, names: Sequence[str], hours: Hours) -> tuple[Detail, ...]:
    """The targets of these names in full."""
    by_name = {target.name: target for target in status.targets}
    return tuple(
        status.attempt(
            name,
            partial(_detail, number, by_name[name], status, hours.get(name, {})),
            Detail(f"target-{number}", shown(name), tuple(_links(name)), (NOT_SHOWN.said,)),
        )
        for number, name in enumerate(names)
        if name in by_name
    )


def _detail(
    number: int, target: TargetStatus, status: DaemonStatus, hours: Mapping[str, ModelHour]
) -> Detail:
    now, names = status.now, _models_of(target)
    dead = unread(target, status.stuck, now) is not None
    known = None if target.guard is None else guard_view(target.guard)
    state = None if known is None else known.state
    return Detail(
        anchor=f"target-{number}",
        name=shown(target.name),
        facts=_facts(target, now, dead=dead),
        notes=tuple(_notes(target, status)),
        guard=None if known is None else guard.standing(known, now),
        guard_notes=()
        if state is None
        else tuple(note for note, _ in guard.notes(state, now, figures.moment)),
        experiment=None
        if target.experiment is None
        else experiment.standing(target.experiment, now),
        models=tuple(
            status.attempt(
                target.name,
                partial(_model, target, name, hours.get(name), status),
                StatusModel(shown_name(name), NOT_SHOWN),
            )
            for name in names[:MOST_MODELS]
        ),
        left_out=max(0, len(names) - MOST_MODELS),
        links=tuple(_links(target.name)),
    )  # fmt: skip


def _model(
    target: TargetStatus, name: str, hour: ModelHour | None, status: DaemonStatus
) -> StatusModel:
    dead = unread(target, status.stuck, status.now) is not None
    recent = None if dead else _recent(target, name)
    return model_of(target, name, hour, recent, status.now, _answer(target, name, status))


def _facts(target: TargetStatus, now: float, *, dead: bool) -> str:
    """``http://127.0.0.1:8000, engine 0.32.0, scraped 3 s ago in 4.20 ms``."""
    facts = [shown(target.url, LONGEST_SENTENCE)]
    if target.engine_version:
        facts.append(f"engine {shown(target.engine_version)}")
    if target.last_success is None:
        facts.append("not scraped yet")
    else:
        took = figures.seconds(target.scrape_seconds)
        facts.append(f"scraped {figures.span(now - target.last_success)} ago in {took}")
    if target.restarts:
        facts.append(f"{figures.counted(target.restarts, 'restart')} of the engine seen")
    if (ordered := speculation.switch(target.switch)) is not None:
        facts.append(ordered)
    if target.load is not None and not dead:
        facts.append(f"{figures.counted(target.load, 'request')} running or waiting now")
    return ", ".join(facts)


def _notes(target: TargetStatus, status: DaemonStatus) -> Iterator[str]:
    """Yield sentences about the problems of reading a target."""
    now = status.now
    if target.name in status.stuck:
        yield "Stuck: no scrape ended for three intervals."
    proxy = target.tap.proxy
    for what, failure in (("", target.failure), ("Its proxy: ", proxy and proxy.failure)):
        if failure:
            detail = shown(failure.detail, LONGEST_SENTENCE)
            yield f"{what}failing for {figures.span(now - failure.since)}: {detail}"
    for trouble in target.tap.trouble:
        model = f" of {shown(trouble.model_name)}" if trouble.model_name else ""
        yield f"tap{model}: {shown(trouble.text, LONGEST_SENTENCE)}"
    if target.guard is not None and target.guard.error:
        yield f"guard failing: {shown(target.guard.error, LONGEST_SENTENCE)}"


def _links(target: str) -> Iterator[tuple[str, str]]:
    chosen = urlencode({"target": target}, errors="replace")
    yield "minutes of the last hour", f"/api/v1/windows?{chosen}"
    yield "decisions of the last day", f"/api/v1/decisions?{chosen}"
    yield "report of the last week", f"/api/v1/report?format=html&{chosen}"


def modes(status: DaemonStatus) -> str:
    """``Watching 3 targets: speculation is on for 2 models; 1 is not read.``"""
    counts: dict[Mode, int] = {}
    silent = 0
    for target in status.targets:
        if unread(target, status.stuck, status.now) is not None:
            silent += 1
            continue
        for mode in target.models.values():
            counts[mode] = counts.get(mode, 0) + 1
    words = {Mode.STANDBY: "on standby", Mode.DEEP: "in deep standby"}
    parts = [
        f"{words.get(mode, mode)} for {figures.counted(counts[mode], 'model')}"
        for mode in Mode
        if mode in counts
    ]
    clauses = [f"speculation is {' and '.join(parts)}"] if parts else []
    if silent:
        clauses.append(f"{figures.number(silent)} {'is' if silent == 1 else 'are'} not read")
    detail = f": {'; '.join(clauses)}" if clauses else ""
    return f"Watching {figures.counted(len(status.targets), 'target')}{detail}."


@dataclass(frozen=True, slots=True)
class Change:
    """A decision at a Unix time, and why; ``badge`` is the CSS class of ``what``."""

    at: float
    target: str
    what: str
    badge: str
    why: str


def last_changes(verdicts: Iterable[Decision], steps: Iterable[StepRecord]) -> tuple[Change, ...]:
    """The newest of both, newest first."""
    changes = [*map(_of_verdict, verdicts), *map(_of_step, steps)]
    return tuple(sorted(changes, key=lambda change: -change.at)[:MOST_CHANGES])


_VERDICTS = {"breach": "in breach", "pass": "passes", "no_data": "without data"}
_BADGES = {"breach": "bad", "pass": "good"}
_PHASES = {"held": "bad", "rolling_back": "bad", "observing": "good"}


def _of_verdict(one: Decision) -> Change:
    model = f"; model {shown(one.model_name)}" if one.model_name else ""
    what = _VERDICTS.get(one.verdict, shown(one.verdict))
    why = f"{speculation.change(one)}{model}"
    return Change(one.at, shown(one.target), what, _BADGES.get(one.verdict, ""), why)


def _of_step(one: StepRecord) -> Change:
    incident = f" [{shown(one.incident)}]" if one.incident else ""
    what, why = f"guard: {guard.phase(one.phase)}", shown(one.reason, LONGEST_SENTENCE)
    badge = _PHASES.get(one.phase, "warn")
    return Change(one.at, shown(one.target), what, badge, f"{why}{incident}")
