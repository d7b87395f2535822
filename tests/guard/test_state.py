"""The stored state of a guard, whose times follow a clock that was set back."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from specwatch.domain.model import HOUR, Mode
from specwatch.guard.state import DAY, Cause, GuardState, Incident, Order, Pause, Phase
from tests.guard.situations import NOW

STEP = 5 * HOUR
TIMES: dict[str, Any] = {
    "since": NOW,
    "began": NOW - 60,
    "issued": NOW - 50,
    "healthy_at": NOW - 40,
    "down_since": NOW - 30,
    "disabled_at": NOW,
    "elsewhere": NOW - HOUR,
    "credit_at": NOW - 2 * HOUR,
    "rearm_at": NOW + 6 * HOUR,
    "rests_until": NOW + HOUR,
    "early_at": NOW + HOUR,
    "no_switch_until": NOW + HOUR,
}
FULL = GuardState(
    "chat",
    Phase.DISABLED,
    goal=Mode.OFF,
    incident=Incident("i", Cause.RULE, NOW - 90),
    actions=(NOW - 2 * HOUR, NOW - 60),
    pause=Pause(NOW + 8 * HOUR, "ann"),
    order=Order(Mode.OFF, "ann", NOW - 1, until=NOW + HOUR),
    **TIMES,
)


def test_a_clock_that_was_set_back_moves_every_time() -> None:
    moved = FULL.set_back(STEP, commands=True)
    assert {name: getattr(moved, name) for name in TIMES} == {
        name: time - STEP for name, time in TIMES.items()
    }
    assert moved.actions == (NOW - 2 * HOUR - STEP, NOW - 60 - STEP)
    assert (moved.incident, moved.pause, moved.order) == (
        Incident("i", Cause.RULE, NOW - 90 - STEP),
        Pause(NOW + 8 * HOUR - STEP, "ann"),
        Order(Mode.OFF, "ann", NOW - 1 - STEP, until=NOW + HOUR - STEP),
    )


def test_commands_of_the_operator_stay_where_they_may_be_newer_than_the_step() -> None:
    moved = FULL.set_back(STEP, commands=False)
    assert (moved.pause, moved.order) == (FULL.pause, FULL.order)


def test_times_that_are_not_set_stay_so() -> None:
    assert GuardState("chat").set_back(STEP, commands=True) == GuardState("chat")


def test_no_time_of_the_state_is_forgotten() -> None:
    """Those that are left are durations, or no times at all."""
    large = {
        field.name
        for field in fields(FULL)
        if isinstance(value := getattr(FULL, field.name), float) and value > DAY
    }
    assert large == set(TIMES)


@pytest.mark.parametrize(
    ("changes", "ahead"),
    [
        ({}, 0.0),
        ({"since": NOW - 60, "disabled_at": NOW - 60}, -30.0),
        ({"elsewhere": NOW + 7}, 7.0),
        ({"actions": (NOW - 60, NOW + 9)}, 9.0),
        ({"rearm_at": NOW + 99 * HOUR}, 0.0),
    ],
    ids=["now", "earlier", "another tool switched", "an action", "a plan"],
)
def test_how_far_what_has_happened_lies_ahead(changes: dict[str, Any], ahead: float) -> None:
    assert replace(FULL, **changes).ahead(NOW) == ahead
