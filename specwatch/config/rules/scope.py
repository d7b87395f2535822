"""Whom a rule is for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import field_validator

from specwatch.config.sections import Section
from specwatch.domain.model import ALL_TEMPERATURES, UNKNOWN_TEMPERATURE

EACH_TEMPERATURE = "each"
POSITIVE_TEMPERATURES = "positive"
NOT_BUCKETS = (
    ALL_TEMPERATURES, EACH_TEMPERATURE, POSITIVE_TEMPERATURES, UNKNOWN_TEMPERATURE,
)  # fmt: skip
"""What the temperature of a scope may be beside the label of a bucket."""


class Scope(Section):
    """What a rule applies to; `*` and `?` are wildcards in names."""

    target: str = "*"
    """Names of targets."""
    model_name: str = "*"
    """Names of models."""
    temperature: str = ALL_TEMPERATURES
    """Label of a bucket, `all` for all together, `each` for each bucket by itself,
    `positive` for each bucket above 0 by itself, or `unknown`."""

    @field_validator("temperature", mode="before")
    @classmethod
    def _label_of_a_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return repr(float(value)).removesuffix(".0")
        return value

    def takes_in(self, target: str, model_name: str | None = None) -> bool:
        """Whether it is for that model of that target; of any model where none is named."""
        return fits(self.target, target) and (
            model_name is None or fits(self.model_name, model_name)
        )

    def temperatures(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Those of the buckets ``labels`` that are judged, each by itself; ``all`` is one more."""
        if self.temperature == ALL_TEMPERATURES:
            return (ALL_TEMPERATURES,)
        if self.temperature not in (EACH_TEMPERATURE, POSITIVE_TEMPERATURES):
            return tuple(label for label in labels if label == self.temperature)
        buckets = [label for label in labels if label not in NOT_BUCKETS]
        if self.temperature == POSITIVE_TEMPERATURES:
            buckets = [label for label in buckets if label.startswith(("(", ">"))]
        return tuple(buckets)


def fits(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern; brackets are literal: IPv6 addresses have them."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, name, re.DOTALL) is not None
