"""The overview's panels of latency: with speculation, at the baseline, and against objectives."""

from __future__ import annotations

from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.once import least, most
from specwatch.generate.dashboards.panels import Panel, Query, stat, style, timeseries

_QUANTILES = (("0.5", "P50", "green"), ("0.95", "P95", "yellow"), ("0.99", "P99", "red"))


def latency(model: str) -> list[Band]:
    """Bands for the model that the matchers ``model`` select."""
    first = _quantiles(model, "ttft", "TTFT", "Time to the first token of a request")
    each = _quantiles(model, "tpot", "TPOT", "Time per output token after the first, per request")
    return [
        Band("Latency, with speculation and at the baseline", 9, [(12, first), (12, each)]),
        Band(None, 8, [(16, _burn(model)), (8, _budget(model))]),
        Band(None, 8, [(24, _goodput(model))]),
    ]


def _quantiles(model: str, metric: str, title: str, meaning: str) -> Panel:
    every = f'{model}, temperature="all"'
    queries, overrides = [], []
    for quantile, name, color in _QUANTILES:
        chosen = f'metric="{metric}", quantile="{quantile}"'
        queries.append(Query(most(f"specwatch_latency_seconds{{{every}, {chosen}}}"), name))
        baseline = most(f"specwatch_baseline_latency_seconds{{{model}, {chosen}}}")
        queries.append(Query(baseline, f"{name} baseline"))
        overrides.append(style(name, color=color))
        overrides.append(style(f"{name} baseline", color=color, dashed=True, width=1))
    return timeseries(
        f"{title} P50, P95, P99",
        f"{meaning}, over the last minutes; dashed: the same without speculation at the loads of"
        " the last hour. A gap in a line that was high means beyond the last bound of the engine's"
        " histogram.",
        queries,
        unit="s",
        minimum=0,
        overrides=overrides,
    )


def _burn(model: str) -> Panel:
    return timeseries(
        "SLO burn rate",
        "How many times faster than evenly the error budget of each objective burns, over each"
        " window. At 1 it lasts exactly as long as the objective; the upper line is where on-call"
        " is woken within the hour (14.4).",
        [
            Query(
                most(f"specwatch_slo_burn_rate{{{model}}}", "slo, window"),
                "{{slo}} over {{window}}",
            )
        ],
        unit="none",
        thresholds=((None, "transparent"), (1.0, "yellow"), (14.4, "red")),
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _budget(model: str) -> Panel:
    left = least(f"specwatch_slo_budget_left_ratio{{{model}}}", "slo")
    return stat(
        "Error budget left",
        "Share of the error budget of each objective that is left in its window: at 0 it is spent,"
        " once or many times over, and the objective is missed.",
        [Query(f"clamp_min({left}, 0)", "{{slo}}")],
        unit="percentunit",
        thresholds=((None, "red"), (0.0001, "orange"), (0.25, "green")),
        decimals=1,
    )


def _goodput(model: str) -> Panel:
    met = f'specwatch_goodput_requests_per_second{{{model}, window="5m"'
    offered = most(f'specwatch_offered_requests_per_second{{{model}, window="5m"}}')
    return timeseries(
        "Goodput",
        "Requests a second of the last 5 minutes that met all objectives, at most and at least, and"
        " dashed all that were offered. Latency histograms do not say which request missed which"
        " objective; where all are for one latency and at its bounds, both are one line.",
        [
            Query(least(f'{met}, bound="upper"}}'), "at most"),
            Query(least(f'{met}, bound="lower"}}'), "at least"),
            Query(offered, "offered"),
        ],
        unit="reqps",
        minimum=0,
        overrides=[
            style("at most", color="green", fill_below="at least"),
            style("at least", color="green"),
            style("offered", color="blue", dashed=True, width=1),
        ],
        legend_values=("lastNotNull", "min"),
    )
