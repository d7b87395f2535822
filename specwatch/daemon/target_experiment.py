"""The experiment on the live traffic of one target: it orders arms, and lets them be observed."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from specwatch.actuators import switch_of
from specwatch.config.target import Experiments, Target
from specwatch.daemon.arm_orders import LEASE, SET_BY_OTHERS, SPARE, ArmOrders, setting_of
from specwatch.daemon.episode_observer import RESTARTED, EpisodeObserver
from specwatch.domain.model import Environment, Series
from specwatch.domain.switchback import (
    LAUNCH,
    TUNED,
    Switchback,
    SwitchbackDesign,
    SwitchbackState,
    environment_of,
    in_environment,
    new_state,
)
from specwatch.domain.switchback_results import ExperimentStatus, observe, results
from specwatch.domain.switchback_schedule import ArmInForce, next_step
from specwatch.domain.tuning import advice, learned, tuned_schedule, untuned, with_tuned
from specwatch.errors import ActuatorError, ConfigError, StoreError
from specwatch.guard.state import Phase
from specwatch.guard.status import GuardStatus
from specwatch.scrape.switch import SwitchSetting
from specwatch.status import TargetStatus
from specwatch.store.repository import Store
from specwatch_tap.orders import SwitchState

if TYPE_CHECKING:
    from specwatch.actuators.switch import SwitchClient

_log = structlog.get_logger("specwatch.experiments")

_STORED_EVERY = 60.0
"""Seconds after which the state is stored although the arm is the same."""
_QUIET_GUARD = frozenset({Phase.OBSERVING, Phase.SUSPECT})


class TargetExperiment:
    """The experiment of one target; :meth:`turn` is for one thread at a time, :meth:`see` for
    another one. Neither raises anything."""

    def __init__(
        self,
        target: Target,
        design: Experiments,
        store: Store,
        wall: Callable[[], float],
        connect: Callable[[Target], SwitchClient] = switch_of,
    ) -> None:
        self.target = target
        self._configured = design
        self._store = store
        self._wall = wall
        self._orders = ArmOrders(target, wall, connect)
        self._launch: SwitchState | None = None
        self._software: Environment | None = None
        self._stored: Switchback | None = None
        self._stored_at = 0.0
        self._observer = EpisodeObserver()
        self._restarts: int | None = None
        self._paused = "it begins"
        self._next: float | None = None

    # --- in the thread that scrapes

    def see(
        self, samples: Mapping[Series, float], setting: SwitchSetting | None, running: float | None
    ) -> None:
        """Process a page that was just read."""
        self._observer.see(samples, setting, running, self._wall())

    # --- in the thread of experiments

    def turn(self, status: TargetStatus, guard: GuardStatus | None) -> None:
        """Switch to the arm that is due, and observe an episode that ended."""
        try:
            self._turn(status, guard)
        except (ActuatorError, StoreError, ConfigError) as error:
            self._launch = None
            self._give_up(str(error))

    def _turn(self, status: TargetStatus, guard: GuardStatus | None) -> None:
        if guard is None or not guard.ours:
            self._stored = None
            held = guard is not None and guard.holder
            self._give_up("another daemon guards it" if held else "the guard was not read yet")
            return
        if self._restarts is not None and status.restarts != self._restarts:
            # It may have been launched in another mode.
            self._launch = None
            self._observer.note(RESTARTED)
        self._restarts = status.restarts
        self._launch = launch = self._launch or self._orders.state()
        if launch.unavailable:
            self._launch = None
            self._give_up(f"its switch follows no orders: {launch.unavailable}")
            return
        now = self._wall()
        fixed, environment = self._design(launch), self._environment(status, launch)
        stored = self._read(fixed, environment or "", now)
        state = stored.state if environment is None else in_environment(stored.state, environment)
        incident = self._observer.incident if stored.state.order else ""
        held = self._reason(stored, status, guard)
        if environment is None:
            held = held or "no minute of it was seen yet"
        design = with_tuned(fixed, state, withheld=bool(held))
        reason = held or incident
        if not (stored.state.order or status.load):
            reason = reason or "no traffic"
        # An arm is in force no longer than its lease, also if this process did not run meanwhile.
        until = now
        if state.arm != state.usual:
            until = max(min(now, self._orders.ends), state.counted)
        step = next_step(state, design, until, paused=bool(reason))
        if step.finished:
            state = learned(self._observed(step.state, design), fixed)
            design = with_tuned(fixed, state, withheld=bool(held))
            step = next_step(state, design, until, paused=bool(reason))
        elif stored.state.order and not step.state.order:
            step = step._replace(state=replace(step.state, excluded=step.state.excluded + 1))
            why = reason or "a switch was late, or the configuration changed"
            _log.info("episode_abandoned", target=self.target.name, reason=why)
        self._paused, self._next = reason, None if reason else step.until
        self._follow(stored, design, step, now)

    def _reason(self, stored: Switchback, status: TargetStatus, guard: GuardStatus) -> str:
        """Why no arm but the launch may be in force; empty if others may."""
        state, setting = guard.state, status.switch
        if stored.stopped:
            return f"stopped by {stored.stopped}"
        if status.failure is not None:
            return "it cannot be read"
        if state is None or state.phase not in _QUIET_GUARD or state.order is not None:
            return "the guard is busy with it"
        if state.pause is not None:
            return f"the guard is paused by {state.pause.by}"
        if setting is None:
            return "its page shows no switch: does it have the tap?"
        ours = self._orders.arm != LAUNCH or self._observer.observes
        if (setting.ordered and not ours) or self._wall() < self._orders.respected_until:
            return SET_BY_OTHERS
        return ""

    def _follow(
        self, stored: Switchback, design: SwitchbackDesign, step: ArmInForce, now: float
    ) -> None:
        """Store the step, and order its arm: another one than the launch once it is stored that it
        may be in force, the launch before it is stored that nothing else is."""
        orders, schedule = self._orders, tuned_schedule(step.state, design)
        switches = orders.differ(step.arm, schedule)
        begins = bool(step.state.order) and step.state.order != stored.state.order
        ends = bool(stored.state.order) and not step.state.order
        due = now - self._stored_at >= _STORED_EVERY
        if switches:
            self._observer.end_block()  # a page that is read meanwhile is of neither block
        if switches and step.arm == LAUNCH:
            orders.end()
        if switches or begins or ends or due:
            self._stored = self._put(stored, design, step.state, now)
            if self._stored.stopped:
                switches = switches and step.arm == LAUNCH
        else:
            self._stored = replace(stored, design=design, state=step.state)
        if begins or not step.state.order:
            self._observer.clear()
        if step.arm == LAUNCH:
            orders.ends = step.until + SPARE
        elif switches:
            orders.order(step.arm, schedule, step.until - now + SPARE)
        else:
            orders.renew()
        if step.state.order and (switches or begins):
            self._observer.begin(step.arm, setting_of(step.arm, schedule), self._wall())

    def _observed(self, state: SwitchbackState, design: SwitchbackDesign) -> SwitchbackState:
        episode = self._observer.episode(design.usual)
        if episode is None:
            return state
        after = observe(state, design, episode)
        _log.info(
            "episode_observed",
            target=self.target.name,
            counted=after.episodes > state.episodes,
            incident=self._observer.incident or None,
            episodes=after.episodes,
        )
        return after

    def _read(self, design: SwitchbackDesign, environment: str, now: float) -> Switchback:
        """The experiment with what a person has stored meanwhile; at first, and where its arms have
        changed, as it is stored."""
        name, present = self.target.name, self._stored
        stored = next(iter(self._store.switchbacks(name)), None)
        if present is not None and untuned(present.design) == untuned(design):
            return present if stored is None else replace(present, stopped=stored.stopped)
        if stored is not None and present is None and stored.state.arm != LAUNCH:
            arm, block = stored.state.arm, stored.design.block
            lease = LEASE + _STORED_EVERY if arm == TUNED else block + SPARE
            self._orders.arm, self._orders.ends = arm, stored.state.counted + lease + SPARE
        if stored is None or untuned(stored.design) != untuned(design):
            state = new_state(design, environment, now)
            stopped = "" if stored is None else stored.stopped
            return Switchback(target=name, design=design, state=state, stopped=stopped)
        if stored.state.order:
            self._observer.note("it was interrupted")
        return replace(stored, state=learned(stored.state, design))

    def _put(
        self, stored: Switchback, design: SwitchbackDesign, state: SwitchbackState, now: float
    ) -> Switchback:
        """Store a state; returns it with what a person wrote meanwhile."""

        def change(other: Switchback | None) -> Switchback:
            stopped = stored.stopped if other is None else other.stopped
            return Switchback(target=self.target.name, design=design, state=state, stopped=stopped)

        self._stored_at = now
        return self._store.change_switchback(self.target.name, change, now) or stored

    def _design(self, launch: SwitchState) -> SwitchbackDesign:
        flat, tune = len(launch.launch_schedule) < 2, self._configured.tune
        k = launch.launch_draft_tokens
        arms = [str(arm) for arm in self._configured.arms if arm <= k and not (flat and arm == k)]
        if not arms:
            raise ConfigError(
                f"target {self.target.name}: experiments: no arm is left beside the launch of {k}"
                " draft tokens; name smaller numbers"
            )
        return SwitchbackDesign(
            arms=(LAUNCH, *arms),
            usual=LAUNCH,
            seed=zlib.crc32(self.target.name.encode()),
            block=self._configured.block,
            share=self._configured.share,
            regret=self._configured.regret,
            lateness=min(5.0, self._configured.block / 4),
            launch_schedule=launch.launch_schedule,
            tune="observe" if tune == "act" and not launch.schedules else tune,
        )

    def _environment(self, status: TargetStatus, launch: SwitchState) -> str | None:
        """Of the newest minute; of an earlier one after each change of mode."""
        newest = next(reversed(status.recent), None)
        if newest is not None:
            self._software = newest.environment
        if self._software is None:
            return None
        return environment_of(self._software, str(launch.launch_schedule))

    def _give_up(self, why: str) -> None:
        """Return to the launch, and leave the present episode out."""
        if why != self._paused:
            _log.info("experiment_waits", target=self.target.name, reason=why)
        self._paused, self._next = why, None
        self._observer.abandon(why)
        with contextlib.suppress(ActuatorError, ConfigError):  # its lease ends
            self._orders.end()

    def status(self) -> ExperimentStatus:
        """The experiment now."""
        stored = self._stored
        measured = None if stored is None else results(stored.state, stored.design, LAUNCH)
        return ExperimentStatus(
            arm=self._orders.arm,
            paused=self._paused,
            next_at=self._next,
            episodes=0 if stored is None else stored.state.episodes,
            excluded=0 if stored is None else stored.state.excluded,
            speedups={} if measured is None else measured.speedups,
            groups={} if measured is None else measured.groups,
            best="" if measured is None else measured.best,
            tuning=None if stored is None else advice(stored.state, stored.design),
        )

    def close(self) -> None:
        """Return to the launch, and close connections."""
        self._give_up("the daemon ends, or its configuration changed")
        self._orders.close()
