"""Objectives for latency on vLLM's own histograms: how fast the error budget burns.

The windows and factors are those of *The Site Reliability Workbook* (2018), ch. 5: a long window
says that it matters, a short one that it still goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from specwatch.config.rules import Slo
from specwatch.domain.units import format_duration, parse_duration
from specwatch.generate.alerts.gates import joined, servers
from specwatch.generate.alerts.rule import Alert, Group, Recording
from specwatch.generate.alerts.slo import BURNS, LEAST_COVERED, LEAST_LONG, LEAST_SHORT, Burn

INTERVAL_SECONDS = 60
"""Of the group: sums over windows count it for each evaluation."""
_REQUESTS = "job_model:vllm_slo_requests:rate5m"
_SLOW = "job_model:vllm_slo_slow_requests:rate5m"
_BY = "by (job, model_name)"


class Histogram(NamedTuple):
    """A histogram of vLLM and the finite bounds of its buckets, in seconds."""

    family: str
    bounds: tuple[float, ...]


HISTOGRAMS: Mapping[str, Histogram] = {
    "ttft": Histogram(
        "vllm:time_to_first_token_seconds",
        (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
         40, 80, 160, 640, 2560),
    ),
    "tpot": Histogram(
        "vllm:request_time_per_output_token_seconds",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
         80),
    ),
    "e2e": Histogram(
        "vllm:e2e_request_latency_seconds",
        (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920,
         7680),
    ),
}  # fmt: skip
"""By the metric of an objective. Source: vLLM's ``vllm/v1/metrics``, 0.8.5 to 0.33."""


_LONGER = ("30m", "1h", "2h", "6h", "1d", "3d")


def groups(slos: Sequence[Slo]) -> Iterator[Group]:
    """Recording rules and alerts of each objective that vLLM's histograms can tell."""
    told = [(slo, bound) for slo in slos if (bound := bound_of(slo)) is not None]
    if told:
        records = [record for slo, bound in told for record in _records(slo, bound)]
        alerts = [
            _alert(slo, bound, burn) for slo, bound in told for burn in BURNS if _can(slo, burn)
        ]
        yield Group("vllm-slo", (*records, *_ratios(), *alerts), interval=f"{INTERVAL_SECONDS}s")


def notes(slos: Sequence[Slo]) -> Iterator[str]:
    """A line on each objective that is not measured just as it is configured."""
    for slo in slos:
        bounds, threshold = HISTOGRAMS[slo.metric].bounds, format_duration(slo.threshold)
        bound = bound_of(slo)
        where = f"objective {slo.name}: {threshold}"
        if bound is None:
            yield (
                f"{where} is above the last bound of vLLM's histogram"
                f" ({format_duration(bounds[-1])}): there are no alerts on it here"
            )
        elif bound != slo.threshold:
            below = [format_duration(each) for each in bounds if each < bound][-1:]
            exact = " or ".join([*below, format_duration(bound)])
            yield (
                f"{where} is no bound of vLLM's histogram: only what is slower than"
                f" {format_duration(bound)} counts as slow; {exact} would be exact"
            )
        for burn in BURNS if bound is not None else ():
            if not _can(slo, burn):
                yield (
                    f"objective {slo.name}: {slo.objective:.6g} leaves so much that it cannot be"
                    f" used up {burn.factor:g} times too fast: there is no alert on that"
                )


def bound_of(slo: Slo) -> float | None:
    """The first bound that is not below the threshold, in seconds: what is slower surely missed
    the objective. None above all."""
    bounds = HISTOGRAMS[slo.metric].bounds
    return next((each for each in bounds if each >= slo.threshold), None)


def le_matcher(bound: float) -> str:
    """What finds a bound however it is stored: Prometheus 2 keeps ``1`` where 3 makes it ``1.0``.

    Source: the migration guide of Prometheus 3.0, "le and quantile label values".
    """
    if bound == int(bound):
        return f'le=~"{bound:.0f}([.]0)?"'
    return f'le="{bound:g}"'


def _records(slo: Slo, bound: float) -> Iterator[Recording]:
    """Both count only servers that have the bound, for those of vLLM 0.32 may be others."""
    family, labels = HISTOGRAMS[slo.metric].family, {"slo": slo.name}
    every = f"rate({family}_count[5m])"
    good = f"max without (le) (rate({family}_bucket{{{le_matcher(bound)}}}[5m]))"
    yield Recording(record=_REQUESTS, expr=f"sum {_BY} ({every} and {good})", labels=labels)
    yield Recording(record=_SLOW, expr=f"sum {_BY} ({every} - {good})", labels=labels)


def _ratios() -> Iterator[Recording]:
    """Of sums, so that a busy minute weighs more than a quiet one."""
    yield Recording(record=_ratio("5m"), expr=f"{_SLOW} / ({_REQUESTS} > 0)")
    for window in _LONGER:
        slow, all_of_them = (f"sum_over_time({each}[{window}])" for each in (_SLOW, _REQUESTS))
        yield Recording(record=_ratio(window), expr=f"{slow} / ({all_of_them} > 0)")


def _ratio(window: str) -> str:
    return f"job_model:vllm_slo_errors:ratio_rate{window}"


def _can(slo: Slo, burn: Burn) -> bool:
    """Whether a budget can burn so fast: not where more than all requests would have to be slow."""
    return burn.factor * (1 - slo.objective) < 1


def _alert(slo: Slo, bound: float, burn: Burn) -> Alert:
    label = f"{{slo={json.dumps(slo.name, ensure_ascii=False)}}}"
    line, name = f"{burn.factor:g} * {1 - slo.objective:.6g}", _literal(slo.name)
    threshold = format_duration(bound)
    if bound != slo.threshold:
        threshold += f" (for {format_duration(slo.threshold)}, which is no bound of the histogram)"
    return Alert(
        name="VllmLatencySloBurn",
        expr=joined(
            f"{_ratio(burn.long)}{label} > {line}",
            f"and {_ratio(burn.short)}{label} > {line}",
            f"and {_asked(burn.long, label)} >= {LEAST_LONG}",
            f"and {_asked(burn.short, label)} >= {LEAST_SHORT}",
            f"and {_covered(burn.long, label)} >= {LEAST_COVERED}",
        ),
        for_=burn.for_,
        severity=burn.severity,
        summary=(
            f"{{{{ $labels.model_name }}}}: the error budget of {name} burns"
            f" {burn.factor:g} times too fast"
        ),
        description=(
            f"{{{{ $labels.model_name }}}} (job {{{{ $labels.job }}}}): the {_WORDS[slo.metric]}"
            f" was above {threshold} in {{{{ $value | humanizePercentage }}}} of the requests of"
            f" the last {burn.long}; {100 * (1 - slo.objective):.4g}% may be."
        ),
        meaning=(
            "More requests than the objective allows are slower than its threshold, over a long"
            " window and still over a short one. It counts the requests to all servers of a job"
            " that serve the model. Time per output token is known from vLLM 0.11 on; before, and"
            " on servers whose bucket bounds were overridden, that objective has no numbers and"
            " stays silent."
        ),
        look=(
            "Which servers are slow (TTFT and TPOT of each on the dashboard for stock vLLM"
            " metrics), whether requests wait, whether the KV cache is full, and whether"
            " acceptance fell at the same time."
        ),
        do=(
            "Where requests wait, add capacity or shed load. Where acceptance fell, or TPOT rose"
            " with the load, try one server without speculation: `specwatch strip` gives its"
            " command. Where the objective was never met, change the objective."
        ),
        labels={
            "slo": name,
            "long": burn.long,
            "short": burn.short,
            "servers": servers(f"{HISTOGRAMS[slo.metric].family}_count", "job, instance"),
        },
    )


def _literal(text: str) -> str:
    """A name in a template: alerts have them in labels and annotations, recordings do not."""
    return text.replace("{{", '{{ "{{" }}')


def _covered(window: str, label: str) -> str:
    """The share of a window in which requests could be counted."""
    most = parse_duration(window) / INTERVAL_SECONDS
    return f"count_over_time({_REQUESTS}{label}[{window}]) / {most:g}"


def _asked(window: str, label: str) -> str:
    """How many requests there were."""
    return f"sum_over_time({_REQUESTS}{label}[{window}]) * {INTERVAL_SECONDS}"


_WORDS = {
    "ttft": "time to the first token",
    "tpot": "time per output token",
    "e2e": "time to the end",
}
