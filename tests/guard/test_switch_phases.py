"""Steps of an action by the switch: its order, its verification, and the time in standby."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from specwatch.domain.model import HOUR, Mode
from specwatch.guard.foresight import Verification
from specwatch.guard.observation import SwitchOutcome
from specwatch.guard.restart_phases import MOST_VERIFY
from specwatch.guard.state import Cause, GuardState, Order, Phase
from specwatch.guard.switch_phases import LEASE
from tests.guard.situations import ACT, CONFIRMED, DISABLED, NOW, about, check_step, seen

SWITCHING = replace(CONFIRMED, phase=Phase.RESTARTING, goal=Mode.OFF, standby=True, issued=NOW)
VERIFYING = replace(SWITCHING, phase=Phase.VERIFYING, healthy_at=NOW)
STANDBY = replace(DISABLED, standby=True, healthy_at=NOW)
BY_PERSON = replace(
    STANDBY, incident=STANDBY.incident and replace(STANDBY.incident, cause=Cause.PERSON)
)
LOST = replace(STANDBY, waiting="the switch cannot be reached: refused")
FAILED = SwitchOutcome("refused", retry=True)
VERIFY = ACT.verify

STEPS: dict[str, tuple[GuardState, float, dict[str, Any], Mapping[str, Any] | None]] = {
    "an order is waited for": (SWITCHING, 5.0, {}, None),
    "an order that is in force is verified": (
        SWITCHING,
        5.0,
        {"outcome": SwitchOutcome()},
        {"phase": Phase.VERIFYING, "healthy_at": NOW + 5, "standby": True},
    ),
    "an order that failed is tried again": (SWITCHING, 29.0, {"outcome": FAILED}, None),
    "but for half a minute only": (
        SWITCHING,
        30.0,
        {"outcome": FAILED},
        {"phase": Phase.DRAINING, "reason": "the switch failed: refused; restarting"},
    ),
    "an order that is refused is not tried again": (
        SWITCHING,
        5.0,
        {"outcome": SwitchOutcome("refused")},
        {"phase": Phase.DRAINING, "no_switch_until": NOW + 5 + HOUR},
    ),
    "the end of standby is tried for as long as the order lasts": (
        replace(SWITCHING, goal=Mode.ON),
        LEASE - 1,
        {"outcome": FAILED},
        None,
    ),
    "then it ends by itself": (
        replace(SWITCHING, goal=Mode.ON),
        LEASE,
        {"outcome": FAILED},
        {"phase": Phase.OBSERVING, "reason": "the order is not renewed any more: refused"},
    ),
    "it is verified for as long as is configured": (
        VERIFYING,
        VERIFY - 1,
        {"verification": Verification(0.8, 1.0, about(0.7))},
        None,
    ),
    "standby helped": (
        VERIFYING,
        VERIFY,
        {"verification": Verification(0.8, 1.0, about(0.7))},
        {"phase": Phase.DISABLED, "standby": True},
    ),
    "standby did not help, and a restart would": (
        VERIFYING,
        VERIFY,
        {"verification": Verification(0.8, 1.0, about(1.3))},
        {"phase": Phase.DRAINING, "goal": Mode.OFF},
    ),
    "standby did not help, and a restart would not": (
        VERIFYING,
        VERIFY,
        {"verification": Verification(0.999, 1.0, about(1.3))},
        {"phase": Phase.RESTARTING, "goal": Mode.ON, "rests_until": NOW + VERIFY + ACT.cooldown},
    ),
    "whether it helped is not certain": (
        VERIFYING,
        VERIFY,
        {"verification": Verification(0.8, 1.0, about(0.97))},
        {"waiting": "whether standby helps is not certain yet: verifying goes on"},
    ),
    "the last word is the likelier": (
        VERIFYING,
        MOST_VERIFY * VERIFY,
        {"verification": Verification(0.8, 1.0, about(0.97))},
        {"phase": Phase.DISABLED},
    ),
    "nothing to verify by": (
        VERIFYING,
        VERIFY,
        {},
        {"waiting": "too few whole minutes of traffic for a verification: it goes on"},
    ),
    "nothing to verify by in the end": (
        VERIFYING,
        MOST_VERIFY * VERIFY,
        {},
        {"phase": Phase.DISABLED, "standby": True},
    ),
    "counters do not follow yet": (VERIFYING, 29.0, {"followed": False}, None),
    "counters do not follow": (
        VERIFYING,
        30.0,
        {"followed": False},
        {"phase": Phase.DRAINING, "reason": "the server does not follow its switch; restarting"},
    ),
    "counters that are not known are taken for following": (
        VERIFYING,
        30.0,
        {"followed": None},
        None,
    ),
    "another holds the switch": (
        STANDBY,
        60.0,
        {"overridden": "bob to 2"},
        {"phase": Phase.OBSERVING, "goal": Mode.ON, "reason": "the switch was set by bob to 2"},
    ),
    "standby lasts": (STANDBY, 60.0, {}, None),
    "the switch cannot be reached": (
        STANDBY,
        700.0,
        {"switch_error": "refused", "switch_lost": LEASE - 1},
        {"phase": Phase.DISABLED, "waiting": "the switch cannot be reached: refused"},
    ),
    "until its order must have ended": (
        LOST,
        700.0,
        {"switch_error": "refused", "switch_lost": LEASE},
        {"phase": Phase.OBSERVING, "standby": False, "rearm_at": None},
    ),
    "a verification does not go on without the order": (
        VERIFYING,
        LEASE,
        {"switch_error": "refused", "switch_lost": LEASE},
        {"phase": Phase.OBSERVING, "standby": False, "goal": Mode.ON},
    ),
    "the switch is back": (LOST, 700.0, {}, {"phase": Phase.DISABLED, "waiting": ""}),
    "standby costs little": (STANDBY, HOUR, {"standby_cost": about(1.0005, 0.0001)}, None),
    "standby may cost nothing": (STANDBY, HOUR, {"standby_cost": about(1.2, 0.3)}, None),
    "standby costs more than a restart": (
        STANDBY,
        3 * HOUR,
        {"standby_cost": about(1.5)},
        {"phase": Phase.DRAINING, "goal": Mode.OFF, "no_switch_until": NOW + 4 * HOUR},
    ),
    "a person chose standby": (BY_PERSON, 3 * HOUR, {"standby_cost": about(1.5)}, None),
    "a trial is due": (STANDBY, 6 * HOUR, {}, {"phase": Phase.RESTARTING, "goal": Mode.ON}),
    "a trial is not due": (STANDBY, 6 * HOUR - 1, {}, None),
}


@pytest.mark.parametrize(("state", "seconds", "look", "expected"), STEPS.values(), ids=STEPS)
def test_a_step_by_the_switch(
    state: GuardState,
    seconds: float,
    look: dict[str, Any],
    expected: Mapping[str, Any] | None,
) -> None:
    at_zero = {"mode": None, "breaches": (), "switchable": True, "in_standby": True}
    check_step(state, seen(seconds, **at_zero | look), expected)


@pytest.mark.parametrize("state", [STANDBY, VERIFYING], ids=["disabled", "verifying"])
@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (
            Mode.OFF,
            {"phase": Phase.DISABLED, "goal": Mode.OFF, "standby": True, "rearm_at": NOW + HOUR},
        ),
        (Mode.ON, {"phase": Phase.RESTARTING, "goal": Mode.ON, "standby": True}),
    ],
)
def test_an_operator_command_in_standby_does_not_rely_on_a_page_from_before(
    state: GuardState, goal: Mode, expected: Mapping[str, Any]
) -> None:
    """The page still shows speculation on, as it was scraped before the switch."""
    until = NOW + HOUR if goal is Mode.OFF else None
    commanded = replace(state, order=Order(goal, "ann", NOW, until=until))
    check_step(commanded, seen(2.0, breaches=(), switchable=True), expected)
