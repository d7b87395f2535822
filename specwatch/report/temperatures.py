"""Acceptance, latency and speedup by temperature bucket, and by segment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specwatch.domain import acceptance, histogram
from specwatch.domain.buckets import order_of
from specwatch.domain.merge import sum_fields
from specwatch.domain.model import ALL_TEMPERATURES, Histogram, Mode, Tally
from specwatch.domain.segments import kind_of
from specwatch.domain.segments import order_of as segment_order
from specwatch.report import latencies
from specwatch.report.estimates import (
    Quantiles,
    Ratio,
    ReportAcceptance,
    ReportLatency,
    ReportSpread,
    ratio_of,
)
from specwatch.report.latencies import summed
from specwatch.report.model import ReportSegment, Temperature
from specwatch.report.speedups import Speedups
from specwatch.report.window_sums import LedgerCell

_COUNTED = (
    "drafts", "draft_tokens", "accepted_tokens", "accepted_per_position", "requests",
    "request_acceptance",
)  # fmt: skip


def temperatures(cells: Sequence[LedgerCell], measured: Speedups) -> tuple[Temperature, ...]:
    """``all`` first, then every bucket that occurs in the period, ascending."""
    labels = {label for label in _labels(cells) if not kind_of(label)}
    ordered = (ALL_TEMPERATURES, *sorted(labels - {ALL_TEMPERATURES}, key=order_of))
    counted = {label: _counted(cells, label, now=True) for label in ordered}
    requests = {label: sum(one.requests.values()) for label, one in counted.items()}
    # A tap may count requests that the server does not.
    total = max(requests[ALL_TEMPERATURES], sum(requests[label] for label in ordered[1:]))
    requests_in_all = {**dict.fromkeys(ordered, total), ALL_TEMPERATURES: requests["all"]}
    return tuple(
        Temperature(
            temperature=label,
            requests=requests[label],
            share=requests[label] / of if (of := requests_in_all[label]) else None,
            acceptance=acceptance_of(counted[label]),
            acceptance_before=acceptance.acceptance_rate(_counted(cells, label, now=False)),
            ttft=_latency(cells, measured, label, "ttft"),
            tpot=_latency(cells, measured, label, "tpot"),
            speedup=_speedup(measured, label),
        )
        for label in ordered
    )


def segments(cells: Sequence[LedgerCell], measured: Speedups) -> tuple[ReportSegment, ...]:
    """Every segment that occurs in the period, by kind, ascending."""
    ordered = sorted(filter(kind_of, _labels(cells)), key=segment_order)
    counted = {label: _counted(cells, label, now=True) for label in ordered}
    requests = {label: sum(one.requests.values()) for label, one in counted.items()}
    return tuple(
        ReportSegment(
            segment=label,
            requests=requests[label],
            share=requests[label] / of if of else None,
            acceptance=acceptance_of(counted[label]),
            acceptance_before=acceptance.acceptance_rate(_counted(cells, label, now=False)),
            tpot=_latency(cells, measured, label, "tpot"),
            speedup=_speedup(measured, label),
        )
        for label in ordered
        for of in [sum(n for other, n in requests.items() if kind_of(other) == kind_of(label))]
    )


def _labels(cells: Iterable[LedgerCell]) -> set[str]:
    return {label for cell in cells if cell.place.now for label in cell.tallies}


def acceptance_of(counted: Tally) -> ReportAcceptance:
    """Drafts and what became of them."""
    return ReportAcceptance(
        drafts=counted.drafts or 0,
        draft_tokens=counted.draft_tokens or 0,
        accepted_tokens=counted.accepted_tokens or 0,
        rate=acceptance.acceptance_rate(counted),
        mean_length=acceptance.mean_acceptance_length(counted),
        histogram=acceptance.accepted_length_histogram(
            counted.drafts, counted.accepted_per_position, counted.accepted_tokens
        ),
        per_request=_spread(counted.request_acceptance),
    )


def _spread(observed: Histogram | None) -> ReportSpread | None:
    if observed is None or not observed.count:
        return None
    quantiles = histogram.quantiles(observed, (0.1, 0.5, 0.9))
    p10, p50, p90 = (None if quantile is None else quantile.value for quantile in quantiles)
    return ReportSpread(count=observed.count, p10=p10, p50=p50, p90=p90)


def _counted(cells: Iterable[LedgerCell], label: str, *, now: bool) -> Tally:
    inside = [
        counted
        for cell in cells
        if cell.place.now is now and (counted := cell.tallies.get(label)) is not None
    ]
    return Tally(**sum_fields(inside, _COUNTED))


def _latency(
    cells: Sequence[LedgerCell], measured: Speedups, label: str, metric: str
) -> ReportLatency:
    ran = [
        (cell, observed)
        for cell in cells
        if cell.place.mode is Mode.ON
        and (counted := cell.tallies.get(label)) is not None
        and (observed := getattr(counted, metric)) is not None
    ]
    now = [(cell, observed) for cell, observed in ran if cell.place.now]
    return ReportLatency(
        on=latencies.quantiles(summed(observed for _, observed in now)),
        before=latencies.quantiles(summed(tally for cell, tally in ran if not cell.place.now)),
        off=without_speculation(cells, measured, label, metric, now),
    )


def without_speculation(
    cells: Sequence[LedgerCell],
    measured: Speedups,
    label: str,
    metric: str,
    now: Iterable[tuple[LedgerCell, Histogram]],
) -> Quantiles | None:
    """A latency in the windows without speculation, weighted by the load bins of those with it
    (``now``); that of ``all`` is taken from the traffic of the baseline, if it has any.

    Requests between two scrapes have no load: they ran alone, or nearly.
    """
    requests: dict[tuple[int | None, object], int] = {}
    histograms: dict[tuple[int | None, object], Histogram] = {}
    for cell, observed in now:
        bin_, environment = cell.place.load_bin, cell.place.environment
        place = (bin_, environment)
        requests[place] = requests.get(place, 0) + observed.count
        if place in histograms:
            continue
        bin_ = bin_ or 0
        own = measured.baseline(environment).own.get(bin_) if label == ALL_TEMPERATURES else None
        off = None if own is None else getattr(own, metric)
        if off is None:
            off = summed(
                getattr(counted, metric)
                for other in cells
                if other.place.mode is Mode.OFF
                and (other.place.load_bin or 0) == bin_
                and other.place.environment.resembles(environment)
                and (counted := other.tallies.get(label)) is not None
            )
        if off is not None:
            histograms[place] = off
    return latencies.mixed(histograms, requests)


def _speedup(measured: Speedups, label: str) -> Ratio | None:
    assessment = measured.assessment
    if label == ALL_TEMPERATURES:
        return ratio_of(assessment.speedup)
    bucket = {**assessment.buckets, **assessment.segments}.get(label)
    return None if bucket is None else ratio_of(bucket.speedup)
