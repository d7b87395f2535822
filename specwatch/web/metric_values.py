"""Readers of the exported metrics that take more than a line.

Each has the values by the further labels of its metric. A quantile beyond the last bound of its
histogram is +Inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from specwatch.domain import acceptance, histogram
from specwatch.domain.group import GroupVerdict
from specwatch.domain.model import Histogram, Source, Tally
from specwatch.domain.units import format_duration
from specwatch.guard.state import Cause, GuardState
from specwatch.rules.attribution import ChangeCause
from specwatch.rules.decisions import ModelDecision
from specwatch.rules.objectives import Goodput
from specwatch.rules.summary import ACCEPTANCE_QUANTILES, LATENCIES
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.scrape.taps import LEAVES_OUT
from specwatch.status import DaemonStatus
from specwatch.web.metric_subjects import RecentSeries, WatchedTarget, label

_VERDICTS = {Verdict.PASS: 0, Verdict.BREACH: 1, Verdict.NO_DATA: -1}
_MOST_LENGTHS = 65
"""Accepted lengths of one series, 0 included: no drafter proposes more than 64 tokens."""

Values = float | None | Mapping[Any, float | None]
"""A number, or numbers by the value of a further label (by values, if there are several).
None is not exported."""


def verdict(finding: Finding) -> int:
    """The confirmed verdict of a rule as a number."""
    return _VERDICTS[finding.verdict]


def pending(finding: Finding) -> bool:
    """Whether a breach is seen, and not confirmed yet."""
    waits = finding.pending is not None and finding.seen is Verdict.BREACH
    return waits and not finding.in_breach


def cause(likely: ChangeCause) -> Values:
    """The share of a change that its likely cause explains, by that cause."""
    return {label(likely.sentence): likely.share}


def mean_break_even(model: ModelDecision) -> float | None:
    """The break-even acceptance at the loads of the last hour, by their shares of the tokens."""
    bins = model.assessment.bins
    weight = math.fsum(bin_.share for bin_ in bins)
    return (
        math.fsum(bin_.share * bin_.acceptance.value for bin_ in bins) / weight if weight else None
    )


def accepted_lengths(counted: Tally) -> tuple[int, ...]:
    """Drafts by how many of their tokens were accepted; empty if that is not known."""
    lengths = acceptance.accepted_length_histogram(
        counted.drafts, counted.accepted_per_position, counted.accepted_tokens
    )
    return () if lengths is None or len(lengths) > _MOST_LENGTHS else tuple(lengths)


def position_ratios(series: RecentSeries) -> Values:
    """Share of the drafts that had a token accepted, by position."""
    counted = series.tally
    if not counted.drafts or not accepted_lengths(counted):
        return None
    return {
        str(position): accepted / counted.drafts
        for position, accepted in enumerate(counted.accepted_per_position or ())
    }


def request_acceptance(series: RecentSeries) -> Values:
    """Quantiles of the acceptance of single requests."""
    observed = series.tally.request_acceptance
    values: dict[str, float | None] = {}
    for q in ACCEPTANCE_QUANTILES.values():
        quantile = None if observed is None else histogram.quantile(observed, q)
        values[str(q)] = None if quantile is None else quantile.value
    return values


def quantiles(latencies: Mapping[str, Histogram | None], ranks: Iterable[float]) -> Values:
    """By metric and quantile: infinite beyond the last bound, None without any bound."""
    values: dict[tuple[str, str], float | None] = {}
    for metric, observed in latencies.items():
        for q in ranks:
            quantile = None if observed is None else histogram.quantile(observed, q)
            if quantile is not None and quantile.value is not None:
                values[metric, str(q)] = math.inf if quantile.open_ended else quantile.value
    return values


def latencies(series: RecentSeries) -> Values:
    """Quantiles by latency and quantile."""
    observed = {metric: getattr(series.tally, metric) for metric in LATENCIES}
    return quantiles(observed, (0.5, 0.9, 0.95, 0.99))


def tap_up(target: WatchedTarget) -> bool | None:
    """Whether its tap counts what can be taken as it is; None before the first scrape."""
    if target.status.last_scrape is None:
        return None
    tap = target.status.tap
    failing = tap.source is Source.PROXY and tap.proxy is not None and tap.proxy.failure
    doubted = any(trouble.kind in LEAVES_OUT for trouble in tap.trouble)
    return not (tap.source is None or failing or doubted)


def by_window(values: Mapping[int, float | None]) -> Values:
    """Values by window, such as ``1h``, of values by its seconds."""
    return {format_duration(seconds): value for seconds, value in values.items()}


def goodput(by_window: Mapping[int, Goodput]) -> Values:
    """Requests a second that met all objectives, by window and bound."""
    return {
        (format_duration(seconds), bound): known.rate(requests)
        for seconds, known in by_window.items()
        for bound, requests in (("lower", known.lower), ("upper", known.upper))
    }


def group_targets(group: GroupVerdict) -> Values:
    """How many members are watched and measured, lose, and stand out."""
    return {
        "watched": group.watched,
        "measured": group.measured,
        "losing": len(group.losing),
        "outlier": len(group.outliers),
        "holdout": len(group.holdouts),
    }


def incident_cause(state: GuardState) -> Values:
    """1 for the cause of the incident, 0 for all others."""
    current = None if state.incident is None else state.incident.cause
    return {one: one is current for one in Cause}


def event_rate(load: RecentSeries, name: str) -> float | None:
    """Events of a fact a second."""
    count: int | None = getattr(load.tally, name)
    return load.rate(count)


def store_behind(daemon: DaemonStatus) -> float:
    """Seconds for which the database has failed."""
    since = daemon.store.behind_since
    return 0.0 if since is None else max(0.0, daemon.now - since)
