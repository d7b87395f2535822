"""What a running Prometheus answers, as plain series."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tests.e2e.api import get


class QueryRefused(Exception):
    """Prometheus could not make sense of what it was asked; the text says why."""


@dataclass(frozen=True)
class Series:
    """Labels, and points of Unix seconds and values."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """Its newest value."""
        return self.points[-1][1]


class PrometheusApi:
    """The HTTP API of one that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str, at: float) -> list[Series]:
        """An instant query at a Unix time; a scalar is a series without labels."""
        found = self._ask("query", {"query": expr, "time": at})
        if found["resultType"] == "scalar":
            return [Series({}, (_point(found["result"]),))]
        return [Series(each["metric"], (_point(each["value"]),)) for each in found["result"]]

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """A range query, in Unix seconds."""
        asked = {"query": expr, "start": start, "end": end, "step": step}
        return [
            Series(each["metric"], tuple(map(_point, each["values"])))
            for each in self._ask("query_range", asked)["result"]
        ]

    def label_values(self, label: str, selectors: Sequence[str], start: float) -> list[str]:
        """The values of a label, of the series that the selectors match, since a Unix time."""
        asked = {"start": start} | ({"match[]": list(selectors)} if selectors else {})
        found: list[str] = self._ask(f"label/{label}/values", asked)
        return found

    def _ask(self, what: str, asked: Mapping[str, Any]) -> Any:
        status, body = get(f"{self.url}/api/v1/{what}?{urlencode(asked, doseq=True)}")
        if status != 200:
            raise QueryRefused(f"{asked}: {body}")
        return json.loads(body)["data"]


def _point(found: Sequence[Any]) -> tuple[float, float]:
    at, value = found
    return float(at), float(value)
