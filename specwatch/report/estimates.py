"""Figures of a report with their intervals or bounds, and what is predicted from them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from specwatch.domain.experiments import Estimate
from specwatch.domain.interval import Interval


class Ratio(Struct, frozen=True, kw_only=True):
    """A ratio and its 95 % interval; an assumed ratio has no interval."""

    value: float
    lower: float | None = None
    upper: float | None = None
    basis: Literal["measured", "assumed"] = "measured"


def ratio_of(estimate: Interval | Estimate | None) -> Ratio | None:
    """A measured ratio with its interval, or None."""
    if estimate is None:
        return None
    return Ratio(value=estimate.value, lower=estimate.lower, upper=estimate.upper)


class Amount(Struct, frozen=True, kw_only=True):
    """An amount and its 95 % interval."""

    value: float
    lower: float | None = None
    upper: float | None = None


class Bounds(Struct, frozen=True, kw_only=True):
    """The least and the greatest possible value of a figure; equal where it is exact."""

    lower: float
    upper: float


class Quantiles(Struct, frozen=True, kw_only=True):
    """Quantiles of one latency, from merged counts. The mean is exact.

    Quantiles beyond the last bound have its value, and ``beyond`` names them (``p95``, ``p99``).
    The others are interpolated: ``buckets`` has the bounds of their histogram buckets.
    """

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
    """Drafts and their accepted tokens. ``histogram`` counts the drafts with 0, 1, .. k accepted
    tokens."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    rate: float | None
    mean_length: float | None
    histogram: tuple[int, ...] | None = None
    per_request: ReportSpread | None = None


class Crossing(Struct, frozen=True, kw_only=True):
    """The number of running requests above which speculation loses."""

    running: float


class ReportBestK(Struct, frozen=True, kw_only=True):
    """Predicted speedups per token for 0, 1, .. present draft tokens, and the best of them; 0 is a
    server without speculation."""

    k: int
    now: int
    speedups: tuple[float, ...]


class WhatIf(Struct, frozen=True, kw_only=True):
    """What to do about the loads at which speculation loses, ``share`` of the measured time.

    If ``loads`` is empty it pays at none: switched off, the same work would have been done ``gain``
    times as fast (1.24 is 24 % more). Else it pays at ``loads``, and ``setting`` is the value for
    vLLM's ``num_speculative_tokens_per_batch_size`` that drafts less above them. The speedup there
    is ``now``. With 0 draft tokens the drafter still runs: ``without_drafts`` is the inverse of the
    ``standby_cost`` measured there, and where that is not known, what is expected at most by the
    assumed cost of a draft token; ``gain`` is known only if it is measured. ``fewer`` is the
    speedup predicted there if more than 0 draft tokens are better.
    """

    loads: tuple[str, ...]
    setting: tuple[tuple[int, int, int], ...]
    share: float
    gain: float | None = None
    now: float | None = None
    without_drafts: float | None = None
    standby_cost: Ratio | None = None
    fewer: float | None = None
