"""Acceptance, accepted lengths and latency by segment, as sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from specwatch.domain.model import ALL, TEMPERATURE, Segment
from specwatch.report import layout
from specwatch.report.estimates import ReportLatency
from specwatch.report.layout import Figure, Part, ReportSection, Sentence, Table, table
from specwatch.report.model import ModelReport, ReportSegment
from specwatch.wording import figures
from specwatch.wording.segments import kind_title, segment_words

_MOST_LENGTHS = 17
_METRICS: dict[Literal["ttft", "tpot"], str] = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
}


def segments(model: ModelReport) -> ReportSection:
    """Shares, acceptance and speedup, and the lengths of what was accepted."""
    return ReportSection("Segments", [*_acceptance(model)])


def latencies(model: ModelReport) -> ReportSection:
    """TTFT and TPOT with speculation, against the period before and against without."""
    return ReportSection("Latency", [*_latencies(model)])


def _acceptance(model: ModelReport) -> Iterator[Part]:
    buckets = model.of(TEMPERATURE)
    if not any(one.acceptance.drafts or one.requests for one in buckets):
        yield Sentence("There was no request, so nothing is known by segment.")
        return
    if len(buckets) == 1:
        yield Sentence(
            "Temperatures are not known: only the server's own counters were read."
            " `specwatch tap flags` says what to add to vLLM's command line."
        )
    if any(model.series.acceptance.values()):
        yield Figure(
            "acceptance", "Acceptance rate over time, by temperature. The table has its means."
        )
    drafted = [(one, one.acceptance.histogram or ()) for one in buckets]
    drafted = [(one, counts) for one, counts in drafted if any(counts)]
    if drafted:
        yield Figure(
            "histogram",
            "Share of drafts by the number of tokens accepted; green where speculation pays, red"
            " where it loses. The last table has the figures.",
        )
    for dimension in dict.fromkeys(
        [TEMPERATURE, *(e.segment.dimension for e in model.segments[1:])]
    ):
        yield _traffic(dimension, model.of(dimension))
    if not drafted:
        yield Sentence("How many tokens of a draft were accepted is not known.")
        return
    longest = min(max(len(counts) for _, counts in drafted), _MOST_LENGTHS)
    yield table(
        "Share of drafts by the number of tokens accepted",
        "|".join(["*Segment", *map(str, range(longest))]),
        [(segment_words(one.segment), *_shares(counts, longest)) for one, counts in drafted],
        whole=len(drafted) > 1,
    )


def _traffic(dimension: str, rows: Sequence[ReportSegment]) -> Table:
    return table(
        f"Traffic, acceptance and speedup by {kind_title(dimension)}",
        "*Segment|Requests|Share|Acceptance=Accept|Points against before=Change"
        "|P10 of requests=?P10|P50=?P50|P90=?P90|Tokens a step=Tau|Speedup",
        [
            (
                segment_words(one.segment),
                layout.count(one.requests),
                figures.percent(one.share),
                figures.percent(one.acceptance.rate),
                layout.points(one.acceptance.rate, one.acceptance_before),
                *map(figures.percent, (of.p10, of.p50, of.p90) if of else (None, None, None)),
                figures.number(one.acceptance.mean_length, 2),
                layout.ratio(one.speedup),
            )
            for one in rows
            for of in [one.acceptance.per_request]
        ],
        whole=len(rows) > 1,
        bars=[(one.acceptance.rate, layout.verdict(one.speedup)) for one in rows],
    )


def _shares(counts: Sequence[int], longest: int) -> list[str]:
    shares = [figures.percent(count / sum(counts)) for count in counts[:longest]]
    return shares + [figures.UNKNOWN] * (longest - len(shares))


def _latencies(model: ModelReport) -> Iterator[Part]:
    points = model.series.latency
    if not points and not any(one.ttft.on or one.tpot.on for one in model.segments):
        yield Sentence("No latency is known.")
        return
    for metric, title in _METRICS.items():
        if any(getattr(point, f"{metric}_p50") is not None for point in points):
            yield Figure(
                metric,
                f"{title} over time, P50 and P99 (interpolated), with speculation on and off."
                " The table has the whole period.",
            )
    for metric, title in _METRICS.items():
        rows = [(one.segment, getattr(one, metric)) for one in model.segments]
        yield from _latency(title, [(segment, one) for segment, one in rows if one.on is not None])
    yield Sentence(
        "Means are exact. A quantile given as a range lies anywhere in that histogram bucket, so"
        " its change is not given."
    )


def _latency(title: str, rows: Sequence[tuple[Segment, ReportLatency]]) -> Iterator[Part]:
    """Yield a table with what can be compared; a sentence where nothing is known."""
    if not rows:
        yield Sentence(f"{title} is not known.")
        return
    before = any(one.before for _, one in rows)
    off = any(one.off for _, one in rows)
    columns = ["*Segment", "Mean"]
    against = []
    missing = []
    for known, column, compared, absent in (
        (before, "Mean against before=Vs before", "the period before", "the period before"),
        (off, "Mean against off=Vs off", "without speculation at the same load", "a baseline"),
    ):
        if known:
            columns.append(column)
            against.append(compared)
        else:
            missing.append(absent)
    for which in ("P50", "P95", "P99"):
        columns += [which, f"{which} off=?{which} off"] if off else [which]
    text = f", against {' and '.join(against)}" if against else ""
    yield table(
        f"{title} with speculation{text}",
        "|".join(columns),
        [
            (
                segment_words(segment),
                layout.mean(one.on),
                *([layout.change(one.on, one.before)] if before else []),
                *([layout.change(one.on, one.off)] if off else []),
                *(
                    layout.quantile(side, which)
                    for which in ("p50", "p95", "p99")
                    for side in ([one.on, one.off] if off else [one.on])
                ),
            )
            for segment, one in rows
        ],
        whole=len(rows) > 1 and rows[0][0] == ALL,
    )
    if missing:
        yield Sentence(f"There is nothing to compare it with from {' or '.join(missing)}.")
