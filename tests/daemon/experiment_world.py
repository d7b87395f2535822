"""A target with an experiment in virtual time: a store, a simulated vLLM and its switch."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec

from specwatch.actuators.switch import SwitchClient
from specwatch.config.service import SwitchAccess
from specwatch.config.target import Experiments
from specwatch.daemon.target_experiment import TargetExperiment
from specwatch.domain.model import Series
from specwatch.domain.switchback import TUNED, Moments, Switchback
from specwatch.domain.tuning import tuned_schedule
from specwatch.errors import ActuatorError, StoreUnavailable
from specwatch.guard.state import GuardState
from specwatch.guard.status import GuardStatus
from specwatch.scrape.switch import SwitchSetting
from specwatch.status import Failure, TargetStatus
from specwatch.store.repository import Store
from specwatch_tap.orders import Schedule, SwitchState, schedule_number
from tests.fixtures import target_of
from tests.segments import segment
from tests.store.examples import minute

START = 1_795_003_200.0
PACES = {None: 0.02, 0: 0.025, 2: 0.016}
"""Seconds per token by ordered number of draft tokens."""
BY_TEMPERATURE = {"0": {2: 0.8}, ">1": {2: 1.5}}
"""By what a token takes longer in an arm at a temperature."""
RUNNING = 3
BLOCK = 16
DESIGN = Experiments(arms=(0, 2), block="16s", share="50%", regret="100%")
TUNE = DESIGN.model_copy(update={"tune": "act"})
SCHEDULE = ((1, 2, 4), (3, 4, 2), (5, 256, 4))
"""2 draft tokens at the load of the world."""
KNOWN = {"0": {"launch": Moments(20, 0.22, 0.02)}, "2": {"launch": Moments(20, -0.22, 0.02)}}
MINUTE = minute(int(START))
QUIET = GuardStatus("act", GuardState("chat"), ours=True)


Situation = tuple[str, str, object]
"""What the daemon is about to do or has done, the arm that is stored, and that of the server."""


class ExperimentsInMemory:
    """The part of a store that experiments use; what is stored is encoded, as in a database."""

    def __init__(self) -> None:
        self._rows: dict[str, bytes] = {}

    def switchbacks(self, target: str | None = None) -> list[Switchback]:
        return [
            msgspec.json.decode(row, type=Switchback)
            for name, row in sorted(self._rows.items())
            if target in (None, name)
        ]

    def change_switchback(
        self, target: str, change: Callable[[Switchback | None], Switchback | None], now: float
    ) -> Switchback | None:
        stored = next(iter(self.switchbacks(target)), None)
        changed = change(stored)
        if changed is not None:
            self._rows[target] = msgspec.json.encode(changed)
        return changed or stored


class Killed(BaseException):
    """The daemon was killed."""


@cache
def _series(
    quantity: str, part: str = "", *, engine: str = "", key: str = "", temperature: str = "all"
) -> Series:
    return Series(quantity, part, "m", engine, key, segment(temperature))


class Server:
    """A vLLM with three requests at all times, whose pace depends on its arm; its own client."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.state = SwitchState(
            server="a", launch_draft_tokens=4, launch_schedule=((1, 4),), schedules=True
        )
        self.orders: list[int | Schedule | None] = []
        self.other_seconds = self.tuned_seconds = 0.0
        self.fault = ""
        """``refuses``: no order arrives; ``late``: it does, but there is no answer."""
        self.tuned_pace: float | None = None
        """With a schedule, in place of what its number of draft tokens has."""
        self.seconds = self.tokens = 0.0
        self.chance = random.Random(5)
        self.by_temperature = dict.fromkeys(BY_TEMPERATURE, (0.0, 0.0))
        """Seconds and tokens, as a tap counts them."""

    def pass_second(self) -> None:
        until = self.state.until
        if until is not None and self.world.now >= until:
            self.set(None, 0.0, "")
        k = self.state.draft_tokens
        for first, last, draft_tokens in self.state.schedule:
            k = draft_tokens if first <= RUNNING <= last else k
        self.other_seconds += k is not None
        self.tuned_seconds += bool(self.state.schedule)
        pace = (self.state.schedule and self.tuned_pace) or PACES[k]
        pace *= self.chance.uniform(0.97, 1.03)
        self.seconds += RUNNING
        self.tokens += RUNNING / pace
        for temperature, factors in BY_TEMPERATURE.items():
            seconds, tokens = self.by_temperature[temperature]
            at_temperature = pace * factors.get(k or 0, 1.0)
            self.by_temperature[temperature] = (seconds + 1, tokens + 1 / at_temperature)

    def set(self, ordered: int | Schedule | None, lease: float, by: str) -> None:
        by_batch = isinstance(ordered, tuple)
        self.state = msgspec.structs.replace(
            self.state,
            draft_tokens=None if by_batch else ordered,
            schedule=ordered if by_batch else (),
            until=None if ordered is None else self.world.now + lease,
            by=by,
            number=self.state.number + 1,
        )

    def restart(self, k: int = 4) -> None:
        self.seconds = self.tokens = 0.0
        self.by_temperature = dict.fromkeys(BY_TEMPERATURE, (0.0, 0.0))
        self.state = SwitchState(
            server="b", launch_draft_tokens=k, launch_schedule=((1, k),), schedules=True
        )
        self.world.restarts += 1

    def samples(self) -> dict[Series, float]:
        """What its page says."""
        tokens = float(int(self.tokens))
        return {
            _series("generation_tokens", engine="0"): tokens,
            _series("inter_token", "bucket", engine="0", key="1.0"): tokens,
            _series("inter_token", "bucket", engine="0", key="+Inf"): tokens,
            _series("inter_token", "count", engine="0"): tokens,
            _series("inter_token", "sum", engine="0"): self.seconds,
        } | {
            _series(f"decode_{quantity}", key="1-256", temperature=temperature): value
            for temperature, counts in self.by_temperature.items()
            for quantity, value in zip(("seconds", "tokens"), counts, strict=True)
        }

    # What a SwitchClient has.

    def look(self) -> SwitchState:
        if self.fault == "away":
            raise ActuatorError("the switch cannot be read", changed=False)
        return self.state

    def order(self, ordered: int | Schedule | None, *, lease: float, by: str) -> SwitchState:
        name = TUNED if isinstance(ordered, tuple) else ordered
        self.world.point(f"order {name}")
        if self.fault == "refuses":
            raise ActuatorError("the order was not read", changed=False)
        if ordered is not None:
            stored = self.world.stored
            assert stored is not None
            assert stored.state.arm == str(name), "it is stored before it is ordered"
            if name == TUNED:
                assert ordered == tuned_schedule(stored.state, stored.design)
        self.set(ordered, lease, by)
        self.orders.append(ordered)
        self.world.point(f"ordered {name}")
        if self.fault == "late":
            raise ActuatorError("there was no answer", changed=True)
        return self.state


class Client:
    """The part of a SwitchClient that experiments use."""

    def __init__(self, server: Server) -> None:
        self.state = server.look
        self.order = server.order

    def close(self) -> None:
        """Nothing is open."""


class World:
    """A target, its server, its guard and a store."""

    def __init__(self, kill_at: int | str | None = None, store: Store | None = None) -> None:
        """``kill_at`` is the number of the point at which the daemon is killed, or its name: then
        the first time."""
        self.now = START
        self.points: list[str] = []
        self.situations: dict[Situation, int] = {}
        """Where the daemon may be killed: each moment that is like no earlier one, by number."""
        self.deaths = 0
        self.kill_at = kill_at
        self.server = Server(self)
        self.store = store or cast(Store, ExperimentsInMemory())
        self.away = False
        self.read, self.write = self.store.switchbacks, self.store.change_switchback
        """The methods of the store as they were, which are never away."""
        for name in ("change_switchback", "switchbacks"):
            setattr(self.store, name, self.failing(getattr(self.store, name), name))
        self.guard: GuardStatus | None = QUIET
        self.failure: Failure | None = None
        self.restarts = 0
        self.load = 3.0
        self.watched = True
        self.most_share = 0.0
        self.design = DESIGN
        self.begin()

    def begin(self, design: Experiments | None = None) -> None:
        self.experiment = TargetExperiment(
            target_of("http://h", name="chat", switch=SwitchAccess(directory=Path("/nowhere"))),
            design or self.design,
            self.store,
            lambda: self.now,
            lambda _: cast(SwitchClient, Client(self.server)),
        )

    def failing(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            if self.away:
                raise StoreUnavailable("the database is away")
            if name == "change_switchback":
                self.point("put")
            result = call(*arguments)
            if name == "change_switchback":
                self.point("stored")
            return result

        return called

    def point(self, name: str) -> None:
        """A place where the daemon may be killed."""
        stored = self.stored
        arm = stored.state.arm if stored else ""
        self.situations.setdefault((name, arm, self.server.state.ordered), len(self.points))
        self.points.append(name)
        if self.kill_at in (len(self.points) - 1, name):
            self.kill_at = None
            raise Killed

    @property
    def stored(self) -> Switchback | None:
        return next(iter(self.read("chat")), None)

    @property
    def state(self) -> Any:
        stored = self.stored
        assert stored is not None
        return stored.state

    @property
    def setting(self) -> SwitchSetting:
        state = self.server.state
        return SwitchSetting(
            state.draft_tokens_now,
            ordered=state.ordered is not None,
            schedule=schedule_number(state.schedule),
        )

    def see(self) -> None:
        self.experiment.see(self.server.samples(), self.setting, float(RUNNING))

    def second(self) -> None:
        """A second of the server, a page of it, and a turn."""
        self.now += 1
        self.server.pass_second()
        if self.watched:
            if self.failure is None:
                self.see()
            status = TargetStatus(
                "chat",
                "http://h",
                1.0,
                failure=self.failure,
                restarts=self.restarts,
                recent=(MINUTE,),
                load=self.load,
                switch=self.setting,
            )
            try:
                self.experiment.turn(status, self.guard)
            except Killed:
                self.deaths += 1
                self.begin()
        self.most_share = max(self.most_share, self.server.other_seconds / (self.now - START))

    def live(self, seconds: int, until: Callable[[], bool] = lambda: False) -> bool:
        for _ in range(seconds):
            if until():
                return True
            self.second()
        return until()

    def into_arm(self) -> None:
        """Some seconds into a block of another arm than the launch."""
        assert self.live(600, lambda: not self.at_launch)
        self.live(4)
        assert self.server.state.draft_tokens is not None

    def goes_on(self) -> None:
        before = self.counted()[0]
        assert self.live(800, lambda: self.counted()[0] > before)

    def counted(self) -> tuple[int, int]:
        status = self.experiment.status()
        return status.episodes, status.excluded

    @property
    def at_launch(self) -> bool:
        return self.server.state.ordered is None

    @property
    def tuned(self) -> bool:
        """Whether the learned schedule is in force."""
        return self.server.state.schedule == SCHEDULE

    def change(self, stopped: str = "", **state: Any) -> None:
        """Change what is stored, as a person does who stops the experiment."""

        def changed(stored: Switchback | None) -> Switchback:
            assert stored is not None
            changed = msgspec.structs.replace(stored.state, **state)
            return msgspec.structs.replace(stored, state=changed, stopped=stopped)

        self.write("chat", changed, self.now)


def taught(kill_at: int | str | None = None, store: Store | None = None) -> World:
    """A world in which an experiment has shown that 2 draft tokens are faster."""
    world = World(store=store)
    world.live(3)
    world.change(differences={"all": KNOWN, "load 3-4": KNOWN}, episodes=20)
    world.points.clear()
    world.situations.clear()
    world.kill_at = kill_at
    world.design = TUNE
    world.begin()
    return world


def require_return_to_launch(world: World, point: object) -> None:
    """A daemon that is killed in an experiment leaves no arm in force, and goes on."""
    assert world.live(500, lambda: world.deaths == 1), point
    order = world.state.order if world.stored else ()
    world.live(2)
    if order:
        assert (world.at_launch, world.counted()[1]) == (True, 1), point
    world.goes_on()
    assert world.most_share <= 0.5, point
    assert world.state.other_seconds >= world.server.other_seconds - 61, point


def require_stored_schedule(world: World, point: object) -> None:
    """A daemon that is killed with a tuned schedule orders it again, only as it is stored."""
    assert world.live(500, lambda: world.deaths == 1), point
    world.live(5)
    assert world.tuned or world.state.order, point
    assert world.live(400, lambda: world.counted()[0] > 20), point
