"""Latency from vLLM's own histograms, and against the day before."""

from __future__ import annotations

from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.panels import Panel, Query, style, timeseries
from specwatch.generate.dashboards.stock_queries import (
    END_TO_END,
    INTER_TOKEN,
    TPOT,
    TTFT,
    YESTERDAY,
    quantile,
    rate,
    share,
    tail,
)

BEFORE = "a day before"
OF_BEFORE = style(BEFORE, color="text", dashed=True, width=1)
_QUANTILES = ((0.5, "P50", "green"), (0.95, "P95", "yellow"), (0.99, "P99", "red"))


def bands() -> list[Band]:
    """The groups of panels."""
    return [
        Band("Latency", 9, [(12, _first()), (12, _per_token())]),
        Band(None, 8, [(12, _steps()), (12, _whole())]),
        Band(
            "Latency against the day before",
            8,
            [
                (8, _compared("TTFT P99, and a day before", "Time to the first token", TTFT)),
                (8, _compared("TPOT P99, and a day before", "Time per further token", TPOT)),
                (8, _tail()),
            ],
        ),
    ]


def _lines(names: tuple[str, ...]) -> list[Query]:
    return [Query(quantile(q, names), shown) for q, shown, _ in _QUANTILES]


def _quantiles(title: str, description: str, queries: list[Query]) -> Panel:
    return timeseries(
        title,
        f"{description} Quantiles are of the merged counts of all that is selected; one beyond the"
        " last bound of the histogram is drawn at that bound.",
        queries,
        unit="s",
        minimum=0,
        overrides=[
            *(style(shown, color=color) for _, shown, color in _QUANTILES),
            style("mean", color="blue", dashed=True),
        ],
        legend_values=("lastNotNull", "max"),
    )


def _first() -> Panel:
    return _quantiles(
        "Time to first token",
        "From the arrival of a request to its first token, queueing included.",
        _lines(TTFT),
    )


def _per_token() -> Panel:
    seconds = rate("vllm:request_decode_time_seconds_sum", by="")
    tokens = rate("vllm:request_generation_tokens_sum", by="")
    requests = rate("vllm:request_generation_tokens_count", by="")
    return _quantiles(
        "Time per output token",
        "Decode time / (tokens - 1) of each finished request: what a reader of the answer feels."
        " The quantiles need vLLM 0.11; before it there is only the mean over tokens.",
        [*_lines(TPOT), Query(share(seconds, f"({tokens} - {requests})"), "mean")],
    )


def _steps() -> Panel:
    return _quantiles(
        "Time between steps",
        "Inter-token latency as vLLM has it: one observation a step of the engine, however many"
        " tokens the step gave. Speculation raises it even where it pays; never judge by it.",
        _lines(INTER_TOKEN),
    )


def _whole() -> Panel:
    return _quantiles(
        "Whole requests",
        "From the arrival of a request to its end. It grows with the length of the answers.",
        _lines(END_TO_END),
    )


def _compared(title: str, meaning: str, names: tuple[str, ...]) -> Panel:
    return timeseries(
        title,
        f"{meaning}, P99, and dashed what it was at the same time of the day before: a stand-in for"
        " a baseline, as good as the two days are alike.",
        [
            Query(quantile(0.99, names), "now"),
            Query(quantile(0.99, names, offset=YESTERDAY), BEFORE),
        ],
        unit="s",
        minimum=0,
        overrides=[OF_BEFORE],
    )


def _tail() -> Panel:
    return timeseries(
        "TPOT P99 / P50, and a day before",
        "How far slow requests are from the median. Requests whose drafts are rejected make it"
        " wider; 1.5 times the day before is worth a look.",
        [Query(tail(TPOT), "now"), Query(tail(TPOT, offset=YESTERDAY), BEFORE)],
        unit="suffix:×",
        minimum=1,
        decimals=2,
        overrides=[OF_BEFORE],
    )
