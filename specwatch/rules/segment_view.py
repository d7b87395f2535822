"""Segments as the HTTP API and the status page show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from specwatch.domain import acceptance, histogram
from specwatch.domain.interval import Interval
from specwatch.domain.model import Tally, Window
from specwatch.domain.segments import kind_of, order_of, value_of


class SegmentView(Struct, frozen=True, kw_only=True):
    """The last minutes of a segment: the mean TPOT is in seconds, the speedup of the last hour.

    ``token_share`` is its share of the tokens that steps with a draft gave, among the segments of
    its kind; null without drafts.
    """

    model_name: str
    segment: str
    value: str
    requests: int
    drafts: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    mean_tpot: float | None
    speedup: Interval | None
    token_share: float | None = None


def segment_views(
    windows: Sequence[Window], speedups: Mapping[tuple[str, str], Interval]
) -> list[SegmentView]:
    """Segments by model and kind; ``speedups`` are by model and label."""
    tokens: dict[tuple[str, str], int] = {}
    for window in windows:
        of_kind = window.series.model_name, kind_of(window.series.temperature)
        tokens[of_kind] = tokens.get(of_kind, 0) + _drafted_tokens(window.tally)
    ordered = sorted(
        windows, key=lambda one: (one.series.model_name, order_of(one.series.temperature))
    )
    return [_segment(window, tokens, speedups) for window in ordered]


def _drafted_tokens(counted: Tally) -> int:
    return (counted.drafts or 0) + (counted.accepted_tokens or 0)


def _segment(
    window: Window,
    tokens: Mapping[tuple[str, str], int],
    speedups: Mapping[tuple[str, str], Interval],
) -> SegmentView:
    label, counted = window.series.temperature, window.tally
    of_kind = tokens[window.series.model_name, kind_of(label)]
    return SegmentView(
        model_name=window.series.model_name,
        segment=kind_of(label),
        value=value_of(label),
        requests=sum(counted.requests.values()),
        drafts=counted.drafts,
        acceptance_rate=acceptance.acceptance_rate(counted),
        mean_acceptance_length=acceptance.mean_acceptance_length(counted),
        mean_tpot=None if counted.tpot is None else histogram.mean(counted.tpot),
        speedup=speedups.get((window.series.model_name, label)),
        token_share=_drafted_tokens(counted) / of_kind if of_kind else None,
    )
