"""Objectives for latency: burn rates of their error budgets, from vLLM's histograms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from specwatch.config.rules import Slo
from specwatch.domain.units import format_duration, parse_duration
from specwatch.generate.alerts.rules import Group, load
from specwatch.rules.objectives import BURNS, LEAST_LONG, LEAST_SHORT, LEAST_WATCHED, Burn

LEAST = {"LEAST_COVERED": LEAST_WATCHED, "LEAST_LONG": LEAST_LONG, "LEAST_SHORT": LEAST_SHORT}
"""By their names in the templates."""


SAMPLE_SLOS = (
    Slo(name="first-token", metric="ttft", threshold="500ms", objective="99%"),
    Slo(name="per-token", metric="tpot", threshold="50ms", objective="99%"),
)
"""Used if the configuration has no objectives."""


class LatencyHistogram(NamedTuple):
    """A histogram of vLLM, what it measures, and the finite bounds of its buckets, in seconds."""

    family: str
    quantity: str
    bounds: tuple[float, ...]


HISTOGRAMS: Mapping[str, LatencyHistogram] = {
    "ttft": LatencyHistogram(
        "vllm:time_to_first_token_seconds",
        "time to the first token",
        (
            0.001,
            0.005,
            0.01,
            0.02,
            0.04,
            0.06,
            0.08,
            0.1,
            0.25,
            0.5,
            0.75,
            1,
            2.5,
            5,
            7.5,
            10,
            20,
            40,
            80,
            160,
            640,
            2560,
        ),
    ),
    "tpot": LatencyHistogram(
        "vllm:request_time_per_output_token_seconds",
        "time per output token",
        (
            0.01,
            0.025,
            0.05,
            0.075,
            0.1,
            0.15,
            0.2,
            0.3,
            0.4,
            0.5,
            0.75,
            1,
            2.5,
            5,
            7.5,
            10,
            20,
            40,
            80,
        ),
    ),
    "e2e": LatencyHistogram(
        "vllm:e2e_request_latency_seconds",
        "time to the end",
        (
            0.3,
            0.5,
            0.8,
            1,
            1.5,
            2,
            2.5,
            5,
            10,
            15,
            20,
            30,
            40,
            50,
            60,
            120,
            240,
            480,
            960,
            1920,
            7680,
        ),
    ),
}
"""By the metric of an objective. Source: vLLM's ``vllm/v1/metrics``, 0.8.5 to 0.33."""


def groups(slos: Sequence[Slo]) -> tuple[Group, ...]:
    """Recording rules and alerts of each objective that vLLM's histograms can measure."""
    bounds = [(slo, bound) for slo in slos if (bound := bound_of(slo)) is not None]
    if not bounds:
        return ()
    return load(
        "vllm_slo_rules.yml",
        objectives=[
            {"slo": slo, "family": HISTOGRAMS[slo.metric].family, "le": le_matcher(bound)}
            for slo, bound in bounds
        ],
        windows=[{"window": window} for window in ("30m", "1h", "2h", "6h", "1d", "3d")],
        burns=[
            _burn_values(slo, bound, burn)
            for slo, bound in bounds
            for burn in BURNS
            if _can_burn(slo, burn)
        ],
        **LEAST,
    )


def notes(slos: Sequence[Slo]) -> Iterator[str]:
    """A line on each objective that is not measured exactly as configured."""
    for slo in slos:
        bounds, threshold = HISTOGRAMS[slo.metric].bounds, format_duration(slo.threshold)
        bound = bound_of(slo)
        where = f"objective {slo.name}: {threshold}"
        if bound is None:
            yield (
                f"{where} is above the last bound of vLLM's histogram"
                f" ({format_duration(bounds[-1])}): it has no alerts here"
            )
            continue
        if bound != slo.threshold:
            below = [format_duration(lower) for lower in bounds if lower < bound][-1:]
            exact = " or ".join([*below, format_duration(bound)])
            yield (
                f"{where} is not a bound of vLLM's histogram: only what is slower than"
                f" {format_duration(bound)} counts as slow; {exact} would be exact"
            )
        for burn in BURNS:
            if not _can_burn(slo, burn):
                yield (
                    f"objective {slo.name}: with {slo.objective:.6g} the error budget cannot burn"
                    f" {burn.factor:g} times too fast, so that rate has no alert"
                )


def bound_of(slo: Slo) -> float | None:
    """The first bound that is not below the threshold, in seconds: slower requests certainly missed
    the objective. None above all bounds."""
    bounds = HISTOGRAMS[slo.metric].bounds
    return next((bound for bound in bounds if bound >= slo.threshold), None)


def le_matcher(bound: float) -> str:
    """A matcher for a bound however it is stored: ``1`` by Prometheus 2, ``1.0`` by 3.

    Source: the migration guide of Prometheus 3.0, "le and quantile label values".
    """
    if bound == int(bound):
        return f'le=~"{bound:.0f}([.]0)?"'
    return f'le="{bound:g}"'


def _can_burn(slo: Slo, burn: Burn) -> bool:
    """Whether a budget can burn so fast: more than all requests cannot be slow."""
    return burn.factor * (1 - slo.objective) < 1


def _burn_values(slo: Slo, bound: float, burn: Burn) -> dict[str, object]:
    threshold = format_duration(bound)
    if bound != slo.threshold:
        configured = format_duration(slo.threshold)
        threshold += f" (for {configured}, which is not a bound of the histogram)"
    return {
        **burn._asdict(),
        "factor": f"{burn.factor:g}",
        "line": f"{burn.factor:g} * {1 - slo.objective:.6g}",
        "long_minutes": f"{parse_duration(burn.long) / 60:g}",
        "family": HISTOGRAMS[slo.metric].family,
        "quantity": HISTOGRAMS[slo.metric].quantity,
        "threshold": threshold,
        "allowed": f"{100 * (1 - slo.objective):.4g}%",
        # Labels and annotations of alerts are templates of Prometheus; expressions are not.
        "name": slo.name.replace("{{", '{{ "{{" }}'),
        "quoted_name": json.dumps(slo.name, ensure_ascii=False),
    }
