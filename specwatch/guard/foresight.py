"""Speedups that the guard needs beside the verdicts: of a trial, of what was, of what would be.

All take minutes of one model, as the store has them; time is of the minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from specwatch.core.baseline import Baseline, BaselineKey, Origin, choose, measured
from specwatch.core.interval import Interval
from specwatch.core.sample import Sample
from specwatch.model import HOUR, MINUTE, Environment

PRESENT = 15 * MINUTE
"""Seconds without speculation that a prediction is for."""
PAST = 6 * HOUR
"""Seconds before the switch that are remembered of speculation."""
WARM_UP = 2 * MINUTE
"""Seconds after a restart that say nothing: caches are empty."""
_QUIET = 0.1
"""Share of the mean traffic of a day below which an hour is quiet."""
_DAY = 24 * HOUR


def trial_speedup(
    minutes: Sequence[Sample], baseline: Baseline, *, since: float, now: float
) -> Interval | None:
    """The speedup over the second half of a trial: right after a restart nothing is as usual."""
    from specwatch.core.breakeven import speedup_of

    half = since + (now - since) / 2
    return speedup_of([each for each in minutes if each.start >= half], baseline)


def undone_speedup(
    minutes: Sequence[Sample], *, switched: float, target: str, model_name: str
) -> Interval | None:
    """How much faster serving was before speculation went off, at equal load."""
    from specwatch.core.breakeven import speedup_of

    before = [each for each in minutes if each.start < switched]
    since = [each for each in minutes if each.start >= switched + WARM_UP]
    if not before or not since:
        return None
    environment = since[-1].environment
    key = BaselineKey(target, model_name, environment.engine_version, environment.configuration)
    found = measured(key, Origin.WINDOWS, since)
    baseline = choose(found, Environment(), now=float(since[-1].start))
    return speedup_of(before, baseline)


def predicted_speedup(
    past: Sequence[Sample], present: Sequence[Sample], baseline: Baseline
) -> Interval | None:
    """What speculation would do now; ``past`` are minutes from before it went off."""
    from specwatch.core.prediction import Experience, Remembered

    remembered = Remembered()
    for each in past:
        remembered.add(each)
    return Experience.of(remembered.samples, baseline).speedup(present)


def quiet_in(hours: Sequence[Sample], now: float) -> float | None:
    """Seconds until traffic rests, if it goes as it did a day before; None where it never does.

    ``hours`` are those of the last day.
    """
    tokens: dict[int, float] = {}
    for each in hours:
        tokens[each.start] = tokens.get(each.start, 0.0) + (each.tally.generation_tokens or 0)
    if len(tokens) < _DAY // HOUR - 1:
        return None
    line = _QUIET * sum(tokens.values()) / len(tokens)
    for start in sorted(tokens):
        at = start + _DAY
        if at > now and tokens[start] < line:
            return at - now
    return None
