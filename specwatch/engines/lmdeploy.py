"""LMDeploy 0.10 to 0.18, ``lmdeploy serve api_server``.

Sources: ``lmdeploy/metrics/loggers.py`` and ``stats.py`` of LMDeploy, and
``lmdeploy/pytorch/engine/engine_loop.py``. The PyTorch engine counts drafts, each decoding step as
one; TurboMind has none. Gauges are set every 10 s. Acceptance is in no response.

``lmdeploy:time_per_output_token_seconds`` is not read: it observes one mean a step, so that steps
with many tokens count as much as those with one. The gauges of acceptance are not read either: they
are means since the server started.
"""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import Series
from specwatch.engines.base import Ask, Engine, Identity, drafted
from specwatch_tap.families import Family

_FAMILIES = (
    # From 0.14 on; 0 without speculation, positions from the first draft on.
    Family("lmdeploy:spec_decode_num_drafts", "counter", "drafts"),
    Family("lmdeploy:spec_decode_num_draft_tokens", "counter", "draft_tokens"),
    Family("lmdeploy:spec_decode_num_accepted_tokens", "counter", "accepted_tokens"),
    Family(
        "lmdeploy:spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "accepted_per_position",
        "position",
    ),
    Family("lmdeploy:time_to_first_token_seconds", "histogram", "ttft"),
    Family("lmdeploy:iter_token_latency", "histogram", "inter_token"),
    Family("lmdeploy:e2e_request_latency_seconds", "histogram", "e2e"),
    Family("lmdeploy:request_decode_time_seconds", "histogram", "decode_time"),
    Family("lmdeploy:request_generation_tokens", "histogram", "output_length"),
    Family("lmdeploy:request_success", "counter", "requests", "finished_reason"),
    Family("lmdeploy:prompt_tokens", "counter", "prompt_tokens"),
    Family("lmdeploy:generation_tokens", "counter", "generation_tokens"),
    Family("lmdeploy:num_requests_running", "gauge", "running"),
    Family("lmdeploy:num_requests_waiting", "gauge", "waiting"),
    Family("lmdeploy:gpu_cache_usage_perc", "gauge", "kv_cache_usage"),
)


def _identify(ask: Ask) -> Identity:
    return Identity()  # no page of it has its version


def _speculates(samples: Mapping[Series, float]) -> bool | None:
    """By the first step after a prompt: a server that speculates counts it as a draft."""
    if drafted(samples, "drafts"):
        return True
    counts_drafts = any(series.quantity == "drafts" for series in samples)
    stepped = any(s.quantity == "inter_token" and s.part == "count" and samples[s] for s in samples)
    return False if counts_drafts and stepped else None


LMDEPLOY = Engine(
    "lmdeploy", "LMDeploy", _FAMILIES, _identify, _speculates, "--speculative-algorithm"
)
