"""The guard's state of one target as it is stored: enough to go on after being killed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL, Mode, Segment

DAY = 86400.0
MOST_COSTS = 10
"""Restarts whose costs are kept."""


class Phase(enum.StrEnum):
    """Phases of the guard of a target."""

    OBSERVING = "observing"
    SUSPECT = "suspect"
    """A rule that disables is in breach, not for long enough yet."""
    CONFIRMED = "confirmed"
    """A rule is in breach for long enough; ``waiting`` says why the guard does not act yet."""
    DRAINING = "draining"
    RESTARTING = "restarting"
    VERIFYING = "verifying"
    DISABLED = "disabled"
    TRIAL = "trial"
    ROLLING_BACK = "rolling_back"
    HELD = "held"
    """Something failed: nothing is done until the operator resumes the guard."""


HIDDEN_CHANGE = "its owner changed how it starts, and our file hides that: enable it"
"""What a state waits for while speculation is off by a file of ours that is out of date."""

CALM = frozenset(
    {
        Phase.OBSERVING,
        Phase.SUSPECT,
        Phase.CONFIRMED,
        Phase.DISABLED,
        Phase.TRIAL,
        Phase.HELD,
    }
)
"""Phases in which no action is under way."""


_HAPPENED = (
    "since",
    "began",
    "issued",
    "healthy_at",
    "down_since",
    "disabled_at",
    "elsewhere",
    "credit_at",
)
_PLANNED = ("rearm_at", "rests_until", "early_at", "no_switch_until")
"""Fields of a state that are times, in the past and in the future."""

RESTARTS = (Phase.RESTARTING, Phase.VERIFYING, Phase.ROLLING_BACK)
"""Phases in which the guard itself restarts the server."""


class Cause(enum.StrEnum):
    """Why speculation is, or was, switched."""

    RULE = "rule"
    TRIAL = "trial"
    TRIAL_LOST = "trial_lost"
    PERSON = "person"
    ORDER_OVER = "order_over"
    """The time that the operator gave for switching it off is over."""
    EXPLORATION = "exploration"
    """To measure a baseline under the present traffic."""
    HOLDOUT = "holdout"
    """To serve without speculation as the baseline of its group, at the same time."""
    NOT_HELPED = "not_helped"
    """A measurement showed that switching it off did not help; it is undone."""


WITHOUT_STANDBY = frozenset({Cause.EXPLORATION, Cause.HOLDOUT})
"""Causes for which vLLM restarts even with a switch: standby does not yield a baseline."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A reason to switch, and everything that follows from it; ``began`` is in Unix seconds."""

    id: str
    cause: Cause
    began: float
    what: str = ""
    """The rule, or the person."""
    model_name: str = ""
    segment: Segment = ALL
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The numbers that led to it."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The guard begins no action by itself until ``until`` (Unix seconds)."""

    until: float
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """A command of the operator that is not carried out yet; ``until`` ends a disabling, if set."""

    goal: Mode
    by: str
    at: float
    why: str = ""
    until: float | None = None


@dataclass(frozen=True, slots=True)
class GuardState:
    """The state of the guard of one target. Times are Unix seconds, durations seconds."""

    target: str
    phase: Phase = Phase.OBSERVING
    since: float = 0.0
    goal: Mode | None = None
    """The wanted mode of speculation; None until the mode was read for the first time."""
    incident: Incident | None = None
    waiting: str = ""
    """Why a confirmed incident, or a trial that is due, has to wait."""
    why: str = ""
    """Why the guard holds or rolls back."""
    models: tuple[str, ...] = ()
    """The models that were served before the restart."""
    instance: str | None = None
    """The process that the restart replaces."""
    began: float | None = None
    """When the restart began."""
    issued: float | None = None
    """When the manager of the process had finished its part of it."""
    healthy_at: float | None = None
    down_since: float | None = None
    started: str | None = None
    """The process that runs since the restart."""
    deaths: int = 0
    """How often that process died and another one was started."""
    attempts: int = 0
    """How often the rollback was tried again."""
    hooked: bool = False
    """Whether the hook ``before`` may have run, and ``after`` has not."""
    standby: bool = False
    """Whether the switch is used in place of a restart: speculation is, or comes from, standby."""
    from_standby: bool = False
    """Whether a restart under way began in standby, whose order is renewed until then."""
    no_switch_until: float = 0.0
    """Until when the switch is not used: it failed, or did not help."""
    disabled_at: float | None = None
    rearm_at: float | None = None
    """When a trial is due; None while the operator keeps speculation off."""
    delay: float = 0.0
    """The wait before the next trial; 0 for the configured one."""
    early_at: float = 0.0
    """From when on a predicted gain may start a trial early."""
    early_pause: float = 3600.0
    backoff: float = 0.0
    """How long the guard rests after a wrong decision: doubled each time, 0 before the first."""
    rests_until: float = 0.0
    """Until when rules start no action."""
    credit: float = 3.0
    """Explorations that the budget allowed at ``credit_at``, three at most."""
    credit_at: float | None = None
    actions: tuple[float, ...] = ()
    """When automatic actions began, within the last day."""
    costs: tuple[float, ...] = ()
    """Seconds without service of the last restarts."""
    pause: Pause | None = None
    order: Order | None = None
    elsewhere: float | None = None
    """When another tool switched speculation."""
    group: str = ""
    """The servers of which few restart at once; empty until it is known."""

    def ahead(self, now: float) -> float:
        """Seconds by which what has happened lies after ``now``; above 0 once the clock was set
        back."""
        happened = (getattr(self, name) or 0.0 for name in _HAPPENED)
        return max(*happened, *self.actions) - now

    def set_back(self, seconds: float, *, commands: bool) -> GuardState:
        """The same by a clock that was set back: what has happened and what is planned lies as far
        from now as before; with ``commands`` a pause and an order, too."""
        times = {name: getattr(self, name) for name in (*_HAPPENED, *_PLANNED)}
        earlier: dict[str, Any] = {name: time - seconds for name, time in times.items() if time}
        if self.incident is not None:
            earlier["incident"] = replace(self.incident, began=self.incident.began - seconds)
        if commands and self.pause is not None:
            earlier["pause"] = replace(self.pause, until=self.pause.until - seconds)
        if commands and self.order is not None:
            until = self.order.until and self.order.until - seconds
            earlier["order"] = replace(self.order, at=self.order.at - seconds, until=until)
        actions = tuple(time - seconds for time in self.actions)
        return replace(self, actions=actions, **earlier)

    @property
    def serving(self) -> Mode:
        """The mode to start the server in if its process is our child and does not run."""
        if self.standby:
            return Mode.ON
        if self.phase is Phase.DRAINING:
            return Mode.OFF if self.goal is Mode.ON else Mode.ON
        switched = self.phase in (
            Phase.RESTARTING,
            Phase.VERIFYING,
            Phase.DISABLED,
            Phase.ROLLING_BACK,
            Phase.HELD,
        )
        return Mode.OFF if switched and self.goal is Mode.OFF else Mode.ON

    @property
    def unavailable(self) -> bool:
        """Whether the guard keeps the server from serving now, or may have begun to."""
        if self.hooked and self.phase is not Phase.HELD:
            return True  # it is not back in its load balancer
        if self.standby:
            return False
        starts = self.phase is Phase.VERIFYING and self.healthy_at is None
        return starts or self.phase in (Phase.DRAINING, Phase.RESTARTING, Phase.ROLLING_BACK)

    def forgettable(self, now: float) -> bool:
        """Whether a fresh state would do as well: nothing is under way, ordered or paused."""
        paused = self.pause is not None and self.pause.until > now
        under_way = self.incident or self.order or self.hooked or self.standby or paused
        return self.phase is Phase.OBSERVING and not under_way

    @property
    def holdout(self) -> bool:
        """Whether it is the baseline of its group, or becomes it; not once a trial is due."""
        return (
            self.incident is not None
            and self.incident.cause is Cause.HOLDOUT
            and self.goal is Mode.OFF
            and self.phase is not Phase.HELD
            and self.rearm_at is None
        )

    def acted(self, now: float) -> tuple[float, ...]:
        """The actions of the last day."""
        return tuple(time for time in self.actions if now - time < DAY)

    def restart_cost(self, assumed: float) -> float:
        """Seconds without service that a restart costs: the median of the last."""
        ordered = sorted(self.costs)
        return ordered[len(ordered) // 2] if ordered else assumed


@dataclass(frozen=True, slots=True)
class Step:
    """A transition as it is stored: the new state, the reason, and the numbers that led to it."""

    state: GuardState
    reason: str
    inputs: Mapping[str, Any] = field(default_factory=dict)


def to(
    state: GuardState,
    phase: Phase,
    now: float,
    reason: str,
    inputs: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Step:
    """A step into a phase that begins ``now``; ``changes`` are to fields of the state."""
    after = replace(state, phase=phase, since=now, waiting="", **changes)
    return Step(after, reason, inputs or {})


NO_RESTART: Mapping[str, Any] = MappingProxyType(
    {
        "models": (),
        "instance": None,
        "began": None,
        "issued": None,
        "healthy_at": None,
        "down_since": None,
        "started": None,
        "deaths": 0,
        "attempts": 0,
    }
)
"""The fields of a state about a restart, before it begins."""


def wait(state: GuardState, why: str) -> Step | None:
    """Stay in the phase and record why; None if only details after a colon are new."""
    same = state.waiting.partition(":")[0] == why.partition(":")[0]
    return None if same else Step(replace(state, waiting=why), why)


def with_interval(estimate: Interval) -> str:
    """A figure with its interval, for a sentence."""
    return f"{estimate.value:.2f} ({estimate.lower:.2f} to {estimate.upper:.2f})"
