"""Asking a real Prometheus what a dashboard asks: variables and intervals as Grafana sets them.

https://grafana.com/docs/grafana/latest/dashboards/variables/add-template-variables/#global-variables
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.dashboards.board import Board, Query, query_text
from tests.dashboards.prometheus import PrometheusApi, Series

ALL = "$__all"
_LABEL_VALUES = re.compile(r"label_values\(\s*(?:(?P<selector>.+),\s*)?(?P<label>\w+)\s*\)", re.S)
_NAMED = re.compile(r"\$(?P<plain>\w+)|\$\{(?P<braced>\w+)(?::(?P<format>\w+))?\}")
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
        step = self.step(points)
        rate = max(step + self.scrape_interval, 4 * self.scrape_interval)
        return {
            "__interval": f"{step:g}s",
            "__interval_ms": f"{step * 1000:.0f}",
            "__rate_interval": f"{rate:g}s",
            "__range": f"{self.seconds:.0f}s",
            "__range_s": f"{self.seconds:.0f}",
            "__range_ms": f"{self.seconds * 1000:.0f}",
        }


@dataclass(frozen=True)
class Value:
    """What a variable is set to. ``options`` are all that it could be."""

    options: tuple[str, ...]
    chosen: tuple[str, ...]
    several: bool
    """Whether it can have several values, which makes a regular expression of it."""
    everything: str = ""
    """What stands for all of them, where it is no list."""

    def text(self, kind: str | None = None) -> str:
        """As it stands in a query."""
        if kind == "text":
            return ", ".join(self.chosen)
        if self.everything:
            return self.everything
        if kind == "raw" or not self.several:
            return self.chosen[0] if self.chosen else ""
        escaped = [_SPECIAL.sub(r"\\\\\1", each) for each in self.chosen]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


class UnknownVariable(Exception):
    """A query names a variable that its dashboard has not."""


def substituted(
    text: str, values: Mapping[str, Value], macros: Mapping[str, str], kind: str | None = None
) -> str:
    """The text with values in place of names; :class:`UnknownVariable` where there is none.

    ``kind`` is how values are written where the text does not say it itself.
    """

    def value(match: re.Match[str]) -> str:
        name = match["plain"] or match["braced"]
        if name in macros:
            return macros[name]
        if name not in values:
            raise UnknownVariable(f"${name} in {text}")
        return values[name].text(match["format"] or kind)

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
        for asker, each in zip(found, value.chosen, strict=True):
            alone = replace(value, chosen=(each,), everything="")
            asker.values = {**self.values, name: alone}
        return found

    def options(self, text: str) -> list[str]:
        """What the query of a variable answers."""
        asked = substituted(text, self.values, self.span.macros(1000))
        match = _LABEL_VALUES.fullmatch(asked.strip())
        if match is None:
            raise UnknownVariable(f"{asked}: only label_values(selector, label) is understood")
        selectors = [match["selector"].strip()] if match["selector"] else []
        return self.prometheus.label_values(match["label"], selectors, self.span.start)

    def expr(self, query: Query, points: int = 1000) -> str:
        """The query as Prometheus gets it."""
        return substituted(query.expr, self.values, self.span.macros(points))

    def answer(self, query: Query, points: int = 1000) -> list[Series]:
        """What Prometheus says to it."""
        expr = self.expr(query, points)
        if query.instant:
            return self.prometheus.query(expr, self.span.end)
        step = self.span.step(points)
        return self.prometheus.query_range(expr, self.span.start, self.span.end, step)

    def _value(self, variable: Mapping[str, Any]) -> Value:
        several = bool(variable.get("multi") or variable.get("includeAll"))
        if variable["type"] != "query":
            current = (variable.get("current") or {}).get("value") or variable.get("query") or ""
            return Value((str(current),), (str(current),), several)
        options = tuple(self._sifted(variable, self.options(query_text(dict(variable)))))
        if variable["name"] in self.chosen:
            return Value(options, tuple(self.chosen[variable["name"]]), several)
        if variable.get("includeAll") and _is_all(variable.get("current") or {}):
            return Value(options, options, several, str(variable.get("allValue") or ""))
        return Value(options, options[:1], several)

    def _sifted(self, variable: Mapping[str, Any], options: Sequence[str]) -> list[str]:
        pattern = str(variable.get("regex") or "").strip("/")
        return [option for option in options if not pattern or re.search(pattern, option)]


def _is_all(current: Mapping[str, Any]) -> bool:
    return not current or current.get("value") in (ALL, [ALL], None, [], "")
