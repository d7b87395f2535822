"""What switching speculation off would cost, and bring: as far as the store and a daemon know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specwatch.cli import status
from specwatch.config.loading import Config
from specwatch.config.target import Target
from specwatch.domain.model import HOUR
from specwatch.domain.units import format_duration
from specwatch.errors import NoAnswer, StoreError
from specwatch.guard.state import GuardState
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

Json = dict[str, Any]
_PATIENCE = 3.0
"""Seconds that a daemon has to answer."""


def cost(config: Config, target: Target) -> Json:
    """What it would cost to restart a target now; what nobody tells is None, and why in notes."""
    notes: list[str] = []
    state = _state(config, target.name, notes)
    known = _watched(config, target.name, notes)
    return {
        "restart_seconds": state.restart_cost(config.guard.restart_cost),
        "restarts_measured": len(state.costs),
        "drain_seconds": config.guard.drain_timeout,
        "requests": known.get("load"),
        "models": [
            _saved(model, one["speedup"])
            for model, one in sorted(known.get("decision", {}).get("models", {}).items())
            if one["speedup"] is not None
        ],
        "notes": notes,
    }


def lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield lines and their styles for what it would cost."""
    yield "cost", "bold"
    count = found["restarts_measured"]
    of = f"the median of {figures.counted(count, 'restart')}" if count else "assumed"
    seconds = figures.span(found["restart_seconds"])
    drain = format_duration(found["drain_seconds"])
    yield from wrapped(f"  {seconds} without service, {of}, after draining for at most {drain}")
    if found["requests"] is not None:
        yield f"  {figures.counted(found['requests'], 'request')} running or waiting now", ""
    for one in found["models"]:
        yield from wrapped(f"  {_brings(one, found['restart_seconds'])}")
    for note in found["notes"]:
        yield from wrapped(f"  {shown(note, LONGEST_SENTENCE)}", "dim")


def _state(config: Config, name: str, notes: list[str]) -> GuardState:
    from specwatch.cli import guard_books
    from specwatch.store.guard_records import GuardBook
    from specwatch.store.repository import Store

    store = Store(config.database.connect_url(), daemon=guard_books.DAEMON)
    try:
        entry = GuardBook(store).look(name).get(name)
    except StoreError as error:
        notes.append(f"earlier restarts are not known: {error}")
        return GuardState(name)
    finally:
        store.close(0.0)  # which notes nothing, where nothing was written
    return GuardState(name) if entry is None else entry.state


def _watched(config: Config, name: str, notes: list[str]) -> Json:
    """What the daemon knows of the target now."""
    url = status.url_of(config)
    try:
        found = status.ask(url, _PATIENCE) if url else {"targets": []}
    except NoAnswer as error:
        notes.append(f"requests and speedup are not known: {error}")
        return {}
    known: list[Json] = [each for each in found["targets"] if each["name"] == name]
    if not known:
        notes.append("requests and speedup are not known: no daemon that watches it was found")
        return {}
    return known[0]


def _saved(model: str, speedup: Json) -> Json:
    """Seconds saved in an hour of work: what takes an hour with speculation takes S without."""
    measured = speedup["basis"] == "measured"
    saved = None
    if measured:
        names = {"value": "value", "lower": "upper", "upper": "lower"}
        saved = {name: (1 - speedup[of]) * HOUR for name, of in names.items()}
    return {"model_name": model, "speedup": speedup, "saves_seconds_per_hour": saved}


def _brings(one: Json, restart: float) -> str:
    speedup, saved = one["speedup"], one["saves_seconds_per_hour"]
    name = shown(one["model_name"])
    if saved is None:
        return f"{name}: what it would save is not known: the speedup is assumed, not measured"
    at = f"the speedup is {speedup['value']:.2f}"
    at += f" ({speedup['lower']:.2f} to {speedup['upper']:.2f})"
    said = f"{name}: what takes an hour now would take {figures.span(abs(saved['value']))}"
    if saved["value"] <= 0:
        return f"{said} longer, as {at}"
    paid = figures.span(restart / saved["value"] * HOUR)
    return f"{said} less, as {at}; the restart is paid for after {paid}"
