"""Figures of a report with what is known of their certainty."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Ratio(Struct, frozen=True, kw_only=True):
    """A ratio and its 95 % interval, which an assumed one has not."""

    value: float
    lower: float | None = None
    upper: float | None = None
    basis: Literal["measured", "assumed"] = "measured"


class Amount(Struct, frozen=True, kw_only=True):
    """An amount and its 95 % interval."""

    value: float
    lower: float | None = None
    upper: float | None = None


class Bounds(Struct, frozen=True, kw_only=True):
    """What a figure is at least, and at most; they are equal where it is known."""

    lower: float
    upper: float


class Quantiles(Struct, frozen=True, kw_only=True):
    """Of one latency, from merged counts; those that lie beyond the last bound have its value, and
    ``beyond`` names them (``p95``, ``p99``). Others are interpolated: ``buckets`` has the bounds
    between which they really are. The mean is exact."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    beyond: tuple[str, ...] = ()
    buckets: dict[str, Bounds] = {}


class ReportLatency(Struct, frozen=True, kw_only=True):
    """One latency with speculation, in the period before, and without speculation at equal load."""

    on: Quantiles | None = None
    before: Quantiles | None = None
    off: Quantiles | None = None


class ReportSpread(Struct, frozen=True, kw_only=True):
    """How the acceptance rates of single requests spread."""

    count: int
    p10: float | None
    p50: float | None
    p90: float | None


class ReportAcceptance(Struct, frozen=True, kw_only=True):
    """Drafts and what became of them. ``histogram`` has the drafts that had 0, 1, .. k tokens
    accepted."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    rate: float | None
    mean_length: float | None
    histogram: tuple[int, ...] | None = None
    per_request: ReportSpread | None = None
