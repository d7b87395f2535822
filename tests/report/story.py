"""A day of one target in which much happened, and its report as it is computed."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.config.rules import Slo
from specwatch.domain.model import HOUR, Environment, Histogram, Mode, Tally, Window
from specwatch.guard.status import StepRecord
from specwatch.report.fleet import fleet
from specwatch.report.model import Report
from specwatch.rules.decisions import Decision
from tests.report.experiments import comparison, measured, probe, switchback
from tests.report.history import (
    HOURS,
    MODEL,
    OFF,
    SINCE,
    TARGET,
    bucket,
    counted,
    drafted,
    flat,
    hour,
    measurement,
    report,
    step,
)
from tests.segments import segment

LOADS = ((1.0, 0.02, 0.012), (3.0, 0.03, 0.02), (12.0, 0.05, 0.0625))
"""Running requests, seconds per token without speculation, and with it: it loses at the last."""
OFF_HOURS = range(9, 12)
NEWER = Environment("0.33.0", "cafe-4")
FINDING = {
    "rule": "net-negative",
    "summary": "Speculation makes this server slower than it is without",
    "model_name": MODEL,
    "segment": {"dimension": "all", "value": "all"},
    "readings": [],
    "leading": {
        "metric": "speedup_ratio",
        "value": 0.81,
        "lower": 0.78,
        "upper": 0.84,
        "above": None,
        "below": 1,
        "clear": None,
        "window": 600,
        "drafts": 9000,
        "requests": 40,
        "basis": "measured",
        "missing": None,
    },
}
STEPS = (
    (9.0, "a1", "confirmed", "the rule net-negative is in breach"),
    (9.0, "a1", "draining", "switching speculation off"),
    (9.1, "a1", "restarting", "no request runs, after 3s"),
    (9.2, "a1", "verifying", "the server was restarted"),
    (9.4, "a1", "disabled", "no slower than before"),
    (11.6, "a1", "restarting", "no request runs, after 4s"),
    (11.7, "a1", "trial", "healthy after 2m"),
    (12.0, "a1", "observing", "the trial was won: speedup 1.20 (1.10 to 1.30)"),
    (20.0, "a2", "confirmed", "the rule net-negative is in breach"),
    (20.0, "a2", "confirmed", "paused by ann: a deploy"),
)


def told() -> Report:
    """The report of the day, which follows one that was alike but for incidents."""
    slos = [Slo(name="first", metric="ttft", threshold="100ms", objective="90%", window="2d")]
    noon = SINCE + 12.0 * HOUR
    baselines = (
        measurement(running, plain, environment=environment)
        for running, plain, _ in LOADS
        for environment in (OFF, Environment("0.33.0", "cafe-0"))
    )
    model = report(
        flat(_hour(at) for at in range(-HOURS, HOURS)),
        *baselines,
        steps=list(_steps()),
        decisions=[
            _decision(9.0, "breach", "all"),
            _decision(12.0, "pass", "all"),
            _decision(20.0, "breach", ">1"),
        ],
        slos=slos,
        gpus=8,
        experiments={MODEL: [measured(noon), probe(noon + HOUR), comparison(noon + 2 * HOUR)]},
        switchback=switchback(SINCE + HOUR, stopped="ann: a demo"),
    )
    return Report(
        version="0.1.0",
        generated=SINCE + HOURS * HOUR + 300.0,
        since=SINCE,
        until=SINCE + HOURS * HOUR,
        targets=(model,),
        fleet=fleet([model]),
        notes=(),
    )


def _hour(at: int) -> list[Window]:
    """With speculation but while the guard had switched it off; one hour was not watched, and in
    another the server was down."""
    if at == 15:
        return []
    running, plain, tpot = LOADS[at % len(LOADS)]
    parts = {"0": bucket(60, rate=0.8), ">1": bucket(40, rate=0.1)}
    segments = {"output=text": _part(60, 0.8), "output=tool_call": _part(40, 0.02)}
    if at in OFF_HOURS:
        return hour(at, counted(rate=None, tpot=plain), mode=Mode.OFF, running=running)
    return hour(
        at,
        counted(tpot=tpot, ttft=0.05 if at % 4 else 0.3),
        running=running,
        buckets=parts | segments,
        **({"restarts": 1, "down_seconds": 600.0, "observed_seconds": 3000.0} if at == 18 else {}),
        **({"environment": NEWER} if at >= 18 else {}),
    )


def _part(requests: int, rate: float) -> Tally:
    """What a tap counts of a segment."""
    kept = {k: v for k, v in drafted(5000, rate).items() if k != "accepted_per_position"}
    between = Histogram((), (5000,), 5000 * 0.02)
    return Tally(requests={"other": requests}, tpot=between, **kept)


def _steps() -> Iterator[StepRecord]:
    before = "observing"
    for at, incident, phase, reason in STEPS:
        inputs = FINDING if phase == "confirmed" else {}
        yield step(SINCE + at * HOUR, incident, before, phase, reason, inputs)
        before = phase


def _decision(at: float, verdict: str, temperature: str) -> Decision:
    return Decision(
        "d",
        TARGET,
        MODEL,
        segment(temperature),
        "net-negative",
        SINCE + at * HOUR,
        verdict,
        "warning",
        "alert",
        {},
    )
