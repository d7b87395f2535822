"""The sections ``rules`` and ``slos``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, field_validator

from specwatch.config.rules.defaults import DEFAULT_RULES
from specwatch.config.rules.rule import (
    POSITIVE,
    Action,
    Condition,
    Rule,
    Scope,
    Severity,
    fits,
)
from specwatch.config.sections import (
    Duration,
    Name,
    Ratio,
    Section,
    errors_at,
    nearest,
    unlike_names,
)
from specwatch.config.yaml_file import KeyPath
from specwatch.domain.model import TEMPERATURE
from specwatch.domain.units import format_amount, format_duration, parse_duration, quoted
from specwatch_tap.segment_kinds import OUTPUT, PROMPT_LENGTH, PROMPT_LENGTHS, STREAM, UNKNOWN

__all__ = [
    "DEFAULT_RULES",
    "Action",
    "Condition",
    "Rule",
    "Rules",
    "Scope",
    "Severity",
    "Slo",
    "out_of_place",
]


_SEGMENTS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    PROMPT_LENGTH: ("a class of prompt lengths", PROMPT_LENGTHS, ("2049-16384",)),
    STREAM: ("a value of stream", ("yes", "no"), ()),
    OUTPUT: ("a value of output", ("tool_call", "schema", "reasoning", "text"), ()),
}
"""By kind of segment with few values, how to call one, these, and those of earlier taps."""


class Rules(Section):
    """Which rules apply."""

    use_defaults: bool = True
    """Whether the default rules apply."""
    without: tuple[str, ...] = ()
    """Names of default rules that do not apply."""
    extra: Annotated[tuple[Rule, ...], unlike_names("rules.extra")] = ()
    """Additional rules; one with the name of a default rule replaces it."""

    @field_validator("without")
    @classmethod
    def _known_defaults(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("use_defaults") is False:
            raise ValueError("has no effect beside use_defaults: false; remove one of them")
        names = [rule.name for rule in DEFAULT_RULES]
        unknown: dict[KeyPath, str] = {
            (index,): f"{quoted(name)} is not a default rule; {nearest(name, names)}"
            for index, name in enumerate(value)
            if name not in names
        }
        if unknown:
            raise errors_at(unknown)
        return value

    def effective(self, *, act_on_assumptions: bool = False) -> tuple[Rule, ...]:
        """All rules that apply: the defaults, replaced by those of the same name in ``extra``.

        With ``act_on_assumptions`` (see :class:`specwatch.config.guard.Guard`) the default rule
        ``low-acceptance`` disables.
        """
        defaults = DEFAULT_RULES if self.use_defaults else ()
        rules = {rule.name: rule for rule in defaults if rule.name not in self.without}
        if act_on_assumptions and "low-acceptance" in rules:
            low = rules["low-acceptance"]
            rules[low.name] = low.model_copy(update={"action": "disable"})
        rules.update({rule.name: rule for rule in self.extra})
        return tuple(rules.values())


def out_of_place(
    rules: Rules, targets: Collection[str], labels: Collection[str]
) -> dict[KeyPath, str]:
    """What is wrong with the scopes of rules, by place: targets are names, labels are buckets."""
    problems: dict[KeyPath, str] = {}
    temperatures = (*labels, POSITIVE) if labels else ()
    for index, rule in enumerate(rules.extra):
        path: KeyPath = ("extra", index, "scope")
        pattern = rule.scope.target
        value = rule.scope.value
        if targets and not any(fits(pattern, name) for name in targets):
            problems[(*path, "target")] = (
                f"{quoted(pattern)} fits no target; {nearest(pattern, targets)}"
            )
        dimension = rule.scope.dimension
        what, known, former = (
            ("a temperature bucket", temperatures, ())
            if dimension == TEMPERATURE
            else _SEGMENTS.get(dimension, ("", (), ()))
        )
        if known and not any(fits(value, label) for label in (*known, *former, UNKNOWN)):
            problems[(*path, "value")] = (
                f"{quoted(value)} is not {what}; use one of {', '.join((*known, UNKNOWN))}"
            )
    return problems


class Slo(Section):
    """A latency objective: this share of the requests takes at most this long."""

    name: Name = Field(examples=["first-token"])
    """Name of the objective; unique."""
    metric: Literal["ttft", "tpot", "e2e"] = Field(examples=["ttft"])
    """What is limited: time to first token, time per output token, or the whole request."""
    threshold: Annotated[
        float,
        BeforeValidator(partial(parse_duration, unit="ms")),
        PlainSerializer(partial(format_amount, unit="seconds"), when_used="json"),
    ] = Field(examples=["500ms"])
    """The longest that a good request takes."""
    objective: Ratio = Field(examples=["99%"])
    """Share of the requests that must be good; between 0 and 1."""
    window: Duration = 30 * 86400.0
    """Period of the error budget; 1h to 30d in whole hours."""

    @field_validator("threshold")
    @classmethod
    def _positive(cls, value: float) -> float:
        if not value:
            raise ValueError("is 0s; make it more than 0s")
        return value

    @field_validator("objective")
    @classmethod
    def _share(cls, value: float) -> float:
        if not 0 < value < 1:
            raise ValueError(f"{value:g} is not between 0 and 1; write it like 99% or 0.99")
        return value

    @field_validator("window")
    @classmethod
    def _whole_hours(cls, value: float) -> float:
        if not 3600 <= value <= 30 * 86400 or value % 3600:
            raise ValueError(f"{format_duration(value)} is not 1h to 30d in whole hours")
        return value
