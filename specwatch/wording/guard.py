"""The guard in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from specwatch.guard.state import Cause, GuardState, Order, Pause, Phase
from specwatch.guard.status import GuardView
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown


def phase(name: str) -> str:
    """``rolling back``."""
    return shown(name).replace("_", " ")


def state_word(state: GuardState) -> str:
    """``rolling back``, ``holdout``."""
    return "holdout" if state.holdout and state.phase is Phase.DISABLED else phase(state.phase)


def sentence(state: GuardState, now: float) -> str:
    """``disabled for 3 h, a trial in 2 h``."""
    state_now = f"{state_word(state)} for {figures.span(now - state.since)}"
    if state.holdout and state.phase is Phase.DISABLED:
        return f"{state_now}, without speculation: the baseline of its group"
    if state.phase is not Phase.DISABLED:
        return state_now
    if state.rearm_at is None:
        return f"{state_now}, until a person enables it"
    ordered_off = state.incident is not None and state.incident.cause is Cause.PERSON
    return (
        f"{state_now}, {'speculation comes back' if ordered_off else 'a trial'} {trial(state, now)}"
    )


def standing(guard: GuardView, now: float) -> str:
    """The state of a guard, with its mode and the daemon that guards."""
    if guard.state is None:
        return "not known yet"
    mode = "" if guard.mode == "act" else f" (guard.mode is {shown(guard.mode)})"
    daemon = f"guarded by {shown(guard.holder)}" if guard.holder else "no daemon guards it now"
    return f"{sentence(guard.state, now)}{mode}{'' if guard.ours else f'; {daemon}'}"


def notes(state: GuardState, now: float) -> Iterator[tuple[str, str]]:
    """Yield what the guard waits for, what failed, a pause, and an order that is not done yet.

    Each with its kind: ``wrong``, ``waiting``, ``paused`` or ``ordered``.
    """
    if state.why and state.phase in (Phase.HELD, Phase.ROLLING_BACK):
        yield shown(state.why, LONGEST_SENTENCE), "wrong"
    if state.waiting:
        yield shown(f"waiting: {state.waiting}", LONGEST_SENTENCE), "waiting"
    pause = state.pause
    if pause is not None and now < pause.until:
        until = f"until {figures.moment(pause.until)}, {figures.span(pause.until - now)} left"
        sentence = f"paused by {pause.by} {until}{_because(pause)}"
        yield shown(sentence, LONGEST_SENTENCE), "paused"
    if state.order is not None:
        order = f"not done yet: {ordered(state.order)}"
        yield shown(order, LONGEST_SENTENCE), "ordered"


def ordered(order: Order) -> str:
    """``ann wants speculation off until 2026-11-19 14:33 UTC: it garbles``."""
    until = "" if order.until is None else f" until {figures.moment(order.until)}"
    return f"{order.by} wants speculation {order.goal}{until}{_because(order)}"


def trial(state: GuardState, now: float) -> str:
    """``in 2 h``, ``due``; empty without a trial ahead."""
    if state.rearm_at is None:
        return ""
    left = state.rearm_at - now
    return "due" if left <= 0 else f"in {figures.span(left)}"


def _because(reason: Pause | Order) -> str:
    return f": {reason.why}" if reason.why else ""
