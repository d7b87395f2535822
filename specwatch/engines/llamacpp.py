"""The server of llama.cpp; sources: its ``tools/server/README.md`` and ``server-task.cpp``."""

from __future__ import annotations

from typing import Any

from specwatch.engines.base import Ask, Engine, Family, Identity, text_of

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
    return Identity(text_of(props, "build_info"), drafting)


def _drafting(slots: Any) -> bool | None:
    """Whether any slot speculates; None if not all of them say so."""
    answers = [
        slot.get("speculative") if isinstance(slot, dict) else None
        for slot in (slots if isinstance(slots, list) else [])
    ]
    if any(answer is True for answer in answers):
        return True
    return False if answers and all(answer is False for answer in answers) else None


LLAMACPP = Engine(
    "llamacpp", "llama.cpp", _FAMILIES, _identify, names_models=False, shows_speculation=False
)
