"""Data for the guard commands: guards in the database, plans, and costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specwatch.cli import options, status
from specwatch.config.loading import Config
from specwatch.config.service import SupervisedService
from specwatch.config.target import Target
from specwatch.domain.model import HOUR
from specwatch.errors import ActuatorError, NoAnswer, SpecwatchError, StoreError
from specwatch.guard.plan import Plan
from specwatch.guard.state import GuardState
from specwatch.rules.decision_view import AssumedSpeedup, MeasuredSpeedup
from specwatch.web.daemon_view import TargetView

if TYPE_CHECKING:
    from specwatch.store.guard_records import Entry, GuardBook

ACTOR = "specwatch guard"
"""Recorded in the database for a step of these commands, in place of a daemon."""
_ANSWER_SECONDS = 3.0
"""Time limit for the answer of a daemon."""


@contextmanager
def opened(database: str | None, file: Path | None) -> Iterator[GuardBook]:
    """The guards in the database that the options select; reading them writes nothing."""
    from specwatch.store.guard_records import GuardBook
    from specwatch.store.repository import Store

    store = Store(options.database_url(database, file), daemon=ACTOR)
    try:
        yield GuardBook(store)
    finally:
        store.close(time.time())


def guards(book: GuardBook, config: Config | None) -> dict[str, Entry]:
    """Every guard by target: configured ones first, in their order."""
    entries = {entry.state.target: entry for entry in book.look().values()}
    order = [target.name for target in config.targets] if config else []
    first = [name for name in order if name in entries]
    return {name: entries[name] for name in [*first, *sorted(set(entries) - set(first))]}


def chosen(book: GuardBook, target: str | None, config: Config | None = None) -> Entry:
    """The guard of a target, or the only one; else a usage error."""
    entries = guards(book, config)
    configured = [] if config is None else [watched.name for watched in config.targets]
    if not entries or (target not in entries and target in configured):
        raise unguarded(target)
    return entries[options.choose(target, entries, "no daemon has ever guarded", "TARGET")]


def unguarded(target: str | None) -> SpecwatchError:
    """The error for a target that no daemon has guarded yet."""
    return SpecwatchError(
        f"no daemon has guarded {target or 'any target'} yet: none runs with this database, or it"
        " runs with guard.mode off"
    )


def plan_of(target: Target) -> Plan:
    """What the guard would do to a target. Raises ActuatorError."""
    from specwatch.actuators import actuator_of

    if isinstance(target.service, SupervisedService):
        raise ActuatorError(
            "it is a child of `specwatch run -- COMMAND`, and only that process has the command;"
            " `specwatch strip -- COMMAND` shows what would be run"
        )
    actuator = actuator_of(target)
    if actuator is None:
        raise ActuatorError(
            "it has no service, so specwatch cannot restart it; add one to the target in the"
            " configuration, like service: {kind: systemd, unit: vllm.service}"
        )
    with closing(actuator):
        return actuator.plan()


@dataclass(frozen=True, slots=True)
class ModelSaving:
    """The speedup of a model, and the seconds that an hour of work would save without speculation.

    ``saves_seconds_per_hour`` is None while the speedup is only assumed.
    """

    model_name: str
    speedup: MeasuredSpeedup | AssumedSpeedup
    saves_seconds_per_hour: dict[str, float] | None


@dataclass(frozen=True, slots=True)
class DisableCost:
    """The cost of restarting a target now; ``notes`` say why something is not known."""

    restart_seconds: float
    restarts_measured: int
    drain_seconds: float
    requests: float | None
    models: list[ModelSaving]
    notes: list[str]


def cost_of(config: Config, target: Target) -> DisableCost:
    """The cost of restarting a target now."""
    notes: list[str] = []
    state = _stored_state(config, target.name, notes)
    live = _live_status(config, target.name, notes)
    models = {} if live is None else live.decision.models
    return DisableCost(
        state.restart_cost(config.guard.restart_cost),
        len(state.costs),
        config.guard.drain_timeout,
        None if live is None else live.load,
        [
            ModelSaving(name, model.speedup, _saving(model.speedup))
            for name, model in sorted(models.items())
            if model.speedup is not None
        ],
        notes,
    )


def _stored_state(config: Config, name: str, notes: list[str]) -> GuardState:
    from specwatch.store.guard_records import GuardBook
    from specwatch.store.repository import Store

    store = Store(config.database.connect_url(), daemon=ACTOR)
    try:
        entry = GuardBook(store).look(name).get(name)
    except StoreError as error:
        notes.append(f"earlier restarts are unknown: {error}")
        return GuardState(name)
    finally:
        store.close(0.0)  # the time is not used: nothing was written
    return GuardState(name) if entry is None else entry.state


def _live_status(config: Config, name: str, notes: list[str]) -> TargetView | None:
    """The target as the daemon shows it now."""
    url = status.url_of(config)
    try:
        targets = status.targets_of(url, _ANSWER_SECONDS, config.listen_token_file) if url else []
    except NoAnswer as error:
        notes.append(f"requests and speedup are unknown: {error}")
        return None
    for target in targets:
        if target.name == name and isinstance(target, TargetView):
            return target
    notes.append("requests and speedup are unknown: no daemon that watches it was found")
    return None


def _saving(speedup: MeasuredSpeedup | AssumedSpeedup) -> dict[str, float] | None:
    """Seconds saved: what takes an hour with speculation takes S hours without."""
    if isinstance(speedup, AssumedSpeedup):
        return None
    bounds = {"value": speedup.value, "lower": speedup.upper, "upper": speedup.lower}
    return {name: (1 - bound) * HOUR for name, bound in bounds.items()}
