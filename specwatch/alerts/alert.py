"""An alert, how Alertmanager's v2 API wants it written, and why it was not accepted."""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from specwatch.config.guard import DEFAULT_RUNBOOK_URL, DEFAULT_URL, LABEL_NAME
from specwatch.errors import ReasonedError

Key = tuple[tuple[str, str], ...]
"""The identity of an alert: its labels, sorted."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person should act on; it fires from ``starts_at``, in Unix seconds."""

    labels: Mapping[str, str]
    annotations: dict[str, str] = field(default_factory=dict)
    starts_at: float = 0.0
    keep_firing_for: float = 0.0
    """Seconds for which it goes on after its cause was seen last, as in a rule of Prometheus."""
    found_after: float = 0.0
    """Seconds until a daemon that has just started finds it: so much longer does it outlive one."""

    @property
    def key(self) -> Key:
        """Its identity: an alert with other annotations is still the same one."""
        return tuple(sorted(self.labels.items()))


def runbook_anchor(name: str) -> str:
    """The fragment of a section's address, as renderers of Markdown make it of a heading."""
    return name.lower()


def runbook_address(runbook_url: str, name: str) -> str:
    """Where the section of an alert is found."""
    return f"{runbook_url}#{runbook_anchor(name)}"


class Links(NamedTuple):
    """Where the runbook, the status page and Grafana are, for the links of alerts."""

    runbook: str = DEFAULT_RUNBOOK_URL
    status: str = DEFAULT_URL
    grafana: str | None = None

    def dashboard(self, target: str, model_name: str = "") -> str:
        """The overview of a target in Grafana; the status page without Grafana."""
        if self.grafana is None:
            return f"{self.status}/"
        chosen = {"var-target": target, "var-model_name": model_name}
        query = urlencode({name: value for name, value in chosen.items() if value})
        return f"{self.grafana}/d/specwatch-overview?{query}"


def posted(
    alert: Alert, *, now: float, ends_at: float, labels: Mapping[str, str]
) -> dict[str, object]:
    """An element of the list that ``POST /api/v2/alerts`` takes; times are Unix seconds.

    ``labels`` are added where the alert has none of that name. An end in the past resolves. An
    alert cannot start after ``now`` or its own end: one from before a clock was set back would be
    refused.
    """
    starts_at = min(alert.starts_at, now, ends_at)
    return {
        "labels": _valid({**labels, **alert.labels}),
        "annotations": _valid(alert.annotations),
        "startsAt": _rfc3339(starts_at),
        "endsAt": _rfc3339(ends_at),
    }


def _valid(texts: Mapping[str, str]) -> dict[str, str]:
    """Names and values that Alertmanager accepts; of two that become equal the valid one stays.

    Empty values are left out: Alertmanager treats them as missing.
    """
    labels: dict[str, str] = {}
    for name, text in sorted(texts.items(), key=lambda pair: bool(LABEL_NAME.fullmatch(pair[0]))):
        value = text.encode("utf-8", "replace").decode("utf-8")
        if value:
            plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
            labels[plain if LABEL_NAME.fullmatch(plain) else f"_{plain}"] = value
    return labels


def _rfc3339(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class PostReason(enum.StrEnum):
    """Why a message was not accepted: a closed set."""

    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    TLS = "tls"
    REJECTED = "rejected"
    """It answered that it does not accept this, or not from us."""
    HTTP_STATUS = "http_status"
    CREDENTIALS = "credentials"


class PostError(ReasonedError[PostReason]):
    """The message was not delivered."""

    retry = True
