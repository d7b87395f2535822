"""TensorRT-LLM 1.3, ``trtllm-serve`` with ``return_perf_metrics: true``.

Sources: ``tensorrt_llm/metrics/collector.py``, ``tensorrt_llm/serve/openai_server.py`` and
``tensorrt_llm/_torch/pyexecutor/py_executor.py`` of TensorRT-LLM. Older releases count no drafts,
and their names have no prefix. Its ``/metrics`` is JSON, and each read takes the statistics of the
iterations away from other readers.

Drafts are on the page twice, and are read once: by position when a request ends
(``spec_decode_drafted_tokens``, ``spec_decode_accepted_tokens``), not the tokens of each iteration
(``spec_decode_num_draft_tokens``, ``spec_decode_num_accepted_tokens``), which count no drafts, have
no positions, and need ``enable_iter_perf_stats`` besides. Each draft has a token at position 0.

Its ``SpeculationGate`` (``tensorrt_llm/_torch/speculative/speculation_gate.py``) ends speculation
until the next start, once the mean acceptance rate of ``acceptance_rate_window_size`` iterations is
below ``acceptance_rate_threshold``; before 1.3 ``acceptance_window`` requests and
``acceptance_length_threshold``. Neither page has the state of the gate, and the counts by position
leave out steps without a draft: drafts only count no further. ``max_concurrency`` and
``draft_len_schedule`` look the same, at a high load.
"""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import Series
from specwatch.engines.base import Ask, Engine, Identity, drafted
from specwatch_tap.families import Family

PATH = "/prometheus/metrics"
"""The path of its metrics."""

_FAMILIES = (
    # A position from its first token on.
    Family(
        "trtllm_spec_decode_drafted_tokens", "counter", "drafted_per_position", "token_position"
    ),
    Family(
        "trtllm_spec_decode_accepted_tokens", "counter", "accepted_per_position", "token_position"
    ),
    Family("trtllm_time_to_first_token_seconds", "histogram", "ttft"),
    Family("trtllm_time_per_output_token_seconds", "histogram", "tpot"),
    Family("trtllm_e2e_request_latency_seconds", "histogram", "e2e"),
    Family("trtllm_request_success", "counter", "requests", "finished_reason"),
    Family("trtllm_prompt_tokens", "counter", "prompt_tokens"),
    Family("trtllm_generation_tokens", "counter", "generation_tokens"),
    Family("trtllm_request_decode_time_seconds", "histogram", "decode_time"),
    Family("trtllm_num_requests_running", "gauge", "running"),
    Family("trtllm_num_requests_waiting", "gauge", "waiting"),
    Family("trtllm_kv_cache_utilization", "gauge", "kv_cache_usage"),
    Family("trtllm_kv_cache_config_info", "gauge", "cache_config", "*"),
    Family("trtllm_parallel_config_info", "gauge", "launched"),
    Family("trtllm_speculative_config_info", "gauge", "launched_speculation", "spec_num_tokens"),
)


def is_iterations(page: bytes) -> bool:
    """Whether a page is the JSON of its ``/metrics``: the iterations since it was last read."""
    return page.strip() == b"[]" or b'"iterLatencyMS"' in page


def _identify(ask: Ask) -> Identity:
    return Identity()  # its /version is like vLLM's, which is read already


def _speculates(samples: Mapping[Series, float]) -> bool | None:
    """By the launch, which the first release candidates do not show."""
    quantities = {series.quantity for series in samples}
    if "launched_speculation" in quantities or drafted(samples, "drafted_per_position"):
        return True
    return False if "launched" in quantities else None


def _with_totals(samples: Mapping[Series, float]) -> Mapping[Series, float]:
    """A page of TensorRT-LLM with its drafts in our vocabulary, another page as it is."""
    if all(series.quantity != "drafted_per_position" for series in samples):
        return samples
    totals: dict[Series, float] = {}
    for series, value in samples.items():
        for quantity in _TOTALS.get(series.quantity, ()):
            total = series._replace(quantity=quantity, key="")
            counts = value if quantity != "drafts" or series.key == "0" else 0.0
            totals[total] = totals.get(total, 0.0) + counts
    kept = {s: v for s, v in samples.items() if s.quantity != "drafted_per_position"}
    none = {s._replace(quantity="accepted_tokens"): 0.0 for s in totals} | {
        s._replace(quantity="accepted_per_position"): 0.0 for s in samples.keys() - kept.keys()
    }
    return {**none, **kept, **totals}


_TOTALS = {
    "drafted_per_position": ("draft_tokens", "drafts"),
    "accepted_per_position": ("accepted_tokens",),
}
"""What the positions of a quantity add up to; drafts are those of position 0."""

TENSORRT_LLM = Engine(
    "tensorrt_llm",
    "TensorRT-LLM",
    _FAMILIES,
    _identify,
    _speculates,
    "speculative_config",
    meaningful=_with_totals,
    metrics_path=PATH,
    stops_permanently=True,
)
