"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.1


def eventually(
    look: Callable[[], T | None],
    *,
    what: str,
    within: float,
    every: float = POLL_SECONDS,
    evidence: Callable[[], object] = lambda: "",
) -> T:
    """The first answer of ``look`` that is true; fails after ``within`` seconds, with ``what`` and
    the evidence."""
    deadline = time.monotonic() + within
    while not (found := look()):
        if time.monotonic() >= deadline:
            told = f"not within {within:g} s: {what} (last: {found!r}) {evidence()}"
            raise AssertionError(told.rstrip())
        time.sleep(every)
    return found


def next_minute(wall: float) -> int:
    """The Unix time of the first whole minute after ``wall``."""
    return int(wall // 60) * 60 + 60


def sleep_until(wall: float) -> None:
    """Return at that Unix time."""
    while (left := wall - time.time()) > 0:
        time.sleep(min(left, 1.0))
