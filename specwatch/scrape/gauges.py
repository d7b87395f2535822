"""Gauges over the time between two pages."""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec.structs import replace

from specwatch.domain.model import Gauges, Tally
from specwatch.scrape import tally

_LEAST_SAMPLED = 0.8
"""Share of a window that gauges must cover to be corrected by its counters."""
_MOST_AT_ONCE = 1_000_000
"""No server runs more requests at a time; a gauge may have any value."""


class GpuMemory(NamedTuple):
    """Bytes in use and in total, over the GPUs of a target."""

    used: int
    total: int


def gauges_over(
    before: tally.Sampled | None, now: tally.Sampled, elapsed: float, gpu: GpuMemory | None
) -> Gauges:
    """Gauges between two samples, ``elapsed`` seconds apart: the mean of both.

    ``before`` is None if the time between them counts as unknown.
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

    ``total`` was counted in ``seconds``. A gauge is read a few times a minute, and vLLM sets its
    gauge at the end of a step: it misses requests in prefill, the more the shorter decoding takes.
    The times to the first token and between tokens add up to the time that requests spent in the
    server, queue included (J. D. C. Little, *A Proof for the Queuing Formula L = lambda W*, 1961).
    Unchanged if the server does not count these times, or gauges cover only a part.
    """
    first, between = total.ttft, total.inter_token
    if first is None or between is None or not between.sum or not seconds:
        return gauges
    scale = gauges.sampled_seconds / seconds
    if scale < _LEAST_SAMPLED:
        return gauges  # unknown in which part of the window requests were counted
    decoding = between.sum * scale
    reading = first.sum * scale - gauges.waiting_seconds
    if gauges.waiting_seconds:
        # A request that starts after a long wait brings all of that time at once.
        most = max(gauges.running_max * gauges.busy_seconds, gauges.running_seconds)
        reading = min(reading, most - decoding)
    reading = max(reading, 0.0)
    running = decoding + reading
    # Prefill runs beside the decoding of n other requests: with independent arrivals in
    # 1 - 1/n^2 of the time, within 0.06.
    together = max(decoding / gauges.busy_seconds, 1.0) if gauges.busy_seconds else 1.0
    alone = -math.expm1(-reading / seconds) * gauges.sampled_seconds / together**2
    at_once = min(max(gauges.running_max, 1), _MOST_AT_ONCE)
    busy = max(gauges.busy_seconds + alone, running / at_once)
    busy = min(busy, running, gauges.sampled_seconds)
    return replace(gauges, busy_seconds=busy, running_seconds=running)
