"""What the status page shows, as plain text and figures: all but the markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode

from specwatch.domain.model import Mode
from specwatch.guard.status import StepRecord, guard_view
from specwatch.pages.status_model import (
    NOT_SHOWN,
    StatusModel,
    answer_of,
    model_of,
    models_of,
    recent_of,
    shown_name,
    unread,
)
from specwatch.pages.status_table import MOST_MODELS
from specwatch.problems import problems
from specwatch.rules.decisions import Decision
from specwatch.rules.last_hour import ModelHour
from specwatch.status import DaemonStatus, TargetStatus
from specwatch.wording import experiment, figures, guard, speculation
from specwatch.wording.text import LONGEST_SENTENCE, shown

MOST_DETAILED = 3
"""Of more targets the page of all shows none in full; each one has its own page."""
MOST_KNOWN = 200
MOST_CHANGES = 20

Hours = Mapping[str, Mapping[str, ModelHour]]


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


def detailed(status: DaemonStatus) -> tuple[str, ...]:
    """The targets that are shown in full: all if they are few."""
    few = len(status.targets) <= MOST_DETAILED
    return tuple(target.name for target in in_order(status)) if few else ()


def in_order(status: DaemonStatus) -> list[TargetStatus]:
    """All targets, those with the greatest harm first."""
    places: dict[str, int] = {}
    for problem in problems(status):
        places.setdefault(problem.target, len(places))
    return sorted(status.targets, key=lambda target: places.get(target.name, len(places)))


def selections(target: TargetStatus) -> Iterator[dict[str, str]]:
    """Yield queries for the store: all of a target, or each of its models that is shown."""
    names = models_of(target)
    if len(names) <= MOST_MODELS:
        yield {"target": target.name}
    else:
        yield from ({"target": target.name, "model_name": name} for name in names[:MOST_MODELS])


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
    now, names = status.now, models_of(target)
    dead = unread(target, status.stuck, now) is not None
    own = None if target.workload else target.guard
    known = None if own is None else guard_view(own)
    state = None if known is None else known.state
    return Detail(
        anchor=f"target-{number}",
        name=shown(target.name),
        facts=_facts(target, now, dead=dead),
        notes=tuple(_notes(target, status)),
        guard=None if known is None else guard.standing(known, now),
        guard_notes=() if state is None else tuple(note for note, _ in guard.notes(state, now)),
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
    )


def _model(
    target: TargetStatus, name: str, hour: ModelHour | None, status: DaemonStatus
) -> StatusModel:
    dead = unread(target, status.stuck, status.now) is not None
    recent = None if dead else recent_of(target, name)
    return model_of(target, name, hour, recent, status.now, answer_of(target, name, status))


def _facts(target: TargetStatus, now: float, *, dead: bool) -> str:
    """``http://127.0.0.1:8000, engine 0.32.0, scraped 3 s ago in 4.20 ms``."""
    pods = f"the sum of {figures.counted(len(target.pods), 'pod')}"
    facts = [pods if target.pods else shown(target.url, LONGEST_SENTENCE)]
    if target.workload:
        facts.append(f"guarded as {shown(target.workload)}")
    if target.engine_version:
        facts.append(f"engine {shown(target.engine_version)}")
    if target.last_success is None:
        facts.append("not scraped yet")
    elif not target.pods:
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
    for target in status.servers:
        if unread(target, status.stuck, status.now) is not None:
            silent += 1
            continue
        for mode in target.models.values():
            counts[mode] = counts.get(mode, 0) + 1
    parts = [
        f"{mode.label} for {figures.counted(counts[mode], 'model')}"
        for mode in Mode
        if mode in counts
    ]
    clauses = [f"speculation is {' and '.join(parts)}"] if parts else []
    if silent:
        clauses.append(f"{figures.number(silent)} {'is' if silent == 1 else 'are'} not read")
    detail = f": {'; '.join(clauses)}" if clauses else ""
    return f"Watching {figures.counted(len(status.servers), 'target')}{detail}."


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
