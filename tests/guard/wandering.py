"""The state machine on a random walk: a world that mostly obeys and may do anything, and persons.

What must hold of each step is looked at as it is taken.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from specwatch.config.guard import Guard, Hooks, Maintenance, Rearm, Windows
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL, Mode
from specwatch.guard import state_machine
from specwatch.guard.foresight import Trial, Verification
from specwatch.guard.observation import Breach, Situation, SwitchOutcome
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import CALM, DAY, Cause, GuardState, Phase, Step
from specwatch.guard.state_machine import Effect

START = 1_800_000_000.0
_PACES = (1.0, 2.0, 2.0, 2.0, 5.0, 30.0, 300.0, 3600.0)
_LONGEST_TURN = max(_PACES)
_MOST_STEPS = 12
_MODES = (Mode.ON, Mode.OFF)
_LOSES = Interval(0.5, 0.4, 0.6, 30)
_WINS = Interval(1.6, 1.5, 1.7, 30)


def policies(chance: random.Random) -> Guard:
    """Some configuration."""
    night = Maintenance.model_validate({"from": "22:00", "to": "03:00"})
    noon = Maintenance.model_validate({"from": "12:00", "to": "13:00"})
    windows = (Windows(), Windows(allow=(night,)), Windows(forbid=(night, noon)))
    return Guard().model_copy(
        update={
            "mode": chance.choices(["act", "observe", "off"], [8, 1, 1])[0],
            "cooldown": chance.choice([0.0, 600.0, 7200.0]),
            "max_actions_per_day": chance.choice([0, 1, 3, 10]),
            "drain_timeout": chance.choice([0.0, 20.0]),
            "start_timeout": chance.choice([60.0, 900.0]),
            "verify": 60.0,
            "respect": chance.choice([0.0, 600.0]),
            "windows": chance.choices(windows, [4, 1, 1])[0],
            "hooks": chance.choice([Hooks(), Hooks(before=("/b",), after=("/a",))]),
            "rearm": Rearm.model_validate(
                {"after": chance.choice(["1m", "1h"]), "most": "2h", "trial": "2m"}
            ),
        }
    )


@dataclass
class Wandering:
    """One walk; ``began`` holds the automatic actions that count."""

    chance: random.Random
    state: GuardState = field(default_factory=lambda: GuardState("chat", since=START))
    now: float = START
    outcome: tuple[Phase, float, SwitchOutcome] | None = None
    began: list[float] = field(default_factory=list)
    entered: float = START
    phases: set[Phase] = field(default_factory=set)
    instances: Iterator[int] = field(default_factory=itertools.count)
    server: Mode = Mode.ON
    instance: str = "first"
    ordered: bool = False
    """Whether the switch is at 0."""

    def __post_init__(self) -> None:
        self.policy = policies(self.chance)

    def turn(self) -> None:
        """One look at the world, and all steps that follow from it."""
        self.now += self.chance.choice(_PACES)
        if self._happens(0.01):
            self.policy = policies(self.chance)
        self._person()
        seen = self._seen()
        for _ in range(_MOST_STEPS):
            seen_in = self.state.phase
            step = state_machine.step(self.state, seen, self.policy)
            if step is None:
                break
            self._take(step, seen)
            if step.state.phase is not seen_in:
                seen = replace(seen, outcome=None)
        else:
            raise AssertionError(f"goes round in {self.state}")
        self._act(seen)
        if self.state.phase not in CALM:
            limit = self.policy.drain_timeout + 2 * self.policy.start_timeout + self.policy.verify
            longest = max(limit, 2000.0) + 3 * _LONGEST_TURN
            assert self.now - self.state.since < longest, f"stays in {self.state}"

    def _happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    def _person(self) -> None:
        if not self._happens(0.03):
            return
        state, now = self.state, self.now
        step: Step | None
        match self.chance.randrange(3):
            case 0:
                until = now + self.chance.choice([60, 3600])
                step = state_machine.pause(state, until=until, by="ann")
            case 1:
                step = state_machine.resume(state, by="ann", now=now)
            case _:
                goal, later = self.chance.choice(_MODES), self.chance.choice([None, now + 600])
                step = state_machine.order(state, goal, by="ann", now=now, until=later)
        if step is not None:
            self.state = step.state

    def _seen(self) -> Situation:
        """What obeys, with something else in its place now and then."""
        chance, state = self.chance, self.state
        odd = self._happens(0.1)
        service = (
            chance.choice(
                [
                    None,
                    Service(ProcessState.DOWN, self.server, self.instance),
                    Service(ProcessState.CHANGING, self.server, None),
                    Service(ProcessState.UP, None, None),
                    Service(ProcessState.UP, chance.choice(_MODES), "other"),
                ]
            )
            if odd
            else Service(ProcessState.UP, self.server, self.instance)
        )
        standby = self.ordered and self.server is Mode.ON
        mode = None if standby else self.server
        mode = chance.choice([None, Mode.ON, Mode.OFF]) if self._happens(0.03) else mode
        bad = self._happens(0.5)
        outcome = self.outcome
        mine = outcome is not None and outcome[:2] == (state.phase, state.since)
        return Situation(
            now=self.now,
            scraped_at=self.now - chance.choice([0.0, 0.0, 0.0, 4.0]) if mode else None,
            healthy=self._happens(0.8),
            mode=mode,
            models=("tiny",) if self._happens(0.95) else ("other",),
            load=chance.choice([None, 0.0, 3.0]),
            breaches=(Breach("r", "tiny", ALL, chance.choice([(), (_LOSES,)])),) if bad else (),
            suspects=("r",) if self._happens(0.3) else (),
            passing=self._happens(0.5),
            service=service,
            service_error="the manager is away" if service is None else "",
            outcome=outcome[2] if outcome and mine else None,
            prepared_at=state.since if self._happens(0.5) else None,
            from_files=self._happens(0.05),
            trial=chance.choice([None, Trial(_LOSES), Trial(_WINS), Trial(_LOSES, _LOSES)]),
            predicted=chance.choice([None, _LOSES, _WINS]),
            verification=chance.choice(
                [None, Verification(0.9, 1.0, _LOSES), Verification(0.9, 1.5, _WINS)]
            ),
            switchable=self.server is Mode.ON and self._happens(0.7),
            switch_error="it does not answer" if self._happens(0.05) else "",
            overridden="bob to 2" if self._happens(0.02) else "",
            followed=chance.choice([None, True, True, False]),
            standby_cost=chance.choice([None, _LOSES.inverse(), _WINS.inverse()]),
            unjudged="no baseline" if self._happens(0.05) else "",
            aged="the baseline is old" if self._happens(0.05) else "",
            quiet_in=chance.choice([None, 10.0, 20_000.0]),
        )

    def _act(self, seen: Situation) -> None:
        state = self.state
        effect = state_machine.effect(state, seen, prepared=self._happens(0.5))
        if effect is Effect.AFTER:
            self.state = replace(state, hooked=False)
        if effect is Effect.RENEW:
            assert state.standby or (state.from_standby and state.phase is Phase.DRAINING)
            assert state.goal is Mode.OFF
            self.ordered = True
        elif not state.standby and self._happens(0.2):
            self.ordered = False  # its lease ends
        if effect is not Effect.SWITCH:
            return
        assert state.phase in (Phase.RESTARTING, Phase.ROLLING_BACK)
        assert state.issued is None
        outcome = self.chance.choices(
            [SwitchOutcome(), SwitchOutcome("failed"), SwitchOutcome("refused", changed=False)],
            [8, 1, 1],
        )[0]
        self.outcome = (state.phase, state.since, outcome)
        if state.standby:
            if not outcome.error:
                self.ordered = state.goal is Mode.OFF
            return
        if outcome.changed and self._happens(0.9):
            self.server, self.ordered = state.goal or Mode.ON, False
            self.instance = str(next(self.instances))

    def _take(self, step: Step, seen: Situation) -> None:
        before, after = self.state, step.state
        self.state = after
        self.phases.add(after.phase)
        assert step.reason
        agrees(after)
        if before.phase is after.phase:
            return
        assert after.since == self.now
        if before.phase is Phase.HELD:
            assert before.order is not None, f"left a hold: {step}"
        if before.phase is Phase.ROLLING_BACK:
            assert after.phase is Phase.HELD
        if after.phase is Phase.RESTARTING and not after.standby:
            assert before.phase is Phase.DRAINING
            self._may_go_on(before)
        if after.phase is Phase.DRAINING or (after.phase is Phase.RESTARTING and after.standby):
            self._may_begin(before, after)
        if before.phase is Phase.DRAINING and after.phase in CALM - {Phase.HELD}:
            assert step.reason.startswith("given up")
            if cause(before) in (Cause.RULE, Cause.TRIAL, Cause.EXPLORATION) and self.began:
                self.began.pop()

    def _may_begin(self, before: GuardState, after: GuardState) -> None:
        put_back = cause(after) is Cause.NOT_HELPED
        if before.standby and (before.phase not in CALM or put_back):
            # A restart in place of the switch, or the switch put back without one.
            assert after.standby is (after.goal is Mode.ON)
            if not after.standby and cause(after) is not Cause.PERSON:
                self.began.append(self.now)
            return
        if cause(after) is Cause.NOT_HELPED:
            assert before.phase is Phase.VERIFYING
            self._may_go_on(before)
            return
        verified = before.phase is Phase.VERIFYING and before.healthy_at is not None
        assert before.phase in CALM or (verified and cause(after) is Cause.PERSON)
        if cause(after) is Cause.PERSON:
            # What a person ordered may need a restart after all: the switch is not followed.
            assert before.order is not None or before.standby
            return
        if cause(after) is Cause.ORDER_OVER:
            assert cause(before) is Cause.PERSON
            assert before.rearm_at is not None
            assert before.rearm_at <= self.now
            return
        self._may_go_on(before)
        if cause(after) is Cause.TRIAL_LOST:
            assert before.phase is Phase.TRIAL
            return
        policy, now = self.policy, self.now
        assert not policy.windows.closed(now)
        if after.standby and cause(after) is Cause.TRIAL:
            assert before.standby
            return  # it costs no restart
        if cause(after) is Cause.EXPLORATION:
            assert before.phase is Phase.OBSERVING
        else:
            assert before.phase in (Phase.CONFIRMED, Phase.DISABLED)
        assert not self.began or now - self.began[-1] >= policy.cooldown
        self.began.append(now)
        assert sum(now - began < DAY for began in self.began) <= policy.max_actions_per_day

    def _may_go_on(self, before: GuardState) -> None:
        """Without a person's wish only where the guard may act at all."""
        if cause(before) not in (Cause.PERSON, Cause.ORDER_OVER) or before.phase in CALM:
            assert self.policy.mode == "act"
            assert before.pause is None


def cause(state: GuardState) -> Cause | None:
    """Of what is under way."""
    return state.incident.cause if state.incident else None


def agrees(state: GuardState) -> None:
    """The goal is that of the phase, and of the reason for it."""
    goals = {Phase.DISABLED: Mode.OFF, Phase.TRIAL: Mode.ON, Phase.CONFIRMED: Mode.ON}
    wanted = goals.get(state.phase)
    if wanted is not None:
        assert state.goal is wanted, state
    if state.phase in (Phase.DRAINING, Phase.RESTARTING, Phase.VERIFYING):
        causes = {
            Cause.RULE: Mode.OFF,
            Cause.TRIAL_LOST: Mode.OFF,
            Cause.TRIAL: Mode.ON,
            Cause.EXPLORATION: Mode.OFF,
            Cause.NOT_HELPED: Mode.ON,
        }
        assert state.goal is causes.get(cause(state) or Cause.RULE, state.goal), state
        assert state.goal is not None
        mode = Mode.OFF if state.goal is Mode.ON else Mode.ON
        served = mode if state.phase is Phase.DRAINING else state.goal
        assert state.serving is (Mode.ON if state.standby else served)
    if state.phase in (Phase.TRIAL, Phase.DISABLED):
        assert state.serving is (Mode.ON if state.standby else state.goal)
    if state.standby:
        assert state.phase in (Phase.RESTARTING, Phase.VERIFYING, Phase.DISABLED)
