"""SGLang 0.4.6 to 0.5.23, started with ``--enable-metrics``.

Sources: ``srt/observability/metrics_collector.py`` (before 0.5.10 ``srt/metrics/collector.py``),
``srt/managers/tokenizer_manager.py``, ``srt/entrypoints/http_server.py`` and
``srt/entrypoints/openai/protocol.py`` of SGLang. Its counters count a request when it ends.

``sglang:spec_accept_rate`` and ``spec_accept_length`` are not read. They are means over the last
``--decode-log-interval`` steps, and older releases count the token of the target as a draft token
in both. No counter has the draft tokens or the accepted ones, and the number of draft tokens of a
step may change (``spec_num_draft_tokens``): the acceptance rate of the server is unknown. That of
a request is in its response: see :class:`specwatch_tap.acceptance.Extension`.
"""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Series
from specwatch.engines.base import Ask, Engine, Identity, drafted, text_of
from specwatch_tap.families import Family

_FAMILIES = (
    # From 0.5.13 on, and from the first request on that was speculated.
    Family("sglang:spec_verify_calls", "counter", "drafts"),
    Family("sglang:prompt_tokens", "counter", "prompt_tokens"),
    Family("sglang:generation_tokens", "counter", "generation_tokens"),
    Family("sglang:num_requests", "counter", "requests"),
    Family("sglang:generation_tokens_histogram", "histogram", "output_length"),
    Family("sglang:time_to_first_token_seconds", "histogram", "ttft"),
    Family("sglang:request_time_per_output_token_seconds", "histogram", "tpot"),  # from 0.5.22 on
    # Of each token, not of each step.
    Family("sglang:inter_token_latency_seconds", "histogram", "token_latency"),
    Family("sglang:e2e_request_latency_seconds", "histogram", "e2e"),
    # Of each rank of the scheduler, with the same requests in all ranks of one dp_rank.
    Family("sglang:num_running_reqs", "gauge", "running"),
    Family("sglang:num_queue_reqs", "gauge", "waiting"),
    Family("sglang:token_usage", "gauge", "kv_cache_usage"),
)


def _identify(ask: Ask) -> Identity:
    info = ask("/server_info") or ask("/get_server_info")  # the latter in older releases
    if not isinstance(info, dict) or "speculative_algorithm" not in info:
        return Identity()
    algorithm = info["speculative_algorithm"]
    # DSPARK cuts a draft by how certain its tokens are (``sglang:spec_cap_length``).
    varies = algorithm in ("EAGLE_HARNESS", "DSPARK")
    adapts = info.get("speculative_adaptive") is True or varies
    lengths = DraftLengths.ADAPTIVE_STEPS if adapts else None
    if algorithm == "NGRAM":
        lengths = DraftLengths.MATCHES
    prefills = info.get("disaggregation_mode") == "prefill"
    return Identity(text_of(info, "version"), algorithm is not None, lengths, prefills)


def _speculates(samples: Mapping[Series, float]) -> bool | None:
    return drafted(samples, "drafts") or None


SGLANG = Engine(
    "sglang",
    "SGLang",
    _FAMILIES,
    _identify,
    _speculates,
    "--speculative-algorithm",
    superseded={"token_latency": "inter_token"},
    record_fields={"return_spec_tokens_details": True},
)
