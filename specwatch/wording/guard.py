"""The guard in sentences: its state, as JSON has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown

Json = Mapping[str, Any]
Moment = Callable[[float], str]
"""How a Unix time is written."""


def phase(name: str) -> str:
    """``rolling back``."""
    return shown(name).replace("_", " ")


def sentence(state: Json, now: float) -> str:
    """``disabled for 3 h, a trial in 2 h``."""
    state_now = f"{phase(state['phase'])} for {figures.span(now - state['since'])}"
    if state["phase"] != "disabled":
        return state_now
    if state["rearm_at"] is None:
        return f"{state_now}, until a person enables it"
    ordered_off = state["incident"] is not None and state["incident"]["cause"] == "person"
    return (
        f"{state_now}, {'speculation comes back' if ordered_off else 'a trial'} {trial(state, now)}"
    )


def standing(guard: Json, now: float) -> str:
    """The sentence of a guard, as the API has it, with its mode and who guards."""
    state = guard["state"]
    if state is None:
        return "not known yet"
    mode = "" if guard["mode"] == "act" else f" (guard.mode is {shown(guard['mode'])})"
    whose = "" if guard["ours"] else f"; {by_whom(guard['holder'])}"
    return f"{sentence(state, now)}{mode}{whose}"


def notes(state: Json, now: float, moment: Moment) -> Iterator[tuple[str, str]]:
    """Yield what is waited for or wrong, a pause, and an order that is not done yet.

    Each with its kind: ``wrong``, ``waiting``, ``paused`` or ``ordered``.
    """
    if state["why"] and state["phase"] in ("held", "rolling_back"):
        yield shown(state["why"], LONGEST_SENTENCE), "wrong"
    if state["waiting"]:
        yield shown(f"waiting: {state['waiting']}", LONGEST_SENTENCE), "waiting"
    pause = state["pause"]
    if pause is not None and now < pause["until"]:
        until = f"until {moment(pause['until'])}, {figures.span(pause['until'] - now)} left"
        sentence = f"paused by {pause['by']} {until}{_because(pause)}"
        yield shown(sentence, LONGEST_SENTENCE), "paused"
    order = state["order"]
    if order is not None:
        yield shown(f"not done yet: {ordered(order, moment)}", LONGEST_SENTENCE), "ordered"


def ordered(order: Json, moment: Moment) -> str:
    """``ann wants speculation off until 2026-11-19 14:33:05: it garbles``."""
    until = "" if order["until"] is None else f" until {moment(order['until'])}"
    return f"{order['by']} wants speculation {order['goal']}{until}{_because(order)}"


def by_whom(holder: str) -> str:
    """Which daemon guards it."""
    return f"guarded by {shown(holder)}" if holder else "no daemon guards it now"


def trial(state: Json, now: float) -> str:
    """``in 2 h``, ``due``."""
    left = state["rearm_at"] - now
    return "due" if left <= 0 else f"in {figures.span(left)}"


def _because(of: Json) -> str:
    return f": {of['why']}" if of["why"] else ""
