"""Rules of Prometheus: an alert, which cannot be without a runbook, a recording, a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alerting rule; durations are as Prometheus writes them, such as ``15m``.

    ``summary`` and ``description`` are templates of Prometheus. ``meaning``, ``look`` and ``do``
    are its section in the runbook, in plain sentences. Several alerts may have one name, if their
    labels differ; then they share one section. ``keep_firing_for`` needs Prometheus 2.42.
    """

    name: str
    expr: str
    for_: str
    severity: Severity
    summary: str
    description: str
    meaning: str
    look: str
    do: str
    labels: Mapping[str, str] = field(default_factory=dict)
    keep_firing_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording rule."""

    record: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other; ``interval`` is Prometheus' own where empty."""

    name: str
    rules: tuple[Alert | Recording, ...]
    interval: str = ""

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Those of the rules that alert."""
        return tuple(rule for rule in self.rules if isinstance(rule, Alert))
