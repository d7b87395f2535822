"""The families on the page of each vLLM version that we can look like, in vLLM's own order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulatedFamily:
    """One family of ``vllm:`` series.

    ``kind`` is ``counter``, ``gauge`` or ``histogram``. ``series`` are (label="value" pairs or
    empty, quantity): a quantity is a path into an engine core, or a number that never changes.
    """

    name: str
    kind: str
    help: str
    series: tuple[tuple[str, str], ...]
    per_engine: bool = True


def _counter(name: str, help_text: str, quantity: str = "0") -> SimulatedFamily:
    return SimulatedFamily(name, "counter", help_text, (("", quantity),))


def _gauge(name: str, help_text: str, quantity: str) -> SimulatedFamily:
    return SimulatedFamily(name, "gauge", help_text, (("", quantity),))


def _histogram(name: str, help_text: str, quantity: str) -> SimulatedFamily:
    return SimulatedFamily(name, "histogram", help_text, (("", f"counters.{quantity}"),))


def _by(
    name: str, kind: str, help_text: str, label: str, quantities: dict[str, str]
) -> SimulatedFamily:
    series = tuple((f'{label}="{value}"', quantity) for value, quantity in quantities.items())
    return SimulatedFamily(name, kind, help_text, series)


def _speculation(k: int) -> tuple[SimulatedFamily, ...]:
    positions = {str(i): f"counters.accepted_per_position[{i}]" for i in range(k)}
    return (
        _counter("spec_decode_num_drafts", "Number of spec decoding drafts.", "counters.drafts"),
        _counter(
            "spec_decode_num_draft_tokens", "Number of draft tokens.", "counters.draft_tokens"
        ),
        _counter(
            "spec_decode_num_accepted_tokens",
            "Number of accepted tokens.",
            "counters.accepted_tokens",
        ),
        _by(
            "spec_decode_num_accepted_tokens_per_pos",
            "counter",
            "Accepted tokens per draft position.",
            "position",
            positions,
        ),
    )


_MFU = "(for Model Flops Utilization calculations)."
_RUNNING = (
    _gauge(
        "num_requests_running", "Number of requests in model execution batches.", "running_shown"
    ),
    _gauge("num_requests_waiting", "Number of requests waiting to be processed.", "waiting[len]"),
)
_PREFIX_CACHE = (
    _counter(
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        "counters.prefix_cache_queries",
    ),
    _counter(
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        "counters.prefix_cache_hits",
    ),
)
_KV_USAGE = _gauge(
    "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", "kv_cache_usage"
)
_PREEMPTIONS = _counter(
    "num_preemptions",
    "Cumulative number of preemption from the engine.",
    "counters.preemptions",
)
_PROMPT_TOKENS = _counter(
    "prompt_tokens", "Number of prefill tokens processed.", "counters.prompt_tokens"
)
_GENERATION_TOKENS = _counter(
    "generation_tokens", "Number of generation tokens processed.", "counters.generation_tokens"
)
_LENGTHS = (
    _histogram("request_prompt_tokens", "Number of prefill tokens processed.", "prompt_length"),
    _histogram(
        "request_generation_tokens", "Number of generation tokens processed.", "output_length"
    ),
    _histogram(
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        "iteration_tokens",
    ),
    _histogram(
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        "max_output_length",
    ),
    _histogram("request_params_n", "Histogram of the n request parameter.", "params_n"),
    _histogram(
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        "params_max_tokens",
    ),
    _histogram(
        "time_to_first_token_seconds", "Histogram of time to first token in seconds.", "ttft"
    ),
)
_INTER_TOKEN = _histogram(
    "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", "inter_token"
)
_REQUEST_TIMES = (
    _histogram(
        "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", "e2e"
    ),
    *(
        _histogram(
            f"request_{phase}_time_seconds",
            f"Histogram of time spent in {state} phase for request.",
            f"{phase}_time",
        )
        for phase, state in (
            ("queue", "WAITING"),
            ("inference", "RUNNING"),
            ("prefill", "PREFILL"),
            ("decode", "DECODE"),
        )
    ),
)


def _success(reasons: tuple[str, ...]) -> SimulatedFamily:
    return _by(
        "request_success",
        "counter",
        "Count of successfully processed requests.",
        "finished_reason",
        {reason: f"counters.requests[{reason}]" for reason in reasons},
    )


def _version_0_8_5() -> tuple[SimulatedFamily, ...]:
    return (
        *_RUNNING,
        _gauge(
            "gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.",
            "kv_cache_usage",
        ),
        _counter(
            "gpu_prefix_cache_queries",
            "GPU prefix cache queries, in terms of number of queried blocks.",
            "counters.prefix_cache_query_blocks",
        ),
        _counter(
            "gpu_prefix_cache_hits",
            "GPU prefix cache hits, in terms of number of cached blocks.",
            "counters.prefix_cache_hit_blocks",
        ),
        _PREEMPTIONS,
        _PROMPT_TOKENS,
        _GENERATION_TOKENS,
        _success(("stop", "length", "abort")),
        *_LENGTHS,
        _histogram(
            "time_per_output_token_seconds",
            "Histogram of time per output token in seconds.",
            "inter_token",
        ),
        *_REQUEST_TIMES,
    )  # fmt: skip


def _version_0_10_2() -> tuple[SimulatedFamily, ...]:
    return (
        *_RUNNING,
        _gauge(
            "gpu_cache_usage_perc",
            "GPU KV-cache usage. 1 means 100 percent usage."
            "DEPRECATED: Use vllm:kv_cache_usage_perc instead.",
            "kv_cache_usage",
        ),
        _counter(
            "gpu_prefix_cache_queries",
            "GPU prefix cache queries, in terms of number of queried"
            "tokens. DEPRECATED: Use vllm:prefix_cache_queries instead.",
            "counters.prefix_cache_queries",
        ),
        _counter(
            "gpu_prefix_cache_hits",
            "GPU prefix cache hits, in terms of number of cached "
            "tokens. DEPRECATED: Use vllm:prefix_cache_hits instead.",
            "counters.prefix_cache_hits",
        ),
        _KV_USAGE,
        *_PREFIX_CACHE,
        _PREEMPTIONS,
        _PROMPT_TOKENS,
        _GENERATION_TOKENS,
        _success(("stop", "length", "abort")),
        *_LENGTHS,
        _histogram(
            "time_per_output_token_seconds",
            "Histogram of time per output token in seconds."
            "DEPRECATED: Use vllm:inter_token_latency_seconds instead.",
            "inter_token",
        ),
        _INTER_TOKEN,
        *_REQUEST_TIMES,
    )


def _version_0_32_0() -> tuple[SimulatedFamily, ...]:
    return (
        _counter(
            "estimated_flops_per_gpu",
            f"Estimated number of floating point operations per GPU {_MFU}",
        ),
        _counter(
            "estimated_read_bytes_per_gpu",
            f"Estimated number of bytes read from memory per GPU {_MFU}",
        ),
        _counter(
            "estimated_write_bytes_per_gpu",
            f"Estimated number of bytes written to memory per GPU {_MFU}",
        ),
        *_RUNNING,
        _by(
            "num_requests_waiting_by_reason", "gauge",
            "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for"
            " scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV"
            " transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
            "reason", {"capacity": "waiting[len]", "deferred": "0"},
        ),
        _by(
            "engine_sleep_state", "gauge",
            "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is"
            " awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level"
            " 2.",
            "sleep_state", {"awake": "1", "weights_offloaded": "0", "discard_all": "0"},
        ),
        _KV_USAGE,
        *_PREFIX_CACHE,
        _counter(
            "external_prefix_cache_queries",
            "External prefix cache queries from KV connector cross-instance cache sharing, in terms"
            " of number of queried tokens.",
        ),
        _counter(
            "external_prefix_cache_hits",
            "External prefix cache hits from KV connector cross-instance cache sharing, in terms of"
            " number of cached tokens.",
        ),
        _counter(
            "mm_cache_queries",
            "Multi-modal cache queries, in terms of number of queried items.",
        ),
        _counter(
            "mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."
        ),
        _PREEMPTIONS,
        *_prompt_sources(),
        _GENERATION_TOKENS,
        _success(("stop", "length", "abort", "error", "repetition")),
        SimulatedFamily(
            "admission_rejections", "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
            (('reason="max_num_queued_reqs"', "0"), ('reason="max_num_queued_tokens"', "0")),
            per_engine=False,
        ),
        *_LENGTHS,
        _INTER_TOKEN,
        _histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            "tpot",
        ),
        *_REQUEST_TIMES,
        _histogram(
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            "request_preemptions",
        ),
        _histogram(
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            "prefill_computed",
        ),
    )  # fmt: skip


def _prompt_sources() -> tuple[SimulatedFamily, ...]:
    cached = "counters.prompt_tokens_cached"
    return (
        _PROMPT_TOKENS,
        _by(
            "prompt_tokens_by_source", "counter", "Number of prompt tokens by source.", "source",
            {
                "local_compute": "counters.prompt_tokens_computed",
                "local_cache_hit": cached,
                "external_kv_transfer": "0",
            },
        ),
        _counter(
            "prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached
        ),
        _by(
            "prompt_tokens_cached_by_source", "counter",
            "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host"
            " (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or"
            " external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits +"
            " vllm:external_prefix_cache_hits.",
            "source",
            {"device": cached, "host": "0", "p2p": "0", "disk": "0", "external_unspecified": "0"},
        ),
    )  # fmt: skip


_VERSIONS = {"0.8.5": _version_0_8_5, "0.10.2": _version_0_10_2, "0.32.0": _version_0_32_0}


def families(engine_version: str, k: int) -> tuple[SimulatedFamily, ...]:
    """All families of a version; ``k`` positions, 0 without speculation."""
    return (_speculation(k) if k else ()) + _VERSIONS[engine_version]()
