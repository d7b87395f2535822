"""The drill-down: what each temperature bucket of one model does, and what speculation gains it.

The line "all", of every request, is drawn beside the buckets: where no tap says the temperatures
it is all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specwatch.generate.dashboards import frame, variables
from specwatch.generate.dashboards.annotations import of_guard
from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.links import TEMPERATURE
from specwatch.generate.dashboards.once import MODEL, SERIES, assumed_line, least, most
from specwatch.generate.dashboards.panels import (
    Column,
    Panel,
    Query,
    ShownAs,
    bar_chart,
    state_timeline,
    style,
    table,
    timeseries,
)

_MODEL = 'target="$target", model_name="$model_name"'
_LINES = f'{_MODEL}, temperature=~"$temperature|all"'
_BUCKETS = f'{_MODEL}, temperature=~"$temperature", temperature!="all"'
_EVERY_BUCKET = f'{_MODEL}, temperature!="all"'
_LEGEND = "{{temperature}}"
_ALL_DASHED = style("all", color="text", dashed=True)
_LONGEST = 16
"""The greatest accepted length with a bar of its own; few drafters propose more tokens."""

_TIMES = "suffix:×"
_PAYS = ((None, "red"), (1.0, "green"))
_BREAK_EVEN = ((None, "transparent"), (1.0, "red"))
_COVERED = ((None, "transparent"), (0.9, "orange"))
_GAINS = (
    ShownAs(-1, "loses", "red"),
    ShownAs(0, "undecided", "yellow"),
    ShownAs(1, "gains", "green"),
)


def build(links: Sequence[Any]) -> str:
    """JSON of the dashboard."""
    return frame.dashboard(
        TEMPERATURE.uid,
        TEMPERATURE.title,
        "What speculation does for each temperature bucket of one model: acceptance, speedup,"
        " latency and share of the traffic. Values are of the last five minutes at each point,"
        " speedups of the last hour.",
        bands=[*_comparison(), *_traffic(), _coverage(), *_one_bucket()],
        variables=[
            variables.data_source(),
            variables.target(),
            variables.model_name(
                multi=False, metric='specwatch_acceptance_ratio{target="$target"}'
            ),
            variables.temperature(),
        ],
        annotations=of_guard(),
        links=links,
    )


def _comparison() -> list[Band]:
    return [
        Band("Buckets compared", 8, [(24, _numbers())]),
        Band(None, 8, [(12, _acceptance()), (12, _speedups())]),
        Band(None, 5, [(24, _gains())]),
        Band(
            None,
            8,
            [
                (6, _latency("TTFT", "ttft", "0.5", "P50")),
                (6, _latency("TTFT", "ttft", "0.99", "P99")),
                (6, _latency("TPOT", "tpot", "0.5", "P50")),
                (6, _latency("TPOT", "tpot", "0.99", "P99")),
            ],
        ),
    ]


def _traffic() -> list[Band]:
    return [
        Band(
            "Share of traffic",
            8,
            [
                (
                    8,
                    _share(
                        "Share of drafts",
                        "specwatch_drafts_per_second",
                        "Which part of the speculation steps that the tap knows each bucket has:"
                        " what is gained or lost weighs by it.",
                    ),
                ),
                (
                    8,
                    _share(
                        "Share of requests",
                        "specwatch_requests_per_second",
                        "Which part of the finished requests that the tap knows each bucket has.",
                    ),
                ),
                (8, _draft_rate()),
            ],
        )
    ]


def _numbers() -> Panel:
    def one(expr: str, function: Callable[[str, str], str]) -> Query:
        return Query(function(expr, "temperature"))

    def low(name: str, more: str = "") -> Query:
        return one(f"{name}{{{_LINES}{more}}}", least)

    def high(name: str, more: str = "") -> Query:
        return one(f"{name}{{{_LINES}{more}}}", most)

    return table(
        "Buckets in numbers",
        "Every bucket now. A speedup is measured only where there is a baseline at the same load;"
        " its interval is at 95 %. A latency of +Inf lies beyond the last bound of the engine's"
        " histogram.",
        [
            one(_share_of("specwatch_drafts_per_second"), most),
            high("specwatch_requests_per_second"),
            low("specwatch_acceptance_ratio"),
            low("specwatch_acceptance_length"),
            low("specwatch_request_acceptance_quantile_ratio", ', quantile="0.1"'),
            low("specwatch_speedup_ratio_lower"),
            low("specwatch_speedup_ratio"),
            high("specwatch_speedup_ratio_upper"),
            high("specwatch_latency_seconds", ', metric="ttft", quantile="0.99"'),
            high("specwatch_latency_seconds", ', metric="tpot", quantile="0.99"'),
        ],
        columns=[
            Column("Temperature", "temperature"),
            Column("Share of drafts", "A", "percentunit", decimals=1),
            Column("Requests/s", "B", "reqps", decimals=2),
            Column("Acceptance", "C", "percentunit", decimals=1),
            Column("Tokens per step", "D", "none", decimals=2),
            Column("P10 of requests", "E", "percentunit", decimals=1),
            Column("Speedup, lower", "F", _TIMES, _PAYS, decimals=2),
            Column("Speedup", "G", _TIMES, _PAYS, decimals=2),
            Column("Speedup, upper", "H", _TIMES, _PAYS, decimals=2),
            Column("TTFT P99", "I", "s"),
            Column("TPOT P99", "J", "s"),
        ],
        sort_by="Temperature",
    )


def _acceptance() -> Panel:
    return timeseries(
        "Acceptance by bucket, and where it breaks even",
        "Accepted tokens / draft tokens. The thin dashed lines are the acceptance below which"
        " speculation loses at a load, as measured on this server; without a baseline there is one,"
        " by the assumed draft cost (draft_cost_ratio of the target).",
        [
            Query(least(f"specwatch_acceptance_ratio{{{_LINES}}}", "temperature"), _LEGEND),
            Query(
                most(f"specwatch_break_even_acceptance_ratio{{{_MODEL}}}", "load_bin"),
                "break-even at {{load_bin}} running",
            ),
            assumed_line(),
        ],
        unit="percentunit",
        minimum=0,
        maximum=1,
        overrides=[_ALL_DASHED, style("/^break-even/", regex=True, dashed=True, width=1)],
    )


def _speedups() -> Panel:
    return timeseries(
        "Speedup by bucket",
        "How many times faster tokens come than without speculation, measured against the baseline"
        " at equal load over the last hour: below 1 speculation loses. Empty without a baseline.",
        [Query(least(f"specwatch_speedup_ratio{{{_LINES}}}", "temperature"), _LEGEND)],
        unit=_TIMES,
        thresholds=_BREAK_EVEN,
        minimum=0,
        decimals=2,
        overrides=[_ALL_DASHED],
    )


def _gains() -> Panel:
    lower = least(f"specwatch_speedup_ratio_lower{{{_LINES}}}", "temperature")
    upper = most(f"specwatch_speedup_ratio_upper{{{_LINES}}}", "temperature")
    return state_timeline(
        "Does it pay",
        "Gains where the whole 95 % interval of the speedup is above 1, loses where it is below;"
        " undecided while 1 lies within it, which more traffic settles.",
        [Query(f"({lower} > bool 1) - ({upper} < bool 1)", _LEGEND)],
        mappings=_GAINS,
    )


def _latency(name: str, metric: str, quantile: str, shown: str) -> Panel:
    words = {
        "ttft": "Time to the first token",
        "tpot": "Time per further token of a request",
    }
    chosen = f'metric="{metric}", quantile="{quantile}"'
    latency = most(f"specwatch_latency_seconds{{{_LINES}, {chosen}}}", "temperature")
    return timeseries(
        f"{name} {shown}",
        f"{words[metric]}, {shown} of merged histograms. Of buckets as the tap measured it, of"
        " all as the engine did. Where a quantile lies beyond the last bound there is no line.",
        [Query(latency, _LEGEND)],
        unit="s",
        minimum=0,
        overrides=[_ALL_DASHED],
    )


def _share_of(name: str) -> str:
    """The part of a bucket in what all buckets have, which is more than nothing."""
    bucket, each = (most(f"{name}{{{of}}}", SERIES) for of in (_BUCKETS, _EVERY_BUCKET))
    return f"{bucket} / on ({MODEL}) group_left () (sum by ({MODEL}) ({each}) > 0)"


def _share(title: str, name: str, description: str) -> Panel:
    return timeseries(
        title,
        f"{description} Empty without a tap.",
        [Query(_share_of(name), _LEGEND)],
        unit="percentunit",
        minimum=0,
        maximum=1,
        stack=True,
        fill=40,
    )


def _draft_rate() -> Panel:
    return timeseries(
        "Drafts per second",
        "Speculation steps: of buckets as the tap knows them, of all as the engine counts them.",
        [Query(most(f"specwatch_drafts_per_second{{{_LINES}}}", "temperature"), _LEGEND)],
        unit="ops",
        minimum=0,
        overrides=[_ALL_DASHED],
    )


def _coverage() -> Band:
    covered = timeseries(
        "Coverage",
        "Share of the engine's drafts of which the tap knows the temperature. What is not covered"
        " is in no bucket: with little coverage the buckets may not be typical.",
        [Query(least(f"specwatch_coverage_ratio{{{_MODEL}}}", "source"), "{{source}}")],
        unit="percentunit",
        thresholds=_COVERED,
        minimum=0,
        maximum=1,
    )
    why = timeseries(
        "Why requests are not covered",
        "Requests of the last five minutes whose acceptance the tap does not know, by reason:"
        " several completions were asked for (several), the engine keeps no record (no_record),"
        " a stop string ended it (stop_string), the client left (disconnected), and so on.",
        [Query(most(f"specwatch_uncovered_requests{{{_MODEL}}}", "reason"), "{{reason}}")],
        unit="short",
        minimum=0,
        stack=True,
        fill=30,
        legend_values=("lastNotNull", "max"),
    )
    return Band("Coverage of the temperatures", 8, [(12, covered), (12, why)])


def _one_bucket() -> list[Band]:
    """A group for each bucket that is chosen."""
    return [
        Band(
            "Temperature $temperature",
            8,
            [(12, _accepted_lengths()), (12, _positions())],
            repeat="temperature",
        ),
        Band(
            None,
            8,
            [(8, _spread_of_requests()), (8, _interval()), (8, _quantiles())],
        ),
    ]


def _accepted_lengths() -> Panel:
    name = "specwatch_accepted_length_drafts"
    every = f"(sum({most(f'{name}{{{_BUCKETS}}}', 'accepted')}) > 0)"
    # One after the other: as text, 10 would precede 2.
    ordered = "\n  or ".join(
        most(f'{name}{{{_BUCKETS}, accepted="{accepted}"}}', "accepted")
        for accepted in range(_LONGEST + 1)
    )
    return bar_chart(
        "Accepted lengths",
        "Share of the drafts of the last five minutes that had this many tokens accepted, exact"
        " from the counts by position. Much at 0 is work for nothing; much at the right end says"
        f" that longer drafts may pay. Up to {_LONGEST}.",
        [Query(f"(\n  {ordered}\n) / on () group_left () {every}", "{{accepted}}")],
        unit="percentunit",
    )


def _positions() -> Panel:
    name = "specwatch_position_acceptance_ratio"
    return bar_chart(
        "Acceptance by position",
        "Share of the drafts of the last five minutes whose token at this position was accepted,"
        " from 0. Positions that are rarely reached only cost time.",
        # None is accepted more often than the one before: sorting brings them in order.
        [Query(f"sort_desc({most(f'{name}{{{_BUCKETS}}}', 'position')})", "{{position}}")],
        unit="percentunit",
    )


def _spread_of_requests() -> Panel:
    name = "specwatch_request_acceptance_quantile_ratio"
    return timeseries(
        "Acceptance of single requests",
        "P10, P50 and P90 of the acceptance rates of requests: a low P10 under a good mean are"
        " requests for which speculation does not pay.",
        [
            Query(least(f'{name}{{{_BUCKETS}, quantile="{q}"}}'), shown)
            for q, shown in (("0.9", "P90"), ("0.5", "P50"), ("0.1", "P10"))
        ]
        + [assumed_line()],
        unit="percentunit",
        minimum=0,
        maximum=1,
        overrides=[style("P90", fill_below="P10"), style("/^break-even/", regex=True, dashed=True)],
    )


def _interval() -> Panel:
    return timeseries(
        "Speedup and its interval",
        "The measured speedup of the last hour within its 95 % confidence interval. It is decided"
        " only where the whole interval is on one side of 1. Cut off at 4.",
        [
            Query(most(f"specwatch_speedup_ratio_upper{{{_BUCKETS}}}"), "upper"),
            Query(least(f"specwatch_speedup_ratio{{{_BUCKETS}}}"), "speedup"),
            Query(least(f"specwatch_speedup_ratio_lower{{{_BUCKETS}}}"), "lower"),
        ],
        unit=_TIMES,
        thresholds=_BREAK_EVEN,
        minimum=0,
        maximum=4,
        decimals=2,
        overrides=[
            style("upper", color="blue", width=0, fill_below="lower"),
            style("speedup", color="blue"),
            style("lower", color="blue", width=0),
        ],
    )


def _quantiles() -> Panel:
    def of(metric: str, quantile: str) -> str:
        more = f'metric="{metric}", quantile="{quantile}"'
        return most(f"specwatch_latency_seconds{{{_BUCKETS}, {more}}}")

    return timeseries(
        "Latency",
        "Median and P99 of the time to the first token (left axis) and of the time per further"
        " token (right axis), as the tap measured them.",
        [
            Query(of("ttft", "0.5"), "TTFT P50"),
            Query(of("ttft", "0.99"), "TTFT P99"),
            Query(of("tpot", "0.5"), "TPOT P50"),
            Query(of("tpot", "0.99"), "TPOT P99"),
        ],
        unit="s",
        minimum=0,
        overrides=[style("/^TPOT/", regex=True, right_axis=True)],
    )
