"""What a person may tell the guard: it always wins over what the guard would do."""

from __future__ import annotations

from dataclasses import replace

from specwatch.domain.model import HOUR, Mode
from specwatch.guard.state import GuardState, Order, Pause, Phase, Step, to

_LEAST_DELAY = float(HOUR)


def pause(state: GuardState, *, until: float, by: str, why: str = "") -> Step:
    """Begin nothing until ``until`` (Unix seconds); an action before its restart is given up."""
    sentence = f"paused by {by}" + (f": {why}" if why else "")
    return Step(replace(state, pause=Pause(until, by, why)), sentence)


def resume(state: GuardState, *, by: str, now: float) -> Step | None:
    """End a pause, and a hold: the guard looks anew; None where there is neither."""
    if state.phase is Phase.HELD and state.goal is Mode.OFF:
        # It serves without speculation by us: a trial comes, the later for having failed.
        delay = 2 * max(state.delay, _LEAST_DELAY)
        return to(
            state, Phase.DISABLED, now, f"resumed by {by}",
            pause=None, why="", disabled_at=now, rearm_at=now + delay, delay=delay,
        )  # fmt: skip
    if state.phase is Phase.HELD:
        return to(
            state, Phase.OBSERVING, now, f"resumed by {by}",
            pause=None, goal=None, incident=None, why="",
        )  # fmt: skip
    if state.pause is None:
        return None
    return Step(replace(state, pause=None), f"resumed by {by}")


def order(
    state: GuardState, goal: Mode, *, by: str, now: float, why: str = "", until: float | None = None
) -> Step:
    """Switch speculation as soon as what is under way allows it; ``until`` is a Unix time."""
    sentence = f"{by} wants speculation {goal}" + (f": {why}" if why else "")
    return Step(replace(state, order=Order(goal, by, now, why, until)), sentence)
