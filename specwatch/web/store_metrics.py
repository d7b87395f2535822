"""The families of the store."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from specwatch.status import StoreStatus


def of_store(store: StoreStatus, now: float) -> Iterator[Metric]:
    """Yield the families; ``now`` is a Unix time."""
    yield CounterMetricFamily(
        "specwatch_store_write_failures", "Writes to the database that failed.", store.failures
    )
    yield CounterMetricFamily(
        "specwatch_store_windows_written", "Windows written to the database.", store.written
    )
    yield CounterMetricFamily(
        "specwatch_store_windows_dropped",
        "Windows given up because too many waited for the database.",
        store.dropped,
    )
    yield GaugeMetricFamily(
        "specwatch_store_windows_queued", "Windows that wait for the database.", store.queued
    )
    yield CounterMetricFamily(
        "specwatch_store_damaged_rows",
        "Stored rows found that cannot be decoded; `specwatch db check` lists them.",
        store.damaged,
    )
    since = now if store.behind_since is None else store.behind_since
    yield GaugeMetricFamily(
        "specwatch_store_behind_seconds",
        "For how long the database has failed; 0 while it works.",
        max(0.0, now - since),
    )
