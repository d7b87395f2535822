"""TokenSpeed 0.1, started with ``--enable-metrics --metrics-reporters prometheus``.

Sources: ``runtime/metrics/collector.py``, ``runtime/engine/generation_output_processor.py`` and
``runtime/engine/async_llm.py`` of TokenSpeed. Tokens are counted when a request ends, drafts in
each step that reads no prompt. Its pages are put together from files, so that they have no process
start.

It counts the tokens that a step verifies as draft tokens, that of the target among them, which is
taken off. ``tokenspeed:request_time_per_output_token_seconds`` is not read: it is the time of the
whole request over its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import Series
from specwatch.engines.base import Ask, Engine, Identity, drafted
from specwatch_tap.families import Family

_FAMILIES = (
    # From the first step of a speculating server on.
    Family("tokenspeed:spec_decode_num_drafts", "counter", "drafts"),
    Family("tokenspeed:spec_decode_num_draft_tokens", "counter", "verified_tokens"),
    Family("tokenspeed:spec_decode_num_accepted_tokens", "counter", "accepted_tokens"),
    Family("tokenspeed:prompt_tokens", "counter", "prompt_tokens"),
    Family("tokenspeed:generation_tokens", "counter", "generation_tokens"),
    Family("tokenspeed:num_requests", "counter", "requests"),
    Family("tokenspeed:time_to_first_token_seconds", "histogram", "ttft"),
    # Of each token, not of each step.
    Family("tokenspeed:inter_token_latency_seconds", "histogram", "token_latency"),
    Family("tokenspeed:e2e_request_latency_seconds", "histogram", "e2e"),
    Family("tokenspeed:num_requests_running", "gauge", "running"),
    Family("tokenspeed:num_requests_waiting", "gauge", "waiting"),
    Family("tokenspeed:kv_cache_usage_perc", "gauge", "kv_cache_usage"),
)


def _identify(ask: Ask) -> Identity:
    return Identity()  # its pages are the answers of the engine to a call, without its version


def _speculates(samples: Mapping[Series, float]) -> bool | None:
    """A server that speculates drafts long before its first request ends."""
    if drafted(samples, "drafts"):
        return True
    return False if drafted(samples, "generation_tokens") else None


def _without_target_tokens(samples: Mapping[Series, float]) -> Mapping[Series, float]:
    """A page of TokenSpeed with its draft tokens: of what each draft's step verifies all but one
    token, that of the target. Another page as it is."""
    if all(series.quantity != "verified_tokens" for series in samples):
        return samples
    kept = {s: v for s, v in samples.items() if s.quantity != "verified_tokens"}
    return kept | {
        series._replace(quantity="draft_tokens"): value
        - samples.get(series._replace(quantity="drafts"), 0.0)
        for series, value in samples.items()
        if series.quantity == "verified_tokens"
    }


TOKENSPEED = Engine(
    "tokenspeed",
    "TokenSpeed",
    _FAMILIES,
    _identify,
    _speculates,
    "--speculative-config",
    meaningful=_without_target_tokens,
    superseded={"token_latency": "inter_token"},
)
