"""vLLM 0.6 to 0.33.

Sources: the metric definitions in vLLM's sources (``vllm/engine/metrics.py`` of V0,
``vllm/v1/metrics`` and ``vllm/v1/spec_decode/metrics.py`` of V1, and ``ray_wrappers.py`` there).
"""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import ALL, Mode, Series
from specwatch.engines.base import Ask, Engine, Identity, text_of
from specwatch_tap.families import Family

_FAMILIES = (
    # Speculation, V1: 0.8.3 has the tokens, 0.8.5 adds drafts and positions.
    Family("vllm:spec_decode_num_drafts", "counter", "drafts"),
    Family("vllm:spec_decode_num_draft_tokens", "counter", "draft_tokens"),
    Family("vllm:spec_decode_num_accepted_tokens", "counter", "accepted_tokens"),
    Family(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "accepted_per_position",
        "position",
    ),
    # Speculation, V0 (to 0.9.2): cumulative since start.
    Family("vllm:spec_decode_draft_acceptance_rate", "gauge", "lifetime_acceptance_rate"),
    # Latency.
    Family("vllm:time_to_first_token_seconds", "histogram", "ttft"),
    Family("vllm:request_time_per_output_token_seconds", "histogram", "tpot"),
    Family("vllm:inter_token_latency_seconds", "histogram", "inter_token"),
    Family("vllm:time_per_output_token_seconds", "histogram", "inter_token_old"),
    Family("vllm:e2e_request_latency_seconds", "histogram", "e2e"),
    Family("vllm:request_decode_time_seconds", "histogram", "decode_time"),
    # Requests and tokens.
    Family("vllm:request_generation_tokens", "histogram", "output_length"),
    Family("vllm:request_success", "counter", "requests", "finished_reason"),
    Family("vllm:prompt_tokens", "counter", "prompt_tokens"),
    Family("vllm:generation_tokens", "counter", "generation_tokens"),
    Family("vllm:num_preemptions", "counter", "preemptions"),
    # Load and cache.
    Family("vllm:num_requests_running", "gauge", "running"),
    Family("vllm:num_requests_waiting", "gauge", "waiting"),
    Family("vllm:kv_cache_usage_perc", "gauge", "kv_cache_usage"),
    Family("vllm:gpu_cache_usage_perc", "gauge", "kv_cache_usage_old"),
    Family("vllm:prefix_cache_queries", "counter", "prefix_cache_queries"),
    Family("vllm:prefix_cache_hits", "counter", "prefix_cache_hits"),
    Family("vllm:gpu_prefix_cache_queries", "counter", "prefix_cache_queries_old"),
    Family("vllm:gpu_prefix_cache_hits", "counter", "prefix_cache_hits_old"),
    Family("vllm:cache_config_info", "gauge", "cache_config", "*"),
    Family("vllm:engine_sleep_state", "gauge", "sleep_state", "sleep_state"),
    # From 0.33, once weights were changed without a restart: how often, by operation.
    Family(
        "vllm:rl_weight_update_operation_duration_seconds_count",
        "gauge",
        "weight_updates",
        "operation",
    ),
)


def _identify(ask: Ask) -> Identity:
    return Identity(text_of(ask("/version"), "version"))


def _speculates(samples: Mapping[Series, float]) -> bool:
    """Its page has the families of speculation only while it speculates."""
    shown = ("draft_tokens", "lifetime_acceptance_rate")
    return any(series.quantity in shown for series in samples)


def _without_v0_totals(samples: Mapping[Series, float]) -> Mapping[Series, float]:
    """A page of V0 with speculation less its token counters, another page as it is.

    V0 adds the running total to them at each log interval, so that they are meaningless.
    """
    if all(series.quantity != "lifetime_acceptance_rate" for series in samples):
        return samples
    totals = ("drafts", "draft_tokens", "accepted_tokens")
    return {s: v for s, v in samples.items() if s.quantity not in totals or s.segment != ALL}


def _mode(samples: Mapping[Series, float]) -> Mode | None:
    """Whether all engines of a server sleep: requests wait until they are woken."""
    awake = [
        value
        for series, value in samples.items()
        if series.quantity == "sleep_state" and series.key == "awake"
    ]
    return Mode.SLEEPING if awake and not any(awake) else None


VLLM = Engine(
    "vllm",
    "vLLM",
    _FAMILIES,
    _identify,
    _speculates,
    "--speculative-config",
    meaningful=_without_v0_totals,
    mode=_mode,
    superseded={
        "inter_token_old": "inter_token",
        "kv_cache_usage_old": "kv_cache_usage",
        "prefix_cache_queries_old": "prefix_cache_queries",
        "prefix_cache_hits_old": "prefix_cache_hits",
    },
)
