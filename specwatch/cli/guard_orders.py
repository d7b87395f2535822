"""Guards in the database, and an operator's order: stored there, and followed until it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep, time
from typing import NamedTuple

import click

from specwatch.cli import guard_output, options
from specwatch.cli.terminal import Terminal
from specwatch.config.loading import Config
from specwatch.domain.units import format_duration
from specwatch.errors import SpecwatchError, StoreUnavailable
from specwatch.guard import state_machine
from specwatch.guard.state import CALM, Order, Phase
from specwatch.store.guard_records import GuardBook, StepRecord
from specwatch.store.guard_rows import Entry
from specwatch.store.repository import Store
from specwatch.wording.guard import ordered, phase
from specwatch.wording.text import LONGEST_SENTENCE, shown

ACTOR = "specwatch guard"
"""Recorded in the database for a step of these commands, in place of a daemon."""
_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
"""Time to wait for the daemon's first answer with ``--no-wait``: two of its cycles."""
_ALONE_SECONDS = 60.0
"""Time that a guard may be without a daemon, such as during a restart of it."""
_MOST_STEPS = 200
"""Newest steps that are searched for those since the order."""
_REFUSED = "; refused: "


@contextmanager
def opened(url: str) -> Iterator[GuardBook]:
    """The guards in a database; reading them writes nothing."""
    store = Store(url, daemon=ACTOR)
    try:
        yield GuardBook(store)
    finally:
        store.close(time())


def guards(book: GuardBook, config: Config | None) -> dict[str, Entry]:
    """Every guard by target: configured ones first, in their order."""
    entries = book.look()
    configured = [target.name for target in config.targets] if config else []
    order = [*filter(entries.__contains__, configured), *sorted(entries.keys() - configured)]
    return {name: entries[name] for name in order}


def chosen(book: GuardBook, target: str | None, config: Config | None = None) -> Entry:
    """The guard of a target, or the only one; else a usage error."""
    entries = guards(book, config)
    configured = config is not None and any(one.name == target for one in config.targets)
    if not entries or (target not in entries and configured):
        raise unguarded(target)
    return entries[options.choose(target, entries, "no daemon has ever guarded", "TARGET")]


def unguarded(target: str | None) -> SpecwatchError:
    """The error for a target that no daemon has guarded yet."""
    return SpecwatchError(
        f"no daemon has guarded {target or 'any target'} yet: none runs with this database, or it"
        " runs with guard.mode off"
    )


class OrderOutcome(NamedTuple):
    """The outcome of an order; ``reached`` is None while it is unknown."""

    reached: bool | None
    reason: str


def carry_out(
    book: GuardBook, target: str | None, order: Order, *, timeout: float | None, as_json: bool
) -> None:
    """Store an order and follow it for ``timeout`` seconds, with None until the daemon has begun.

    Exits with 1 if it is not done.
    """
    entry = chosen(book, target)
    followed = FollowedOrder(book, entry, order)
    attended = entry.left > 0
    if attended:
        reached, reason = _outcome(followed, timeout, shown(entry.daemon), silent=as_json)
    else:
        reached, reason = None, "no daemon guards it now; the order waits for one"
    if as_json:
        options.print_json(
            {
                "target": entry.state.target,
                "order": order,
                "daemon": entry.daemon if attended else "",
                "reached": reached,
                "reason": reason,
                "steps": followed.steps,
                "state": followed.state,
            }
        )
    else:
        if timeout is None or not attended:
            Terminal().line(shown(ordered(order), LONGEST_SENTENCE))
        Terminal().line(f"{shown(entry.state.target)}: {shown(reason, LONGEST_SENTENCE)}")
        if reached is None:
            Terminal().line("`specwatch guard status` shows its progress")
    if reached is False or not attended or (reached is None and timeout is not None):
        raise click.exceptions.Exit(1)


class FollowedOrder:
    """An order, and the steps of the guard since it was stored."""

    def __init__(self, book: GuardBook, entry: Entry, order: Order) -> None:
        """Stores the order for a guard, which is as in ``entry`` before."""
        self.steps: list[StepRecord] = []
        self.alone_since: float | None = None
        """Monotonic time since which no daemon guards it."""
        self._book, self._goal, self._version = book, order.goal, entry.version
        self.state = book.change(
            entry.state.target,
            lambda state: state_machine.order(
                state, order.goal, by=order.by, now=order.at, why=order.why, until=order.until
            ),
            order.at,
            by=ACTOR,
        )

    def new_steps(self) -> list[StepRecord]:
        """Steps that were stored since the last call, oldest first."""
        target = self.state.target
        entry = self._book.look(target).get(target)
        if entry is not None and entry.left > 0:
            self.alone_since = None
        else:
            self.alone_since = self.alone_since or monotonic()
        if entry is None or entry.version == self._version:
            return []
        newest = self._book.history(target=target, limit=_MOST_STEPS)
        new = [step for step in newest if self._version < step.version <= entry.version]
        new.sort(key=lambda step: step.version)
        self.state, self._version = entry.state, entry.version
        self.steps += new
        return new

    def outcome(self) -> OrderOutcome | None:
        """The outcome; None while the order is being carried out."""
        state, goal = self.state, self._goal
        if state.order is not None:
            if state.order.goal is goal:
                return None
            return OrderOutcome(False, f"{state.order.by} has ordered something else since")
        refused = [step.reason for step in self.steps if _REFUSED in step.reason]
        if refused:
            return OrderOutcome(False, f"refused: {refused[-1].partition(_REFUSED)[2]}")
        if state.phase is Phase.HELD:
            return OrderOutcome(False, f"held: {state.why}")
        if state.phase not in CALM:
            return None
        if state.goal is goal:
            return OrderOutcome(True, f"speculation is {goal}")
        last = self.steps[-1].reason if self.steps else "the order is gone"
        return OrderOutcome(False, f"speculation is not {goal}: {last}")


def _outcome(
    followed: FollowedOrder, timeout: float | None, daemon: str, *, silent: bool
) -> OrderOutcome:
    """Follow the order, and print each step, for at most ``timeout`` seconds.

    Without a timeout only the first answer counts: the daemon refuses, or has begun. A database
    that cannot be read is tried again.
    """
    end = monotonic() + (_ANSWER_SECONDS if timeout is None else timeout)
    try:
        while True:
            failure = None
            try:
                steps = followed.new_steps()
            except StoreUnavailable as error:
                failure = f"unknown: {error}"
            else:
                if not silent:
                    guard_output.print_steps(steps, incidents=False)
                outcome = followed.outcome()
                if outcome is not None:
                    return outcome
            if timeout is None and followed.state.order is None:
                return OrderOutcome(None, f"{daemon} has begun")
            alone_since = followed.alone_since
            if failure is None and alone_since and monotonic() - alone_since > _ALONE_SECONDS:
                problem = "no daemon guards it any more"
                break
            if monotonic() >= end:
                if timeout is None:
                    return OrderOutcome(None, f"{daemon} guards it and will do it")
                problem = failure or f"not done within {format_duration(timeout)}"
                break
            sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        problem = "no longer followed"
    if followed.state.order is not None:
        return OrderOutcome(None, f"{problem}; the order stays")
    return OrderOutcome(
        None, f"{problem}; the guard is {phase(followed.state.phase)}, and continues"
    )
