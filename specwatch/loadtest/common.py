"""What a probe and a bench tell in the same way: whom they asked, what they sent, what came."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

from specwatch.domain.experiments import Distribution, Estimate, Subject, Workload
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.loadtest.engine import Engine

BUILT_IN = "built-in"
"""The source of a workload whose prompts are our own."""
LEAST_P95, LEAST_P99 = 20, 100
"""Values that a quantile needs: with fewer less than one lies beyond it."""


def subject_of(engine: Engine, *, target: str, url: str) -> Subject:
    """The server as a result names it; ``k`` from the number of draft positions on its page."""
    environment = engine.environment
    positions = (environment.fingerprint or "").partition("-")[2]
    return Subject(
        target=target,
        url=url,
        model_name=engine.model_name,
        engine_version=environment.engine_version,
        configuration=environment.configuration,
        mode="on" if engine.mode is Mode.ON else "off",
        k=int(positions) if positions.isdigit() and int(positions) else None,
    )


def workload_of(
    prompts: Sequence[str],
    *,
    source: str,
    endpoint: str,
    max_tokens: int,
    temperatures: Iterable[float | None],
    seed: int,
) -> Workload:
    """What is sent. Its digest is equal for equal prompts in the same order, and for no others."""
    hashed = hashlib.blake2b(digest_size=8)
    for prompt in prompts:
        data = prompt.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return Workload(
        endpoint=endpoint,
        source=source,
        prompts=len(prompts),
        digest=hashed.hexdigest(),
        max_tokens=max_tokens,
        temperatures=tuple(temperatures),
        seed=seed,
    )


def distribution_of(values: Iterable[float | None]) -> Distribution | None:
    """Mean and exact quantiles of what is known of some values; None of nothing, and for a
    quantile that lies beyond all but less than one of them.

    Between two values a quantile is interpolated linearly (R. J. Hyndman, Y. Fan, *Sample quantiles
    in statistical packages*, The American Statistician 50, 1996, definition 7: that of numpy).
    """
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return Distribution(
        count=len(known),
        mean=math.fsum(known) / len(known),
        p50=_quantile(known, 0.5),
        p95=_quantile(known, 0.95) if len(known) >= LEAST_P95 else None,
        p99=_quantile(known, 0.99) if len(known) >= LEAST_P99 else None,
    )


def estimate_of(interval: Interval | None) -> Estimate | None:
    """An interval as results have it."""
    if interval is None:
        return None
    return Estimate(value=interval.value, lower=interval.lower, upper=interval.upper)


def _quantile(ordered: Sequence[float], q: float) -> float:
    place = q * (len(ordered) - 1)
    index = math.floor(place)
    if index + 1 >= len(ordered):
        return ordered[-1]
    return ordered[index] + (place - index) * (ordered[index + 1] - ordered[index])
