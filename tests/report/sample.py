"""Reports made by hand, for whatever draws, prints or sends them."""

from __future__ import annotations

import functools
import math
from typing import Any

from msgspec.structs import replace

from specwatch.report.estimates import Ratio, ReportLatency
from specwatch.report.model import Report, ReportAnswer, ReportChange, ReportSide
from tests.report.models import assumed, blank, loses, pays
from tests.report.pieces import BUCKETS, HOUR, PAYS, SINCE, UNTIL, loads, series

__all__ = [
    "BUCKETS",
    "HOSTILE",
    "HOUR",
    "SINCE",
    "UNTIL",
    "blank",
    "broken_numbers",
    "empty",
    "full",
    "hostile",
    "loads",
    "many",
    "partial",
]
HOSTILE = (
    '</title><script>alert("x")</script><img src=x onerror=alert(1)> \'"&`|*_[a](javascript:b)'
    "\n\n# not a heading\r\n| a | b |\n\x1b[31m\x00\u202ertl\u2066\u200f \U0001f98a " + "y" * 10_000
)
"""A name that nobody should have."""


@functools.cache
def down() -> Report:
    """The first target of the week, whose server was down for 31 % of it."""
    report = full()
    first = report.targets[0]
    health = replace(first.health, expected=604_800.0, observed=399_168.0, down=187_488.0)
    return replace(report, targets=(replace(first, health=health),))


def full() -> Report:
    """A week of three targets: one pays, one loses at high load, one has no baseline."""
    return Report(
        version="0.5.0",
        generated=UNTIL + 300.0,
        since=SINCE,
        until=UNTIL,
        targets=(pays(), loses(), assumed()),
        notes=("history of chat-70b begins on 2026-10-20: some comparisons have less to go by",),
    )


def empty() -> Report:
    """Nothing was ever watched."""
    return Report(
        version="0.5.0",
        generated=UNTIL + 300.0,
        since=SINCE,
        until=UNTIL,
        targets=(),
        notes=("there is no history: nothing was watched from 2026-11-02 to 2026-11-09",),
    )


@functools.cache
def partial() -> Report:
    """A day of one target, of which the last hours were watched, and one without any traffic."""
    whole = pays()
    short = series(PAYS, hours=6)
    some = replace(
        whole,
        answer=ReportAnswer(
            outcome="even",
            sentence="Speculation makes no difference that can be told: 1.02 (0.91 to 1.13).",
            recommendation="Wait for more traffic.",
            speedup=Ratio(value=1.02, lower=0.91, upper=1.13),
        ),
        temperatures=tuple(
            replace(
                temperature,
                acceptance=replace(temperature.acceptance, histogram=None, per_request=None),
                acceptance_before=None,
                ttft=replace(temperature.ttft, before=None),
                tpot=ReportLatency(on=temperature.tpot.on),
                speedup=None,
            )
            for temperature in whole.temperatures[:3]
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
        series=replace(short, acceptance={k: v[-2:] for k, v in short.acceptance.items()}),
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
    """As :func:`full`, with each number in turn being no number, infinite, huge or negative."""
    return _broken(full(), [0])  # type: ignore[no-any-return]


def many(count: int = 50) -> Report:
    """As :func:`full`, with so many targets."""
    known = full().targets
    return replace(
        full(),
        targets=tuple(
            replace(known[i % len(known)], target=f"gpu-{i:02}.example.com:8000")
            for i in range(count)
        ),
    )


def _poisoned(value: Any, name: str, struct_field: str = "") -> Any:
    if isinstance(value, str):
        return value if struct_field in _CHOICES and value in _CLOSED else name
    if isinstance(value, tuple):
        return tuple(_poisoned(item, name) for item in value)
    if isinstance(value, dict):
        return {f"{key}{name}": _poisoned(item, name) for key, item in value.items()}
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


_CHOICES = {"outcome", "objective", "basis", "kind", "mode", "zone", "verdict"}
_CLOSED = {
    "measured", "assumed", "pays", "not_worth_it", "even", "loses", "off", "no_traffic", "unknown",
    "probe", "bench", "comparison", "wins", "e2e", "near", "ship", "do_not", "all", "on",
}  # fmt: skip
