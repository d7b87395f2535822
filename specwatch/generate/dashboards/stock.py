"""The dashboard for people who have only Prometheus: what stock vLLM metrics can answer.

Nothing here needs specwatch. Names are those of vLLM 0.8.5 to 0.33: where a release renamed one,
the older name stands behind an ``or``. Ratios are of summed counts and quantiles of merged
histograms, so that several engines and instances give what one would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.generate.dashboards import frame, stock_latency, variables
from specwatch.generate.dashboards.layout import Band
from specwatch.generate.dashboards.links import STOCK
from specwatch.generate.dashboards.panels import (
    Panel,
    Query,
    bar_chart,
    stat,
    text,
    timeseries,
)
from specwatch.generate.dashboards.stock_latency import BEFORE, OF_BEFORE
from specwatch.generate.dashboards.stock_queries import (
    ACCEPTED_TOKENS,
    AT_POSITION,
    DRAFT_TOKENS,
    DRAFTS,
    LEGEND,
    RECENTLY,
    SELECTED,
    TPOT,
    TTFT,
    YESTERDAY,
    acceptance,
    acceptance_length,
    accepted_lengths,
    positions,
    quantile,
    rate,
    share,
)

_LONGEST = 16
"""The greatest accepted length with a bar of its own."""
_ASSUMED_LINE = ((None, "transparent"), (DRAFT_COST_RATIO, "orange"))
_LIMITS = """\
**What this dashboard can say.** vLLM counts drafts, draft tokens, accepted tokens and accepted \
tokens by position, for the server as a whole. From these the acceptance and the accepted lengths \
follow exactly, and latency from its own histograms.

**What it cannot say, whatever the query.**
* *Whether speculation pays.* That needs the time of a step with and without speculation at the \
same load. The day before, drawn dashed, only stands in for it: it had other traffic, and most \
likely speculation too. The line at 0.5 is a rule of thumb.
* *For which temperatures.* vLLM has no temperature label: a good mean can hide requests for which \
nothing is accepted.
* *For which requests.* There is no acceptance of single requests, only of all.
* *That it is off on purpose.* The families of speculation vanish when it is off, and empty panels \
look like a failure.

**What specwatch adds.** Speedup against a measured baseline at equal load with its interval, the \
break-even acceptance of this server, everything by temperature, rules with three verdicts, and a \
guard that switches speculation off and on again.
"""


def build(links: Sequence[Any]) -> str:
    """JSON of the dashboard."""
    return frame.dashboard(
        STOCK.uid,
        STOCK.title,
        "Acceptance, latency and load from the metrics of vLLM alone, for a Prometheus that"
        " scrapes vLLM. The last panel says what these metrics cannot know.",
        bands=[
            *_now(),
            *_acceptance(),
            *stock_latency.bands(),
            *_load(),
            Band("What these metrics cannot say", 9, [(24, text("Limits", _LIMITS))]),
        ],
        variables=[
            variables.data_source(),
            _variable("instance", "Instance", "vllm:num_requests_running"),
            _variable("model_name", "Model", 'vllm:num_requests_running{instance=~"$instance"}'),
        ],
        links=links,
        tags=("specwatch", "vllm"),
    )


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    return variables.query(name, label, f"label_values({metric}, {name})", multi=True)


def _now() -> list[Band]:
    return [
        Band(
            None,
            4,
            [
                (4, _acceptance_now()),
                (4, _length_now()),
                (4, _latency_now("TTFT P99", TTFT)),
                (4, _latency_now("TPOT P99", TPOT)),
                (4, _tokens_now()),
                (4, _requests_now()),
            ],
        )
    ]


def _acceptance() -> list[Band]:
    return [
        Band("Acceptance", 8, [(12, _acceptance_by_instance()), (12, _length_by_instance())]),
        Band(None, 8, [(8, _accepted_lengths()), (8, _positions()), (8, _positions_over_time())]),
        Band(None, 8, [(12, _drafts()), (12, _draft_tokens())]),
    ]


def _load() -> list[Band]:
    return [
        Band("Throughput and load", 8, [(8, _tokens()), (8, _finished()), (8, _running())]),
        Band(None, 8, [(8, _cache()), (8, _preemptions()), (8, _short_outputs())]),
    ]


def _acceptance_now() -> Panel:
    return stat(
        "Acceptance",
        "Accepted tokens / draft tokens of the last 10 minutes, of all that is selected. Below"
        f" {DRAFT_COST_RATIO:.0%} speculation does not pay if a draft token costs"
        f" {DRAFT_COST_RATIO:g} of a step of the target: assumed, not measured on this server.",
        [Query(acceptance(over=RECENTLY, by=""), "acceptance")],
        unit="percentunit",
        thresholds=((None, "red"), (DRAFT_COST_RATIO, "green")),
        decimals=1,
    )


def _length_now() -> Panel:
    return stat(
        "Tokens per step",
        "Mean acceptance length of the last 10 minutes: 1 + accepted tokens / drafts. A step must"
        " not cost more than this many plain ones, and how many it costs is not known here.",
        [Query(acceptance_length(over=RECENTLY, by=""), "length")],
        unit="none",
        decimals=2,
    )


def _latency_now(title: str, names: tuple[str, ...]) -> Panel:
    return stat(
        title,
        "P99 of the last 10 minutes, of the merged counts of all that is selected. vLLM has TPOT"
        " from 0.11 on.",
        [Query(quantile(0.99, names, over=RECENTLY), title)],
        unit="s",
    )


def _tokens_now() -> Panel:
    return stat(
        "Tokens generated",
        "Tokens generated per second over the last 10 minutes, of all that is selected.",
        [Query(rate("vllm:generation_tokens_total", over=RECENTLY, by=""), "generated")],
        unit="suffix: tok/s",
        decimals=1,
    )


def _requests_now() -> Panel:
    return stat(
        "Running and waiting",
        "Requests that are worked on and that wait now. The more run, the less speculation can"
        " gain.",
        [
            Query(f"sum(vllm:num_requests_running{{{SELECTED}}})", "running"),
            Query(f"sum(vllm:num_requests_waiting{{{SELECTED}}})", "waiting"),
        ],
        unit="none",
        text_mode="value_and_name",
    )


def _acceptance_by_instance() -> Panel:
    return timeseries(
        "Acceptance, and a day before",
        "Accepted tokens / draft tokens by instance, and dashed of all at the same time of the day"
        " before. From vLLM 0.25 drafts made to fill a batch count as rejected, so that a little"
        " is missing. Empty while speculation is off or the server idle.",
        [
            Query(acceptance(), LEGEND),
            Query(acceptance(by="", offset=YESTERDAY), BEFORE),
        ],
        unit="percentunit",
        thresholds=_ASSUMED_LINE,
        minimum=0,
        maximum=1,
        overrides=[OF_BEFORE],
        legend_values=("lastNotNull", "min"),
    )


def _length_by_instance() -> Panel:
    return timeseries(
        "Tokens per step, and a day before",
        "Mean acceptance length by instance: 1 + accepted tokens / drafts, with the bonus token;"
        " dashed of all at the same time of the day before.",
        [
            Query(acceptance_length(), LEGEND),
            Query(acceptance_length(by="", offset=YESTERDAY), BEFORE),
        ],
        unit="none",
        minimum=1,
        decimals=2,
        overrides=[OF_BEFORE],
    )


def _accepted_lengths() -> Panel:
    return bar_chart(
        "Accepted lengths",
        "Share of the drafts within the time shown that had this many tokens accepted, from the"
        " differences between positions. Much at 0 is work for nothing; much at the right end says"
        f" that longer drafts may pay. Up to {_LONGEST}; select one model.",
        [Query(accepted_lengths(_LONGEST), "{{accepted}}")],
        unit="percentunit",
    )


def _positions() -> Panel:
    return bar_chart(
        "Acceptance by position",
        "Share of the drafts within the time shown whose token at this position was accepted, from"
        " 0. Positions that are rarely reached only cost time.",
        [Query(positions(), "{{position}}")],
        unit="percentunit",
    )


def _positions_over_time() -> Panel:
    at = rate(AT_POSITION, by="position")
    return timeseries(
        "Acceptance by position over time",
        "Share of the drafts whose token at a position was accepted. If all positions fall"
        " together the traffic has changed; if the first falls alone, look at the drafter.",
        [Query(f"{at} / on () group_left () ({rate(DRAFTS, by='')} > 0)", "{{position}}")],
        unit="percentunit",
        minimum=0,
        maximum=1,
    )


def _drafts() -> Panel:
    return timeseries(
        "Drafts",
        "Speculation steps per second by instance, and dashed of all a day before.",
        [Query(rate(DRAFTS), LEGEND), Query(rate(DRAFTS, by="", offset=YESTERDAY), BEFORE)],
        unit="ops",
        minimum=0,
        overrides=[OF_BEFORE],
    )


def _draft_tokens() -> Panel:
    return timeseries(
        "Draft tokens",
        "Tokens proposed and tokens accepted per second; the gap between them is work thrown away.",
        [
            Query(rate(DRAFT_TOKENS, by=""), "proposed"),
            Query(rate(ACCEPTED_TOKENS, by=""), "accepted"),
        ],
        unit="suffix: tok/s",
        minimum=0,
        fill=10,
    )


def _tokens() -> Panel:
    generated = "vllm:generation_tokens_total"
    return timeseries(
        "Tokens, and a day before",
        "Tokens generated and tokens of prompts per second, and dashed the generated ones of the"
        " day before: only at like load is latency to be compared.",
        [
            Query(rate(generated, by=""), "generated"),
            Query(rate("vllm:prompt_tokens_total", by=""), "prompt"),
            Query(rate(generated, by="", offset=YESTERDAY), BEFORE),
        ],
        unit="suffix: tok/s",
        minimum=0,
        overrides=[OF_BEFORE],
    )


def _finished() -> Panel:
    return timeseries(
        "Finished requests",
        "Requests that ended per second, by reason: stop is the model's own end, length the limit,"
        " abort a client that left; error and repetition are to be looked into.",
        [Query(rate("vllm:request_success_total", by="finished_reason"), "{{finished_reason}}")],
        unit="reqps",
        minimum=0,
        stack=True,
        fill=30,
    )


def _running() -> Panel:
    return timeseries(
        "Running and waiting requests",
        "Requests that are worked on and that wait, at each scrape.",
        [
            Query(f"sum(vllm:num_requests_running{{{SELECTED}}})", "running"),
            Query(f"sum(vllm:num_requests_waiting{{{SELECTED}}})", "waiting"),
        ],
        unit="none",
        minimum=0,
        legend_values=("lastNotNull", "max"),
    )


def _cache() -> Panel:
    usage = f"vllm:kv_cache_usage_perc{{{SELECTED}}} or vllm:gpu_cache_usage_perc{{{SELECTED}}}"
    hits = rate("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
    queries = rate("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
    return timeseries(
        "KV cache",
        "KV cache in use, of the fullest engine of each instance, and the share of what was asked"
        " of the prefix cache that it had. Above the line with preemptions, a draft model takes"
        " memory that the cache needs.",
        [
            Query(f"max by (instance, model_name) ({usage})", f"{LEGEND} in use"),
            Query(share(hits, queries), f"{LEGEND} prefix hits"),
        ],
        unit="percentunit",
        thresholds=((None, "transparent"), (0.9, "red")),
        minimum=0,
        maximum=1,
        legend_values=("lastNotNull", "max"),
    )


def _preemptions() -> Panel:
    return timeseries(
        "Preemptions",
        "Requests that were set back for want of KV cache, per second by instance.",
        [Query(rate("vllm:num_preemptions_total"), LEGEND)],
        unit="ops",
        minimum=0,
        fill=20,
        legend_values=("lastNotNull", "max"),
    )


def _short_outputs() -> Panel:
    short = rate("vllm:request_generation_tokens_bucket", more=', le=~"20|20.0"')
    return timeseries(
        "Short outputs",
        "Share of the finished requests with at most 20 tokens: these gain little from speculation"
        " whatever is accepted.",
        [Query(share(short, rate("vllm:request_generation_tokens_count")), LEGEND)],
        unit="percentunit",
        thresholds=((None, "transparent"), (0.5, "orange")),
        minimum=0,
        maximum=1,
    )
