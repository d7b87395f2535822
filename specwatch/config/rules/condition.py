"""One comparison of a rule, which can both fire and clear."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection
from typing import Any, Self

from pydantic import (
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from specwatch.config.rules.metrics import MEASURES, Measure
from specwatch.config.sections import Duration, Section, errors_at
from specwatch.config.yaml_file import KeyPath
from specwatch.domain.units import format_amount, format_duration, parse_amount, quoted


class Condition(Section):
    """One comparison.

    A metric with an interval is beyond a threshold only where the whole interval is.
    """

    metric: str = Field(examples=["acceptance_ratio"])
    """Name of a [metric](rules.md#metrics)."""
    above: float | None = None
    """Holds above this value, in the metric's unit. Give this or `below`."""
    below: float | None = None
    """Holds below this value."""
    clear: float | None = None
    """Value that the metric must come back to before the breach ends. Default: the
    threshold."""
    window: Duration | None = None
    """Period that the metric is read over. Default: that of the rule."""

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        if value not in MEASURES:
            raise ValueError(f"{quoted(value)} is not a metric; {nearest(value, MEASURES)}")
        return value

    @field_validator("above", "below", "clear", mode="before")
    @classmethod
    def _in_its_unit(cls, value: object, info: ValidationInfo) -> float | None:
        metric = info.data.get("metric")
        if value is None or metric is None:  # the metric's own problem is reported
            return None
        return parse_amount(value, MEASURES[metric].unit)

    @field_validator("window")
    @classmethod
    def _sane_window(cls, value: float | None) -> float | None:
        return None if value is None else whole_minutes(value)

    @model_validator(mode="after")
    def _can_fire_and_clear(self) -> Self:
        if (self.above is None) == (self.below is None):
            if self.above is None:
                raise ValueError("has neither above nor below; give one of them")
            raise ValueError("has above and below; keep one, or list two conditions under all")
        problem = _never(self, MEASURES[self.metric])
        if problem is not None:
            raise errors_at(problem)
        return self

    @property
    def threshold(self) -> float:
        """The value that the metric has to be above, or below, to fire."""
        threshold = self.below if self.above is None else self.above
        if threshold is None:
            raise AssertionError("a condition has a threshold")
        return threshold

    @property
    def clearing(self) -> float:
        """The value that the metric has to come back to, to clear."""
        return self.threshold if self.clear is None else self.clear

    @model_serializer(mode="wrap")
    def _as_written(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if info.mode != "json":
            return data
        unit = MEASURES[self.metric].unit
        for key in ("above", "below", "clear"):
            if data.get(key) is not None:
                data[key] = format_amount(data[key], unit)
        return {key: value for key, value in data.items() if value is not None}


def whole_minutes(value: float) -> float:
    """Seconds unchanged; refuses anything but 1m to 24h in whole minutes."""
    if not 60 <= value <= 86400 or value % 60:
        raise ValueError(f"{format_duration(value)} is not 1m to 24h in whole minutes")
    return value


def nearest(value: str, known: Collection[str]) -> str:
    """The end of a message about an unknown name."""
    near = difflib.get_close_matches(value, known, n=1)
    return f"did you mean {quoted(near[0])}?" if near else f"known here: {', '.join(known)}"


def _never(condition: Condition, measure: Measure) -> dict[KeyPath, str] | None:
    """Why a condition can never fire or never clear, by place; None where it can do both."""
    key = "below" if condition.above is None else "above"
    low, high, sign = measure.lowest, measure.highest, 1
    if key == "below":
        low, high, sign = -high, -low, -1
    fires, clears = sign * condition.threshold, sign * condition.clearing
    other, beyond = ("less", "more") if key == "above" else ("more", "less")
    if fires >= high:
        why, end = _bound(measure, sign)
        return {(key,): f"can never fire: {why}; give {other} than {end}"}
    why, end = _bound(measure, -sign)
    if fires < low:
        return {(key,): f"can never clear: {why}, so it always holds; give {end} or {beyond}"}
    if clears > fires:
        given = format_amount(condition.threshold, measure.unit)
        problem = f"lies on the wrong side of {key}: {given}"
        return {("clear",): f"{problem}; give {given} or {other}"}
    if clears < low:
        return {("clear",): f"can never be reached: {why}; give {end} or {beyond}"}
    return None


def _bound(measure: Measure, sign: int) -> tuple[str, str | float]:
    """What a metric cannot pass upward (``sign`` 1) or downward (-1), as a sentence and alone."""
    words, bound = ("most", measure.highest) if sign > 0 else ("least", measure.lowest)
    if math.isinf(bound):
        return f"{measure.name} has no bound", ""
    amount = format_amount(bound, measure.unit)
    return f"{measure.name} is at {words} {amount}", amount
