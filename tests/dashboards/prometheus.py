"""What a running Prometheus answers, as plain series."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tests.lab.http_get import get


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

    def query(self, expr: str, at: float | None = None) -> list[Series]:
        """An instant query, at a Unix time or now; a scalar is a series without labels."""
        answer = self.ask("query", {"query": expr} | ({} if at is None else {"time": at}))
        if answer["resultType"] == "scalar":
            return [Series({}, (_point(answer["result"]),))]
        return [Series(found["metric"], (_point(found["value"]),)) for found in answer["result"]]

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """A range query, in Unix seconds."""
        asked = {"query": expr, "start": start, "end": end, "step": step}
        return [
            Series(result["metric"], tuple(map(_point, result["values"])))
            for result in self.ask("query_range", asked)["result"]
        ]

    def label_values(self, label: str, selectors: Sequence[str], start: float) -> list[str]:
        """The values of a label, of the series that the selectors match, since a Unix time."""
        asked = {"start": start} | ({"match[]": list(selectors)} if selectors else {})
        found: list[str] = self.ask(f"label/{label}/values", asked)
        return found

    def ask(self, what: str, asked: Mapping[str, Any]) -> Any:
        """The data of an answer, by the last part of its path; :class:`QueryRefused`."""
        status, body = get(f"{self.url}/api/v1/{what}?{urlencode(asked, doseq=True)}")
        if status != 200:
            raise QueryRefused(f"{asked}: {body}")
        return json.loads(body)["data"]


def _point(found: Sequence[Any]) -> tuple[float, float]:
    at, value = found
    return float(at), float(value)
