"""Targets and segments as lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from specwatch.cli.terminal import Columns, Lines, paragraph, table
from specwatch.domain import buckets
from specwatch.domain.model import ALL, TEMPERATURE, Mode
from specwatch.domain.tap_keys import METHODS
from specwatch.rules.decision_view import FindingView, SegmentSpeedupView
from specwatch.rules.summary import CoverageView, LatencyView, ScrapedSegment, WindowView
from specwatch.scrape.coverage import leading_reasons, share_derived
from specwatch.web.daemon_view import TapView, TargetView
from specwatch.wording import figures, speculation
from specwatch.wording.segments import kind_title, segment_words
from specwatch.wording.speculation import MODE_NOT_KNOWN, MODE_REMEDY
from specwatch.wording.text import LONGEST_SENTENCE, shown


class SegmentRow(NamedTuple):
    """A segment with its share of the drafts of the dimension, and its measured speedup."""

    counted: WindowView | ScrapedSegment
    share: float | None
    speedup: SegmentSpeedupView | None = None


_RECENT: Columns[WindowView] = {
    "segment": lambda window: segment_words(window.segment)[:9],
    "acceptance": lambda window: figures.percent(window.acceptance_rate),
    "tok/step": lambda window: figures.number(window.mean_acceptance_length, 2),
    "requests": lambda window: figures.number(sum(window.requests.values())),
    "TTFT p50": lambda window: figures.quantile(window.ttft, "p50"),
    "TTFT p99": lambda window: figures.quantile(window.ttft, "p99"),
    "TPOT p50": lambda window: figures.quantile(window.tpot, "p50"),
    "TPOT p99": lambda window: figures.quantile(window.tpot, "p99"),
}
_SEGMENTS: Columns[SegmentRow] = {
    "share": lambda row: figures.UNKNOWN if row.share is None else f"{row.share:.0%}",
    "drafts": lambda row: figures.compact(row.counted.drafts),
    "accept": lambda row: figures.percent(row.counted.acceptance_rate),
    "length": lambda row: figures.number(row.counted.mean_acceptance_length, 2),
    "P10/50/90": lambda row: figures.percents(row.counted.request_acceptance),
    "TTFT": lambda row: figures.quantile(row.counted.ttft, "p50"),
    "TTFT p99": lambda row: figures.quantile(row.counted.ttft, "p99"),
    "TPOT": lambda row: _middle(row.counted.tpot),
    "TPOT p99": lambda row: figures.quantile(row.counted.tpot, "p99"),
}
_LEAST_DERIVED = 0.005
_MOST_PENDING = 5


def is_urgent(finding: FindingView) -> bool:
    """Whether a rule of severity critical or warning is in breach."""
    return finding.verdict == "breach" and finding.severity in ("critical", "warning")


def known(parts: Iterable[str]) -> str:
    """The parts of a line whose figure is known."""
    return ", ".join(part for part in parts if figures.UNKNOWN not in part.split())


def recent_lines(target: TargetView, now: float) -> Lines:
    """Yield lines and their styles for the last minutes of a target.

    ``now`` is the Unix time of the daemon.
    """
    recent = sorted(target.recent, key=lambda window: window.model_name)
    shown_models = set()
    for model, group in groupby(recent, key=lambda window: window.model_name):
        shown_models.add(model)
        windows = list(group)
        totals = [window for window in windows if window.segment == ALL]
        window = (totals or windows)[0]
        yield shown(model), "bold"
        parts = [
            f"speculation {target.models.get(model) or window.mode}",
            f"last {figures.span(window.length)}: {figures.number(window.running_mean, 1)} running",
            f"KV cache up to {figures.percent(window.kv_cache_usage_max)}",
        ]
        parts += figures.events(window.events)
        yield known(parts), ""
        yield from _decision_lines(model, target, totals[0] if totals else None, now)
        yield from table(_RECENT, totals or windows)
        yield from _tap_lines(model, target, [one for one in windows if one not in totals])
    judged = {finding.model_name for finding in target.decision.findings}
    for model in sorted({*target.models, *judged} - shown_models):
        yield shown(model), "bold"
        if model in target.models:
            mode = target.models[model]
            yield f"speculation {mode}; no whole minute seen since the last start or switch", ""
        yield from _decision_lines(model, target, None, now)


def _decision_lines(model: str, target: TargetView, window: WindowView | None, now: float) -> Lines:
    """Whether speculation pays for a model, and the state of its rules and objectives."""
    decision, mode = target.decision, target.models.get(model)
    if mode is Mode.UNKNOWN:
        yield from paragraph(f"It is {MODE_NOT_KNOWN}. {MODE_REMEDY}", "yellow")
    if mode is not None and mode.unjudged:
        yield from paragraph(f"not judged: {mode.unjudged}", "yellow")
    if mode is Mode.STOPPED:
        yield from paragraph(speculation.engine_stop(target.stops.get(model)), "yellow")
        yield from paragraph(f"  {speculation.STOPPED_REMEDY}")
    judged = decision.models.get(model)
    off = mode is not None and (mode in (Mode.OFF, Mode.STOPPED) or bool(mode.unjudged))
    # Nothing is said where nothing was generated with speculation.
    if not off and judged is not None and (judged.speedup is not None or judged.minutes):
        yield from paragraph(speculation.speedup(judged))
        yield from paragraph(speculation.draft_lengths(judged.draft_lengths) or "")
        yield from paragraph(speculation.break_even(judged, window))
        yield from paragraph(speculation.best_k(judged) or "")
    findings = [finding for finding in decision.findings if finding.model_name == model]
    breaches = [finding for finding in findings if finding.verdict == "breach"]
    for finding in sorted(breaches, key=lambda breach: breach.since):
        style = "red" if is_urgent(finding) else "yellow"
        yield from paragraph(f"breach: {speculation.confirmed(finding, now)}", style)
    for finding in list(filter(speculation.may_become, findings))[:_MOST_PENDING]:
        yield from paragraph(f"pending: {speculation.pending(finding, now)}", "dim")
    if findings:
        yield f"rules: {speculation.counts(findings)}", "dim"
    for slo in decision.slos:
        sentence = speculation.objective(slo) if slo.model_name == model else None
        if sentence is not None:
            style = "red" if (slo.budget_left or 0.0) < 0 else ""
            yield from paragraph(f"objective {shown(slo.name)}: {sentence}", style)
    met = speculation.goodput(decision.goodput.get(model, {}))
    if met is not None:
        yield from paragraph(f"goodput: {met}")


def _tap_lines(model: str, target: TargetView, windows: list[WindowView]) -> Lines:
    """What is known by segment, and how well."""
    tap = target.tap
    seen = tap.models.get(model)
    if seen is not None:
        yield from coverage_lines(seen)
    elif not tap.source and target.models.get(model) != "off":
        yield "tap: none: temperatures unknown (specwatch tap flags, or tap proxy, adds one)", ""
    yield from trouble_lines(tap, model)
    judged = target.decision.models.get(model)
    speedups = {one.segment: one for one in judged.segments} if judged else {}
    drafts: Counter[str] = Counter()
    for window in windows:
        drafts[window.segment.dimension] += window.drafts or 0
    yield from segment_lines(
        SegmentRow(
            window,
            (window.drafts or 0) / whole if (whole := drafts[window.segment.dimension]) else None,
            speedups.get(window.segment),
        )
        for window in windows
    )


def trouble_lines(tap: TapView, model: str = "") -> Lines:
    """Yield lines about what is wrong with a model's tap, or with the target's as a whole."""
    for trouble in tap.trouble:
        if trouble.model_name == model:
            yield f"tap: {shown(trouble.text, LONGEST_SENTENCE)}", "red"


def coverage_lines(seen: CoverageView) -> Lines:
    """Yield lines about how much a tap saw of a model, and what it could not."""
    coverage = f"covers {figures.percent(seen.coverage)} of drafts"
    if seen.coverage is None:
        coverage = f"{figures.number(seen.drafts)} drafts seen, the server counted none"
    yield f"{shown(seen.source)}: {coverage}", ""
    for count, reason in leading_reasons(seen.uncovered):
        yield from paragraph(f"  not covered: {figures.counted(count, 'request')}, {reason}")
    derived = share_derived(seen.records)
    if derived >= _LEAST_DERIVED:
        text = f"  of {derived:.0%} of requests the acceptance is derived: {METHODS['derived']}"
        yield from paragraph(text)


def segment_lines(rows: Iterable[SegmentRow]) -> Lines:
    """Yield a table of the segments of each dimension.

    ``P10/50/90`` are quantiles of single requests' acceptance in percent; TTFT and TPOT are P50,
    or the mean where only that is known. A measured speedup replaces the mean acceptance length,
    and segments that lose are red.
    """

    def faster(row: SegmentRow) -> str:
        return f"{row.speedup.speedup.value:.2f}x" if row.speedup else figures.UNKNOWN

    ordered = sorted(rows, key=lambda row: buckets.order_of(row.counted.segment))
    for dimension, group in groupby(ordered, key=lambda row: row.counted.segment.dimension):
        of_dimension = list(group)
        columns = _SEGMENTS
        title = "temp" if dimension == TEMPERATURE else kind_title(dimension)[:24]
        if any(row.speedup for row in of_dimension):
            columns = {
                "faster" if name == "length" else name: faster if name == "length" else column
                for name, column in _SEGMENTS.items()
            }
        yield from table(
            {title: lambda row: shown(row.counted.segment.value, 24), **columns},
            of_dimension,
            style=lambda row: "red" if row.speedup and row.speedup.loses else "",
        )


def _middle(latency: LatencyView | None) -> str:
    """P50; the mean where only that is known."""
    median = figures.quantile(latency, "p50")
    return figures.mean(latency) if median == figures.UNKNOWN else median
