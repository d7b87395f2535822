"""Settings of vLLM's launch that change what its figures mean, in the words of the tap's page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KV_PRODUCER = "kv_producer"
"""The server only prefills (``--kv-transfer-config``)."""
SCHEDULE = "schedule"
ADAPTIVE_VERIFICATION = "adaptive_verification"
MATCHES = "matches"


def draft_lengths(setting: Callable[[str], Any]) -> str | None:
    """Why drafts vary in length with a speculative configuration, of which ``setting`` gives the
    value of a key; None if they do not. A schedule with one number of draft tokens does nothing."""
    if setting("enable_adaptive_verification"):
        return ADAPTIVE_VERIFICATION
    schedule = setting("num_speculative_tokens_per_batch_size")
    ranges = schedule if isinstance(schedule, list | tuple) else ()
    if len({str(entry[2:]) for entry in ranges if isinstance(entry, list | tuple)}) > 1:
        return SCHEDULE
    matching = setting("method") in ("ngram", "[ngram]", "ngram_gpu", "suffix")
    return MATCHES if matching else None
