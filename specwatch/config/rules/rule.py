"""A rule, as a file writes it and as fields: its conditions, and what it applies to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from specwatch.config.rules.metrics import MEASURES, Measure
from specwatch.config.sections import (
    Duration,
    Limit,
    Name,
    Section,
    errors_at,
    moved,
    nearest,
    not_empty,
    within,
)
from specwatch.config.yaml_file import KeyPath
from specwatch.domain.model import ALL, TEMPERATURE, Segment
from specwatch.domain.units import format_amount, format_duration, parse_amount, quoted
from specwatch_tap.segment_kinds import UNKNOWN, checked_kinds

POSITIVE = "positive"
"""The value of a scope that means each temperature bucket above 0."""
Severity = Literal["critical", "warning", "info"]
Action = Literal["alert", "disable"]

_INLINE = ("metric", "above", "below", "clear")


def _whole_minutes(value: float) -> float:
    """Seconds unchanged; refuses anything but 1m to 24h in whole minutes."""
    if not 60 <= value <= 86400 or value % 60:
        raise ValueError(f"{format_duration(value)} is not 1m to 24h in whole minutes")
    return value


MetricWindow = Annotated[Duration, AfterValidator(_whole_minutes)]
"""Period that a metric is read over."""


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
    window: MetricWindow | None = None
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

    def met_by(self, value: float) -> bool:
        """Whether a value is beyond the threshold."""
        return value < self.threshold if self.above is None else value > self.threshold

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


class Scope(Section):
    """What a rule applies to; `*` and `?` are wildcards in names."""

    target: str = "*"
    """Names of targets."""
    model_name: str = "*"
    """Names of models."""
    dimension: str = ALL.dimension
    """What requests are grouped by, each group judged by itself: `temperature`, or one of the
    [segments](../tap.md#segments) of the tap. Default: all requests together."""
    value: str = "*"
    """Values of the dimension, such as `(0,0.3]` or `tool_call`; `*` and `?` are wildcards.
    `positive` stands for each temperature bucket above 0, and only `unknown` for requests of which
    the value is not known."""

    @field_validator("value", mode="before")
    @classmethod
    def _label_of_a_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return repr(float(value)).removesuffix(".0")
        return value

    @field_validator("dimension")
    @classmethod
    def _known_dimension(cls, dimension: str) -> str:
        if dimension not in (ALL.dimension, TEMPERATURE):
            try:
                checked_kinds([dimension])
            except ValueError as error:
                raise ValueError(f"{error}, {TEMPERATURE} or {ALL.dimension}") from None
        return dimension

    @model_validator(mode="after")
    def _value_of_a_dimension(self) -> Self:
        if self.value != "*" and self.dimension == ALL.dimension:
            raise errors_at({("value",): "has no effect without a dimension; give one"})
        return self

    def takes_in(self, target: str, model_name: str | None = None) -> bool:
        """Whether it applies to a target, and to a model of it if one is given."""
        return fits(self.target, target) and (
            model_name is None or fits(self.model_name, model_name)
        )

    def segments(self, known: Iterable[Segment]) -> list[Segment]:
        """What to judge, each by itself, of the segments that there are."""
        inside = [one for one in known if one.dimension == self.dimension]
        if (self.dimension, self.value) == (TEMPERATURE, POSITIVE):
            return [one for one in inside if one.value.startswith(("(", ">"))]
        named = self.value == UNKNOWN
        return [e for e in inside if fits(self.value, e.value) and (named or e.value != UNKNOWN)]


@lru_cache(maxsize=4096)
def fits(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern; brackets are literal: IPv6 addresses have them."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name, re.DOTALL) is not None


class Rule(Section):
    """A rule: conditions over a window, how long they must hold, and what happens then.

    The conditions are a list under `all` or `any`; one alone may stand in the rule itself
    (`metric`, `above`, `below`, `clear`). With too little traffic the verdict is `no_data`,
    which neither fires nor clears.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: Name = Field(examples=["slow-start"])
    """Name of the rule."""
    summary: str = ""
    """What it means, for alerts and reports."""
    conditions: Annotated[tuple[Condition, ...], not_empty("list at least one condition")]
    """The conditions: all of them must hold, or any."""
    combine: Literal["all", "any"] = "all"
    window: MetricWindow = 600.0
    """Period that the metrics are read over; 1m to 24h in whole minutes."""
    for_: Annotated[Duration, within(0, 7 * 86400)] = Field(default=300.0, alias="for")
    """How long the conditions must hold before it fires; at most 7d."""
    clear_for: Annotated[Duration, within(0, 7 * 86400)] = 300.0
    """How long they must have ended before it clears; at most 7d."""
    min_drafts: Limit = 0
    """Least drafts in the window."""
    min_requests: Limit = 0
    """Least requests in the window."""
    scope: Scope = Scope()
    """Which targets, models and segments it applies to."""
    severity: Severity = "warning"
    """Severity of its alerts."""
    action: Action = "alert"
    """`disable` asks the guard to switch speculation off; `alert` only alerts."""

    @classmethod
    def written_keys(cls) -> Mapping[str, FieldInfo]:
        """The fields by what a file calls them."""
        keys = dict(super().written_keys())
        conditions = keys.pop("conditions")
        del keys["combine"]
        inline = {key: Condition.model_fields[key] for key in _INLINE}
        return {**keys, **inline, "all": conditions, "any": conditions}

    @model_validator(mode="wrap")
    @classmethod
    def _from_a_file(
        cls, value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Self:
        if not isinstance(value, dict):
            rule: Self = handler(value)
            return rule
        in_code = info.context is None and "conditions" in value
        written = _Written(value, ("conditions",), inline=False) if in_code else _written(value)
        try:
            rule = handler(written.data)
            problems = dict(_at_odds(rule)) or dict(_not_by_dimension(rule))
            if problems:
                raise errors_at(problems)
        except ValidationError as error:
            raise moved(error, written.place) from None
        return rule

    def window_of(self, condition: Condition) -> float:
        """Seconds over which one of its conditions is read."""
        return self.window if condition.window is None else condition.window

    @model_serializer(mode="wrap")
    def _as_written(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if info.mode == "json":
            data = {"for" if key == "for_" else key: value for key, value in data.items()}
            data[data.pop("combine")] = data.pop("conditions")
        return data


class _Written(NamedTuple):
    """A rule as a file has it, as the fields that it is."""

    data: dict[str, Any]
    at: KeyPath
    """Path of its conditions."""
    inline: bool

    def place(self, path: KeyPath) -> KeyPath:
        """The path in the file of a path in the fields."""
        if path[:1] != ("conditions",):
            return path
        return (*self.at, *path[2 if self.inline else 1 :])


def _written(value: Mapping[str, Any]) -> _Written:
    unwritable = [key for key in ("conditions", "combine") if key in value]
    if unwritable:
        raise errors_at(
            {(key,): "unknown key; list conditions under all or any" for key in unwritable}
        )
    lists = [key for key in ("all", "any") if key in value]
    inline = {key: value[key] for key in _INLINE if key in value}
    ways = [*lists, *list(inline)[:1]]
    if not ways:
        raise ValueError("has no condition; give metric and above or below, or a list under all")
    if len(ways) > 1:
        raise ValueError(f"has {ways[0]} and {ways[1]}; keep one of them, or make it two rules")
    data = {key: entry for key, entry in value.items() if key not in (*inline, *lists)}
    if inline:
        return _Written({**data, "conditions": [inline]}, (), inline=True)
    (key,) = lists
    return _Written({**data, "conditions": value[key], "combine": key}, (key,), inline=False)


def _at_odds(rule: Rule) -> Iterator[tuple[KeyPath, str]]:
    """Where conditions of a rule exclude one another, or leave nothing between them."""
    for index, second in enumerate(rule.conditions):
        for first in rule.conditions[:index]:
            problem = _conflict(rule, first, second)
            if problem is not None:
                yield ("conditions", index), problem


def _conflict(rule: Rule, first: Condition, second: Condition) -> str | None:
    """Why a rule can never fire, or never clear, with two of its conditions."""
    metric, together = first.metric, rule.combine == "all"
    measures = [MEASURES[condition.metric] for condition in (first, second)]
    if together and any(measure.needs_baseline for measure in measures):
        for measure in measures:
            if measure.instead_of:
                why = f"{measure.name} is there only without a baseline"
                return f"can never fire beside the others: {why}; use {measure.instead_of}"
    opposed = metric == second.metric and (first.above is None) != (second.above is None)
    if not opposed or rule.window_of(first) != rule.window_of(second):
        return None
    above, below = (second, first) if first.above is None else (first, second)
    if together and above.threshold >= below.threshold:
        return f"can never fire: {metric} is not above the one and below the other; use any"
    # An interval may lie across both.
    if not together and not measures[0].has_interval and above.clearing < below.clearing:
        why = f"{metric} is always above the one or below the other"
        return f"can never clear: {why}; leave room between them"
    return None


def _not_by_dimension(rule: Rule) -> Iterator[tuple[KeyPath, str]]:
    by = rule.scope.dimension
    for condition in rule.conditions:
        if not MEASURES[condition.metric].known_of(by):
            problem = f"{condition.metric} is not known by {by}; use all, or another metric"
            yield ("scope", "dimension"), problem
