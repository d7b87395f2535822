"""Benches made of batches whose noise is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specwatch.domain.experiments import (
    Acceptance,
    Batch,
    Bench,
    Distribution,
    Estimate,
    Level,
    Subject,
    Workload,
)

WORK = Workload(
    endpoint="chat",
    source="built-in",
    prompts=36,
    digest="abc",
    max_tokens=101,
    temperatures=(0.0, 0.7),
    seed=0,
)
TOKENS = 101


def flat(value: float) -> Distribution:
    return Distribution(count=9, mean=value, p50=value, p95=value, p99=value)


def batch(requests: int, ttft: float, tpot: float) -> Batch:
    decode = requests * (TOKENS - 1)
    return Batch(
        requests=requests,
        tokens=requests * TOKENS,
        request_seconds=requests * ttft + decode * tpot,
        decode_tokens=decode,
        decode_seconds=decode * tpot,
        first_seconds=requests * ttft,
    )


def batches(tpot: float, noise: Sequence[float], ttft: float = 0.1) -> tuple[Batch, ...]:
    """One for each number of noise, a factor on TPOT."""
    return tuple(batch(4, ttft, tpot * one) for one in noise)


def noise(count: int, spread: float, seed: int | str = 0) -> list[float]:
    generator = random.Random(seed)
    return [generator.lognormvariate(0.0, spread) for _ in range(count)]


def level(
    concurrency: int,
    own: Sequence[Batch],
    *,
    rate: float | None = None,
    errors: dict[str, int] | None = None,
    acceptance: float | None = None,
) -> Level:
    decode = sum(one.decode_seconds for one in own)
    tokens = sum(one.decode_tokens for one in own)
    tpot = decode / tokens if tokens else 0.0
    return Level(
        concurrency=None if rate is not None else concurrency,
        rate=rate,
        seconds=60.0,
        requests=sum(one.requests for one in own),
        errors=errors or {},
        prompt_tokens=10,
        tokens=sum(one.tokens for one in own),
        throughput=concurrency / tpot if tpot else 0.0,
        per_user=flat(1 / tpot) if tpot else None,
        ttft=flat(0.1),
        tpot=flat(tpot),
        latency=flat(1.0),
        running=float(concurrency),
        acceptance=None
        if acceptance is None
        else Acceptance(
            drafts=100,
            draft_tokens=400,
            accepted_tokens=round(400 * acceptance),
            rate=Estimate(value=acceptance),
        ),
        alone=True,
        batches=tuple(own),
    )


def bench(
    mode: str,
    levels: Sequence[Level],
    *,
    work: Workload = WORK,
    version: str = "0.32.0",
    model: str = "tiny",
    began: float = 1000.0,
    interleaved: bool = False,
    complete: bool = True,
) -> Bench:
    return Bench(
        version="1",
        began=began,
        ended=began + 100,
        complete=complete,
        subject=Subject(
            target="chat",
            url=f"http://{mode}:8000",
            model_name=model,
            engine_version=version,
            configuration="cafe",
            mode="on" if mode == "on" else "off",
            k=4 if mode == "on" else None,
        ),
        workload=work,
        levels=tuple(levels),
        interleaved=interleaved,
    )
