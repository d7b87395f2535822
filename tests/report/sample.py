"""Reports made by hand, for whatever draws, prints or sends them."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from specwatch.domain.model import Mode
from specwatch.report.estimates import Ratio, ReportAcceptance, ReportLatency
from specwatch.report.model import (
    AcceptancePoint,
    Gap,
    Health,
    LatencyPoint,
    ModelReport,
    Report,
    ReportAnswer,
    ReportChange,
    ReportSegment,
    ReportSeries,
    ReportSide,
    ReportTraffic,
    SpeedupPoint,
)
from tests.pages import DATA
from tests.segments import segment

HOUR = 3600
SINCE = 1_793_577_600
"""Monday 2 November 2026, 00:00 UTC."""
UNTIL = SINCE + 7 * 86400
HOSTILE = (
    '</title><script>alert("x")</script><img src=x onerror=alert(1)> \'"&`|*_[a](javascript:b)'
    "\n\n# not a heading\r\n| a | b |\n\x1b[31m\x00\u202ertl\u2066\u200f \U0001f98a " + "y" * 10_000
)
"""A name that nobody should have."""
RECIPES = {
    "0": (0.31, 0.742),
    "(0,0.3]": (0.22, 0.671),
    "(0.3,0.7]": (0.29, 0.566),
    "(0.7,1]": (0.15, 0.431),
    ">1": (0.03, 0.214),
}
"""Share of the requests and acceptance rate of each temperature."""
BUCKETS = tuple(RECIPES)


@functools.cache
def full() -> Report:
    """A week of three targets: one pays, one loses at high load, one has no baseline."""
    document = msgspec.json.decode((DATA / "report" / "week.json").read_bytes())
    for number, target in enumerate(document["targets"]):
        target["series"] = msgspec.to_builtins(_series(number))
    return msgspec.convert(document, Report)


def _series(number: int) -> ReportSeries:
    """Hours with a daily pattern, a night without traffic at high temperature, and some off.

    The second target accepts less; the third has neither temperatures nor time without speculation.
    """
    chance, scale = random.Random(7 + number), 0.7 if number == 1 else 1.0
    mean = sum(share * rate for share, rate in RECIPES.values())
    recipes = {"all": (1.0, mean), **(RECIPES if number < 2 else {})}
    return ReportSeries(
        step=HOUR,
        acceptance={
            label: tuple(_acceptance(share, scale * rate, chance, quiet=label == ">1"))
            for label, (share, rate) in recipes.items()
        },
        latency=tuple(_latencies(chance, off=number < 2)),
        speedup=tuple(_speedups(number)) if number < 2 else (),
        speedup_step=3 * HOUR,
        off=(Gap(start=SINCE + 57.0 * HOUR, end=SINCE + 65.0 * HOUR),) if number < 2 else (),
    )


def _speedups(number: int) -> Iterator[SpeedupPoint]:
    """Every three hours: the second target loses while it is busy."""
    for hour in (hour for hour in WATCHED[::3] if not 57 <= hour < 65):
        value = 1.95 - 0.25 * _busy(hour) if number == 0 else 1.25 - 0.6 * _busy(hour)
        yield SpeedupPoint(start=SINCE + hour * HOUR, value=value)


def _busy(hour: int) -> float:
    """How busy an hour is, 0 to 1."""
    return 0.5 - 0.5 * math.cos((hour % 24 - 3) / 24 * 2 * math.pi)


WATCHED = [hour for hour in range(168) if not 74 <= hour < 79]


def _acceptance(
    share: float, rate: float, chance: random.Random, *, quiet: bool
) -> Iterator[AcceptancePoint]:
    for hour in WATCHED:
        busy = _busy(hour)
        if not quiet or busy >= 0.25:
            noise = chance.gauss(0, 0.012 + 0.02 * (1 - busy) * (1 - share))
            yield AcceptancePoint(
                start=SINCE + hour * HOUR,
                drafts=round(share * (4000 + 60_000 * busy)),
                rate=min(max(rate + 0.03 * (0.5 - busy) + noise, 0.0), 1.0),
            )


def _latencies(chance: random.Random, *, off: bool) -> Iterator[LatencyPoint]:
    for hour in WATCHED:
        mode = "off" if off and 57 <= hour < 65 else "on"
        slow = (1 + 0.9 * _busy(hour)) * (1.55 if mode == "off" else 1.0) * chance.gauss(1, 0.04)
        yield LatencyPoint(
            start=SINCE + hour * HOUR,
            mode=mode,
            requests=round(300 + 3000 * _busy(hour)),
            ttft_p50=0.12 * slow,
            ttft_p99=0.46 * slow * chance.gauss(1, 0.1),
            tpot_p50=0.0088 * slow,
            tpot_p99=0.026 * slow * chance.gauss(1, 0.08),
        )


NOTHING = ReportAcceptance(drafts=0, draft_tokens=0, accepted_tokens=0, rate=None, mean_length=None)


def blank(target: str = "quiet", model_name: str = "tiny", outcome: Any = "no_traffic") -> Any:
    """A model of which next to nothing is known."""
    nothing = {"requests": 0, "share": None, "acceptance": NOTHING, "acceptance_before": None}
    return ModelReport(
        target=target,
        model_name=model_name,
        answer=ReportAnswer(
            outcome=outcome, sentence="There was no traffic.", recommendation="Nothing to do."
        ),
        traffic=ReportTraffic(
            requests=0,
            prompt_tokens=0,
            generation_tokens=0,
            seconds={},
            busy_on=0.0,
            busy_off=0.0,
        ),
        segments=(
            ReportSegment(
                segment=segment("all"),
                ttft=ReportLatency(),
                tpot=ReportLatency(),
                **nothing,
            ),
        ),
        health=Health(
            expected=604_800.0,
            observed=0.0,
            scrapes_ok=0,
            scrapes_failed=0,
            restarts=0,
            coverage=None,
            source=None,
        ),
        series=ReportSeries(step=HOUR),
    )


def empty() -> Report:
    """Nothing was ever watched."""
    note = "there is no history: nothing was watched from 2026-11-02 to 2026-11-09"
    return replace(full(), targets=(), notes=(note,))


@functools.cache
def down() -> Report:
    """The first target of the week, whose server was down for 31 % of it."""
    report = full()
    first = report.targets[0]
    health = replace(first.health, expected=604_800.0, observed=399_168.0, down=187_488.0)
    return replace(report, targets=(replace(first, health=health),))


@functools.cache
def partial() -> Report:
    """A day of one target, of which the last hours were watched, and one without any traffic."""
    whole = full().targets[0]
    some = replace(
        whole,
        answer=ReportAnswer(
            outcome="even",
            sentence="Speculation makes no difference that can be told: 1.02 (0.91 to 1.13).",
            recommendation="Wait for more traffic.",
            speedup=Ratio(value=1.02, lower=0.91, upper=1.13),
        ),
        segments=tuple(
            replace(
                one,
                acceptance=replace(one.acceptance, histogram=None, per_request=None),
                acceptance_before=None,
                ttft=replace(one.ttft, before=None),
                tpot=ReportLatency(on=one.tpot.on),
                speedup=None,
            )
            for one in whole.segments[:3]
        ),
        loads=whole.loads[3:4],
        crossing=None,
        best_k=None,
        what_if=None,
        objectives=(
            replace(
                whole.objectives[0],
                requests=0.0,
                bad=0.0,
                spent=None,
                budget_left=None,
                worst_hour=None,
            ),
        ),
        goodput=(replace(whole.goodput[0], requests=0.0, offered=0.0, share=None),),
        incidents=(),
        breaches=(),
        seconds_off_by_guard=0.0,
        health=replace(whole.health, expected=86400.0, observed=21_600.0, gaps=(), gap_count=0),
        changes=(
            ReportChange(
                at=SINCE + 2 * HOUR,
                what="the configuration became another one",
                before=ReportSide(
                    hours=0.0, acceptance_rate=None, mean_length=None, tpot_p50=None, tpot_p99=None
                ),
                after=ReportSide(
                    hours=4.0, acceptance_rate=0.5, mean_length=3.0, tpot_p50=0.01, tpot_p99=0.03
                ),
            ),
        ),
        series=ReportSeries(
            step=HOUR,
            acceptance={k: v[4:6] for k, v in whole.series.acceptance.items()},
            latency=whole.series.latency[:6],
        ),
    )
    return replace(
        full(),
        until=SINCE + 86400,
        generated=SINCE + 86400 + 300.0,
        targets=(some, blank(), blank("away", "tiny", "unknown")),
        notes=("history begins at 18:00 UTC",),
    )


@functools.cache
def hostile(name: str = HOSTILE) -> Report:
    """As :func:`full`, with ``name`` in place of every text that is not one of a closed set."""
    bad: Any = _poisoned(full(), name)
    return replace(bad, version="0.5.0")


@functools.cache
def broken_numbers() -> Report:
    """As :func:`full`, with the numbers of targets being none, infinite, huge or negative."""
    broken: Report = _broken(full(), [0])
    return replace(broken, since=SINCE, until=UNTIL)


def many(count: int = 50) -> Report:
    """As :func:`full`, with so many targets."""
    known = full().targets
    names = [f"gpu-{i:02}.example.com:8000" for i in range(count)]
    models = (replace(known[i % len(known)], target=name) for i, name in enumerate(names))
    return replace(full(), targets=tuple(models))


def _poisoned(value: Any, name: str, struct_field: str = "") -> Any:
    if isinstance(value, str):
        return value if struct_field in _CHOICES and value in _CLOSED else name
    if isinstance(value, tuple):
        return tuple(_poisoned(item, name) for item in value)
    if isinstance(value, dict):
        return {
            key if isinstance(key, Mode) else f"{key}{name}": _poisoned(item, name)
            for key, item in value.items()
        }
    if not hasattr(value, "__struct_fields__"):
        return value
    fields = {key: _poisoned(getattr(value, key), name, key) for key in value.__struct_fields__}
    return replace(value, **fields)


def _broken(value: Any, turn: list[int]) -> Any:
    if isinstance(value, float):
        turn[0] += 1
        return (math.nan, math.inf, -math.inf, 1e300, -1e300, -value, 0.0)[turn[0] % 7]
    if isinstance(value, tuple):
        return tuple(_broken(item, turn) for item in value)
    if isinstance(value, dict):
        return {key: _broken(item, turn) for key, item in value.items()}
    if not hasattr(value, "__struct_fields__"):
        return value
    fields = {name: _broken(getattr(value, name), turn) for name in value.__struct_fields__}
    return replace(value, **fields)


_CHOICES = {"dimension", "outcome", "objective", "basis", "kind", "mode", "zone", "verdict"}
_CLOSED = {
    "measured",
    "assumed",
    "pays",
    "not_worth_it",
    "even",
    "loses",
    "off",
    "no_traffic",
    "unknown",
    "probe",
    "bench",
    "comparison",
    "wins",
    "e2e",
    "near",
    "ship",
    "do_not",
    "all",
    "on",
    "temperature",
}

ALL = {
    "full": full,
    "empty": empty,
    "partial": partial,
    "hostile": hostile,
    "broken numbers": broken_numbers,
}
"""One report of each kind, by name."""
