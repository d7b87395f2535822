"""Data for the guard commands: guards in the database, plans, and costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwatch.cli import options, status
from specwatch.config.loading import Config
from specwatch.config.service import SupervisedService
from specwatch.config.target import Target
from specwatch.domain.model import HOUR
from specwatch.errors import ActuatorError, NoAnswer, SpecwatchError, StoreError
from specwatch.guard.plan import Plan
from specwatch.guard.state import GuardState

if TYPE_CHECKING:
    from specwatch.store.guard_records import Entry, GuardBook

Json = dict[str, Any]
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


def cost_of(config: Config, target: Target) -> Json:
    """What restarting a target now would cost; unknown values are None, with a note each."""
    notes: list[str] = []
    state = _stored_state(config, target.name, notes)
    live = _live_status(config, target.name, notes)
    return {
        "restart_seconds": state.restart_cost(config.guard.restart_cost),
        "restarts_measured": len(state.costs),
        "drain_seconds": config.guard.drain_timeout,
        "requests": live.get("load"),
        "models": [
            _saving(name, model["speedup"])
            for name, model in sorted(live.get("decision", {}).get("models", {}).items())
            if model["speedup"] is not None
        ],
        "notes": notes,
    }


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


def _live_status(config: Config, name: str, notes: list[str]) -> Json:
    """The target as in the daemon's status now."""
    url = status.url_of(config)
    try:
        targets = (
            status.ask(url, _ANSWER_SECONDS, config.listen_token_file)["targets"] if url else []
        )
    except NoAnswer as error:
        notes.append(f"requests and speedup are unknown: {error}")
        return {}
    for target in targets:
        if target["name"] == name:
            live: Json = target
            return live
    notes.append("requests and speedup are unknown: no daemon that watches it was found")
    return {}


def _saving(model: str, speedup: Json) -> Json:
    """Seconds that speculation saves in an hour: its work would take ``speedup`` hours without."""
    saving = None
    if speedup["basis"] == "measured":
        names = {"value": "value", "lower": "upper", "upper": "lower"}
        saving = {name: (1 - speedup[source]) * HOUR for name, source in names.items()}
    return {"model_name": model, "speedup": speedup, "saves_seconds_per_hour": saving}
