"""Follows the orders in a directory, in the process of the engine.

A thread looks for a new order ten times a second, so that a step of the engine costs nothing more
and leases end on an idle server too. Whatever cannot be read or followed means the launch mode.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from specwatch_tap import switch_files
from specwatch_tap.orders import (
    LARGEST_JUMP,
    LOCK_FILE,
    ORDER_FILE,
    STATE_FILE,
    Order,
    Schedule,
    SwitchState,
    decode,
    encode,
    objection,
)

_SECONDS = 0.1
"""Between two looks."""
_log = logging.getLogger("specwatch_tap")


def schedule_of(lookup: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """A list of draft tokens by number of requests, from 1, as first numbers of their ranges."""
    return tuple(
        (first, lookup[first])
        for first in range(1, len(lookup))
        if first == 1 or lookup[first] != lookup[first - 1]
    )


def lookup_of(schedule: Schedule, length: int) -> list[int]:
    """Draft tokens by number of requests, from 0: each range goes on until the next one begins."""
    lookup = [0] * length
    for first, _, draft_tokens in schedule:
        lookup[first:] = [draft_tokens] * len(lookup[first:])
    return lookup


class Switch:
    """The switch of one engine; :meth:`start` begins to follow orders."""

    def __init__(
        self,
        directory: Path,
        launch: SwitchState,
        use: Callable[[int | Schedule | None], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``launch`` says what the server was launched with; ``use`` is called with the number of
        draft tokens from now on, or their schedule, None for the launch mode."""
        server = secrets.token_hex(8)
        self.state = msgspec.structs.replace(launch, server=server, schedules=True)
        self._directory = directory
        self._use = use
        self._monotonic = monotonic
        self._wall = wall
        self._lock: int | None = None
        """The descriptor of the locked file, once the directory is ours."""
        self._written: SwitchState | None = None
        self._seen: tuple[int, ...] | None = None
        self._ends: float | None = None
        """When the lease ends, on the monotonic clock."""
        self._problem = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="specwatch-switch", daemon=True)

    def start(self) -> None:
        """Look for orders from now on, until :meth:`stop` or the end of the process."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no more orders, and leave the directory to others."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.turn()
            self._stopping.wait(_SECONDS)

    def turn(self) -> None:
        """Look once: follow a new order, end one whose lease is over, write the state."""
        try:
            if self._lock is None:
                self._take_directory()
            self._look()
            self._end_lease()
            if self.state != self._written:
                self._write_state()
            self._problem = ""
        except Exception as error:  # vLLM goes on as it was launched
            self._launch_mode("")
            # The name of a temporary file, which an OSError has, is another one each time.
            problem = getattr(error, "strerror", None) or str(error)
            if problem != self._problem:
                self._problem = problem
                _log.error("the switch in %s cannot be used: %s", self._directory, problem)

    def _write_state(self) -> None:
        """Write the state; none stays that is not true, if the disk is full."""
        file = self._directory / STATE_FILE
        try:
            switch_files.write(file, encode(self.state))
        except OSError:
            self._written = None
            file.unlink(missing_ok=True)
            raise
        self._written = self.state

    def _take_directory(self) -> None:
        """Take the directory for this process; an order that is there already is not followed."""
        switch_files.check_directory(self._directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self._directory / LOCK_FILE, flags, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise OSError("another vLLM uses this directory; give each its own") from None
        self._seen = self._signature()
        self._lock = lock

    def _signature(self) -> tuple[int, ...] | None:
        """What changes with each order; None without one."""
        try:
            status = (self._directory / ORDER_FILE).lstat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode

    def _look(self) -> None:
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        if signature is None:
            self._launch_mode("")
            return
        try:
            switch_files.check_directory(self._directory)
            order = decode(switch_files.read(self._directory / ORDER_FILE), Order)
        except FileNotFoundError:  # replaced just now: seen at the next look
            self._seen = None
            return
        except (OSError, ValueError) as error:
            self._launch_mode(f"it cannot be read: {error}")
            return
        self._follow(order)

    def _follow(self, order: Order) -> None:
        refused = objection(order, self.state)
        if refused and order.server == self.state.server and order.number <= self.state.number:
            # Sent twice, or two came at once: the first one holds.
            self.state = msgspec.structs.replace(self.state, refused=refused)
            return
        if refused:
            self._launch_mode(refused)
            if order.server == self.state.server and order.number <= (
                self.state.number + LARGEST_JUMP
            ):
                self.state = msgspec.structs.replace(self.state, number=order.number)
            return
        ordered = order.schedule or order.draft_tokens
        if ordered != self.state.ordered:
            self._use(ordered)
            _log.info("switched to %s draft tokens by %s", ordered, order.by or "order")
        launch = ordered is None
        self._ends = None if launch else self._monotonic() + order.lease
        self.state = msgspec.structs.replace(
            self.state,
            draft_tokens=order.draft_tokens,
            schedule=order.schedule,
            number=order.number,
            by=order.by,
            until=None if launch else self._wall() + order.lease,
            refused="",
        )

    def _end_lease(self) -> None:
        if self._ends is not None and self._monotonic() >= self._ends:
            self._launch_mode("")

    def _launch_mode(self, refused: str) -> None:
        if self.state.ordered is not None:
            self._use(None)
            _log.info("back to the launch's %s draft tokens", self.state.launch_draft_tokens)
        self._ends = None
        self.state = msgspec.structs.replace(
            self.state,
            draft_tokens=None,
            schedule=(),
            by="",
            until=None,
            refused=refused[:500],
        )
