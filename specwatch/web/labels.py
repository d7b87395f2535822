"""What the families of our own metrics page share."""

from __future__ import annotations

import hashlib
import math

from prometheus_client.core import GaugeMetricFamily

from specwatch.domain.histogram import Quantile
from specwatch.wording.text import clean

_LONGEST_LABEL = 200


def add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    """Add a sample, unless its value is unknown."""
    if value is not None:
        family.add_metric(labels, value)


def label(text: str) -> str:
    """A server's text as a label, clean; what is changed, or cut, is told apart by a digest."""
    if len(text) <= _LONGEST_LABEL and text.isprintable():
        return text
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    return f"{clean(text[:_LONGEST_LABEL])[: _LONGEST_LABEL - 9]}~{digest}"


def shown_quantile(quantile: Quantile | None) -> float | None:
    """A quantile as a sample: infinite beyond the last bound, None where there is no bound."""
    if quantile is None or quantile.value is None:
        return None
    return math.inf if quantile.open_ended else quantile.value
