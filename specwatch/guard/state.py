"""What the guard knows of one target, as it is stored: enough to go on after being killed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode

DAY = 86400.0
_MOST_COSTS = 10


class Phase(enum.StrEnum):
    """Where the guard of a target is."""

    OBSERVING = "observing"
    SUSPECT = "suspect"
    """A rule that disables is in breach, not for long enough yet."""
    CONFIRMED = "confirmed"
    """It is: the guard would act, and ``waiting`` says why it does not."""
    DRAINING = "draining"
    RESTARTING = "restarting"
    VERIFYING = "verifying"
    DISABLED = "disabled"
    TRIAL = "trial"
    ROLLING_BACK = "rolling_back"
    HELD = "held"
    """Something failed: nothing is done until a person resumes."""


HIDDEN_CHANGE = "its owner changed how it starts, and our file hides that: enable it"
"""What a state waits for while speculation is off by a file of ours that is out of date."""

CALM = frozenset({
    Phase.OBSERVING, Phase.SUSPECT, Phase.CONFIRMED, Phase.DISABLED, Phase.TRIAL, Phase.HELD,
})  # fmt: skip
"""Phases in which no action is under way."""


class Cause(enum.StrEnum):
    """Why speculation is, or was, switched."""

    RULE = "rule"
    TRIAL = "trial"
    TRIAL_LOST = "trial_lost"
    PERSON = "person"
    ORDER_OVER = "order_over"
    """A person had it switched off until now."""
    EXPLORATION = "exploration"
    """To measure what serving takes without speculation now."""
    NOT_HELPED = "not_helped"
    """Switching it off was measured not to have helped, and is undone."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One reason to switch and all that follows from it; ``began`` is in Unix seconds."""

    id: str
    cause: Cause
    began: float
    what: str = ""
    """The rule, or the person."""
    model_name: str = ""
    temperature: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that led to it."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The guard does nothing of its own accord until ``until`` (Unix seconds)."""

    until: float
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What a person asked for and is not done yet. ``until`` ends a disabling, None never does."""

    goal: Mode
    by: str
    at: float
    why: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True)
class GuardState:
    """All of it. Times are Unix seconds, durations seconds."""

    target: str
    phase: Phase = Phase.OBSERVING
    since: float = 0.0
    goal: Mode | None = None
    """How speculation shall be, or is being made; None until it was seen."""
    incident: Incident | None = None
    waiting: str = ""
    """Why nothing is done about a confirmed incident, or about a trial that is due."""
    why: str = ""
    """Why the guard holds, or rolls back."""
    models: tuple[str, ...] = ()
    """What was served before the restart."""
    instance: str | None = None
    """The process that is to be replaced."""
    began: float | None = None
    """When the restart began."""
    issued: float | None = None
    """When it was done, as far as the manager of the process has a part in it."""
    healthy_at: float | None = None
    down_since: float | None = None
    started: str | None = None
    """The process that was seen since the restart."""
    deaths: int = 0
    """How often another took its place."""
    attempts: int = 0
    """How often putting it back was tried again."""
    hooked: bool = False
    """Whether the hook ``before`` may have run, and ``after`` has not."""
    disabled_at: float | None = None
    rearm_at: float | None = None
    """When a trial is due; None while a person keeps speculation off."""
    delay: float = 0.0
    """How long the next trial is waited for, 0 for what is configured."""
    early_at: float = 0.0
    """From when a trial may come early because a gain is predicted."""
    early_pause: float = 3600.0
    backoff: float = 0.0
    """How long the guard rests after it was wrong: doubled each time, 0 before the first."""
    rests_until: float = 0.0
    """Until when it begins nothing because of a rule."""
    credit: float = 2.0
    """Explorations that the budget allowed at ``credit_at``; they add up to two."""
    credit_at: float | None = None
    actions: tuple[float, ...] = ()
    """When actions of the guard's own accord began, within the last day."""
    costs: tuple[float, ...] = ()
    """Seconds without service of the last restarts."""
    pause: Pause | None = None
    order: Order | None = None
    elsewhere: float | None = None
    """When another tool switched speculation."""

    def capped(self, now: float) -> GuardState:
        """As it is, with nothing in the future: the clock may have been set back."""
        early: dict[str, Any] = {
            name: now
            for name in ("since", "began", "issued", "healthy_at", "down_since", "disabled_at")
            if (getattr(self, name) or 0.0) > now
        }
        return replace(self, **early) if early else self

    @property
    def serving(self) -> Mode:
        """How the server is to be started where its process is ours and is not there."""
        if self.phase is Phase.DRAINING:
            return Mode.OFF if self.goal is Mode.ON else Mode.ON
        switched = self.phase in (
            Phase.RESTARTING, Phase.VERIFYING, Phase.DISABLED, Phase.ROLLING_BACK, Phase.HELD
        )  # fmt: skip
        return Mode.OFF if switched and self.goal is Mode.OFF else Mode.ON

    def acted(self, now: float) -> tuple[float, ...]:
        """The actions of the last day."""
        return tuple(time for time in self.actions if now - time < DAY)

    def with_cost(self, seconds: float) -> tuple[float, ...]:
        """The last costs with one more."""
        return (*self.costs, seconds)[-_MOST_COSTS:]

    def restart_cost(self, assumed: float) -> float:
        """Seconds without service that a restart costs: the median of the last."""
        ordered = sorted(self.costs)
        return ordered[len(ordered) // 2] if ordered else assumed


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


def with_interval(estimate: Interval) -> str:
    """A figure and its interval for a sentence."""
    return f"{estimate.value:.2f} ({estimate.lower:.2f} to {estimate.upper:.2f})"
