"""Tallies, windows and pages as the HTTP API and ``--json`` show them.

An unknown is None. Quantiles come from merged counts and are never averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from specwatch.domain import acceptance, buckets, histogram, merge
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import (
    TEMPERATURE,
    Histogram,
    Mode,
    Segment,
    Series,
    Source,
    Tally,
    Window,
    events_of,
    load_bin_label,
)
from specwatch.engines.sample_names import mode_of
from specwatch.scrape import switch, tally

ACCEPTANCE_QUANTILES: Mapping[str, float] = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATENCIES = ("ttft", "tpot", "inter_token", "e2e")

_View = TypeVar("_View", bound=Struct)


class LatencyView(Struct, frozen=True):
    """Count, sum and quantiles, in the unit of the histogram.

    ``open_ended``: a quantile lies beyond the last bound, whose value it has; the real value is
    greater. Any other quantile is interpolated within its bucket, whose bounds ``buckets`` has.
    Without bounds (only the mean is known) quantiles are None.
    """

    count: int
    sum: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    open_ended: bool
    buckets: dict[str, tuple[float, float]]


class RequestAcceptance(Struct, frozen=True):
    """Quantiles of the acceptance rates of single requests."""

    count: int
    p10: float | None
    p50: float | None
    p90: float | None


class CoverageView(Struct, frozen=True, kw_only=True):
    """How much of a model's drafts a tap saw, and why it missed requests."""

    source: str
    drafts: int
    coverage: float | None
    records: Mapping[str, int]
    uncovered: Mapping[str, int]


class ScrapedTap(CoverageView, frozen=True, kw_only=True):
    """The tap on one page."""

    failures: int


class ScrapedSegment(Struct, frozen=True, kw_only=True):
    """One segment of one page; ``share`` is that of the drafts of its dimension."""

    segment: Segment
    share: float | None
    requests: Mapping[str, int]
    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    accepted_length_histogram: Sequence[int] | None
    accepted_per_position: Sequence[int] | None
    ttft: LatencyView | None
    tpot: LatencyView | None
    request_acceptance: RequestAcceptance | None


class ScrapedModel(Struct, frozen=True, kw_only=True):
    """One model of one page: totals since the engine started."""

    model_name: str
    engine_count: int
    speculation: Mode
    draft_lengths: str | None
    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    accepted_length_histogram: Sequence[int] | None
    accepted_per_position: Sequence[int] | None
    running: int | None
    waiting: int | None
    kv_cache_usage: float | None
    events: Mapping[str, int | None]
    ttft: LatencyView | None
    tpot: LatencyView | None
    inter_token: LatencyView | None
    tap: ScrapedTap | None
    segments: list[ScrapedSegment]


class WindowView(Struct, frozen=True, kw_only=True):
    """A window. Times are Unix seconds, durations seconds."""

    daemon: str
    target: str
    model_name: str
    segment: Segment
    start: int
    length: int
    mode: str
    source: str
    coverage: float | None
    server_drafts: int | None
    source_drafts: int | None
    engine_version: str | None
    fingerprint: str | None
    drafts: int | None
    draft_tokens: int | None
    accepted_tokens: int | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    accepted_length_histogram: Sequence[int] | None
    accepted_per_position: Sequence[int] | None
    request_acceptance: RequestAcceptance | None
    records: Mapping[str, int]
    uncovered: Mapping[str, int]
    requests: Mapping[str, int]
    prompt_tokens: int | None
    generation_tokens: int | None
    events: Mapping[str, int | None]
    prefix_cache_queries: int | None
    prefix_cache_hits: int | None
    ttft: LatencyView | None
    tpot: LatencyView | None
    inter_token: LatencyView | None
    e2e: LatencyView | None
    output_length: LatencyView | None
    load_bin: str | None
    running_mean: float | None
    running_max: int
    waiting_mean: float | None
    waiting_max: int
    kv_cache_usage_max: float | None
    gpu_memory_used_max: int | None
    gpu_memory_total: int | None
    observed_seconds: float
    down_seconds: float
    scrapes_ok: int
    scrapes_failed: int
    restarts: int


def view_of(kind: type[_View], *sources: object, **fields: Any) -> _View:
    """A view whose fields are those given, else attributes of the first source that has them."""
    types = (kind, *map(type, sources))
    if types not in _SOURCE_OF:  # looking for attributes takes longer than all the rest
        _SOURCE_OF[types] = {
            name: next((n for n, source in enumerate(sources) if hasattr(source, name)), None)
            for name in kind.__struct_fields__
        }
    return kind(
        **{
            name: fields[name] if index is None or name in fields else getattr(sources[index], name)
            for name, index in _SOURCE_OF[types].items()
        }
    )


_SOURCE_OF: dict[tuple[type, ...], dict[str, int | None]] = {}


def latency(observed: Histogram | None) -> LatencyView | None:
    """Count, sum and quantiles of a histogram."""
    if observed is None:
        return None
    known = dict(
        zip(QUANTILES, histogram.quantiles(observed, tuple(QUANTILES.values())), strict=False)
    )
    return LatencyView(
        count=observed.count,
        sum=observed.sum,
        **{name: known[name].value if name in known else None for name in QUANTILES},
        open_ended=any(one.open_ended and one.value is not None for one in known.values()),
        buckets={name: (one.lower, one.upper) for name, one in known.items() if not one.open_ended},
    )


def request_acceptance(observed: Histogram | None) -> RequestAcceptance | None:
    """How the acceptance rates of single requests are distributed."""
    if observed is None:
        return None
    quantiles = histogram.quantiles(observed, tuple(ACCEPTANCE_QUANTILES.values()))
    known = [quantile.value for quantile in quantiles] or [None] * len(ACCEPTANCE_QUANTILES)
    return RequestAcceptance(observed.count, *known)


def acceptance_of(counted: Tally) -> dict[str, Any]:
    """Drafts and what became of them, by the names of the API."""
    positions = counted.accepted_per_position
    return {
        "drafts": counted.drafts,
        "draft_tokens": counted.draft_tokens,
        "accepted_tokens": counted.accepted_tokens,
        "acceptance_rate": acceptance.acceptance_rate(counted),
        "mean_acceptance_length": acceptance.mean_acceptance_length(counted),
        "accepted_length_histogram": acceptance.accepted_length_histogram(
            counted.drafts, positions, counted.accepted_tokens
        ),
        "accepted_per_position": positions,
    }


def _counts(counted: Tally) -> dict[str, Any]:
    """All fields of a view that are computed from a tally."""
    return {
        **acceptance_of(counted),
        "events": events_of(counted),
        "request_acceptance": request_acceptance(counted.request_acceptance),
        **{name: latency(getattr(counted, name)) for name in (*LATENCIES, "output_length")},
    }


def models_of(
    samples: Mapping[Series, float],
    problems: list[str],
    *,
    unnamed: str = "",
    drafting: bool | None = None,
    draft_lengths: DraftLengths | None = None,
    prefills: bool = False,
) -> list[ScrapedModel]:
    """What one page says, per model: totals since the engine started.

    ``unnamed`` is what to call a model that the page does not name, ``drafting``,
    ``draft_lengths`` and ``prefills`` what its server says of itself (see
    :class:`specwatch.engines.base.Identity`). ``problems`` gets a
    sentence about each thing that had to be left out. Raises PageError for totals that are not
    numbers.
    """
    parts = tally.parts_of(samples)
    taps = _taps(parts, problems) if parts.tap and parts.models else {}
    setting = switch.setting_of(samples)
    on = Mode.ON if setting is None else setting.mode
    draft_lengths = tally.draft_lengths_of(samples) or draft_lengths
    return [
        _model(
            name or unnamed,
            part,
            problems,
            mode_of(part, drafting, on=on, prefills=prefills or tally.prefills(samples, part)),
            draft_lengths,
            *taps.get(name, (None, [])),
        )
        for name, part in sorted(parts.models.items())
    ]


def _taps(
    parts: tally.Parts, problems: list[str]
) -> dict[str, tuple[ScrapedTap, list[ScrapedSegment]]]:
    """What the tap on a page counted, by model of the engine."""
    failures = sum(value for one, value in parts.tap.items() if one.quantity == "tap_failures")
    counted = buckets.by_model(
        {
            bucket: tally.tally_of(samples, problems)
            for bucket, samples in buckets.by_bucket(parts.tap, problems).items()
        },
        parts.models,
        "",
        problems,
    )
    result = {}
    for model in parts.models:
        tallies = counted.get(model, {})
        server_drafts = tally.tally_of(parts.models[model], []).drafts
        drafts: Counter[str] = Counter()
        for one, part in tallies.items():
            drafts[one.dimension] += part.drafts or 0
        total = merge.sum_tallies(
            part for one, part in tallies.items() if one.dimension == TEMPERATURE
        )
        tap = view_of(
            ScrapedTap,
            total,
            source=Source.TAP,
            drafts=drafts[TEMPERATURE],
            coverage=drafts[TEMPERATURE] / server_drafts if server_drafts else None,
            failures=int(failures),
        )
        result[model] = (
            tap,
            [
                view_of(
                    ScrapedSegment,
                    part,
                    segment=one,
                    share=(part.drafts or 0) / whole if (whole := drafts[one.dimension]) else None,
                    **_counts(part),
                )
                for one, part in sorted(tallies.items(), key=lambda item: buckets.order_of(item[0]))
            ],
        )
    return result


def _model(
    name: str,
    samples: Mapping[Series, float],
    problems: list[str],
    mode: Mode,
    draft_lengths: DraftLengths | None,
    tap: ScrapedTap | None,
    segments: list[ScrapedSegment],
) -> ScrapedModel:
    gauges = tally.sampled(samples)
    counted = tally.tally_of(samples, problems)
    fields = _counts(counted)
    if draft_lengths is None and acceptance.lengths_vary(counted):
        draft_lengths = DraftLengths.UNEXPLAINED
    if fields["acceptance_rate"] is None:
        fields["acceptance_rate"] = gauges.lifetime_acceptance_rate
    return view_of(
        ScrapedModel,
        counted,
        gauges,
        **fields,
        model_name=name,
        engine_count=len(
            {series.engine for series in samples if series.quantity == "running"}
            or {series.engine for series in samples}
        ),
        speculation=mode,
        draft_lengths=None if mode is Mode.OFF or mode.unjudged else draft_lengths,
        running=None if gauges.running is None else int(gauges.running),
        waiting=None if gauges.waiting is None else int(gauges.waiting),
        tap=tap,
        segments=segments,
    )


def window_view(window: Window) -> WindowView:
    """A window."""
    return view_of(
        WindowView,
        window,
        window.series,
        window.environment,
        window.gauges,
        window.tally,
        **_counts(window.tally),
        load_bin=None if window.load_bin is None else load_bin_label(window.load_bin),
    )
