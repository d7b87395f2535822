"""Grafana dashboards, made with grafanalib: nothing of the daemon imports this package."""

from collections.abc import Mapping

from specwatch.generate.dashboards import fleet, guard, overview, stock, temperatures
from specwatch.generate.dashboards.links import FLEET, GUARD, OVERVIEW, STOCK, TEMPERATURE, links
from specwatch.generate.environment import render
from specwatch.generate.runbook import DEFAULT_RUNBOOK_URL

_BUILDERS = {
    OVERVIEW: overview.build,
    TEMPERATURE: temperatures.build,
    FLEET: fleet.build,
    GUARD: guard.build,
    STOCK: stock.build,
}


def dashboards(*, runbook_url: str = DEFAULT_RUNBOOK_URL) -> Mapping[str, str]:
    """JSON of every dashboard by file name, with links to the runbook at that address."""
    return {board.file: build(links(board, runbook_url)) for board, build in _BUILDERS.items()}


def provisioning() -> Mapping[str, str]:
    """Files by which Grafana finds its data source and the dashboards when it starts, by path."""
    return {
        "provisioning/datasources/specwatch.yml": render("grafana_datasource.yml"),
        "provisioning/dashboards/specwatch.yml": render("grafana_dashboards.yml"),
    }
