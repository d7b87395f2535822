"""Parts of reports made by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specwatch.report.estimates import (
    Bounds,
    Quantiles,
    Ratio,
    ReportAcceptance,
    ReportLatency,
    ReportSpread,
)
from specwatch.report.model import (
    AcceptancePoint,
    LatencyPoint,
    ReportIncident,
    ReportLoad,
    ReportSeries,
    ReportStep,
    Temperature,
)

BOUNDS = (0.005, 0.01, 0.02, 0.025, 0.04, 0.05, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5)
"""Of vLLM's histograms of latencies, in seconds."""
HOUR = 3600
WEEK = 7 * 86400
SINCE = 1_793_577_600
"""Monday 2 November 2026, 00:00 UTC."""
UNTIL = SINCE + WEEK
BUCKETS = ("0", "(0,0.3]", "(0.3,0.7]", "(0.7,1]", ">1")


@dataclass(frozen=True)
class Recipe:
    """What one temperature bucket does: its share of the requests, its acceptance, its speed."""

    share: float
    rate: float
    speed: float
    speedup: float


PAYS = dict(
    zip(
        BUCKETS,
        (
            Recipe(0.31, 0.742, 1.0, 1.93),
            Recipe(0.22, 0.671, 1.05, 1.79),
            Recipe(0.29, 0.566, 1.12, 1.58),
            Recipe(0.15, 0.431, 1.3, 1.32),
            Recipe(0.03, 0.214, 1.7, 0.84),
        ),
        strict=True,
    )
)


def quantiles(count: int, p50: float, *, beyond: tuple[str, ...] = ()) -> Quantiles:
    """Those of a latency whose median is ``p50``, in seconds, by vLLM's bounds."""
    known = {"p50": p50, "p95": p50 * 2.2, "p99": p50 * 3.9}
    inside = {
        name: Bounds(lower=max((b for b in BOUNDS if b < value), default=0.0),
                     upper=min(b for b in BOUNDS if b >= value))
        for name, value in known.items() if name not in beyond
    }  # fmt: skip
    return Quantiles(count=count, mean=p50 * 1.12, **known, beyond=beyond, buckets=inside)


def measured(value: float, width: float = 0.06) -> Ratio:
    """A measured ratio with an interval of so much to each side."""
    return Ratio(value=value, lower=value * (1 - width), upper=value * (1 + width))


def acceptance(drafts: int, rate: float, k: int = 4) -> ReportAcceptance:
    """That of drafts whose tokens are accepted with equal odds, until one is not."""
    odds = _odds(rate, k)
    shares = [odds**j * (1 - odds) for j in range(k)] + [odds**k]
    histogram = [round(drafts * share) for share in shares]
    histogram[0] += drafts - sum(histogram)
    accepted = sum(j * count for j, count in enumerate(histogram))
    return ReportAcceptance(
        drafts=drafts,
        draft_tokens=k * drafts,
        accepted_tokens=accepted,
        rate=accepted / (k * drafts) if drafts else None,
        mean_length=1 + accepted / drafts if drafts else None,
        histogram=tuple(histogram),
        per_request=ReportSpread(
            count=max(drafts // 60, 1), p10=rate * 0.55, p50=rate, p90=min(rate * 1.3, 0.98)
        ),
    )


def _odds(rate: float, k: int) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        found = sum(middle**j for j in range(1, k + 1)) / k
        low, high = (middle, high) if found < rate else (low, middle)
    return low


def temperatures(recipes: dict[str, Recipe], requests: int, *, off: bool) -> tuple[Any, ...]:
    """``all`` and the buckets, with a baseline (``off``) or without."""
    rate = sum(recipe.share * recipe.rate for recipe in recipes.values())
    speedup = sum(recipe.share * recipe.speedup for recipe in recipes.values())
    whole = Recipe(1.0, rate, 1.08, speedup)
    return tuple(
        temperature(label, each, requests, off=off)
        for label, each in {"all": whole, **recipes}.items()
    )


def temperature(label: str, recipe: Recipe, requests: int, *, off: bool) -> Temperature:
    count = round(requests * recipe.share)
    tpot, ttft = 0.0118 * recipe.speed, 0.182 * recipe.speed
    return Temperature(
        temperature=label,
        requests=count,
        share=recipe.share,
        acceptance=acceptance(count * 62, recipe.rate),
        acceptance_before=recipe.rate + (0.021 if recipe.speed < 1.2 else -0.034),
        ttft=ReportLatency(
            on=quantiles(count, ttft, beyond=("p99",) if label == ">1" else ()),
            before=quantiles(count, ttft * 1.04),
            off=quantiles(count // 5, ttft * 0.98) if off else None,
        ),
        tpot=ReportLatency(
            on=quantiles(count, tpot),
            before=quantiles(count, tpot * 0.97),
            off=quantiles(count // 5, tpot * recipe.speedup) if off else None,
        ),
        speedup=(
            measured(recipe.speedup)
            if off
            else Ratio(value=round(recipe.speedup, 1), basis="assumed")
        ),
    )


def loads(*, off: bool = True, scale: float = 1.0) -> tuple[ReportLoad, ...]:
    """Load bins from 1 to 64, whose speedup falls below 1 from 33 on (at a scale of 1)."""
    labels = ("1", "2", "3-4", "5-8", "9-16", "17-32", "33-64")
    values = (2.31, 2.18, 2.02, 1.81, 1.55, 1.18, 0.86)
    shares = (0.02, 0.04, 0.11, 0.24, 0.31, 0.2, 0.08)
    running = (1.0, 2.0, 3.4, 6.3, 12.1, 23.4, 41.8)
    return tuple(
        ReportLoad(
            load=label,
            share=share,
            busy=share * 420_000,
            running=mean,
            acceptance_rate=0.59,
            speedup=measured(value * scale, 0.03 + 0.002 / share)
            if off
            else Ratio(value=round(value * scale, 1), basis="assumed"),
            step_cost=measured(3.36 / (value * scale), 0.04) if off else None,
            break_even_acceptance=measured((3.36 / (value * scale) - 1) / 4, 0.05) if off else None,
            tpot_on=quantiles(9000, 0.0095 + mean * 0.0005),
            tpot_off=quantiles(4000, (0.0095 + mean * 0.0005) * value * scale) if off else None,
        )
        for label, value, share, mean in zip(labels, values, shares, running, strict=True)
    )


def series(
    recipes: dict[str, Recipe], *, hours: int = 168, off: bool = True, seed: int = 7
) -> ReportSeries:
    """Hours with a daily pattern, a night without traffic at high temperature, and some off."""
    chance = random.Random(seed)
    accepted: dict[str, tuple[AcceptancePoint, ...]] = {
        label: tuple(_acceptance_points(each, hours, chance, quiet=label == ">1"))
        for label, each in recipes.items()
    }
    whole = Recipe(1.0, sum(recipe.share * recipe.rate for recipe in recipes.values()), 1.0, 1.0)
    accepted = {"all": tuple(_acceptance_points(whole, hours, chance, quiet=False)), **accepted}
    return ReportSeries(
        step=HOUR, acceptance=accepted, latency=tuple(_latencies(hours, off, chance))
    )


def _day(hour: int) -> float:
    """How busy an hour is, 0 to 1."""
    return 0.5 - 0.5 * math.cos((hour % 24 - 3) / 24 * 2 * math.pi)


def _acceptance_points(
    recipe: Recipe, hours: int, chance: random.Random, *, quiet: bool
) -> Iterator[AcceptancePoint]:
    for hour in range(hours):
        busy = _day(hour)
        if (quiet and busy < 0.25) or 74 <= hour < 79:
            continue
        noise = chance.gauss(0, 0.012 + 0.02 * (1 - busy) * (1 - recipe.share))
        rate = min(max(recipe.rate + 0.03 * (0.5 - busy) + noise, 0.0), 1.0)
        drafts = round(recipe.share * (4000 + 60_000 * busy))
        yield AcceptancePoint(start=SINCE + hour * HOUR, drafts=drafts, rate=rate)


def _latencies(hours: int, off: bool, chance: random.Random) -> Iterator[LatencyPoint]:
    for hour in range(hours):
        if 74 <= hour < 79:
            continue
        mode = "off" if off and 57 <= hour < 65 else "on"
        slow = (1 + 0.9 * _day(hour)) * (1.55 if mode == "off" else 1.0) * chance.gauss(1, 0.04)
        yield LatencyPoint(
            start=SINCE + hour * HOUR,
            mode=mode,
            requests=round(300 + 3000 * _day(hour)),
            ttft_p50=0.12 * slow,
            ttft_p99=0.46 * slow * chance.gauss(1, 0.1),
            tpot_p50=0.0088 * slow,
            tpot_p99=0.026 * slow * chance.gauss(1, 0.08),
        )


def incident(at: float, *, over: bool = True) -> ReportIncident:
    """A rule fired, speculation was switched off, and came back after a trial."""
    steps = (
        ReportStep(
            at=at, phase="confirmed", reason="net-negative: speedup_ratio 0.89 (0.84 to 0.93)"
        ),
        ReportStep(at=at + 20, phase="draining", reason="waits for 14 running requests"),
        ReportStep(at=at + 65, phase="restarting", reason="without speculation"),
        ReportStep(at=at + 190, phase="verifying", reason="healthy after 125 s"),
        ReportStep(at=at + 790, phase="disabled", reason="latency is no worse than before"),
        ReportStep(at=at + 22_390, phase="trial", reason="6 h have passed"),
        ReportStep(at=at + 23_590, phase="observing", reason="the trial won: speedup 1.52"),
    )
    return ReportIncident(
        id=f"chat-70b-{int(at):x}",
        began=at,
        ended=at + 23_590 if over else None,
        cause="rule net-negative: measured speedup 0.89 (0.84 to 0.93), below 1",
        outcome="switched off, and on again after a trial" if over else "speculation is off",
        steps=steps if over else steps[:5],
        seconds_off=22_200.0 if over else 50_000.0,
    )
