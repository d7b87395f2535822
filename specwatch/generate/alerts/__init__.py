"""Alerting rules for Prometheus, their runbook, and a sample of Alertmanager's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from specwatch.config.rules import Slo
from specwatch.generate.alerts import alertmanager, guarding, itself, sent, slo, speculation, stock
from specwatch.generate.alerts.files import render, runbook, sections
from specwatch.generate.alerts.rule import Group
from specwatch.generate.alerts.slo import SAMPLE_SLOS
from specwatch.generate.runbook import DEFAULT_RUNBOOK_URL, Section

__all__ = [
    "DEFAULT_JOB", "SAMPLE_SLOS", "alert_files", "exported_groups", "runbook_sections",
]  # fmt: skip

DEFAULT_JOB = "specwatch"
"""The job of Prometheus that scrapes the daemon."""

_EXPORTED = (
    "What specwatch exports. For Prometheus 2.42 or later, which knows keep_firing_for.\n"
    "Other objectives: slos in the configuration of specwatch; these rules are for all of them."
)
_STOCK = (
    "What vLLM itself exports: for those who have only Prometheus. Also valid beside specwatch.\n"
    "Objectives are written into it: generate it anew when slos of the configuration change."
)


def alert_files(
    *,
    runbook_url: str = DEFAULT_RUNBOOK_URL,
    job: str = DEFAULT_JOB,
    slos: Sequence[Slo] = SAMPLE_SLOS,
) -> Mapping[str, str]:
    """The files by name. ``job`` is the scrape job of the daemon, ``slos`` those for vLLM's own."""
    exported, stocked = exported_groups(job), stock.groups(slos)
    noted = "\n".join([_STOCK, *stock.notes(slos)])
    return {
        "specwatch.rules.yml": render(exported, runbook_url=runbook_url, header=_EXPORTED),
        "vllm.rules.yml": render(stocked, runbook_url=runbook_url, header=noted),
        "alertmanager.yml": alertmanager.sample(),
        "RUNBOOK.md": runbook(_sections(exported, stocked)),
    }


def exported_groups(job: str = DEFAULT_JOB) -> tuple[Group, ...]:
    """The rules on what the daemon exports."""
    return (speculation.group(), slo.group(), guarding.group(), itself.group(job))


def runbook_sections() -> tuple[Section, ...]:
    """The runbook of all alerts."""
    return _sections(exported_groups(), stock.groups(SAMPLE_SLOS))


def _sections(exported: Iterable[Group], stocked: Iterable[Group]) -> tuple[Section, ...]:
    return (*sections(exported), *sent.SECTIONS, *sections(stocked))
