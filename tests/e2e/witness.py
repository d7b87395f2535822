"""What a vLLM counted, read from its page without specwatch, and what a store has of it.

Both are counts by a name such as ``drafts``, ``accepted at 2``, ``requests stop`` or
``ttft <= 0.02``; what is zero is left out, so that lives with and without speculation add up.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from specwatch.domain.model import COUNTERS, Tally, Window
from tests.lab.http_get import page as get_page

COUNTER_NAMES = {
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries",
    "vllm:prefix_cache_hits_total": "prefix_cache_hits",
}
LABELLED = {
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": ("accepted at", "position"),
    "vllm:request_success_total": ("requests", "finished_reason"),
}
HISTOGRAM_NAMES = {
    "vllm:time_to_first_token_seconds_bucket": "ttft",
    "vllm:request_time_per_output_token_seconds_bucket": "tpot",
    "vllm:inter_token_latency_seconds_bucket": "inter_token",
    "vllm:e2e_request_latency_seconds_bucket": "e2e",
    "vllm:request_generation_tokens_bucket": "output_length",
}
SPECULATIVE = ("drafts", "draft_tokens", "accepted_tokens", "accepted at 0")

Counts = dict[str, int]


def counted(page: str) -> Counts:
    """What the server of this page has counted since it started, over all engines."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in COUNTER_NAMES:
                found[COUNTER_NAMES[sample.name]] += int(sample.value)
            elif sample.name in LABELLED:
                name, label = LABELLED[sample.name]
                found[f"{name} {sample.labels[label]}"] += int(sample.value)
            elif sample.name in HISTOGRAM_NAMES:
                bound = float(sample.labels["le"])
                found[f"{HISTOGRAM_NAMES[sample.name]} <= {bound:g}"] += int(sample.value)
    return total([found])


def speculates(url: str) -> bool:
    """Whether a server shows the families of speculation now."""
    return "vllm:spec_decode_num_drafts_total{" in get_page(f"{url}/metrics")


def running(page: str) -> int:
    """How many requests run or wait now."""
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(page)
            if family.name in gauges
            for sample in family.samples
        )
    )


def mean(page: str, histogram: str) -> float:
    """Mean of what a histogram has observed since the server started, in its unit."""
    parts = dict.fromkeys((f"{histogram}_sum", f"{histogram}_count"), 0.0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in parts:
                parts[sample.name] += sample.value
    observed, count = parts.values()
    return observed / count


def difference(before: Counts, after: Counts) -> Counts:
    """What was counted in between, without what was not."""
    return total([{name: count - before.get(name, 0) for name, count in after.items()}])


def stored(windows: Iterable[Window]) -> Counts:
    """What windows add up to, in the same names."""
    return total(_of_tally(window.tally) for window in windows)


def total(parts: Iterable[Counts]) -> Counts:
    """The sum of counts, less what is zero."""
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part)
    return {name: count for name, count in sorted(found.items()) if count}


def _of_tally(tally: Tally) -> Counts:
    found = {name: getattr(tally, name) or 0 for name in COUNTERS}
    for position, accepted in enumerate(tally.accepted_per_position or ()):
        found[f"accepted at {position}"] = accepted
    for reason, count in tally.requests.items():
        found[f"requests {reason}"] = count
    for name in HISTOGRAM_NAMES.values():
        observed = getattr(tally, name)
        if observed is not None:
            bounds = (*observed.bounds, math.inf)
            below = itertools.accumulate(observed.counts)
            for bound, count in zip(bounds, below, strict=True):
                found[f"{name} <= {bound:g}"] = count
    return found
