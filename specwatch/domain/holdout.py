"""The minutes of a holdout as a baseline of the other members of its group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from specwatch.domain.baseline import BaselineKey, Measurement, Origin, measured
from specwatch.domain.cost import CostModel, Observation, doubt
from specwatch.domain.counterfactual import Minute
from specwatch.domain.interval import CONFIDENCE, LEAST_SAMPLES, Interval
from specwatch.domain.model import HOUR, MINUTE, Mode
from specwatch.domain.noise import Spread, spread_of
from specwatch.domain.sample import Sample
from specwatch.domain.simultaneous import Pace

BEFORE = HOUR
"""Seconds before a holdout was switched off in which it is compared with the others."""
_UNLIKE = 0.05
"""Share by which a holdout may be slower or faster and its latencies still count."""
WARM_UP = 2 * MINUTE
"""Seconds after its restart that are left out: caches are empty."""


class Holdout(NamedTuple):
    """A member that speculated until ``began`` and serves without since ``since`` (Unix times)."""

    target: str
    began: float
    since: float


def pace_of(theirs: Iterable[Sample], own: Iterable[Sample]) -> Pace | None:
    """The pace of a holdout by the time of its steps, with ``theirs`` the minutes in which it still
    speculated, and ``own`` those of another member at that time; None for too little traffic.

    It tells a broken or slower holdout from one like the others, however many tokens are accepted.
    """
    usual = CostModel.fitted(_steps(own))
    known = [
        (step, expected)
        for step in _steps(theirs)
        if (expected := usual.predict(step.load, step.units, step.prefill, step.context))
    ]
    over = [step.seconds for step, _ in known]
    under = [expected.seconds for _, expected in known]
    spread = spread_of(over, under) if len(known) >= LEAST_SAMPLES else None
    if spread is None:
        return None
    variance = spread.variance + doubt((e, e.seconds) for _, e in known).variance
    half = Spread(variance, spread.freedom).half_width((1 - CONFIDENCE) / 2)
    value = math.fsum(over) / math.fsum(under)
    return Pace(Interval.around(value, half, len(known)), variance)


def as_baseline(
    target: str, model_name: str, holdout: str, minutes: Sequence[Sample], pace: Pace | None
) -> list[Measurement]:
    """Minutes of a holdout as a baseline of another target, one for each environment and load.

    A holdout that is known to be slower or faster counts as if it were as fast as the target; its
    latencies, which cannot be corrected, are left out then.
    """
    environments = {minute.environment: None for minute in minutes if minute.mode is Mode.OFF}
    factor = 1.0 if pace is None else 1 / pace.ratio.value
    like = abs(factor - 1) < _UNLIKE
    return [
        replace(
            measurement,
            points=tuple(
                point._replace(
                    seconds=factor * point.seconds, first_seconds=factor * point.first_seconds
                )
                for point in measurement.points
            ),
            holdout=holdout,
            pace=pace,
            ttft=measurement.ttft if like else None,
            tpot=measurement.tpot if like else None,
        )
        for environment in environments
        for measurement in measured(
            BaselineKey(target, model_name, environment.engine_version, environment.configuration),
            Origin.HOLDOUT,
            (minute for minute in minutes if minute.environment == environment),
        )
    ]


def _steps(samples: Iterable[Sample]) -> list[Observation]:
    minutes = (minute for sample in samples if (minute := Minute.of(sample)) is not None)
    return [step for minute in minutes if (step := minute.stepping()) is not None]
