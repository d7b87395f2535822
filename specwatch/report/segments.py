"""Acceptance, latency and speedup by segment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from specwatch.domain import acceptance, histogram
from specwatch.domain.buckets import order_of
from specwatch.domain.merge import sum_fields
from specwatch.domain.model import ALL, TEMPERATURE, Histogram, Mode, Segment, Tally
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
from specwatch.report.model import ReportSegment
from specwatch.report.speedups import Speedups
from specwatch.report.window_sums import LedgerCell

_COUNTED = (
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "accepted_per_position",
    "requests",
    "request_acceptance",
)


def segments(cells: Sequence[LedgerCell], measured: Speedups) -> tuple[ReportSegment, ...]:
    """All requests first, then every segment that occurs in the period, in order."""
    occurring = {segment for cell in cells if cell.place.now for segment in cell.tallies}
    ordered = sorted({ALL, *occurring}, key=order_of)
    counted = {segment: _counted(cells, segment, now=True) for segment in ordered}
    requests = {segment: sum(one.requests.values()) for segment, one in counted.items()}
    totals: Counter[str] = Counter()
    for segment, count in requests.items():
        totals[segment.dimension] += count
    # A tap may count requests that the server does not, or not all of them.
    totals[TEMPERATURE] = max(totals[TEMPERATURE], requests[ALL])
    return tuple(
        ReportSegment(
            segment=segment,
            requests=requests[segment],
            share=requests[segment] / of if (of := totals[segment.dimension]) else None,
            acceptance=acceptance_of(counted[segment]),
            acceptance_before=acceptance.acceptance_rate(_counted(cells, segment, now=False)),
            ttft=_latency(cells, measured, segment, "ttft"),
            tpot=_latency(cells, measured, segment, "tpot"),
            speedup=_speedup(measured, segment),
        )
        for segment in ordered
    )


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


def _counted(cells: Iterable[LedgerCell], segment: Segment, *, now: bool) -> Tally:
    inside = [
        counted
        for cell in cells
        if cell.place.now is now and (counted := cell.tallies.get(segment)) is not None
    ]
    return Tally(**sum_fields(inside, _COUNTED))


def _latency(
    cells: Sequence[LedgerCell], measured: Speedups, segment: Segment, metric: str
) -> ReportLatency:
    ran = [
        (cell, observed)
        for cell in cells
        if cell.place.mode is Mode.ON
        and (counted := cell.tallies.get(segment)) is not None
        and (observed := getattr(counted, metric)) is not None
    ]
    now = [(cell, observed) for cell, observed in ran if cell.place.now]
    return ReportLatency(
        on=latencies.quantiles(summed(observed for _, observed in now)),
        before=latencies.quantiles(summed(tally for cell, tally in ran if not cell.place.now)),
        off=without_speculation(cells, measured, segment, metric, now),
    )


def without_speculation(
    cells: Sequence[LedgerCell],
    measured: Speedups,
    segment: Segment,
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
        own = measured.baseline(environment).own.get(bin_) if segment == ALL else None
        off = None if own is None else getattr(own, metric)
        if off is None:
            off = summed(
                getattr(counted, metric)
                for other in cells
                if other.place.mode is Mode.OFF
                and (other.place.load_bin or 0) == bin_
                and other.place.environment.resembles(environment)
                and (counted := other.tallies.get(segment)) is not None
            )
        if off is not None:
            histograms[place] = off
    return latencies.mixed(histograms, requests)


def _speedup(measured: Speedups, segment: Segment) -> Ratio | None:
    assessment = measured.assessment
    if segment == ALL:
        return ratio_of(assessment.speedup)
    part = assessment.segments.get(segment)
    return None if part is None else ratio_of(part.speedup)
