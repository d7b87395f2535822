"""Decisions about a target as a judge reaches them, for the surfaces to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import msgspec

from specwatch.config.rules import Condition, Rule, Slo
from specwatch.domain.breakeven import Assessment, assumed_speedup
from specwatch.domain.model import ALL, Environment, Histogram, Mode, SeriesId, Tally, Window
from specwatch.domain.sample import total
from specwatch.rules.decisions import Decision, ModelDecision, TargetDecision
from specwatch.rules.judge import Judge
from tests.segments import segment
from tests.web.statuses import NOW, minute

START = 1_699_999_980
OFF_MINUTES, ON_MINUTES = 6, 12

BREACHED = Rule(
    name="too-slow",
    conditions=(Condition(metric="speedup_ratio", below=2.5),),
    window="10m",
    for_="1m",
    severity="critical",
)
MINOR = BREACHED.model_copy(update={"name": "minor", "severity": "info"})
PENDING = Rule(
    name="soon",
    conditions=(Condition(metric="acceptance_ratio", below=0.9),),
    window="10m",
    for_="1h",
)
PASSING = Rule(
    name="fine", conditions=(Condition(metric="ttft_p99", above="10s"),), for_="1m", clear_for="1m"
)
SILENT = PASSING.model_copy(update={"name": "silent", "min_drafts": 10**9})
RULES = (BREACHED, PENDING, PASSING, SILENT)
SLO = Slo(name="first-token", metric="ttft", threshold="100ms", objective="99%", window="1d")


@cache
def decided(
    rules: Sequence[Rule] = RULES,
    slos: Sequence[Slo] = (SLO,),
    *,
    measured: bool = True,
    target: str = "chat",
    model_name: str = "llama",
) -> TargetDecision:
    """What a judge says at START + 60 after 12 minutes of 3 running requests and two buckets.

    Plain tokens take 20 ms, speculative ones 10 ms: the speedup is 2, where it is measured.
    """
    judge = Judge(target, rules, slos)
    first = START + 60 - 60 * (OFF_MINUTES + ON_MINUTES)
    for number in range(OFF_MINUTES + ON_MINUTES):
        start = first + 60 * number
        off = number < OFF_MINUTES
        if not off or measured:
            windows = _minute(start, number, target, model_name, off=off)
            judge.observe(windows, float(start + 60))
    prior = None if measured else assumed_speedup(total(judge.recent(model_name)), 0.1)
    baseline = judge.baselines()[model_name]
    latencies = judge.baseline_latencies()[model_name]
    model = ModelDecision(judge.assessments()[model_name], baseline, prior, 0.1, latencies)
    return TargetDecision({model_name: model}, judge.findings(), judge.slos(), judge.goodput())


UNLIKE = "prompts are 4 times longer than those of the baseline"


def unlike(since: float | None = None) -> TargetDecision:
    """What is decided where requests are unlike those of the baseline: ever since it is watched, or
    since a time (Unix seconds)."""
    decision = decided()
    known = decision.models["llama"]
    seen = Assessment(samples=9, tokens=100.0, missing=UNLIKE)
    if since is not None:
        seen = replace(known.assessment, until=since, missing_lately=UNLIKE)
    return replace(decision, models={"llama": replace(known, assessment=seen)})


def change(verdict: str = "breach", **changes: object) -> Decision:
    """A change of a verdict as it is stored."""
    made = Decision(
        "left",
        "chat",
        "llama",
        ALL,
        "too-slow",
        NOW - 60,
        verdict,
        "critical",
        "alert",
        {"readings": []},
    )
    return replace(made, **changes)


def _minute(
    start: int, number: int, target: str, model_name: str, *, off: bool
) -> tuple[Window, ...]:
    here = Environment("0.32.0", "c-0" if off else "c-4")
    whole = msgspec.structs.replace(
        minute(start, target=target, model_name=model_name), environment=here
    )
    spread = 1 + 0.02 * (number % 3 - 1)
    if off:
        tally = Tally(
            requests={"stop": 9},
            ttft=whole.tally.ttft,
            tpot=Histogram((0.01, 0.03), (0, 20, 0), 0.4 * spread),
        )
        return (msgspec.structs.replace(whole, mode=Mode.OFF, tally=tally),)
    tpot = Histogram((0.01, 0.02), (10, 10, 0), 0.2 * spread)
    whole = msgspec.structs.replace(whole, tally=msgspec.structs.replace(whole.tally, tpot=tpot))
    buckets = [
        msgspec.structs.replace(
            whole,
            series=SeriesId("left", target, model_name, segment(label)),
            tally=msgspec.structs.replace(
                whole.tally, drafts=50, draft_tokens=200, accepted_tokens=accepted, tpot=None
            ),
        )
        for label, accepted in (("0", 150), (">1", 10))
    ]
    return (whole, *buckets)
