"""The guard of one target: looks, stores the next step, does what the step asks for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from specwatch.actuators.base import Actuator, Claim, boottime
from specwatch.actuators.child_process import OUTLIVES, environment_for
from specwatch.actuators.command import run_hook
from specwatch.config.guard import Guard
from specwatch.config.target import Target
from specwatch.daemon.guard_dependencies import Basis, GuardDependencies
from specwatch.daemon.guard_measurements import GuardMeasurements
from specwatch.daemon.guarded_switch import GuardedSwitch
from specwatch.domain.model import Mode
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError, StoreError
from specwatch.guard import groups, holdout, state_machine
from specwatch.guard.observation import Situation, SwitchOutcome, guarded_rules, unmeasured
from specwatch.guard.plan import ProcessState
from specwatch.guard.state import CALM, RESTARTS, GuardState, Phase, Step
from specwatch.guard.state_machine import Effect
from specwatch.guard.status import no_actions
from specwatch.status import TargetStatus
from specwatch.store.guard_records import Lost, alike
from specwatch.store.guard_rows import Entry

_log = structlog.get_logger("specwatch.guard")

_MOST_STEPS = 12
"""Steps in one turn; a state machine that takes more is in a loop, which is a defect."""
_QUERY_SECONDS = 30.0
"""Seconds between two queries of a server's manager while nothing is under way."""
_ORDERED_AGAIN = 3.0
"""Seconds until an order that failed is given again."""
_LOOK_SECONDS = 15.0
"""Seconds between two turns of a guard that observes, while what it looks at does not change."""
_AGAIN_SECONDS = 30.0
"""Seconds until a switch or a hook that failed is tried again."""
_NO_SWITCH = "no `switch` is configured for it any more"
CLOCK_STEP = 60.0
"""Least seconds by which a clock is set back; the clocks of two daemons may differ by less."""
_QUIET = frozenset({Phase.OBSERVING, Phase.SUSPECT})
_CLAIMS = frozenset({Phase.DRAINING, Phase.RESTARTING})
"""Phases that lead to a restart: entered only after the claim was stored."""


class TargetGuard:
    """The guard of one target; ``turn`` is for one thread at a time, and raises nothing."""

    def __init__(
        self,
        target: Target,
        policy: Guard,
        actuator: Actuator | None,
        dependencies: GuardDependencies,
        *,
        switch: GuardedSwitch | None = None,
        after: TargetGuard | None = None,
    ) -> None:
        """``switch`` is that of the target, where it has one; ``after`` is its predecessor, whose
        current turn is waited for."""
        self.target = target
        self.policy = policy
        self.entry: Entry | None = None
        self.error: str | None = None
        """Why the last turn could not store its steps."""
        self.actions = no_actions()
        """Switches and hooks by action and result, since this process began."""
        self.running: threading.Lock = after.running if after else threading.Lock()
        self._actuator = actuator
        self._run_time = switch
        self._dependencies = dependencies
        self.stale = False
        """Whether what is stored has to be read again."""
        self._due = ("", "", False)
        """Why an exploration may be due (no baseline, an old one); whether it becomes a holdout."""
        self._outcome: SwitchOutcome | None = None
        self._outcome_of: tuple[Phase, float] | None = None
        """The phase, and since when, in which the switch was tried."""
        self._tried: str | None = None
        """The incident for which the hook before was tried."""
        self._prepared: tuple[str, float] | None = None
        """The one for which it was done, and when."""
        self._again_at = 0.0
        self._others: Mapping[str, Entry] = {}
        """The other members of its group, on which the last situation rests."""
        self._queried_at = 0.0
        self._manager: dict[str, Any] = {}
        """What the server's manager answered last; the keys are fields of a situation."""
        self._set_back: float = after._set_back if after else 0.0
        """Seconds by which the clock was set back since the state was stored."""
        self._unrenewed_since: float | None = None
        """Since when no switch is configured for a server in standby."""
        self._calm: tuple[float, Basis] | None = None
        """When the last turn found nothing to do, and on what; None where time alone may tell."""
        self._lease_until: float = after._lease_until if after else 0.0
        """Until when the guard is ours, by :func:`boottime`; 0 while it is not."""
        self._handover_until: float | None = after._handover_until if after else None
        """By :func:`boottime`, when the restart that an earlier holder began must have ended; None
        where there is none."""
        self._unstored: list[Step] = []
        self._unstored_error = StoreError("")
        self._measurements = GuardMeasurements(
            target.name, dependencies.store, dependencies.baselines, target.objective
        )

    @property
    def state(self) -> GuardState:
        """The state now, with what could not be stored yet."""
        if self._unstored:
            return self._unstored[-1].state
        return self.entry.state if self.entry else GuardState(self.target.name)

    @property
    def able(self) -> bool:
        """Whether it could act."""
        acts = self._actuator is not None or self._run_time is not None
        return acts and self.policy.mode == "act"

    @property
    def busy(self) -> bool:
        """Whether an action is under way."""
        return self.state.phase not in CALM

    @property
    def slow(self) -> bool:
        """Whether a turn may take long: it asks the server's manager, or reads history."""
        state = self.state
        return (
            state.phase not in _QUIET or state.order is not None or state.hooked or any(self._due)
        )

    @property
    def due(self) -> bool:
        """Whether a turn may find something to do."""
        if self._calm is None:
            return True
        since, basis = self._calm
        now = self._dependencies.now()
        return not 0 <= now - since < _LOOK_SECONDS or not self._basis().same(basis)

    def take(self, entry: Entry) -> None:
        """Take over what was read from the database."""
        known = self.entry
        # After a failover the version may be lower: what is stored counts.
        if known is not None and entry.version < known.version and not self.stale:
            return
        if known is not None and self._unstored and entry.version > known.version:
            self._rebase(known.state, entry.state)
        self.entry, self.stale = entry, False

    def lease(self, until: float, *, after_dead: bool = False) -> None:
        """The lease lasts until that moment of :func:`boottime`; 0 where it is not ours.

        ``after_dead``: the process that had it has ended, and its command with it.
        """
        state = self.state
        under_way = state.phase in RESTARTS and state.issued is None and not state.standby
        if until and not self._lease_until and under_way and self._actuator is not None:
            lasts = self._actuator.handover
            if after_dead:
                lasts = min(lasts, OUTLIVES)
            self._handover_until = boottime() + lasts if lasts else None
        self._lease_until = until
        if not until:
            self._set_back = 0.0  # its holder moves the times

    def set_back(self, seconds: float) -> None:
        """The clock was set back while the guard is ours."""
        self._set_back += seconds

    def turn(self) -> None:
        """Take all steps that are due now, and carry out what they ask for."""
        if (
            self.entry is None
            or self.stale
            or not self.due
            or not self.running.acquire(blocking=False)
        ):
            return
        self._calm = None
        try:
            basis = self._basis()
            self._flush()
            self._follow_clock()
            seen = self._steps()
            if seen is not None and self._act(seen):
                self._steps()  # the result of a switch is stored at once
            elif seen is not None and self._is_calm(seen):
                self._calm = seen.now, basis
        except Lost:
            self.stale = True
        except StoreError as error:
            self._failed(error)
        else:
            self.error = None if not self._unstored else self.error
        finally:
            self.running.release()

    def close(self) -> None:
        """Close the connections of the actuator."""
        for access in (self._actuator, self._run_time):
            if access is not None:
                access.close()

    def _basis(self) -> Basis:
        dependencies = self._dependencies
        version = self.entry.version if self.entry else None
        return Basis(self.policy, version, dependencies.decision(), dependencies.status())

    def _is_calm(self, seen: Situation) -> bool:
        state = self.state
        waits = state.pause is not None or state.order is not None or self._unstored
        return (
            state.phase is Phase.OBSERVING
            and seen.mode is state.goal is not None
            and not (waits or self.slow or seen.in_standby)
        )

    def _follow_clock(self) -> None:
        """Move the times of the state with a clock that was set back.

        Where that was not seen, as before a start of the daemon, they move so far that nothing
        has happened in the future; a pause may have begun since, and stays.
        """
        seen = self._set_back
        state = self.state
        watched = seen > CLOCK_STEP
        back = seen if watched else state.ahead(self._dependencies.now())
        if back > CLOCK_STEP:
            moved = state.set_back(back, commands=watched)
            lasts = format_duration(round(back))
            why = f"the clock was set back by {lasts}; the times of the guard move with it"
            if moved != state:
                self._store(Step(moved, why))
        self._set_back -= seen

    def _steps(self) -> Situation | None:
        """Take all steps that are due; None if what follows may take long and did not before."""
        was_slow = self.slow
        for _ in range(_MOST_STEPS):
            seen = self._situation()
            state = self.state
            incident = state.incident.id if state.incident else ""
            if state.phase is Phase.DRAINING and state.hooked and self._tried != incident:
                return seen
            step = state_machine.step(self.state, seen, self.policy)
            if step is None:
                return seen
            self._store(step)
            if self.slow and not was_slow:
                return None
        _log.error("guard_goes_round", target=self.target.name, phase=str(self.state.phase))
        return None

    def _store(self, step: Step) -> None:
        before = self.state
        if self.entry is None:
            raise Lost(f"the guard of {self.target.name} has to be read again")
        try:
            if self._unstored:
                raise self._unstored_error
            self._advance(self.entry, step)
        except Lost:
            raise
        except StoreError as error:
            # An action whose claim is stored is finished from memory; nothing else begins.
            if before.phase in CALM or step.state.phase in _CLAIMS:
                raise
            self._unstored_error = error
            self._unstored.append(step)
            self._failed(error)
        if (before.phase, before.goal) != (step.state.phase, step.state.goal):
            self._outcome, self._again_at = None, 0.0  # of another attempt
        self._report(before, step)

    def _advance(self, entry: Entry, step: Step) -> None:
        begun = boottime()
        book, daemon = self._dependencies.book, self._dependencies.store.daemon
        claims = step.state.phase in _CLAIMS and entry.state.phase not in _CLAIMS
        others = self._others if claims and step.state.group else None
        self.entry = book.advance(entry, step, self._dependencies.wall(), by=daemon, others=others)
        self._lease_until = begun + self.entry.left
        self._handover_until = None  # from here on it is ours

    def _flush(self) -> None:
        """Store what could not be stored, in its order."""
        while self._unstored and self.entry is not None:
            try:
                self._advance(self.entry, self._unstored[0])
            except Lost:
                raise
            except StoreError as error:
                self._unstored_error = error
                self._failed(error)
                return
            del self._unstored[0]

    def _rebase(self, before: GuardState, stored: GuardState) -> None:
        """Apply what could not be stored to what was stored meanwhile, by us or by the operator."""
        ours = [alike(step.state, stored) for step in self._unstored]
        if any(ours):
            del self._unstored[: ours.index(True) + 1]
            return
        if (stored.phase, stored.since) == (before.phase, before.since):
            self._unstored = [
                replace(step, state=replace(step.state, pause=stored.pause, order=stored.order))
                for step in self._unstored
            ]
            return
        _log.error("guard_overtaken", target=self.target.name, lost=len(self._unstored))
        self._unstored = []

    def _failed(self, error: StoreError) -> None:
        if self.error != str(error):
            _log.error("guard_unstored", target=self.target.name, detail=str(error))
        self.error = str(error)

    def _report(self, before: GuardState, step: Step) -> None:
        state = step.state
        log = _log.info if state.phase in _QUIET else _log.warning
        log(
            "guard_step" if before.phase is not state.phase else "guard_note",
            target=self.target.name,
            phase=str(state.phase),
            before=str(before.phase),
            reason=step.reason,
            incident=state.incident.id if state.incident else None,
        )
        if before.phase is Phase.RESTARTING and state.phase not in (before.phase, Phase.DRAINING):
            self._dependencies.switched()
        if before.phase is not state.phase and state.phase is Phase.HELD:
            self.actions["disable" if state.goal is Mode.OFF else "enable", "held"] += 1

    def _act(self, seen: Situation) -> bool:
        """Do what the state asks for; returns whether that was the switch."""
        state = self.state
        incident = state.incident.id if state.incident else ""
        effect = state_machine.effect(state, seen, prepared=seen.prepared_at is not None)
        # A longer wait is one in which the clock was set back.
        waits = 0 < self._again_at - seen.now <= _AGAIN_SECONDS
        if effect is None or (waits and effect is not Effect.RENEW):
            return False
        down = seen.service is not None and seen.service.life is ProcessState.DOWN
        claim = self._claim(incident, unbounded=down and state.phase is Phase.ROLLING_BACK)
        if effect is Effect.RENEW:
            if self._run_time is not None:
                self._run_time.renew(claim)
            return False
        if effect is Effect.SWITCH:
            self._switch(state.goal or Mode.ON, claim)
        elif effect is Effect.BEFORE:
            self._tried = incident
            if self._hook(self.policy.hooks.before, "before", claim):
                self._prepared = incident, self._dependencies.now()
        elif self._hook(self.policy.hooks.after, "after", claim):
            self._prepared = self._tried = None
            put_back = replace(self.state, hooked=False)
            by_hook = self.policy.hooks.after is not None
            reason = "the server was put back by the hook" if by_hook else "no hook puts it back"
            self._store(Step(put_back, reason))
        return effect is Effect.SWITCH

    def _claim(self, incident: str, *, unbounded: bool) -> Claim:
        """The right to act now; ``unbounded`` for a server that is down and is put back: whoever
        does that second does no harm, and it must not wait for a database."""
        version = self.entry.version if self.entry else 0
        if unbounded:
            return Claim(incident, version)
        return Claim(incident, version, lambda: self._lease_until)

    def _switch(self, goal: Mode, claim: Claim) -> None:
        action = "disable" if goal is Mode.OFF else "enable"
        self._outcome_of = (self.state.phase, self.state.since)
        standby = self.state.standby
        names = {"target": self.target.name, "incident": claim.incident, "standby": standby}
        _log.warning("guard_switches", action=action, **names)
        try:
            if self.state.standby and self._run_time is not None:
                self._run_time.order(goal, claim)
            elif self.state.standby:
                raise ActuatorError(_NO_SWITCH, changed=False)
            elif self._actuator is None:
                raise ActuatorError("no service is configured for it any more", changed=False)
            elif goal is Mode.OFF:
                self._actuator.disable(claim)
            else:
                self._actuator.enable(claim)
        except ActuatorError as error:
            _log.error("guard_switch_failed", target=self.target.name, detail=str(error))
            self._outcome = SwitchOutcome(str(error), changed=error.changed, retry=error.retry)
            again = _ORDERED_AGAIN if self.state.standby else _AGAIN_SECONDS
            self._again_at = self._dependencies.now() + again
            self.actions[action, "failed"] += 1
        else:
            self._outcome = SwitchOutcome()
            self.actions[action, "done"] += 1
        self._queried_at = 0.0

    def _hook(self, words: Sequence[str] | None, which: str, claim: Claim) -> bool:
        """Run a hook, if it is configured; False if it failed, and has to run again later."""
        if words is None:
            return True
        action = "disable" if self.state.goal is Mode.OFF else "enable"
        environment = environment_for(self.target.name, action, claim)
        try:
            run_hook(words, timeout=self.policy.hooks.timeout, environment=environment)
        except ActuatorError as error:
            _log.error("hook_failed", target=self.target.name, hook=which, detail=str(error))
            self._again_at = self._dependencies.now() + _AGAIN_SECONDS
            self.actions[f"hook_{which}", "failed"] += 1
            return False
        self.actions[f"hook_{which}", "done"] += 1
        return True

    def _situation(self) -> Situation:
        state, dependencies = self.state, self._dependencies
        status = dependencies.status()
        if status.last_scrape is None:
            # Not yet, or not any more: the target moved to another daemon during this turn.
            raise Lost(f"{self.target.name} is not watched here")
        now, wall = dependencies.now(), dependencies.wall()
        modes = set(status.models.values())
        # In standby somebody measures, or the switch has taken over: nothing to decide on.
        unknown = not modes or any(one.speculates is None or one is Mode.STANDBY for one in modes)
        known = Mode.STOPPED if Mode.STOPPED in modes else Mode.OFF
        mode = Mode.ON if Mode.ON in modes else None if unknown else known
        failing, decision = status.failure is not None, dependencies.decision()
        explore = self.policy.explore
        explores = state.phase is Phase.OBSERVING and explore.budget
        doubt = unmeasured(decision, wall, explore.max_age) if explores else ("", "")
        # Calm members of a large group do not look at all others each time.
        calm = state.phase is Phase.OBSERVING and state.order is None and not any(doubt)
        lonely = calm and not self.policy.holdout
        self._others = {} if lonely else dependencies.others()
        others = groups.guarded(self._others.values(), now, self.policy)
        self._due = (*doubt, holdout.is_chosen(state, others, self.policy, now))
        if self.slow:
            self._query_manager(state, status, now)
        scraped_at = status.last_success and now - wall + status.last_success
        as_of = scraped_at if status.as_of is None else now - wall + status.as_of
        seen = Situation(
            now=now,
            scraped_at=None if failing else scraped_at,
            as_of=None if failing else as_of,
            healthy=state.phase in (Phase.VERIFYING, Phase.ROLLING_BACK) and dependencies.healthy(),
            mode=None if failing else mode,
            models=tuple(sorted(status.models)),
            load=None if failing else status.load,
            **guarded_rules(decision.findings)._asdict(),
            unjudged=self._due[0],
            aged=self._due[1],
            chosen=self._due[2],
            handover=None
            if self._handover_until is None
            else max(0.0, self._handover_until - boottime()),
            outcome=self._outcome if self._outcome_of == (state.phase, state.since) else None,
            prepared_at=self._prepared_at,
            from_files=status.from_files,
            followed=status.switch.followed if status.switch and not failing else None,
            group=dependencies.group(),
            others=others,
            in_standby=bool(status.switch and status.switch.mode is not Mode.ON) and not failing,
            **self._manager,
        )
        seen = self._measurements.extend(seen, state, self.policy)
        if self._measurements.error is not None:
            self._failed(self._measurements.error)  # what is under way goes on without it
        return seen

    @property
    def _prepared_at(self) -> float | None:
        """When the hook before was done for the present incident."""
        if self._prepared is None or self.state.incident is None:
            return None
        incident, at = self._prepared
        return at if incident == self.state.incident.id else None

    def _query_manager(self, state: GuardState, status: TargetStatus, now: float) -> None:
        """Query the server's manager; less often while nothing is under way."""
        recently = 0 <= now - self._queried_at < _QUERY_SECONDS
        if state.phase in CALM and state.order is None and recently:
            return
        self._queried_at = now
        shown = status.switch is not None or status.failure is not None
        if self._run_time is None:
            self._manager = self._without_switch(state, now)
        else:
            self._manager = self._run_time.query(state, shown=shown)
        if self._actuator is None:
            self._manager["service_error"] = (
                "it has no `service`, so specwatch cannot restart it; configure one, or restart it"
                " by hand with the command that `specwatch strip` prints"
            )
            return
        try:
            self._manager["service"] = self._actuator.status()
            ordered = state.order is not None and state.order.goal is Mode.OFF
            standby = state.standby and state.phase is Phase.VERIFYING
            if state.phase is Phase.CONFIRMED or ordered or standby:
                self._actuator.plan()  # so that a switch that is impossible is not begun
        except ActuatorError as error:
            self._manager |= {"service_error": str(error), "service_retry": error.retry}

    def _without_switch(self, state: GuardState, now: float) -> dict[str, Any]:
        """What is known without a switch: an order that it had is not renewed; the keys are fields
        of a situation."""
        if not state.standby:
            self._unrenewed_since = None
            return {}
        # A clock that was set back must not prolong it.
        since = self._unrenewed_since
        self._unrenewed_since = now if since is None else min(since, now)
        return {"switch_error": _NO_SWITCH, "switch_lost": now - self._unrenewed_since}
