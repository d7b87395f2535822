"""Latencies from merged counts, with and without speculation at equal load."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from specwatch.domain import histogram, quantile
from specwatch.domain.histogram import Quantile
from specwatch.domain.model import Histogram
from specwatch.report.estimates import Bounds, Quantiles

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_NEARLY_ALL = 0.95
"""Share of the requests whose load must have been measured: the others would be compared with
requests at another load."""
_Load = TypeVar("_Load", bound=Hashable)


def quantiles(observed: Histogram | None, count: int | None = None) -> Quantiles | None:
    """Of a latency in seconds; None of no request. ``count`` is for a weighted histogram."""
    if observed is None or not observed.count:
        return None
    estimates = histogram.quantiles(observed, tuple(_QUANTILES.values()))
    by_name = dict(zip(_QUANTILES, estimates, strict=True))
    values = {name: quantile.value for name, quantile in by_name.items()}
    return Quantiles(
        count=observed.count if count is None else count,
        mean=histogram.mean(observed),
        p50=values["p50"],
        p95=values["p95"],
        p99=values["p99"],
        beyond=beyond(by_name),
        buckets=buckets(by_name),
    )


def beyond(by_name: Mapping[str, Quantile | None]) -> tuple[str, ...]:
    """The names of quantiles that lie beyond the last bound, and have its value."""
    return tuple(
        name
        for name, quantile in by_name.items()
        if quantile and quantile.open_ended and quantile.value is not None
    )


def buckets(by_name: Mapping[str, Quantile | None]) -> dict[str, Bounds]:
    """The bounds between which quantiles are, by name, but for those beyond the last bound."""
    return {
        name: Bounds(lower=quantile.lower, upper=quantile.upper)
        for name, quantile in by_name.items()
        if quantile and not quantile.open_ended
    }


def mixed(measured: Mapping[_Load, Histogram], requests: Mapping[_Load, int]) -> Quantiles | None:
    """Quantiles of latencies that were measured by load, as the requests at each load weigh.

    None if too many requests were at a load that was not measured.
    """
    histograms = {
        load: observed
        for load, count in requests.items()
        if count and (observed := measured.get(load)) is not None and observed.count
    }
    total = sum(requests.values())
    if not histograms or sum(requests[load] for load in histograms) < _NEARLY_ALL * total:
        return None
    if len(histograms) == 1:
        return quantiles(next(iter(histograms.values())))
    put = quantile.mixture(
        (observed, float(requests[load])) for load, observed in histograms.items()
    )
    return None if put is None else quantiles(put[0], sum(e.count for e in histograms.values()))


def summed(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """Added up; None of none."""
    return histogram.merge_all(histogram for histogram in histograms if histogram is not None)
