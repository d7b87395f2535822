"""Runs the experiments on the live traffic of this daemon's targets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from specwatch.config.loading import Config
from specwatch.domain.model import Moment, Series
from specwatch.domain.switchback_results import ExperimentStatus
from specwatch.guard.status import GuardStatus
from specwatch.scrape.switch import SwitchSetting
from specwatch.status import TargetStatus
from specwatch.store.repository import Store

if TYPE_CHECKING:
    from specwatch.daemon.target_experiment import TargetExperiment

_log = structlog.get_logger("specwatch.experiments")

EVERY = 1.0
"""Seconds from turn to turn."""


class ExperimentService:
    """The experiments of a configuration; safe to use from several threads. Nothing raises."""

    def __init__(
        self,
        store: Store,
        config: Config,
        *,
        now: Callable[[], Moment],
        status: Callable[[str], TargetStatus],
        guard: Callable[[str], GuardStatus | None],
    ) -> None:
        """``status`` and ``guard`` are of a target by name."""
        self._store = store
        self._status = status
        self._guard = guard
        # A step of the clock must not end a block.
        offset = now().offset
        self._wall = lambda: now().monotonic + offset
        self._experiments: dict[str, TargetExperiment] = {}
        self._turning = threading.Lock()
        self.configure(config)

    @property
    def active(self) -> bool:
        """Whether any target has an experiment."""
        return bool(self._experiments)

    def configure(self, config: Config) -> None:
        """Run the experiments of a configuration; those of unchanged targets go on."""
        experiments: dict[str, TargetExperiment] = {}
        with self._turning:
            for target in config.targets:
                present = self._experiments.get(target.name)
                if target.experiments is None:
                    continue
                if present is not None and present.target == target:
                    experiments[target.name] = present
                else:
                    # Imported on first use: most daemons need neither it nor an HTTP client.
                    from specwatch.daemon.target_experiment import TargetExperiment

                    experiments[target.name] = TargetExperiment(
                        target, target.experiments, self._store, self._wall
                    )
            removed = [
                one for name, one in self._experiments.items() if experiments.get(name) is not one
            ]
            self._experiments = experiments
            for experiment in removed:
                experiment.close()

    def see(
        self,
        target: str,
        samples: Mapping[Series, float],
        setting: SwitchSetting | None,
        running: float | None,
    ) -> None:
        """Process a page of a target that was just read."""
        experiment = self._experiments.get(target)
        if experiment is not None:
            experiment.see(samples, setting, running)

    def turn(self) -> None:
        """Run a turn of every experiment."""
        with self._turning:
            for name, experiment in self._experiments.items():
                try:
                    experiment.turn(self._status(name), self._guard(name))
                except Exception:
                    # A defect in one experiment must not stop the others, and must be logged.
                    _log.exception("experiment_failed", target=name)

    def status_of(self, target: str) -> ExperimentStatus | None:
        """The experiment of a target; None without one."""
        experiment = self._experiments.get(target)
        return None if experiment is None else experiment.status()

    def close(self) -> None:
        """Return every target to its launch."""
        with self._turning:
            for experiment in self._experiments.values():
                experiment.close()
            self._experiments = {}
