"""The one place that knows the metric names of every engine.

vLLM 0.6 to 0.33 and llama.cpp's server expose the same things under changing names; everybody else
speaks our vocabulary. A sample name that is not in :data:`SAMPLES` is not ours, which is what keeps
``*_created`` gauges and look-alikes such as ``..._per_pos_total`` from being counted as totals.

Sources: the metric definitions in vLLM's sources (``vllm/engine/metrics.py`` of V0,
``vllm/v1/metrics`` and ``vllm/v1/spec_decode/metrics.py`` of V1) and llama.cpp's
``tools/server/README.md`` and ``server-task.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from specwatch.domain.model import UNKNOWN_TEMPERATURE, Series


class Family(NamedTuple):
    """One exposed family: its name without suffixes, its type, and what we call it."""

    exposed: str
    kind: str
    quantity: str
    label: str = ""
    """The label whose value tells siblings apart, where one matters."""
    help: str = ""
    """What the page says of it, where the page is ours."""
    by_temperature: bool = False


_VLLM = (
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
    # Speculation, V0 (to 0.9.2): its counters are incremented by running totals and mean nothing;
    # the gauges are cumulative since start.
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
)
_LLAMACPP = (
    # 0 without speculation too; older builds have none of them.
    Family("llamacpp:spec_decode_num_drafts", "counter", "drafts"),
    Family("llamacpp:spec_decode_num_draft_tokens", "counter", "draft_tokens"),
    Family("llamacpp:spec_decode_num_accepted_tokens", "counter", "accepted_tokens"),
    Family(  # From the first speculative request that ended.
        "llamacpp:spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "accepted_per_position",
        "position",
    ),
    Family("llamacpp:prompt_tokens", "counter", "prompt_tokens"),
    Family("llamacpp:tokens_predicted", "counter", "generation_tokens"),
    Family("llamacpp:requests_processing", "gauge", "running"),
    Family("llamacpp:requests_deferred", "gauge", "waiting"),
    Family("llamacpp:kv_cache_usage_ratio", "gauge", "kv_cache_usage"),
)
_PROCESS = (Family("process_start_time_seconds", "gauge", "process_start"),)

TAP: tuple[Family, ...] = (
    Family(
        "specwatch_drafts", "counter", "drafts",
        help="Speculation steps of the requests whose acceptance is known.", by_temperature=True,
    ),
    Family(
        "specwatch_draft_tokens", "counter", "draft_tokens",
        help="Tokens proposed in those steps.", by_temperature=True,
    ),
    Family(
        "specwatch_accepted_tokens", "counter", "accepted_tokens",
        help="Proposed tokens that the target model kept.", by_temperature=True,
    ),
    Family(
        "specwatch_accepted_tokens_per_position", "counter", "accepted_per_position", "position",
        help="Steps that kept the proposed token at a position.", by_temperature=True,
    ),
    Family(
        "specwatch_generation_tokens", "counter", "generation_tokens",
        help="Tokens generated, where the response says.", by_temperature=True,
    ),
    Family(
        "specwatch_requests", "counter", "requests", "finish_reason",
        help="Requests that were answered to the end.", by_temperature=True,
    ),
    Family(
        "specwatch_request_acceptance_ratio", "histogram", "request_acceptance",
        help="Acceptance rate of each request that drafted.", by_temperature=True,
    ),
    Family(
        "specwatch_time_to_first_token_seconds", "histogram", "ttft",
        help="From the whole request to the first content.", by_temperature=True,
    ),
    Family(
        "specwatch_time_per_output_token_seconds", "histogram", "tpot",
        help="(Last token - first token) / (tokens - 1) of each request.", by_temperature=True,
    ),
    Family(
        "specwatch_tap_records", "counter", "records", "method",
        help="Requests whose acceptance is known, by how.", by_temperature=True,
    ),
    Family(
        "specwatch_tap_uncovered_requests", "counter", "uncovered", "reason",
        help="Requests whose acceptance is not known, by why.", by_temperature=True,
    ),
    Family(
        "specwatch_tap_failures", "counter", "tap_failures", "stage",
        help="Failures of the tap itself; the requests went on untouched.",
    ),
)  # fmt: skip
"""What the tap counts, on the engine's own page or on a proxy's.

Those by temperature have the labels ``model_name`` and ``temperature``; its failures have neither.
"""

FAMILIES: tuple[Family, ...] = _VLLM + _LLAMACPP + _PROCESS + TAP

SUPERSEDED: Mapping[str, str] = {
    "inter_token_old": "inter_token",
    "kv_cache_usage_old": "kv_cache_usage",
    "prefix_cache_queries_old": "prefix_cache_queries",
    "prefix_cache_hits_old": "prefix_cache_hits",
}
"""Quantities that count only where their successor is absent: some releases expose both names."""

GAUGES = frozenset(f.quantity for f in FAMILIES if f.kind == "gauge")
TAKE_MAXIMUM = frozenset(
    {"kv_cache_usage", "kv_cache_usage_old", "cache_config", "process_start",
     "lifetime_acceptance_rate"}
)  # fmt: skip
"""Quantities whose samples over several engines combine to their maximum, not their sum."""


class SampleName(NamedTuple):
    """What one exposed sample name means."""

    quantity: str
    part: str
    label: str
    by_temperature: bool


def _samples(family: Family) -> dict[str, SampleName]:
    quantity, at = family.quantity, family.by_temperature
    if family.kind == "counter":
        return {family.exposed + "_total": SampleName(quantity, "", family.label, at)}
    if family.kind == "gauge":
        return {family.exposed: SampleName(quantity, "", family.label, at)}
    return {
        family.exposed + "_bucket": SampleName(quantity, "bucket", "le", at),
        family.exposed + "_sum": SampleName(quantity, "sum", "", at),
        family.exposed + "_count": SampleName(quantity, "count", "", at),
    }


SAMPLES: Mapping[str, SampleName] = {
    exposed: meaning for family in FAMILIES for exposed, meaning in _samples(family).items()
}
"""Every sample name that we read, exactly as it stands on a page."""

_NOT_CONFIGURATION = frozenset(
    {"engine", "model_name", "num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens",
     "kv_cache_max_concurrency"}
)  # fmt: skip
"""Labels of the cache configuration left out: the size of the cache is measured at each start."""


def series_of(sample: str, labels: Mapping[str, str]) -> Series | None:
    """The series that a sample of an engine's page belongs to; None when it is not ours."""
    meaning = SAMPLES.get(sample)
    if meaning is None:
        return None
    if meaning.label == "*":
        key = ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if k not in _NOT_CONFIGURATION)
    elif meaning.label:
        key = labels.get(meaning.label, "")
    else:
        key = ""
    temperature = ""
    if meaning.by_temperature:
        temperature = labels.get("temperature") or UNKNOWN_TEMPERATURE
    return Series(
        meaning.quantity,
        meaning.part,
        labels.get("model_name", ""),
        labels.get("engine", ""),
        key,
        temperature,
    )
