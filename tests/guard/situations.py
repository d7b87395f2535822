"""States and situations of a guard, and the step from one to the next, for tables of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specwatch.config.guard import Guard
from specwatch.domain.interval import Interval
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import state_machine
from specwatch.guard.observation import Breach, Situation
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import Cause, GuardState, Incident, Phase

NOW = 1_800_000_000.0
ACT = Guard.model_validate({"mode": "act", "rearm": {"after": "6h"}})
UP = Service(ProcessState.UP, Mode.ON, "1")
BREACH = Breach("r", "tiny", "all")
CALM = GuardState("chat", Phase.OBSERVING, NOW - 900, Mode.ON)
CONFIRMED = GuardState(
    "chat", Phase.CONFIRMED, NOW, Mode.ON, Incident("i", Cause.RULE, NOW, "r", "tiny", "all")
)
DISABLED = replace(
    CONFIRMED, phase=Phase.DISABLED, goal=Mode.OFF, disabled_at=NOW, rearm_at=NOW + 6 * HOUR
)
TRIAL = replace(CONFIRMED, phase=Phase.TRIAL)


def seen(seconds: float = 0.0, **changes: Any) -> Situation:
    """A server that is up and loses, scraped at ``NOW``, so many seconds later."""
    return replace(
        Situation(
            NOW + seconds,
            NOW,
            mode=Mode.ON,
            models=("tiny",),
            load=0.0,
            breaches=(BREACH,),
            service=UP,
        ),
        **changes,
    )


def about(value: float, spread: float = 0.05) -> Interval:
    return Interval(value, value - spread, value + spread, 30)


def check_step(
    state: GuardState, look: Situation, expected: Mapping[str, Any] | None, policy: Guard = ACT
) -> GuardState:
    """Take the next step; returns the state after it.

    ``expected`` are fields of that state, and the step's ``reason``; None for no step at all.
    """
    step = state_machine.step(state, look, policy)
    if expected is None:
        assert step is None
        return state
    assert step is not None
    fields = {
        name: step.reason if name == "reason" else getattr(step.state, name) for name in expected
    }
    assert fields == expected
    return step.state
