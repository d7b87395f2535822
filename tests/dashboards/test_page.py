"""Every dashboard can be drawn, with data and without."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.dashboards.asking import Asker, Span
from tests.dashboards.board import Board, boards
from tests.dashboards.page import page
from tests.dashboards.prometheus import PrometheusApi, Series

LABELS = {
    "target": "<b>chat",
    "model_name": "llama",
    "dimension": "temperature",
    "value": "0",
    "state": "observing",
}


class Fake(PrometheusApi):
    """A Prometheus that answers every query with one series, or with none."""

    def __init__(self, *, data: bool) -> None:
        super().__init__("http://nowhere")
        self._data = data

    def query(self, expr: str, at: float | None = None) -> list[Series]:
        return [Series(LABELS, ((at or 0.0, 0.5),))] if self._data else []

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        points = ((start, 1.0), (start + step, 2.0), (end, float("nan")))
        return [Series(LABELS, points)] if self._data else []

    def label_values(self, label: str, selectors: object, start: float) -> list[str]:
        return [LABELS.get(label, "x"), "another"]


def drawn(board: Board, *, data: bool) -> tuple[str, list[str]]:
    return page(Asker(board, Fake(data=data), Span(0.0, 900.0)))


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.name)
def test_a_dashboard_shows_the_answers_and_says_which_panels_have_none(board: Board) -> None:
    text, empty = drawn(board, data=True)
    assert empty == []
    assert "<b>" not in text
    for svg in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(svg)
    shown = [panel["type"] for panel, _ in board.panels()]
    assert text.count("<svg") >= sum(kind in ("timeseries", "heatmap") for kind in shown)
    text, empty = drawn(board, data=False)
    assert len(empty) >= sum(kind != "text" for kind in shown)
    assert "No data" in text
