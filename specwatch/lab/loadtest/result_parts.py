"""Parts of the results of probes, benches and calibrations: server, workload, distributions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec
import numpy as np

from specwatch.domain.experiments import Distribution, Estimate, Subject, Workload
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.lab.loadtest.engine import MeasuredModel
from specwatch.lab.loadtest.requests import Prompt

_Item = TypeVar("_Item")
Note = Callable[[str], None]
"""Called with a line for the user."""
Step = Callable[[str, int], None]
"""Called with what runs now, and how many slices or requests have ended since the last call."""

BUILT_IN = "built-in"
"""The source of a workload of :data:`specwatch.lab.loadtest.prompts.PROMPTS`."""
LEAST_P95, LEAST_P99 = 20, 100
"""Values that a quantile needs: with fewer, less than one lies above it."""


def subject_of(engine: MeasuredModel, *, target: str, url: str) -> Subject:
    """The server in a result; ``k`` is the number of draft positions on its page."""
    environment = engine.environment
    positions = environment.drafting.partition(" ")[0]
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
    prompts: Sequence[Prompt],
    *,
    source: str,
    endpoint: str,
    max_tokens: int,
    temperatures: Iterable[float | None],
    seed: int,
) -> Workload:
    """The workload in a result; its digest identifies the prompts and their order."""
    hashed = hashlib.blake2b(digest_size=8)
    for prompt in prompts:
        data = prompt.text.encode("utf-8", "surrogatepass")
        if prompt.messages:
            data = msgspec.json.encode(prompt.messages, order="sorted")
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
    """Mean and exact quantiles of the values that are not None; None if there are no such values.

    P95 and P99 are None if less than one value lies above them.
    """
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    p50, p95, p99 = map(float, np.quantile(numbers, (0.5, 0.95, 0.99)))
    return Distribution(
        count=len(numbers),
        mean=math.fsum(numbers) / len(numbers),
        p50=p50,
        p95=p95 if len(numbers) >= LEAST_P95 else None,
        p99=p99 if len(numbers) >= LEAST_P99 else None,
    )


def estimate_of(interval: Interval) -> Estimate:
    """An interval in a result."""
    return Estimate(value=interval.value, lower=interval.lower, upper=interval.upper)


def cut(items: Sequence[_Item], count: int) -> list[Sequence[_Item]]:
    """``count`` groups of neighbours, as equal as possible."""
    ends = [round(index * len(items) / count) for index in range(count + 1)] if count else []
    return [items[begin:end] for begin, end in pairwise(ends)]
