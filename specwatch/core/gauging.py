"""What was sampled between two looks at a page."""

from __future__ import annotations

from typing import NamedTuple

from specwatch.core import tally
from specwatch.model import Gauges


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
