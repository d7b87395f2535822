"""Asking a real Prometheus what a dashboard asks: variables and intervals as Grafana sets them.

https://grafana.com/docs/grafana/latest/dashboards/variables/add-template-variables/#global-variables
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.dashboards.board import Board, Query
from tests.dashboards.prometheus import PrometheusApi, Series

_LABEL_VALUES = re.compile(r"label_values\(\s*(?:(?P<selector>.+),\s*)?(?P<label>\w+)\s*\)", re.S)
_NAMED = re.compile(r"\$(?:\{([a-zA-Z_]\w*):regex\}|([a-zA-Z_]\w*))")
_SPECIAL = re.compile(r"([\\^$*+?.()|\[\]{}])")
_STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)
"""Seconds that Grafana rounds an interval to, of which it has more."""


@dataclass(frozen=True)
class Span:
    """The time range on the screen, in Unix seconds, and how often Prometheus scrapes."""

    start: float
    end: float
    scrape_interval: float = 15.0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start

    def step(self, points: int) -> float:
        """Seconds between points where so many are wanted: never less than between scrapes."""
        wanted = self.seconds / points
        rounded = min(_STEPS, key=lambda step: abs(step - wanted))
        return float(max(rounded, self.scrape_interval))

    def macros(self, points: int) -> dict[str, str]:
        """What Grafana calls by names that begin with two underscores."""
        rate = max(self.step(points) + self.scrape_interval, 4 * self.scrape_interval)
        return {"__rate_interval": f"{rate:g}s", "__range": f"{self.seconds:.0f}s"}


@dataclass(frozen=True)
class Value:
    """What a variable is set to."""

    chosen: tuple[str, ...]
    several: bool
    """Whether it can have several values, which makes a regular expression of it."""
    everything: str = ""
    """A regular expression for all values, if they are not listed."""

    def query_text(self) -> str:
        """What a query contains in place of the variable."""
        if self.everything:
            return self.everything
        if not self.several:
            return self.chosen[0] if self.chosen else ""
        escaped = [_SPECIAL.sub(r"\\\\\1", value) for value in self.chosen]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


class UnknownVariable(Exception):
    """A query names a variable that its dashboard has not."""


def substituted(text: str, values: Mapping[str, str]) -> str:
    """The text with values in place of names; :class:`UnknownVariable` for any other name."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise UnknownVariable(f"${name} in {text}")
        return _SPECIAL.sub(r"\\\\\1", values[name]) if match[1] else values[name]

    return _NAMED.sub(value, text)


@dataclass
class Asker:
    """Asks for one dashboard. ``chosen`` overrides what its variables are set to."""

    board: Board
    prometheus: PrometheusApi
    span: Span
    chosen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    values: dict[str, Value] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for variable in self.board.variables:
            self.values[variable["name"]] = self._value(variable)

    def repeated(self, name: str) -> list[Asker]:
        """One for each value of a variable, which has that value alone; itself without a name."""
        if not name:
            return [self]
        value = self.values[name]
        found = [copy.copy(self) for _ in value.chosen]
        for asker, chosen in zip(found, value.chosen, strict=True):
            alone = replace(value, chosen=(chosen,), everything="")
            asker.values = {**self.values, name: alone}
        return found

    def query_text(self, text: str, points: int = 1000) -> str:
        """A query as Prometheus gets it, for so many points across the screen."""
        values = {name: value.query_text() for name, value in self.values.items()}
        return substituted(text, values | self.span.macros(points))

    def shown_text(self, text: str) -> str:
        """Words as the screen shows them."""
        values = {name: ", ".join(value.chosen) for name, value in self.values.items()}
        return substituted(text, values | self.span.macros(1000))

    def options(self, text: str) -> list[str]:
        """What the query of a variable answers."""
        asked = self.query_text(text)
        match = _LABEL_VALUES.fullmatch(asked.strip())
        if match is None:
            raise UnknownVariable(f"{asked}: only label_values(selector, label) is understood")
        selectors = [match["selector"].strip()] if match["selector"] else []
        return self.prometheus.label_values(match["label"], selectors, self.span.start)

    def answer(self, query: Query, points: int = 1000) -> list[Series]:
        """What Prometheus says to it."""
        expr = self.query_text(query.expr, points)
        if query.instant:
            return self.prometheus.query(expr, self.span.end)
        step = self.span.step(points)
        return self.prometheus.query_range(expr, self.span.start, self.span.end, step)

    def _value(self, variable: Mapping[str, Any]) -> Value:
        several, name = bool(variable["includeAll"]), variable["name"]
        if variable["type"] != "query":
            return Value((str(variable["query"]),), several)
        options = self.options(variable["query"]["query"])
        if name in self.chosen:
            return Value(tuple(self.chosen[name]), several)
        if several:
            return Value(tuple(options), several, str(variable["allValue"]))
        first = variable["current"].get("value")
        return Value((first,) if first in options else tuple(options[:1]), several)
