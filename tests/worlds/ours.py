"""Our policy: the judge on the default rules, and trials and predictions to find the way back."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence

from specwatch.core.baseline import Measurement, Origin, measured
from specwatch.core.breakeven import speedup_of
from specwatch.core.interval import Interval
from specwatch.core.judge import Judge
from specwatch.core.prediction import Experience, Remembered, worth_it
from specwatch.core.sample import Sample
from specwatch.core.verdicts import Finding, Verdict
from specwatch.model import HOUR, MINUTE, Mode
from specwatch.ruling import DEFAULT_RULES, Rule
from tests.worlds.coverage import KEY, samples_in
from tests.worlds.recording import record
from tests.worlds.score import RESTART_SECONDS
from tests.worlds.seen import Seen
from tests.worlds.trace import MODEL, TARGET
from tests.worlds.world import World, at_rate

DAY = 24 * HOUR
REARM_AFTER, REARM_MOST, TRIAL = 6.0 * HOUR, 24.0 * HOUR, 20 * MINUTE
COOLDOWN, MOST_ACTIONS = 30 * MINUTE, 4
PRESENT = 15
"""Minutes without speculation that a prediction is for."""
LASTS = float(HOUR)
"""Seconds that the load or the mix may be expected to stay as it is."""

SPEEDUP_RULES = tuple(
    rule for rule in DEFAULT_RULES if rule.name in ("net-negative", "low-acceptance")
)
"""Defaults that disable for a loss of throughput."""
DISABLING_RULES = tuple(rule for rule in DEFAULT_RULES if rule.action == "disable")


def calibrated(world: World, rates: Sequence[float] = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 2.5)) -> list[
    Measurement
]:  # fmt: skip
    """A baseline measured on purpose: other traffic, half an hour at each of several loads."""
    samples: list[Sample] = []
    for seed, rate in enumerate(rates, start=100):
        samples += samples_in(record(at_rate(world, rate), Mode.OFF, 0.5, seed=seed))
    return measured(KEY, Origin.CALIBRATION, samples)


class _State(enum.Enum):
    ON = enum.auto()
    OFF = enum.auto()
    TRIAL = enum.auto()


class Ours:
    """Disables on a rule in breach; tries again on schedule, or when it is predicted to pay."""

    def __init__(
        self,
        measurements: Sequence[Measurement],
        *,
        rules: Sequence[Rule] = SPEEDUP_RULES,
        predicts: bool = True,
        name: str = "ours",
    ) -> None:
        self.name = name
        self.starts_on = True
        self._rules = rules
        self._predicts = predicts
        self.judge = Judge(TARGET, rules, ())
        self.judge.measurements = list(measurements)
        self.reasons: list[tuple[int, str]] = []
        """Each change of mind, by minute."""
        self.breaches: list[int] = []
        """Minutes in which a rule came to be in breach."""
        self._actions: deque[float] = deque()
        self.deployed()

    def deployed(self) -> None:
        self._state = _State.ON
        self._since = 0.0
        self._delay = REARM_AFTER
        self._early_from, self._pause = 0.0, float(HOUR)
        self._remembered = Remembered()
        self._experience: Experience | None = None
        self._minutes: deque[Sample] = deque(maxlen=TRIAL // MINUTE)
        self._forget()

    def decide(self, seen: Seen) -> bool:
        changed = self.judge.observe(seen.windows(), seen.end)
        if any(finding.verdict is Verdict.BREACH for finding in changed):
            self.breaches.append(seen.minute)
        recent = self.judge.recent(MODEL)
        if recent and not seen.down:
            self._remembered.add(recent[-1])
            self._minutes.append(recent[-1])
        before = self._state
        reason = {
            _State.ON: self._while_on, _State.OFF: self._while_off, _State.TRIAL: self._in_trial
        }[before](seen.end)  # fmt: skip
        if reason is not None:
            self.reasons.append((seen.minute, reason))
        if (before is _State.OFF) is not (self._state is _State.OFF):
            if before is not _State.TRIAL:  # the end of a trial belongs to it
                self._actions.append(seen.end)
            self._minutes.clear()
            self._experience = None
            self._forget()
        return self._state is not _State.OFF

    def _while_on(self, now: float) -> str | None:
        breach = self._breach()
        if breach is None or not self._may_act(now) or not self._pays(breach):
            return None
        self._enter(_State.OFF, now)
        return breach.rule.name

    def _in_trial(self, now: float) -> str | None:
        breach = self._breach()
        if breach is None and now - self._since < TRIAL:
            return None
        speedup = self._measured()
        if breach is None and speedup is None:
            return None
        unsure = speedup is not None and speedup.value < 1 <= speedup.upper
        if breach is None and unsure and now - self._since < 2 * TRIAL:
            return None  # it may go either way yet
        if breach is None and speedup is not None and speedup.value >= 1:
            self._enter(_State.ON, now)
            self._delay, self._pause = REARM_AFTER, float(HOUR)
            return "trial won"
        self._enter(_State.OFF, now)
        self._delay = min(2 * self._delay, REARM_MOST)
        self._early_from, self._pause = now + self._pause, 2 * self._pause
        return "trial lost"

    def _while_off(self, now: float) -> str | None:
        waited = now - self._since
        due = waited >= self._delay
        if not self._may_act(now) or not any(each.pace for each in self._minutes):
            return None
        if not (due or now >= self._early_from) or (now // MINUTE) % 5:
            return None
        speedup = self._predicted() if self._predicts else None
        if now >= self._early_from and speedup is not None and _gains(speedup):
            self._enter(_State.TRIAL, now)
            return "predicted"
        # While it would lose even if the draft were as it was, a trial has less to find out.
        if due and (waited >= REARM_MOST or speedup is None or speedup.value >= 1):
            self._enter(_State.TRIAL, now)
            return "trial"
        return None

    def _enter(self, state: _State, now: float) -> None:
        self._state, self._since = state, now

    def _breach(self) -> Finding | None:
        for finding in self.judge.findings():
            if finding.rule.action == "disable" and finding.verdict is Verdict.BREACH:
                return finding
        return None

    def _pays(self, breach: Finding) -> bool:
        """Off for as long as until the next trial; a breach of another kind is not about time.

        What counts are the windows that the rule is about: a longer one has the time before in it.
        """
        speedups = [
            reading.interval
            for condition, reading in breach.readings
            if condition.metric == "speedup_ratio" and reading.interval is not None
        ]
        return not speedups or any(
            worth_it(each, speculating=True, horizon=self._delay, restart_seconds=RESTART_SECONDS)
            for each in speedups
        )

    def _measured(self) -> Interval | None:
        """Over the second half of a trial: right after a restart nothing is as usual."""
        recent = list(self._minutes)[-TRIAL // MINUTE // 2 :]
        return speedup_of(recent, self.judge.baselines()[MODEL])

    def _predicted(self) -> Interval | None:
        if self._experience is None:
            baseline = self.judge.baselines()[MODEL]
            self._experience = Experience.of(self._remembered.samples, baseline)
        return self._experience.speedup(list(self._minutes)[-PRESENT:])

    def _may_act(self, now: float) -> bool:
        while self._actions and self._actions[0] <= now - DAY:
            self._actions.popleft()
        rested = not self._actions or now - self._actions[-1] >= COOLDOWN
        return rested and len(self._actions) < MOST_ACTIONS

    def _forget(self) -> None:
        """What was found of the process before says nothing of the next."""
        self.judge.rules = ()
        self.judge.rules = tuple(self._rules)


def _gains(speedup: Interval) -> bool:
    """Whether going on pays for going there, and for coming back."""
    return worth_it(speedup, speculating=False, horizon=LASTS, restart_seconds=2 * RESTART_SECONDS)
