"""The states of the guard and the verdicts of rules, as numbers that panels show as words."""

from __future__ import annotations

from specwatch.generate.dashboards.once import TARGET, most
from specwatch.generate.dashboards.panels import ShownAs
from specwatch.guard.state import Phase

_COLORS = {
    Phase.OBSERVING: "green",
    Phase.SUSPECT: "yellow",
    Phase.CONFIRMED: "orange",
    Phase.DRAINING: "purple",
    Phase.RESTARTING: "purple",
    Phase.VERIFYING: "purple",
    Phase.DISABLED: "blue",
    Phase.TRIAL: "light-blue",
    Phase.ROLLING_BACK: "red",
    Phase.HELD: "dark-red",
}
GUARD_STATES = tuple(
    ShownAs(number, phase.replace("_", " "), _COLORS[phase]) for number, phase in enumerate(Phase)
)
VERDICTS = (
    ShownAs(-1, "no data", "gray"),
    ShownAs(0, "pass", "green"),
    ShownAs(1, "breach", "red"),
)


def guard_state(selector: str = 'target="$target"') -> str:
    """Query for the number of the state that the guard of each target is in.

    Of the states that it is not in, the value is 0.
    """
    numbered = [
        f'{number} * specwatch_guard_state{{{selector}, state="{phase}"}}'
        for number, phase in enumerate(Phase)
    ]
    return most("\n  " + "\n  or ".join(numbered) + "\n", TARGET)
