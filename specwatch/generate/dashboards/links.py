"""The dashboards, and the links between them."""

from __future__ import annotations

from typing import Any, NamedTuple

from grafanalib import core


class Board(NamedTuple):
    """Name and address of a dashboard."""

    uid: str
    title: str
    of_one: bool = False
    """Whether it shows one model of one target, so that its variables have one value."""

    @property
    def file(self) -> str:
        """Its file below dashboards/."""
        return f"{self.uid}.json"

    @property
    def url(self) -> str:
        """Its address within Grafana."""
        return f"/d/{self.uid}"


OVERVIEW = Board("specwatch-overview", "Speculation overview", of_one=True)
TEMPERATURE = Board("specwatch-temperature", "Speculation by temperature", of_one=True)
FLEET = Board("specwatch-fleet", "Speculation fleet")
GUARD = Board("specwatch-guard", "Guard and specwatch itself")
STOCK = Board("specwatch-stock", "Speculation without specwatch")
BOARDS = (OVERVIEW, TEMPERATURE, FLEET, GUARD, STOCK)
_SAME_SOURCE = "${datasource:queryparam}"


def links(board: Board, runbook_url: str) -> list[Any]:
    """Links of a dashboard to every other and to the runbook."""
    boards = [_link(board, other) for other in BOARDS if other is not board]
    runbook = core.DashboardLink(
        type="link", icon="doc", title="Runbook", uri=runbook_url,
        keepTime=False, targetBlank=True, tooltip="What each alert means and what to do",
    )  # fmt: skip
    return [*boards, runbook]


def _link(board: Board, other: Board) -> Any:
    # "All" is not a value of a variable with one value.
    suits = board.of_one or not other.of_one
    return core.DashboardLink(
        type="link", icon="dashboard", title=other.title,
        uri=other.url if suits else f"{other.url}?{_SAME_SOURCE}",
        keepTime=True, includeVars=suits, tooltip=f"Open {other.title}",
    )  # fmt: skip
