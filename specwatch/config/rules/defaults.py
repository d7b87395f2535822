"""The rules that apply unless the configuration says otherwise."""

from __future__ import annotations

from specwatch.config.rules.rule import POSITIVE, Condition, Rule, Scope
from specwatch.domain.model import TEMPERATURE, UNJUDGED

DEFAULT_RULES: tuple[Rule, ...] = (
    Rule(
        name="net-negative",
        summary="Speculation makes this server slower than it is without",
        conditions=(Condition(metric="speedup_ratio", below=1, clear=1.02),),
        window="1h",
        for_="0s",
        clear_for="5m",
        min_requests=10,
        action="disable",
    ),
    Rule(
        name="net-negative-unexplained",
        summary="Every step has become slower, and with speculation the server is slower than"
        " without was",
        conditions=(Condition(metric="speedup_ratio_unadjusted", below=1, clear=1.02),),
        window="1h",
        for_="45m",
        clear_for="5m",
        min_requests=10,
        action="disable",
    ),
    Rule(
        name="unjudged",
        summary="No baseline covers most of the traffic, so a loss would go unnoticed",
        conditions=(Condition(metric="unjudged", above=f"{UNJUDGED}s"),),
        window="10m",
        for_="5m",
        clear_for="10m",
    ),
    Rule(
        name="low-acceptance",
        summary="Acceptance is below the assumed break-even; measure it with specwatch calibrate",
        conditions=(Condition(metric="speedup_ratio_assumed", below=1, clear=1.02),),
        window="10m",
        for_="10m",
        min_drafts=500,
    ),
    Rule(
        name="losing-bucket",
        summary="For a large part of the requests speculation does not pay",
        conditions=(
            Condition(metric="losing_draft_share", above=0.4),
            Condition(metric="request_speedup_p10_assumed", below=1),
        ),
        combine="any",
        window="1h",
        min_drafts=500,
        min_requests=50,
    ),
    Rule(
        name="not-worth-it",
        summary="Speculation gains less than 30 %",
        conditions=(Condition(metric="speedup_ratio", below=1.3),),
        window="1h",
        for_="1d",
        min_requests=50,
        severity="info",
    ),
    *(
        Rule(
            name=f"{metric}-regression",
            summary=f"{words} is slower than in own minutes without speculation, at P99",
            conditions=(Condition(metric=f"{metric}_p99_ratio", above=1.1, clear=1.05),),
            window="30m",
            for_="10m",
            min_requests=500,
        )
        for metric, words in (("ttft", "The first token"), ("tpot", "Each further token"))
    ),
    Rule(
        name="tail-widening",
        summary="Slow requests are further from the median than in own minutes without speculation",
        conditions=(Condition(metric="tpot_tail_ratio", above=1.5),),
        window="1h",
        min_requests=500,
    ),
    Rule(
        name="acceptance-shift",
        summary="Acceptance has fallen against the day before, at the same temperatures",
        conditions=(Condition(metric="acceptance_change", below=-0.05, clear=-0.03),),
        window="1h",
        min_drafts=2000,
    ),
    Rule(
        name="kv-squeeze",
        summary="Requests give way for lack of KV cache, of which the draft model takes a part",
        conditions=(
            Condition(metric="kv_cache_usage", above=0.9),
            Condition(metric="preemptions", above=0),
        ),
        window="10m",
    ),
    Rule(
        name="short-outputs",
        summary="Most outputs are too short to gain from speculation",
        conditions=(Condition(metric="short_output_share", above=0.5),),
        window="1h",
        min_requests=200,
        severity="info",
    ),
    Rule(
        name="rank-outlier",
        summary="Drafts of one data-parallel rank fare otherwise than those of the others: look at"
        " its device, and at the weights of its draft",
        conditions=(Condition(metric="outlier_ranks", above=0),),
        window="1h",
        for_="10m",
        min_drafts=2000,
    ),
    Rule(
        name="garbage",
        summary="Nearly none or nearly all of the draft is accepted: unlike tokenizers, or a loop",
        conditions=(
            Condition(metric="acceptance_ratio", below=0.02),
            Condition(metric="acceptance_ratio", above=0.995),
            Condition(metric="first_position_acceptance", below=0.02),
        ),
        combine="any",
        window="10m",
        min_drafts=1000,
        scope=Scope(dimension=TEMPERATURE, value=POSITIVE),
    ),
    Rule(
        name="suspicious-output",
        summary="More answers than without speculation look wrong: they loop, run to their limit of"
        " length or lack tool calls",
        conditions=(
            Condition(metric="loop_share", above=0.1, clear=0.05),
            Condition(metric="length_finish_excess", above=0.1, clear=0.05),
            Condition(metric="tool_call_shortfall", above=0.1, clear=0.05),
        ),
        combine="any",
        window="30m",
        for_="10m",
        min_requests=100,
    ),
)
"""The rules that apply unless the configuration says otherwise: the field's experience."""
