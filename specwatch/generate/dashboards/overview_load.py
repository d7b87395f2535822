"""The overview's panels of throughput, load and memory."""

from __future__ import annotations

from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.once import least, most
from specwatch.generate.dashboards.panels import Panel, Query, style, timeseries


def load(model: str) -> list[Band]:
    """Bands for the model that the matchers ``model`` select."""
    throughput = [(8, _tokens(model)), (8, _requests(model)), (8, _running(model))]
    return [
        Band("Throughput and load", 8, throughput),
        Band(None, 8, [(12, _cache(model)), (12, _preemptions(model))]),
    ]


def _tokens(model: str) -> Panel:
    every = f'{model}, temperature="all"'
    return timeseries(
        "Tokens",
        "Tokens generated and tokens of prompts, per second over the last minutes.",
        [
            Query(most(f"specwatch_generation_tokens_per_second{{{every}}}"), "generated"),
            Query(most(f"specwatch_prompt_tokens_per_second{{{model}}}"), "prompt"),
        ],
        unit="suffix: tok/s",
        minimum=0,
    )


def _requests(model: str) -> Panel:
    every = f'{model}, temperature="all"'
    return timeseries(
        "Requests and drafts",
        "Finished requests (left axis) and speculation steps (right axis), per second over the last"
        " minutes.",
        [
            Query(most(f"specwatch_requests_per_second{{{every}}}"), "requests"),
            Query(most(f"specwatch_drafts_per_second{{{every}}}"), "drafts"),
        ],
        unit="reqps",
        minimum=0,
        overrides=[style("drafts", unit="ops", right_axis=True)],
    )


def _running(model: str) -> Panel:
    return timeseries(
        "Running and waiting requests",
        "Requests that the engine works on and that wait for it, over the last minutes. The more"
        " run, the less speculation can win.",
        [
            Query(most(f"specwatch_running_requests{{{model}}}"), "running"),
            Query(most(f"specwatch_running_requests_max{{{model}}}"), "running, most"),
            Query(most(f"specwatch_waiting_requests{{{model}}}"), "waiting"),
        ],
        unit="none",
        minimum=0,
        overrides=[
            style("running, most", dashed=True, width=1),
            style("waiting", color="orange"),
        ],
    )


def _cache(model: str) -> Panel:
    return timeseries(
        "KV cache",
        "The highest share of the KV cache in use in the last minutes, and the share of prompt"
        " tokens found in the prefix cache. Above the red line with preemptions, the draft model"
        " takes memory that the cache needs.",
        [
            Query(most(f"specwatch_kv_cache_usage_ratio{{{model}}}"), "in use"),
            Query(least(f"specwatch_prefix_cache_hit_ratio{{{model}}}"), "prefix hits"),
        ],
        unit="percentunit",
        thresholds=((None, "transparent"), (0.9, "red")),
        minimum=0,
        maximum=1,
    )


def _preemptions(model: str) -> Panel:
    return timeseries(
        "Preemptions",
        "Requests that were set back for want of KV cache, per second over the last minutes.",
        [Query(most(f"specwatch_preemptions_per_second{{{model}}}"), "preemptions")],
        unit="ops",
        minimum=0,
        fill=20,
    )
