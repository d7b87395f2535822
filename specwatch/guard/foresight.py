"""Speedups that the guard needs beside the verdicts: of a trial, before a switch, and predicted.

All functions take stored minutes of one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from specwatch.domain.baseline import Baseline
from specwatch.domain.interval import LEAST_SAMPLES, Interval
from specwatch.domain.model import HOUR, MINUTE, Mode, Objective
from specwatch.domain.prediction import Experience, RememberedMinutes
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import Comparison

PRESENT = 15 * MINUTE
"""Seconds without speculation that a prediction is for."""
PAST = 24 * HOUR
"""Seconds before the switch whose minutes with speculation a prediction rests on: at night what
the night before was like."""
WARM_UP = 2 * MINUTE
"""Seconds after a restart that are left out: caches are empty."""
VERIFIABLE = WARM_UP + (LEAST_SAMPLES + 1) * MINUTE
"""Seconds after a restart until there can be enough whole minutes for a verification."""
_QUIET = 0.1
"""Share of the mean traffic of a day below which an hour is quiet."""
_DAY = 24 * HOUR
_ALIKE = 1.5
"""Factor by which the tokens per second of similar minutes may differ."""
_BREACH = 10 * MINUTE
"""Seconds before the switch that count as in breach if there is no decisive stretch."""


class Trial(NamedTuple):
    """The speedup of a trial so far; ``certain`` is valid even if it is read every minute."""

    speedup: Interval
    certain: Interval | None = None


class Verification(NamedTuple):
    """A measurement, without speculation, of whether switching it off was right.

    ``before`` is the speedup that was measured against the baseline as it was then, ``slowdown``
    the time now over that of this baseline at the same conditions, ``speedup`` the one corrected
    by the other: above 1, serving was faster with speculation.
    """

    before: float
    slowdown: float
    speedup: Interval


def trial_speedup(
    minutes: Sequence[Sample], baseline: Baseline, *, since: float, now: float, objective: Objective
) -> Trial | None:
    """The speedup of a trial that began at ``since``, after the first minutes of warm-up."""
    warm = [minute for minute in minutes if minute.start >= since + WARM_UP]
    compared = Comparison(warm, baseline, objective=objective)
    interval = compared.interval()
    if interval is None:
        return None
    stretches = compared.stretches(now)
    certain = (
        stretch for stretch in reversed(stretches) if stretch.below(1.0) or stretch.above(1.0)
    )
    return Trial(interval, next(certain, None))


def verified(
    minutes: Sequence[Sample],
    baseline: Baseline,
    *,
    switched: float,
    since: float,
    objective: Objective,
    mode: Mode = Mode.OFF,
) -> Verification | None:
    """Whether switching speculation off at ``switched`` was right, from the minutes after ``since``
    without it; None for too little traffic, or conditions that the baseline does not cover.

    With the ``mode`` standby its speedup is that of speculation over standby.
    """
    known = baseline.before(switched)
    # Standby comes without a restart, so with warm caches; the minute of the switch is mixed.
    warm_up = 0 if mode is Mode.STANDBY else WARM_UP
    off = Comparison(
        [minute for minute in minutes if minute.start >= since + warm_up],
        known,
        objective=objective,
        mode=mode,
    )
    on = _in_breach(minutes, known, switched, objective)
    if off.missing is not None or on.missing is not None:
        return None
    speedup = on.corrected_by(off)
    overstated, before = off.interval(), on.interval()
    if speedup is None or overstated is None or before is None:
        return None
    return Verification(before.value, 1 / overstated.value, speedup)


def explored(
    minutes: Sequence[Sample], baseline: Baseline, *, switched: float, objective: Objective
) -> Verification | None:
    """The speedup in the hour before ``switched``, by a baseline that includes the time without
    speculation since; None for too little traffic."""
    alike = _alike_before(minutes, switched)
    now = Comparison(alike, baseline, objective=objective).interval()
    earlier = Comparison(alike, baseline.before(switched), objective=objective).interval()
    if now is None:
        return None
    value = now.value if earlier is None else earlier.value
    return Verification(value, now.value / value, now)


def _alike_before(minutes: Sequence[Sample], switched: float) -> list[Sample]:
    """Minutes with speculation before the switch, of the last environment."""
    before = [minute for minute in minutes if minute.start < switched and minute.mode is Mode.ON]
    return [sample for sample in before if sample.environment == before[-1].environment]


def _in_breach(
    minutes: Sequence[Sample], baseline: Baseline, switched: float, objective: Objective
) -> Comparison:
    """The minutes that the decision rested on: of the last environment, in the decisive stretch.

    An hour before a sudden loss is mostly the good time.
    """
    alike = _alike_before(minutes, switched)
    past = [sample for sample in alike if sample.start >= switched - HOUR]
    compared = Comparison(past, baseline, objective=objective)
    end = max((sample.start + sample.length for sample in past), default=0)
    losing = next((e.samples for e in compared.stretches(end) if e.below(1.0)), None)
    if losing is None or losing > len(compared.known):
        return compared.since(switched - _BREACH)
    return compared.since(compared.known[-losing].sample.start)


def predicted_speedup(
    past: Sequence[Sample], present: Sequence[Sample], baseline: Baseline, objective: Objective
) -> Interval | None:
    """The speedup that speculation would have now; ``past`` are minutes before it was switched off.

    The time per token is predicted. The ratio of the objective to it is taken from past minutes
    with about as much traffic as now; it includes the prompts, which the draft reads too.
    """
    remembered = RememberedMinutes()
    for sample in past:
        remembered.add(sample)
    expected = Experience.of(remembered.samples, baseline).speedup(present)
    if expected is None:
        return None
    now = _tokens_per_second(present)
    alike = [e for e in past if now / _ALIKE <= _tokens_per_second([e]) <= now * _ALIKE]
    compared = Comparison(alike or past, baseline, objective=objective)
    whole, per_token = compared.interval(), compared.of(Objective.TPOT)
    if whole is None or per_token is None:
        return expected
    factor = whole.value / per_token.value
    return replace(
        expected,
        value=expected.value * factor,
        lower=expected.lower * factor,
        upper=expected.upper * factor,
    )


def _tokens_per_second(minutes: Sequence[Sample]) -> float:
    tokens = sum(minute.tally.generation_tokens or 0 for minute in minutes)
    return tokens / (sum(minute.length for minute in minutes) or 1)


def quiet_in(hours: Sequence[Sample], now: float) -> float | None:
    """Seconds until traffic is low, if today is like yesterday; None if it never is.

    ``hours`` are those of the last day.
    """
    tokens: dict[int, float] = {}
    for hour in hours:
        tokens[hour.start] = tokens.get(hour.start, 0.0) + (hour.tally.generation_tokens or 0)
    if len(tokens) < _DAY // HOUR - 1:
        return None
    line = _QUIET * sum(tokens.values()) / len(tokens)
    for start in sorted(tokens):
        time = start + _DAY
        if time > now and tokens[start] < line:
            return time - now
    return None
