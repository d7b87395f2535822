"""Probes, benches and comparisons of a server whose names are given, and an experiment."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from specwatch.domain.experiments import (
    Acceptance,
    Bench,
    Comparison,
    Estimate,
    Line,
    Probe,
    ProbeTemperature,
    Subject,
    Zone,
)
from specwatch.domain.switchback import Moments, Switchback, SwitchbackDesign, SwitchbackState
from specwatch.lab.loadtest.compare import compare
from tests.loadtest.benches import WORK, batches, bench, level, noise


def subject(name: str) -> Subject:
    return Subject(target=name, url=f"http://{name}", model_name=name, mode="on", k=4)


def probe(ended: float, name: str = "chat", *, complete: bool = True) -> Probe:
    """Of three temperatures, against a line that was measured."""
    return Probe(
        version="1",
        began=ended - 60,
        ended=ended,
        complete=complete,
        subject=subject(name),
        workload=replace(WORK, source=name, temperatures=(0.0, 0.7, 1.3)),
        concurrency=4,
        temperatures=(
            _temperature(0.0, 0.75, "wins"),
            _temperature(0.7, 0.6, "near"),
            _temperature(1.3, None, "unknown"),
        ),
        line=Line(
            acceptance=Estimate(value=0.58, lower=0.55, upper=0.61),
            basis="measured",
            load=f"3-4{name if name != 'chat' else ''}",
        ),
        alone=True,
        notes=(name,),
    )


def _temperature(temperature: float, rate: float | None, zone: Zone) -> ProbeTemperature:
    result = None if rate is None else Estimate(value=rate, lower=rate - 0.25, upper=rate + 0.125)
    return ProbeTemperature(
        temperature=temperature,
        requests=20,
        errors={},
        tokens=2000,
        source="records",
        acceptance=Acceptance(drafts=500, draft_tokens=2000, accepted_tokens=1000, rate=result),
        ttft=None,
        tpot=None,
        speedup=None,
        zone=zone,
    )


def measured(ended: float, mode: str = "on", name: str = "chat") -> Bench:
    """A bench of two loads, the higher of which speculation makes slower."""
    on = mode == "on"
    return replace(
        bench(
            mode,
            [
                level(1, batches(0.005 if on else 0.01, noise(12, 0.02, mode))),
                level(16, batches(0.03 if on else 0.02, noise(12, 0.02, mode))),
            ],
        ),
        subject=replace(subject(name), mode="on" if on else "off"),
        began=ended - 100,
        ended=ended,
    )


def comparison(ended: float, name: str = "chat") -> Comparison:
    result = compare(measured(ended, "off", name), measured(ended, "on", name), version="1")
    return replace(result, complete=False)


def switchback(began: float, **changes: Any) -> Switchback:
    """Of 42 episodes, in which 2 draft tokens win, but not at temperatures above 1."""
    wins, loses = Moments(42, -0.1, 0.1), Moments(42, 0.2, 0.1)
    state = SwitchbackState(
        environment="e",
        began=began,
        counted=began + 100_000,
        arm="launch",
        usual="launch",
        other_seconds=4000.0,
        lost_seconds=500.0,
        episodes=42,
        excluded=3,
        dropped={"launch": ("0",)},
        tokens={"all": 1000.0, "load 3-4": 1000.0, "temperature >1": 900.0},
        differences={
            "all": {"0": {"launch": loses}, "2": {"launch": wins}},
            "load 3-4": {"0": {"launch": Moments(3, 0.2, 0.01)}, "2": {"launch": wins}},
            "temperature >1": {"2": {"launch": loses}},
        },
    )
    design = SwitchbackDesign(arms=("launch", "0", "2"), usual="launch", seed=1)
    return Switchback(target="chat", design=design, state=state, **changes)
