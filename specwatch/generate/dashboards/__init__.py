"""Grafana dashboards, made with grafanalib; the daemon does not import this package."""

from collections.abc import Mapping

from specwatch.generate.dashboards import database
from specwatch.generate.dashboards.build import BOARDS, build
from specwatch.generate.environment import render


def dashboards(*, runbook_url: str | None = None) -> Mapping[str, str]:
    """JSON of every dashboard of Prometheus by file name; ``runbook_url`` is as for
    :func:`.build.build`."""
    return {board.file: build(board, runbook_url) for board in BOARDS}


def of_database() -> Mapping[str, str]:
    """JSON of the dashboard whose data source is Postgres, by file name."""
    return {database.BOARD.file: database.dashboard()}


def provisioning() -> Mapping[str, str]:
    """Files with which Grafana provisions its data source and the dashboards, by path."""
    return {
        "provisioning/datasources/specwatch.yml": render("grafana_datasource.yml"),
        "provisioning/dashboards/specwatch.yml": render("grafana_dashboards.yml"),
    }
