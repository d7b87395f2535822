"""Running a guardian against a simulated server, turn by turn, and killing it where one likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from specwatch.actuators.base import boottime
from specwatch.actuators.switch import SwitchClient
from specwatch.config.guard import Guard, Rearm
from specwatch.config.loading import from_targets
from specwatch.daemon.guard_dependencies import GuardDependencies
from specwatch.daemon.guard_measurements import GuardMeasurements
from specwatch.daemon.guarded_switch import GuardedSwitch
from specwatch.daemon.target_guard import TargetGuard
from specwatch.domain.interval import Interval
from specwatch.domain.model import Objective
from specwatch.errors import StoreUnavailable
from specwatch.guard.foresight import Trial, Verification
from specwatch.guard.state import GuardState, Phase, Step
from specwatch.store.guard_records import LEASE_SECONDS, GuardBook
from specwatch.store.guard_rows import Entry
from specwatch.store.repository import Store
from tests.guard.simulated_server import SimulatedServer

TURN = 2.0
LONG_TURN = 120.0
"""While nothing is expected to happen soon."""
_SLOW = frozenset({Phase.DISABLED, Phase.TRIAL, Phase.HELD})
ACT = Guard.model_validate(
    {"mode": "act", "verify": "1m", "drain_timeout": "10s", "rearm": {"after": "6h"}}
)
QUICK = ACT.model_copy(update={"rearm": Rearm.model_validate({"after": "31m", "trial": "5m"})})
"""With a trial as soon as the cooldown is over."""


class Killed(BaseException):
    """The process ends here: nobody catches it."""


class Book(GuardBook):
    """Says when it is about to store something, and when it has."""

    def __init__(self, store: Store, point: Callable[[str], None]) -> None:
        super().__init__(store)
        self.point = point
        self.away = False
        self.changed = False

    def change(
        self, target: str, make: Callable[[GuardState], Step | None], now: float, *, by: str
    ) -> GuardState:
        self.changed = True
        return super().change(target, make, now, by=by)

    def advance(self, entry: Entry, step: Step, now: float, **how: Any) -> Entry:
        if self.away:
            raise StoreUnavailable("the database is away")
        self.point(f"before storing {step.state.phase}: {step.reason}")
        advanced = super().advance(entry, step, now, **how)
        self.point(f"after storing {step.state.phase}: {step.reason}")
        return advanced


class SimulatedMeasurements(GuardMeasurements):
    """Measures what the simulated server says of itself."""

    server: SimulatedServer

    def _trial(self, now: float) -> object:
        return Trial(self.server.speedup())

    def _verification(self, now: float) -> object:
        if self.server.standing_by:
            value = 0.7 if self.server.standby_helps else 1.4
            return Verification(0.6, 1.1, Interval(value, value - 0.1, value + 0.1, 20))
        return Verification(0.9, 1.1, self.server.speedup())

    def _standby_cost(self, now: float) -> object:
        return self.server.standby_cost

    def _predicted(self, now: float) -> object:
        return None


@dataclass
class Living:
    """A guardian and its server; ``kill_at`` is the number of the point at which it dies.

    ``every`` is how many seconds pass from turn to turn while something may happen soon.
    """

    path: Path
    server: SimulatedServer = field(default_factory=SimulatedServer)
    policy: Guard = ACT
    kill_at: int | None = None
    away_at: int | None = None
    away_turns: int = 10
    every: float = TURN
    points: list[str] = field(default_factory=list)
    deaths: int = 0
    hooks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server.point = self.point
        self.store = Store(f"sqlite:///{self.path}", daemon="d")
        self.book = Book(self.store, self.point)
        self.holder = "d:1"
        self.guardian = self._born()
        self._back_at: float | None = None

    def _born(self) -> TargetGuard:
        server = self.server
        target = from_targets(["http://127.0.0.1:8000"], environ={}, hostname="h").targets[0]
        target = target.model_copy(update={"name": "chat"})
        world = GuardDependencies(
            self.store,
            self.book,
            server.seen,
            server.decision,
            lambda: "",
            dict,
            dict,
            lambda: None,
            lambda: server.healthy,
            lambda: server.now,
            lambda: server.now,
        )
        client = cast(SwitchClient, server)
        switch = GuardedSwitch("chat", client, monotonic=lambda: server.now)
        service = None if server.fault == "no-service" else server
        guardian = TargetGuard(
            target, self.policy, service, world, switch=switch if server.switched else None
        )
        survey = SimulatedMeasurements("chat", self.store, dict, Objective.E2E)
        survey.server = server
        guardian._measurements = survey
        return guardian

    def point(self, what: str) -> None:
        number = len(self.points)
        self.points.append(what)
        if number == self.away_at:
            self.book.away = True
            self._back_at = self.server.now + self.away_turns * self.every
            raise StoreUnavailable("the database is away")
        if number == self.kill_at:
            raise Killed(what)

    def live(self, seconds: float, until: Phase | None = None) -> GuardState:
        """So long, or until a phase is reached."""
        end = self.server.now + seconds
        while self.server.now < end:
            if self._back_at is not None and self.server.now >= self._back_at:
                self.book.away = False
            try:
                self.turn()
            except Killed:
                self.deaths += 1
                self.server.now += 30.0
                self.guardian = self._born()
            if until is not None and self.guardian.state.phase is until:
                break
            self.server.now += LONG_TURN if self.guardian.state.phase in _SLOW else self.every
        return self.state

    def turn(self) -> None:
        """What is stored is read only where somebody may have changed it."""
        if self.guardian.entry is None or self.guardian.stale or self.book.changed:
            self.book.changed = False
            self.book.hold(["chat"], self.holder, self.server.now, able=True)
            self.guardian.take(self.book.look("chat")["chat"])
            self.guardian.lease(boottime() + LEASE_SECONDS)
        self.guardian.turn()

    def command(self, make: Callable[[GuardState], Step | None]) -> None:
        """A command of the operator, who is called ann."""
        self.book.change("chat", make, self.server.now, by="ann")

    @property
    def state(self) -> GuardState:
        """As it is stored."""
        return self.book.look("chat")["chat"].state

    def phases(self) -> list[str]:
        """Those that it went through, in their order."""
        steps = reversed(self.book.history(target="chat"))
        return [step.phase for step in steps if step.phase != step.phase_before]
