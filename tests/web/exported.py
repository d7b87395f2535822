"""The daemon's exported metrics of a status."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from prometheus_client import generate_latest

from specwatch.status import DaemonStatus
from specwatch.web import exporter

_Samples = Mapping[str, Mapping[tuple[str, ...], float]]
_MOST_READ = 4
_read: dict[int, tuple[DaemonStatus, _Samples]] = {}
"""Samples of the last statuses, which never change, by identity."""


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
    values: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in exporter.DaemonCollector(lambda: status).collect():
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            if labels in values[sample.name]:
                raise AssertionError(f"{sample.name} has two samples of {labels}")
            values[sample.name][labels] = sample.value
    return dict(values)
