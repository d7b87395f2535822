"""An operator's order to the guard: stored in the database, and followed until it is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import TYPE_CHECKING

import click
import msgspec

from specwatch.cli import guard_output, guard_store, options
from specwatch.domain.units import format_duration
from specwatch.errors import StoreUnavailable
from specwatch.guard import machine
from specwatch.guard.state import CALM, GuardState, Order, Phase
from specwatch.wording.guard import ordered, phase
from specwatch.wording.text import LONGEST_SENTENCE, shown

if TYPE_CHECKING:
    from specwatch.store.guard_records import GuardBook, StepRecord

_LOOK_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
"""Time to wait for the daemon's first answer with ``--no-wait``: two of its cycles."""
_ALONE_SECONDS = 60.0
"""Time that a guard may be without a daemon, such as during a restart of it."""
_MOST_STEPS = 200
"""Newest steps that are searched for those since the order."""
_REFUSED = "; refused: "


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The outcome of an order; ``reached`` is None while it is unknown."""

    reached: bool | None
    reason: str


def carry_out(
    book: GuardBook, target: str | None, order: Order, *, timeout: float | None, as_json: bool
) -> None:
    """Store an order and follow it for ``timeout`` seconds, with None until the daemon has begun.

    Exits with 1 if it is not done.
    """
    entry = guard_store.chosen(book, target)
    progress = OrderProgress(book, entry.state.target, entry.version, order)
    progress.place()
    unattended = entry.left <= 0
    if unattended:
        outcome = OrderOutcome(None, "no daemon guards it now; the order waits for one")
    else:
        outcome = _followed(progress, timeout, shown(entry.daemon), as_json=as_json)
    if as_json:
        options.print_json(
            {
                "target": progress.target,
                "order": asdict(order),
                "daemon": "" if unattended else entry.daemon,
                "reached": outcome.reached,
                "reason": outcome.reason,
                "steps": [asdict(step) for step in progress.steps],
                "state": msgspec.to_builtins(progress.state),
            }
        )
    else:
        _print_outcome(progress, outcome, placed_only=unattended or timeout is None)
    if outcome.reached is False or unattended or (outcome.reached is None and timeout is not None):
        raise click.exceptions.Exit(1)


class OrderProgress:
    """The progress of an order; ``steps`` are those since it was stored."""

    def __init__(self, book: GuardBook, target: str, version: int, order: Order) -> None:
        """``version`` is that of the guard before the order."""
        self.target = target
        self.order = order
        self.state = GuardState(target)
        self.steps: list[StepRecord] = []
        self.alone_since: float | None = None
        """Monotonic time since which no daemon guards it."""
        self._book = book
        self._version = version

    def place(self) -> None:
        """Store the order."""
        order = self.order
        self.state = self._book.change(
            self.target,
            lambda state: machine.order(
                state, order.goal, by=order.by, now=order.at, why=order.why, until=order.until
            ),
            order.at,
            by=guard_store.ACTOR,
        )

    def look(self) -> Iterator[StepRecord]:
        """Yield steps that were stored since the last look."""
        entry = self._book.look(self.target).get(self.target)
        if entry is None or entry.left <= 0:
            self.alone_since = self.alone_since or monotonic()
        else:
            self.alone_since = None
        if entry is None or entry.version == self._version:
            return
        newest = self._book.history(target=self.target, limit=_MOST_STEPS)
        new = [step for step in newest if self._version < step.version <= entry.version]
        self.state, self._version = entry.state, entry.version
        self.steps += sorted(new, key=lambda step: step.version)
        yield from self.steps[len(self.steps) - len(new) :]

    @property
    def outcome(self) -> OrderOutcome | None:
        """The outcome; None while the order is being carried out."""
        state, goal = self.state, self.order.goal
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


def _followed(
    progress: OrderProgress, timeout: float | None, daemon: str, *, as_json: bool
) -> OrderOutcome:
    """Follow the order, and print each step, for at most ``timeout`` seconds.

    Without a timeout only the first answer counts: the daemon refuses, or has begun.
    """
    end = monotonic() + (_ANSWER_SECONDS if timeout is None else timeout)
    try:
        while True:
            failure = _print_new_steps(progress, silent=as_json)
            if failure is None and progress.outcome is not None:
                return progress.outcome
            if timeout is None and progress.state.order is None:
                return OrderOutcome(None, f"{daemon} has begun")
            alone_since = progress.alone_since
            if failure is None and alone_since and monotonic() - alone_since > _ALONE_SECONDS:
                return OrderOutcome(None, f"no daemon guards it any more; {_stays(progress)}")
            if monotonic() >= end:
                break
            sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return OrderOutcome(None, f"no longer followed; {_stays(progress)}")
    if timeout is None:
        return OrderOutcome(None, f"{daemon} guards it and will do it")
    if failure is not None:
        return OrderOutcome(None, f"unknown: {failure}; {_stays(progress)}")
    return OrderOutcome(None, f"not done within {format_duration(timeout)}; {_stays(progress)}")


def _print_new_steps(progress: OrderProgress, *, silent: bool) -> StoreUnavailable | None:
    """Print new steps; returns the error if the database cannot be read, which may pass."""
    try:
        for step in progress.look():
            if not silent:
                guard_output.print_steps([step], bare=True)
    except StoreUnavailable as error:
        return error
    return None


def _stays(progress: OrderProgress) -> str:
    if progress.state.order is not None:
        return "the order stays"
    return f"the guard is {phase(progress.state.phase)}, and continues"


def _print_outcome(progress: OrderProgress, outcome: OrderOutcome, *, placed_only: bool) -> None:
    if placed_only:
        order = ordered(progress.order, guard_output.moment)
        click.echo(shown(order, LONGEST_SENTENCE))
    click.echo(f"{shown(progress.target)}: {shown(outcome.reason, LONGEST_SENTENCE)}")
    if outcome.reached is None:
        click.echo("`specwatch guard status` shows its progress")
