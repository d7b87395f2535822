"""Judging a rule on the evidence: pass, breach or no data, and for how long."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from specwatch.config.rules import Condition, Rule
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.domain.interval import Interval
from specwatch.domain.model import Segment
from specwatch.domain.speedup import STRETCHES
from specwatch.rules.evidence import LONGEST_SILENCE, Evidence
from specwatch.rules.reading import Reading
from specwatch.rules.readings import read

LONGEST_GAP = LONGEST_SILENCE
"""Seconds between two judgements after which a pending verdict starts again."""


class Verdict(enum.StrEnum):
    """Three states, never two."""

    PASS = "pass"  # noqa: S105
    BREACH = "breach"
    NO_DATA = "no_data"


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of a rule for one segment of one model. Times are Unix.

    ``verdict`` is the confirmed one, since ``since``; ``seen`` is that of this minute alone. While
    ``seen`` speaks for or against a breach and is not confirmed yet, ``pending`` is since when:
    later than it really was by the time that was without data.
    """

    rule: Rule
    target: str
    model_name: str
    segment: Segment
    verdict: Verdict
    seen: Verdict
    since: float
    pending: float | None
    readings: tuple[tuple[Condition, Reading], ...]
    at: float = 0.0
    """When it was judged, 0 if restored from an earlier daemon."""
    held: tuple[bool, ...] = ()
    """In a breach, which conditions have held in it; an empty tuple means all."""
    known: float = 0.0
    """When it was last judged on data, 0 if never."""

    @property
    def in_breach(self) -> bool:
        """Whether a breach is confirmed: its beginning and its end are reported."""
        return self.verdict is Verdict.BREACH

    def ended(self, now: float) -> Finding:
        """That of a model or segment that was dropped at ``now``."""
        nothing = Verdict.NO_DATA
        return replace(self, verdict=nothing, seen=nothing, since=now, pending=None, readings=())


def judge(
    rule: Rule,
    evidence: Evidence,
    *,
    target: str,
    model_name: str,
    segment: Segment,
    before: Finding | None,
    draft_cost_ratio: float = DRAFT_COST_RATIO,
) -> Finding:
    """Judge a rule at ``evidence.now``; ``before`` is the previous finding.

    A breach is confirmed when it was seen for the rule's ``for``, and over when the opposite was
    seen for its ``clear_for``. Minutes without data neither confirm nor clear: what is pending
    stays as old as it was, and a confirmed breach stays one. What is pending starts again after a
    gap between judgements of more than :data:`LONGEST_GAP`, a step of time backwards, a question
    that no longer arises, or more time without data than the longest of that gap, the windows and
    what it takes to confirm.
    """
    held = (False,) * len(rule.conditions)
    if before is not None and before.verdict is Verdict.BREACH:
        # One restored from an earlier daemon does not say which of them held.
        held = before.held if len(before.held) == len(held) else (True,) * len(held)
    readings = []
    for condition in rule.conditions:
        reading = read(
            condition.metric,
            evidence,
            window=rule.window_of(condition),
            segment=segment,
            draft_cost_ratio=draft_cost_ratio,
        )
        readings.append((condition, _by_deciding_stretch(condition, reading)))
    # Whether the rule does not apply now: with ``any``, none of its conditions.
    moot = (any if rule.combine == "all" else all)(reading.moot for _, reading in readings)
    aside = any(held) or (rule.combine == "any" and not moot)
    holds = [
        None if evidence.stale else _holds(rule, condition, reading, latched, aside)
        for (condition, reading), latched in zip(readings, held, strict=True)
    ]
    seen = _SEEN[_combined(rule, holds)]
    verdict, pending = _decided(rule, seen, before, evidence.now, moot)
    readings = [
        (condition, _kept(condition, reading, verdict))
        if reading.stretches
        else (condition, reading)
        for condition, reading in readings
    ]
    latches = tuple(now is True or was for now, was in zip(holds, held, strict=True))
    known = 0.0 if before is None else before.known
    return Finding(
        rule=rule,
        target=target,
        model_name=model_name,
        segment=segment,
        verdict=verdict,
        seen=seen,
        since=before.since if before is not None and before.verdict is verdict else evidence.now,
        pending=pending,
        readings=tuple(readings),
        at=evidence.now,
        held=latches if verdict is Verdict.BREACH else (),
        known=known if seen is Verdict.NO_DATA else evidence.now,
    )


_SEEN = {True: Verdict.BREACH, False: Verdict.PASS, None: Verdict.NO_DATA}


def _by_deciding_stretch(condition: Condition, reading: Reading) -> Reading:
    """The reading with the deciding stretch in place of the whole window, if the stretch or the
    whole window meets the condition."""
    if not reading.stretches:
        return reading
    decides = next(filter(_certain(condition), reading.stretches), None)
    line = condition.threshold
    if decides is None or not any(
        interval is not None
        and (interval.above(line) if condition.below is None else interval.below(line))
        for interval in (decides, reading.interval)
    ):
        return reading
    note = f"of the last {decides.samples} minutes of traffic"
    return reading._replace(value=decides.value, interval=decides, note=note)


def _certain(condition: Condition) -> Callable[[Interval], bool]:
    """Whether an interval lies on one side of a condition's threshold."""
    line = condition.threshold
    return lambda interval: interval.below(line) or interval.above(line)


def _kept(condition: Condition, reading: Reading, verdict: Verdict) -> Reading:
    """The reading without the stretches that nobody looks at, which are not computed then."""
    stretches: Iterable[Interval] = reading.stretches
    if verdict is not Verdict.BREACH:
        certain = _certain(condition)
        first = next((n for n, one in enumerate(stretches) if certain(one)), len(STRETCHES))
        stretches = islice(stretches, first + 1)
    return reading._replace(stretches=tuple(stretches))


def _combined(rule: Rule, holds: Iterable[bool | None]) -> bool | None:
    """Kleene's logic: an unknown condition matters only if it could change the result."""
    verdicts = set(holds)
    decisive = rule.combine == "any"
    if decisive in verdicts:
        return decisive
    return None if None in verdicts else not decisive


def _holds(
    rule: Rule, condition: Condition, reading: Reading, latched: bool, aside: bool
) -> bool | None:
    """Whether a condition holds; None where the reading does not say.

    One that has held in a confirmed breach (``latched``) holds unless the metric is back over the
    clearing threshold, with all of its interval. A moot condition does not prolong a breach, and
    with ``any`` the other conditions decide: then it is put ``aside``.
    """
    if reading.value is None:
        return False if reading.moot and aside else None
    if reading.drafts < rule.min_drafts or reading.requests < rule.min_requests:
        return None
    sign = -1 if condition.above is None else 1
    threshold = sign * condition.threshold
    line = sign * condition.clearing if latched else threshold
    if reading.stretches:
        return _by_stretches(reading.stretches, sign, threshold, line, latched=latched)
    interval = reading.interval
    bounds = (reading.value,) * 2 if interval is None else (interval.lower, interval.upper)
    least, greatest = bounds[0], math.inf if reading.open_ended else bounds[1]
    low, high = sorted((sign * least, sign * greatest))
    beyond = reading.open_ended and interval is None
    if low > threshold or (low == threshold and beyond and sign > 0):
        return True
    if high <= line:
        return False
    if beyond:  # it may be anything greater
        return True if latched and low >= line else None
    return latched


def _by_stretches(
    stretches: Iterable[Interval], sign: int, threshold: float, line: float, *, latched: bool
) -> bool | None:
    """The answer of the shortest stretch that has one, unless the newest minutes contradict it:
    what has ended by then is not a breach."""
    lasts = sign * next(iter(stretches)).value > threshold
    for stretch in stretches:
        low, high = sorted((sign * stretch.lower, sign * stretch.upper))
        if low > threshold:
            return latched or lasts
        if high <= line:
            return False
    return latched


def _decided(
    rule: Rule, seen: Verdict, before: Finding | None, now: float, moot: bool
) -> tuple[Verdict, float | None]:
    """The confirmed verdict, and since when the present one contradicts it."""
    confirmed = Verdict.NO_DATA if before is None else before.verdict
    against, needed = Verdict.BREACH, rule.for_
    if confirmed is Verdict.BREACH:
        against, needed = Verdict.PASS, rule.clear_for
    silence = max(
        LONGEST_GAP, needed, *(rule.window_of(condition) for condition in rule.conditions)
    )
    pending = _pending(seen, against, before, now, 0.0 if moot else silence)
    if pending is not None and seen is against and now - pending >= needed:
        return against, None
    if Verdict.BREACH in (confirmed, seen):
        return confirmed, pending
    return seen, pending


def _pending(
    seen: Verdict, against: Verdict, before: Finding | None, now: float, silence: float
) -> float | None:
    """Since when ``against`` is seen, less the time without data: at most ``silence`` at once."""
    if before is None or before.pending is None or not 0 <= now - before.at <= LONGEST_GAP:
        return now if seen is against else None
    if seen is Verdict.NO_DATA:
        return before.pending + now - before.at if now - before.known <= silence else None
    return before.pending if seen is against else None
