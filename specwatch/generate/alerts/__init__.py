"""Alerting rules for Prometheus, their runbook, and a sample of Alertmanager's configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from specwatch.alerts.firing import IMPLIED
from specwatch.config.guard import DEFAULT_RUNBOOK_URL, DEFAULT_URL
from specwatch.config.rules import DEFAULT_RULES, Slo
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.errors import NO_ANSWER
from specwatch.generate import environment
from specwatch.generate.alerts import objectives
from specwatch.generate.alerts.objectives import SAMPLE_SLOS
from specwatch.generate.alerts.rules import GENERATED, Group, load, render
from specwatch.generate.runbook import Section, markdown
from specwatch.guard.state import RESTARTS, Cause, Phase
from specwatch.rules.objectives import BURNS
from specwatch.scrape.coverage import LOW_COVERAGE

DEFAULT_JOB = "specwatch"
"""The job of Prometheus that scrapes the daemon."""

_EXPORTED = (
    "What specwatch exports. For Prometheus 2.42 or later, which knows keep_firing_for.\n"
    "Other objectives: slos in the configuration of specwatch; these rules are for all of them."
)
_STOCK = (
    "What vLLM itself exports: for those who have only Prometheus. Also valid beside specwatch.\n"
    "It contains the objectives: generate it again when slos of the configuration change."
)


def alert_files(
    *,
    runbook_url: str = DEFAULT_RUNBOOK_URL,
    job: str = DEFAULT_JOB,
    slos: Sequence[Slo] = SAMPLE_SLOS,
    status_url: str = DEFAULT_URL,
    grafana_url: str | None = None,
) -> Mapping[str, str]:
    """The files by name.

    ``job`` is the scrape job of the daemon, ``slos`` those for vLLM's own. Alerts link to the
    dashboards of the Grafana at ``grafana_url``; without one to the status page of the daemon at
    ``status_url``, and those on vLLM's own metrics to nothing.
    """
    overview, stock_board = f"{status_url}/", ""
    if grafana_url is not None:
        overview = f"{grafana_url}/d/specwatch-overview?{_chosen('target', 'model_name')}"
        stock_board = f"{grafana_url}/d/specwatch-stock?{_chosen('instance', 'model_name')}"
    exported, stock = exported_groups(job), stock_groups(slos)
    stock_header = "\n".join([_STOCK, *objectives.notes(slos)])
    return {
        "specwatch.rules.yml": render(
            exported, runbook_url=runbook_url, header=_EXPORTED, dashboard_url=overview
        ),
        "vllm.rules.yml": render(
            stock, runbook_url=runbook_url, header=stock_header, dashboard_url=stock_board
        ),
        "alertmanager.yml": alertmanager_sample(),
        "RUNBOOK.md": f"<!-- {GENERATED} -->\n\n{markdown(_all_sections(exported, stock))}",
    }


def _chosen(*labels: str) -> str:
    """The query of a dashboard's URL, as a template of Prometheus: what an alert is about."""
    return "".join(
        "{{ with $labels.NAME }}var-NAME={{ . | urlquery }}&{{ end }}".replace("NAME", label)
        for label in labels
    )


def exported_groups(job: str = DEFAULT_JOB) -> tuple[Group, ...]:
    """The rules on what the daemon exports."""
    return load(
        "specwatch_rules.yml",
        job=json.dumps(job, ensure_ascii=False),
        Phase=Phase,
        Cause=Cause,
        NO_ANSWER="|".join(sorted(NO_ANSWER)),
        RESTARTS="|".join(RESTARTS),
        LOW_COVERAGE=LOW_COVERAGE,
        DEFAULT_RULES="|".join(rule.name for rule in DEFAULT_RULES),
        BURNS=[burn._asdict() for burn in BURNS],
        **objectives.LEAST,
    )


def stock_groups(slos: Sequence[Slo] = SAMPLE_SLOS) -> tuple[Group, ...]:
    """The rules on what vLLM itself exports."""
    groups = load("vllm_rules.yml", DRAFT_COST_RATIO=DRAFT_COST_RATIO)
    return (*groups, *objectives.groups(slos))


def alertmanager_sample(*, across_servers: bool = False) -> str:
    """A sample of Alertmanager's configuration for all alerts, also those that the daemon sends.

    ``across_servers`` is with the rules that are commented out in it.
    """
    return environment.render("alertmanager.yml", across_servers=across_servers, IMPLIED=IMPLIED)


def runbook_sections() -> tuple[Section, ...]:
    """The runbook of all alerts."""
    return _all_sections(exported_groups(), stock_groups())


def sent_sections() -> tuple[Section, ...]:
    """The runbook of the alerts that the daemon itself sends to Alertmanager."""
    entries = environment.parsed(environment.source("sent_alerts.yml"))
    return tuple(Section(**entry) for entry in entries)


def sections(groups: Iterable[Group]) -> tuple[Section, ...]:
    """One section for each name of an alert.

    Raises ValueError if alerts of one name differ in their texts.
    """
    by_name: dict[str, Section] = {}
    for alert in (alert for group in groups for alert in group.alerts):
        rule = alert.labels.get("rule", "")
        section = Section(alert.name, alert.severity, alert.meaning, alert.look, alert.do, rule)
        first = by_name.setdefault(alert.name, section)
        if first._replace(severity=alert.severity) != section:
            raise ValueError(f"{alert.name}: alerts of one name share one section of the runbook")
        if alert.severity not in first.severity.split(" or "):
            severity = f"{first.severity} or {alert.severity}"
            by_name[alert.name] = first._replace(severity=severity)
    return tuple(by_name.values())


def _all_sections(exported: Iterable[Group], stock: Iterable[Group]) -> tuple[Section, ...]:
    return (*sections(exported), *sent_sections(), *sections(stock))
