"""What was sampled between two looks at a page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from specwatch.domain.model import Gauges, Tally
from specwatch.scrape import tally

_LEAST_SAMPLED = 0.8
"""Share of a window that gauges have to cover where what was counted in all of it explains them."""
_MOST_AT_ONCE = 1_000_000
"""No server runs more requests at a time: a gauge may say anything."""


class GpuMemory(NamedTuple):
    """Bytes in use and in total, over the GPUs of a target."""

    used: int
    total: int


def gauges_over(
    before: tally.Sampled | None, now: tally.Sampled, elapsed: float, gpu: GpuMemory | None
) -> Gauges:
    """Gauges between two samples: the mean of both ends, as neither knows what lay between.

    ``before`` is None where the time between them, ``elapsed`` seconds, counts as not known.
    """
    integrals = {}
    if before is not None and before.running is not None and now.running is not None:
        ends = (before.running, now.running)
        integrals = {
            "sampled_seconds": elapsed,
            "busy_seconds": elapsed * sum(end > 0 for end in ends) / 2,
            "running_seconds": elapsed * sum(ends) / 2,
            "waiting_seconds": elapsed * ((before.waiting or 0.0) + (now.waiting or 0.0)) / 2,
        }
    return Gauges(
        **integrals,
        running_max=int(now.running or 0),
        waiting_max=int(now.waiting or 0),
        kv_cache_usage_max=now.kv_cache_usage,
        gpu_memory_used_max=gpu.used if gpu else None,
        gpu_memory_total=gpu.total if gpu else None,
    )


def counted(gauges: Gauges, total: Tally, seconds: float) -> Gauges:
    """The gauges of a window, with the time of running requests from what was counted in it.

    ``total`` was counted in ``seconds``. A gauge is looked at a few times a minute, and vLLM's is
    of the last step that ended: it misses requests whose prompt is being read, the more the shorter
    decoding takes. The times to the first token and between tokens add up to the time that requests
    spent in the server, queue included (J. D. C. Little, *A Proof for the Queuing Formula
    L = lambda W*, 1961). Unchanged where the server does not count them, or gauges cover a part.
    """
    first, between = total.ttft, total.inter_token
    if first is None or between is None or not between.sum or not seconds:
        return gauges
    scale = gauges.sampled_seconds / seconds
    if scale < _LEAST_SAMPLED:
        return gauges  # nothing tells in which part of the time it was counted
    decoding = between.sum * scale
    reading = first.sum * scale - gauges.waiting_seconds
    if gauges.waiting_seconds:
        # Who begins after a long wait brings all of it at once.
        most = max(gauges.running_max * gauges.busy_seconds, gauges.running_seconds)
        reading = min(reading, most - decoding)
    reading = max(reading, 0.0)
    running = decoding + reading
    # A prompt is read beside others that decode, the more often the more of them there are: of
    # those that come independently, in 1 - 1/n^2 of the time, within 0.06.
    together = max(decoding / gauges.busy_seconds, 1.0) if gauges.busy_seconds else 1.0
    alone = -math.expm1(-reading / seconds) * gauges.sampled_seconds / together**2
    at_once = min(max(gauges.running_max, 1), _MOST_AT_ONCE)
    busy = max(gauges.busy_seconds + alone, running / at_once)
    busy = min(busy, running, gauges.sampled_seconds)
    return replace(gauges, busy_seconds=busy, running_seconds=running)
