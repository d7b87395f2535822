"""Speedups that the guard reads from stored minutes: of a trial, before a switch, predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specwatch.config.guard import Guard
from specwatch.domain.baseline import Baseline
from specwatch.domain.model import HOUR, MINUTE, Mode, Objective
from specwatch.domain.sample import Sample, samples_of
from specwatch.domain.standby import standby_cost
from specwatch.errors import StoreError
from specwatch.guard import foresight
from specwatch.guard.observation import Situation
from specwatch.guard.state import Cause, GuardState, Phase
from specwatch.store.repository import Store


class GuardMeasurements:
    """Figures of one target from the stored minutes; each is computed once a minute at most.

    Nothing is raised when the database fails: the figure is None then, and ``error`` says why.
    """

    def __init__(
        self,
        target: str,
        store: Store,
        baselines: Callable[[], Mapping[str, Baseline]],
        objective: Objective,
    ) -> None:
        self._objective = objective
        self.error: StoreError | None = None
        self._target = target
        self._store = store
        self._baselines = baselines
        self._state = GuardState(target)
        self._figures: dict[str, tuple[float, Any]] = {}

    def extend(self, seen: Situation, state: GuardState, policy: Guard) -> Situation:
        """``seen`` with the figures that the phase needs; for one thread at a time."""
        self._state, self.error = state, None
        if state.phase is Phase.TRIAL:
            return replace(seen, trial=self._figure("trial", seen.now, MINUTE, self._trial))
        if state.phase is Phase.VERIFYING and state.healthy_at is not None:
            verification = self._figure("verification", seen.now, MINUTE, self._verification)
            return replace(seen, verification=verification)
        if state.phase is Phase.DISABLED and state.standby:
            cost = self._figure("standby_cost", seen.now, 5 * MINUTE, self._standby_cost)
            seen = replace(seen, standby_cost=cost)
        due = state.rearm_at is not None and seen.now >= min(
            state.rearm_at, max(state.early_at, state.since + foresight.PRESENT)
        )
        if state.phase is Phase.DISABLED and due:
            predicted = self._figure("predicted", seen.now, 5 * MINUTE, self._predicted)
            return replace(seen, predicted=predicted)
        if state.phase is Phase.CONFIRMED:
            return replace(seen, quiet_in=self._figure("quiet", seen.now, HOUR, self._quiet))
        return seen

    def _figure(self, name: str, now: float, lasts: float, find: Callable[[float], Any]) -> Any:
        figure = self._figures.get(name)
        if figure is None or not 0 <= now - figure[0] < lasts or figure[0] < self._state.since:
            try:
                figure = self._figures[name] = (now, find(now))
            except StoreError as error:
                self.error = error
                return None
        return figure[1]

    def _trial(self, now: float) -> Any:
        since = self._state.since
        model, minutes = self._minutes(since, now)
        baseline = self._baselines().get(model, Baseline())
        return foresight.trial_speedup(
            minutes, baseline, since=since, now=now, objective=self._objective
        )

    def _verification(self, now: float) -> Any:
        began, healthy = self._state.began or now, self._state.healthy_at or now
        model, minutes = self._minutes(began - HOUR, now)
        baseline = self._baselines().get(model, Baseline())
        incident = self._state.incident
        if incident is not None and incident.cause is Cause.EXPLORATION:
            return foresight.explored(minutes, baseline, switched=began, objective=self._objective)
        mode = Mode.STANDBY if self._state.standby else Mode.OFF
        return foresight.verified(
            minutes, baseline, switched=began, since=healthy, objective=self._objective, mode=mode
        )

    def _standby_cost(self, now: float) -> Any:
        since = max(self._state.disabled_at or now, now - HOUR)
        model, minutes = self._minutes(since, now)
        baseline = self._baselines().get(model, Baseline())
        return standby_cost(minutes, baseline, self._objective).cost

    def _predicted(self, now: float) -> Any:
        disabled = self._state.disabled_at or now
        model, past = self._minutes(disabled - foresight.PAST, disabled)
        _, present = self._minutes(now - foresight.PRESENT, now, model)
        baseline = self._baselines().get(model, Baseline())
        return foresight.predicted_speedup(past, present, baseline, self._objective)

    def _quiet(self, now: float) -> float | None:
        windows = self._store.windows(
            target=self._target, since=now - 25 * HOUR, until=now, length=HOUR
        )
        return foresight.quiet_in(samples_of(windows), now)

    def _minutes(
        self, since: float, until: float, model: str | None = None
    ) -> tuple[str, list[Sample]]:
        """Minutes of the incident's model, or else of the model with the most."""
        incident = self._state.incident
        chosen = model or (incident.model_name if incident else "") or None
        windows = list(
            self._store.windows(
                target=self._target, model_name=chosen, since=since, until=until, length=MINUTE
            )
        )
        if chosen is None and windows:
            names = [window.series.model_name for window in windows]
            chosen = max(sorted(set(names)), key=names.count)
            windows = [window for window in windows if window.series.model_name == chosen]
        return chosen or "", samples_of(windows)
