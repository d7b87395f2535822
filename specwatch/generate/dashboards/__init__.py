"""Grafana dashboards, made with grafanalib: nothing of the daemon imports this package."""

from collections.abc import Mapping

from specwatch.config.guard import DEFAULT_RUNBOOK_URL
from specwatch.generate.dashboards.build import build
from specwatch.generate.dashboards.links import BOARDS, links
from specwatch.generate.environment import render


def dashboards(*, runbook_url: str = DEFAULT_RUNBOOK_URL) -> Mapping[str, str]:
    """JSON of every dashboard by file name, with links to the runbook at that address."""
    return {board.file: build(board, links(board, runbook_url)) for board in BOARDS}


def provisioning() -> Mapping[str, str]:
    """Files by which Grafana finds its data source and the dashboards when it starts, by path."""
    return {
        "provisioning/datasources/specwatch.yml": render("grafana_datasource.yml"),
        "provisioning/dashboards/specwatch.yml": render("grafana_dashboards.yml"),
    }
