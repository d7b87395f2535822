"""The server of llama.cpp; sources: its ``tools/server/README.md`` and ``server-task.cpp``.

All counters but those by position are written with six digits: from a million on, what a minute
counted is known in steps of ten, from ten million on in steps of a hundred.

The seconds of a request begin when its prompt is read, and its tokens include the first.

The header ``Process-Start-Time-Unix`` of its page is not read: it is the time of a monotonic clock,
in microseconds, and not a Unix time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Series
from specwatch.engines.base import Ask, Engine, Identity, drafted, text_of
from specwatch_tap.families import Family

_FAMILIES = (
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
    Family("llamacpp:tokens_predicted_seconds", "counter", "generation_seconds"),
    Family("llamacpp:requests_processing", "gauge", "running"),
    Family("llamacpp:requests_deferred", "gauge", "waiting"),
    Family("llamacpp:kv_cache_usage_ratio", "gauge", "kv_cache_usage"),
)


def _identify(ask: Ask) -> Identity:
    props = ask("/props")
    if not isinstance(props, dict) or "total_slots" not in props:
        return Identity(text_of(props, "build_info"))
    # A request for its slots would wake a sleeping server.
    drafting = None if props.get("is_sleeping") else _drafting(ask("/slots"))
    return Identity(
        text_of(props, "build_info"), drafting, _draft_lengths(props) if drafting else None
    )


def _draft_lengths(props: Mapping[str, Any]) -> DraftLengths | None:
    """By the settings of a request. From 2026 on they no longer have ``speculative.p_min``
    (``--spec-draft-p-min``), with which drafts that end early show in the counts alone."""
    settings = props.get("default_generation_settings")
    request = settings.get("params") if isinstance(settings, dict) else None
    if not isinstance(request, dict):
        return None
    if "ngram" in f"{request.get('speculative.types')} {request.get('speculative.type')}":
        return DraftLengths.MATCHES
    least = request.get("speculative.p_min")
    return DraftLengths.EARLY_END if isinstance(least, float) and least > 0 else None


def _drafting(slots: Any) -> bool | None:
    """Whether any slot speculates; None if not all of them say so."""
    answers = [
        slot.get("speculative") if isinstance(slot, dict) else None
        for slot in (slots if isinstance(slots, list) else [])
    ]
    if any(answer is True for answer in answers):
        return True
    return False if answers and all(answer is False for answer in answers) else None


def _speculates(samples: Mapping[Series, float]) -> bool | None:
    return drafted(samples, "draft_tokens") or None


LLAMACPP = Engine(
    "llamacpp",
    "llama.cpp",
    _FAMILIES,
    _identify,
    _speculates,
    "a draft model (-md) and --spec-type",
    closes_streams=True,
)
