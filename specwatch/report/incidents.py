"""Incidents of the guard and breaches of rules: causes, actions and outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from specwatch.domain.model import Segment
from specwatch.guard.holdout import HOLDOUT_OF
from specwatch.guard.state import Phase
from specwatch.guard.status import StepRecord
from specwatch.report.model import ReportBreach, ReportIncident, ReportStep
from specwatch.rules.decisions import Decision
from specwatch.wording import figures, speculation
from specwatch.wording.figures import moment
from specwatch.wording.text import LONGEST_SENTENCE, clean, shown

_OVER = frozenset({Phase.OBSERVING, Phase.SUSPECT})
_AWAY = frozenset({Phase.RESTARTING, Phase.VERIFYING, Phase.DISABLED, Phase.ROLLING_BACK})
"""Phases in which speculation is off, or the server does not run."""
_ACTING = frozenset({Phase.DRAINING, *_AWAY, Phase.TRIAL, Phase.HELD})
_MODE = "guard.mode is "
"""Beginning of the reason for which the guard only observes."""


def incidents(
    steps: Iterable[StepRecord], since: float, until: float
) -> tuple[ReportIncident, ...]:
    """The incidents that lie in ``since`` to ``until`` (Unix seconds) or reach in, by beginning;
    without holdouts of groups.

    ``steps`` are those of one target, in any order, with all steps of each incident.
    ``seconds_off`` is within the period, until its end if speculation is still off.
    """
    ordered = sorted((step for step in steps if step.at < until), key=lambda step: step.at)
    incidents = (
        _incident(stretch, since, until) for stretch in _stretches(ordered) if _unplanned(stretch)
    )
    return tuple(
        incident for incident in incidents if incident.ended is None or incident.ended >= since
    )


def seconds_off(incidents: Iterable[ReportIncident], *, ordered: bool) -> float:
    """Seconds of the period without speculation by order of a person, or else by the guard."""
    return sum(
        incident.seconds_off
        for incident in incidents
        if (incident.ordered_by is not None) is ordered
    )


class _Stretch(NamedTuple):
    """Steps of one incident; ``after`` is the target's next step, of another incident or none."""

    steps: list[StepRecord]
    away: list[tuple[float, float]]
    """When speculation was off; the last may be until the end of time."""
    after: StepRecord | None


def _stretches(steps: Sequence[StepRecord]) -> Iterator[_Stretch]:
    """Yield each incident, by its first step."""
    away = dict(_away(steps))
    by_id: dict[str, list[int]] = {}
    for index, step in enumerate(steps):
        if step.incident:
            by_id.setdefault(step.incident, []).append(index)
    for places in by_id.values():
        after = steps[places[-1] + 1] if places[-1] + 1 < len(steps) else None
        yield _Stretch(
            [steps[place] for place in places],
            [away[place] for place in places if place in away],
            after,
        )


def _away(steps: Sequence[StepRecord]) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield which steps were followed by time without speculation, and that time."""
    settled = bool(steps) and steps[0].phase_before == Phase.DISABLED
    ends = [*(later.at for later in steps[1:]), float("inf")]
    for index, (step, end) in enumerate(zip(steps, ends, strict=False)):
        off = step.phase in _AWAY
        if step.phase in (Phase.DRAINING, Phase.HELD):
            # Serving as before: it waits or was rolled back. Otherwise it was stopped by hand.
            stopped = step.phase == Phase.HELD and step.phase_before == Phase.VERIFYING
            off = settled is not stopped
        if step.phase not in (Phase.RESTARTING, Phase.VERIFYING, Phase.ROLLING_BACK):
            settled = off
        if off:
            yield index, (step.at, end)


def _unplanned(stretch: _Stretch) -> bool:
    """Whether it is more than a holdout that serves without speculation, as it should."""
    failed = any(step.phase in (Phase.HELD, Phase.ROLLING_BACK) for step in stretch.steps)
    return failed or HOLDOUT_OF not in stretch.steps[0].inputs


def _incident(stretch: _Stretch, since: float, until: float) -> ReportIncident:
    first, last = stretch.steps[0], stretch.steps[-1]
    ended = last.at if last.phase in _OVER else None
    person = first.inputs.get("ordered_by")
    findings = (_finding(step.inputs) for step in stretch.steps)
    if ended is None and stretch.after is not None:
        ended = stretch.after.at
    return ReportIncident(
        id=shown(first.incident),
        began=first.at,
        ended=ended,
        # The rule and its reading if one led to it, else the reason of the first step.
        cause=next(filter(None, findings), _cut(first.reason)),
        outcome=_outcome(stretch, ended),
        would_have_acted=_would_have_acted(stretch.steps),
        steps=tuple(
            ReportStep(
                at=step.at, phase=shown(step.phase), reason=shown(step.reason, LONGEST_SENTENCE)
            )
            for step in stretch.steps
        ),
        seconds_off=sum(
            max(min(end, until) - max(begin, since), 0.0) for begin, end in stretch.away
        ),
        ordered_by=None if person is None else shown(str(person)),
    )


def _finding(inputs: Mapping[str, Any]) -> str | None:
    if not {"rule", "segment", "leading"} <= inputs.keys():
        return None
    leading = speculation.stored_reading(inputs["leading"])
    if leading is None:  # what another version wrote
        return f"the rule {shown(str(inputs['rule']))}"
    text = speculation.breach(str(inputs["rule"]), Segment(**inputs["segment"]), leading)
    summary = clean(str(inputs.get("summary") or ""))[:LONGEST_SENTENCE]
    return f"{summary} ({text})" if summary else text


def _outcome(stretch: _Stretch, ended: float | None) -> str:
    if not _acted(stretch.steps):
        return _looked_on(stretch.steps, ended)
    return _going_on(stretch) if ended is None else _over(stretch, ended)


def _acted(steps: Sequence[StepRecord]) -> bool:
    return any(step.phase in _ACTING for step in steps)


def _looked_on(steps: Sequence[StepRecord], ended: float | None) -> str:
    """The outcome of an incident in which the guard did nothing."""
    why = _waited_for(steps)
    text = f"nothing was done: {why}" if why else "nothing was done"
    if _would_have_acted(steps):
        text = f"would have acted: {why.partition(':')[0]}"
    if ended is None:
        return _cut(f"{text}; still in breach")
    return _cut(f"{text}; over after {figures.span(ended - steps[0].at)}: {steps[-1].reason}")


def _would_have_acted(steps: Sequence[StepRecord]) -> bool:
    """Whether the guard did nothing only because of its mode."""
    return not _acted(steps) and _waited_for(steps).startswith(_MODE)


def _waited_for(steps: Sequence[StepRecord]) -> str:
    """Why nothing was done after the breach was confirmed."""
    waited = [step.reason for step in steps if step.phase == Phase.CONFIRMED]
    return waited[-1] if len(waited) > 1 else ""


def _going_on(stretch: _Stretch) -> str:
    last = stretch.steps[-1]
    phase = itertools.takewhile(lambda step: step.phase == last.phase, reversed(stretch.steps))
    *_, entered = phase  # the step that led into the last phase
    if last.phase == Phase.DISABLED:
        return f"speculation is off since {_off_since(stretch)}"
    if last.phase == Phase.TRIAL:
        return f"on again for a trial since {moment(entered.at)}"
    if last.phase == Phase.HELD:
        return _cut(f"held since {moment(entered.at)}, a person has to look: {entered.reason}")
    if last.phase == Phase.ROLLING_BACK:
        return _cut(f"being rolled back: {entered.reason}")
    return _cut(f"under way: {last.reason}")


def _over(stretch: _Stretch, ended: float) -> str:
    last = stretch.steps[-1]
    rolled = next((step for step in stretch.steps if step.phase == Phase.ROLLING_BACK), None)
    text = last.reason
    if last.phase not in _OVER:
        text = f"until {moment(ended)}"
        if stretch.after is not None:
            text += f", when {stretch.after.reason}"
        if last.phase == Phase.DISABLED:
            text = f"speculation was off {text}"
    elif last.phase_before in (Phase.TRIAL, Phase.VERIFYING):
        text = f"switched on again: {text}"
    if rolled is not None:
        text = f"rolled back: {rolled.reason}; {text}"
    elif any(step.phase == Phase.HELD for step in stretch.steps):
        text = f"held; {text}"
    return _cut(text)


def _off_since(stretch: _Stretch) -> str:
    """When the restart that switched it off began, not when it was verified."""
    begin, _ = stretch.away[-1]
    for earlier, end in reversed(stretch.away):
        if end < begin:
            break
        begin = earlier
    first = stretch.steps[0]
    before = first.at == begin and first.phase_before == Phase.DISABLED
    return f"{'before ' if before else ''}{moment(begin)}"


def _cut(text: str) -> str:
    return shown(text, LONGEST_SENTENCE)


def breaches(
    decisions: Iterable[Decision], model_name: str, since: float, until: float
) -> tuple[ReportBreach, ...]:
    """The breaches of one model that lie in ``since`` to ``until`` (Unix seconds), or reach in.

    ``decisions`` are changes of verdicts in any order, of all models. A breach that began before
    ``since`` counts if the decision that began it is among them. Breaches that several daemons
    found at the same time count once. The longest come first.
    """
    scopes: dict[tuple[str, Segment], dict[str, list[Decision]]] = {}
    for decision in sorted(decisions, key=attrgetter("at")):
        if decision.model_name == model_name and decision.at < until:
            daemons = scopes.setdefault((decision.rule, decision.segment), {})
            daemons.setdefault(decision.daemon, []).append(decision)
    breaches = []
    for (rule, segment), daemons in scopes.items():
        spans = _merged(span for own in daemons.values() for span in _spans(own, until))
        inside = [span for span in spans if span[1] > since]
        if not inside:
            continue
        changes = itertools.chain.from_iterable(daemons.values())
        begun = [change for change in changes if change.verdict == "breach"]
        breaches.append(
            ReportBreach(
                rule=rule,
                segment=segment,
                severity=max(begun, key=attrgetter("at")).severity,
                count=len(inside),
                seconds=sum(end - max(begin, since) for begin, end in inside),
                last=inside[-1][0],
            )
        )
    return tuple(
        sorted(breaches, key=lambda breach: (-breach.seconds, breach.rule, breach.segment))
    )


def _spans(changes: Sequence[Decision], until: float) -> list[tuple[float, float]]:
    """Begin and end of each breach of one scope and daemon; the last may last on."""
    spans: list[tuple[float, float]] = []
    began: float | None = None
    for change in changes:
        if change.verdict == "breach":
            began = change.at if began is None else began
        elif began is not None:
            spans.append((began, change.at))
            began = None
    return spans if began is None else [*spans, (began, until)]


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
