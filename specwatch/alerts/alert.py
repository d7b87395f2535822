"""An alert, and how Alertmanager's v2 API wants it written."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from specwatch.config.guard import LABEL_NAME

Key = tuple[tuple[str, str], ...]
"""What tells alerts apart: their labels, sorted."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person should know of; it fires from ``starts_at``, in Unix seconds."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str] = field(default_factory=dict)
    starts_at: float = 0.0

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


def posted(
    alert: Alert,
    *,
    now: float,
    ends_at: float,
    labels: Mapping[str, str],
    generator_url: str | None = None,
) -> dict[str, object]:
    """An element of the list that ``POST /api/v2/alerts`` takes; times are Unix seconds.

    ``labels`` are added where the alert has none of that name. An end in the past resolves. An
    alert cannot start after ``now`` or its own end: one from before a clock was set back would be
    refused.
    """
    starts_at = min(alert.starts_at, now, ends_at)
    body: dict[str, object] = {
        "labels": _valid({**labels, **alert.labels}),
        "annotations": _valid(alert.annotations),
        "startsAt": _rfc3339(starts_at),
        "endsAt": _rfc3339(ends_at),
    }
    if generator_url is not None:
        body["generatorURL"] = generator_url
    return body


def _valid(texts: Mapping[str, str]) -> dict[str, str]:
    """Names and values that Alertmanager takes; of two names that become one the valid one stays.

    It takes an empty value for none.
    """
    labels: dict[str, str] = {}
    for name, text in sorted(texts.items(), key=lambda pair: bool(LABEL_NAME.fullmatch(pair[0]))):
        value = text.encode("utf-8", "replace").decode("utf-8")
        if value:
            labels[_label_name(name)] = value
    return labels


def _label_name(name: str) -> str:
    plain = re.sub(r"[^a-zA-Z0-9_]", "_", name)
    return plain if LABEL_NAME.fullmatch(plain) else f"_{plain}"


def _rfc3339(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
