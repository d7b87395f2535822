"""The daemon's metrics page of a status, read as Prometheus reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specwatch.status import DaemonStatus
from specwatch.web import exporter

_Samples = Mapping[str, Mapping[tuple[str, ...], float]]
_MOST_READ = 4
_read: dict[int, tuple[DaemonStatus, _Samples]] = {}
"""Pages that were read last, by the status, which never changes; reading one takes long."""


def page(status: DaemonStatus) -> str:
    return generate_latest(exporter.registry(lambda: status)).decode()


def samples(status: DaemonStatus, name: str) -> Mapping[tuple[str, ...], float]:
    """Values of one sample name by its label values, in the order of the label names."""
    if id(status) not in _read:
        if len(_read) >= _MOST_READ:
            del _read[next(iter(_read))]
        _read[id(status)] = (status, _samples(status))
    return _read[id(status)][1].get(name, {})


def _samples(status: DaemonStatus) -> _Samples:
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in text_string_to_metric_families(page(status)):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            if labels in found[sample.name]:
                raise AssertionError(f"{sample.name} has two samples of {labels}")
            found[sample.name][labels] = sample.value
    return dict(found)
