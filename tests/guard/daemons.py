"""Daemons that guard simulated servers with one database, turned by the test."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, cast

import msgspec

from specwatch.actuators.base import Actuator
from specwatch.config.guard import Guard
from specwatch.config.loading import Config, from_targets
from specwatch.config.target import Target
from specwatch.daemon.guard_service import TURN_SECONDS, GuardService
from specwatch.daemon.rule_service import RuleService
from specwatch.domain.baseline import Baseline
from specwatch.domain.model import Moment
from specwatch.errors import StoreUnavailable
from specwatch.guard.state import GuardState, Phase
from specwatch.rules.decisions import TargetDecision
from specwatch.status import TargetStatus
from specwatch.store.guard_records import GuardBook
from specwatch.store.guard_rows import Entry
from specwatch.store.repository import Store
from specwatch.store.schema import guards
from tests.guard.simulated_server import SimulatedServer

ACT = Guard.model_validate({"mode": "act", "verify": "10s", "drain_timeout": "4s"})
_IN_A_TURN = 60.0


def config(names: Iterable[str] = ("chat",), policy: Guard = ACT, **target: Any) -> Config:
    """A configuration with these targets, each in a group of its own unless one is given."""
    plain = from_targets(["http://127.0.0.1:8000"], environ={}, hostname="h")
    targets = tuple(
        plain.targets[0].model_copy(update={"name": name, "group": name, **target})
        for name in names
    )
    return plain.model_copy(update={"targets": targets, "guard": policy})


class FakeJudging:
    """Says of each target what its server says."""

    def __init__(self, servers: dict[str, SimulatedServer]) -> None:
        self._servers = servers
        self.forgotten: Counter[str] = Counter()

    def decision_of(self, name: str) -> TargetDecision:
        return self._servers[name].decision()

    def baselines_of(self, name: str) -> dict[str, Baseline]:
        return {}

    def forget(self, name: str) -> None:
        self.forgotten[name] += 1


class InTurn:
    """What a pool of threads does, at once."""

    def submit(self, act: Callable[..., None], *args: Any) -> Future[None]:
        act(*args)
        return Future()

    def shutdown(self, **_how: bool) -> None:
        """There is nobody to end."""


class World:
    """Servers by name, on one clock."""

    def __init__(self, *names: str) -> None:
        self.servers = {name: SimulatedServer() for name in names or ("chat",)}
        for server in self.servers.values():
            server.started -= 100.0  # it is in breach by now
        self._set_back = 0.0

    @property
    def server(self) -> SimulatedServer:
        """The only one."""
        (server,) = self.servers.values()
        return server

    @property
    def now(self) -> float:
        return next(iter(self.servers.values())).now

    def moment(self) -> Moment:
        return Moment(wall=self.now, monotonic=self.now - 1e9 + self._set_back)

    def set_clock_back(self, seconds: float) -> None:
        """The clock that never steps goes on."""
        self._set_back += seconds
        for server in self.servers.values():
            server.set_clock_back(seconds)

    def wait(self, seconds: float = TURN_SECONDS) -> None:
        for server in self.servers.values():
            server.now += seconds


class GuardingDaemon:
    """One daemon; without ``acts`` it has no actuator."""

    def __init__(
        self,
        world: World,
        store: Store,
        configured: Config | None = None,
        *,
        acts: bool = True,
        threads: bool = False,
    ) -> None:
        self.world, self.store = world, store
        self.judging = FakeJudging(world.servers)
        self.broken: set[str] = set()
        configured = configured or config(world.servers)
        self._groups = {target.name: target.group for target in configured.targets}
        self.guarding = GuardService(
            store,
            configured,
            now=world.moment,
            rule_service=cast(RuleService, self.judging),
            status=self._status,
            healthy=lambda name: world.servers[name].up,
            actuator=lambda target: self.actuator(target) if acts else None,
            pool=None if threads else InTurn(),
        )

    def actuator(self, target: Target) -> Actuator:
        return self.world.servers[target.name]

    def _status(self, name: str) -> TargetStatus:
        if name in self.broken:
            raise RuntimeError("a defect")
        seen = self.world.servers[name].seen()
        return msgspec.structs.replace(seen, configured_group=self._groups.get(name, ""))

    def turn(self) -> None:
        """One turn, to its end."""
        self.guarding.turn()
        deadline = time.monotonic() + _IN_A_TURN
        guarding = self.guarding
        while guarding._waiting or any(one.running.locked() for one in guarding._guards.values()):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def live(self, seconds: float, until: Phase | None = None, name: str = "chat") -> GuardState:
        """Turn so long, or until the guard of a target is in a phase."""
        end = self.world.now + seconds
        while self.world.now < end:
            self.turn()
            if until is not None and self.state(name).phase is until:
                break
            self.world.wait()
        return self.state(name)

    def entry(self, name: str = "chat") -> Entry:
        """As it is stored."""
        return GuardBook(self.store).look(name)[name]

    def state(self, name: str = "chat") -> GuardState:
        return self.entry(name).state

    def ours(self, name: str = "chat") -> bool:
        """Whether it guards a target, as it says itself."""
        status = self.guarding.status_of(name)
        return status is not None and status.ours

    def lose_database(self) -> None:
        """From now on nothing can be read or written."""

        def away(*_args: object, **_more: object) -> None:
            raise StoreUnavailable("the database is away")

        for method in ("look", "hold", "advance", "release"):
            setattr(self.guarding._book, method, away)

    def find_database(self) -> None:
        """It is back."""
        for method in ("look", "hold", "advance", "release"):
            delattr(self.guarding._book, method)


def expire(store: Store) -> None:
    """All leases end: they last by the database's clock, which no test waits for."""
    with store.writing(1.0) as connection:
        connection.execute(guards.update().values(lease_until=1.0))
