"""A step of the guard: the next state and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specwatch.domain.interval import Interval
from specwatch.guard.state import GuardState, Phase


@dataclass(frozen=True, slots=True)
class Step:
    """What is stored: a state, why, and the numbers that led to it."""

    state: GuardState
    reason: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


def to(state: GuardState, phase: Phase, now: float, reason: str, **changes: Any) -> Step:
    """A step into a phase that begins ``now``; ``changes`` are to fields of the state."""
    return Step(replace(state, phase=phase, since=now, waiting="", **changes), reason)


def wait(state: GuardState, why: str) -> Step | None:
    """Stay, and say why; None where that was said already, but for details after a colon."""
    same = state.waiting.partition(":")[0] == why.partition(":")[0]
    return None if same else Step(replace(state, waiting=why), why)


def said_of(of: Interval) -> str:
    """A figure and its interval for a sentence."""
    return f"{of.value:.2f} ({of.lower:.2f} to {of.upper:.2f})"
