"""What a load needs of this process: an end that keeps what was measured, and open files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Self, TypeVar

_Found = TypeVar("_Found")

_ENDS = (signal.SIGINT, signal.SIGTERM)
_HEARD = 2
"""Signals that lose nothing of what was measured: the next ends this process at once."""
_KEPT = ("what was measured is kept", "Ctrl-C once more ends at once, without it")
_NOTHING = ("nothing is stored", "Ctrl-C once more ends at once")


class Ending:
    """Ctrl-C and SIGTERM, from the work on until what it found is kept; a context manager.

    The first two cancel the work, which keeps what it has, and are put off where there is none
    (any more); work that begins after one is cancelled at once. The third raises
    KeyboardInterrupt.
    """

    def __init__(self, said: tuple[str, str] = _KEPT) -> None:
        """``said`` is what becomes of what was measured, and what the third signal does to it."""
        self._said = said
        self._count = 0
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for each in _ENDS:
            # A job in the background of a shell is not for Ctrl-C to end.
            if signal.getsignal(each) is not signal.SIG_IGN:
                self._before[each] = signal.signal(each, self._heard) or signal.SIG_DFL
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def run(self, work: Coroutine[Any, Any, _Found]) -> _Found:
        """``asyncio.run`` with as many connections as may be. Raises KeyboardInterrupt for work
        that leaves it at being cancelled."""
        raise_file_limit()
        return asyncio.run(self._stoppable(work))

    async def _stoppable(self, work: Coroutine[Any, Any, _Found]) -> _Found:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        # Of a signal alone the loop does not wake up.
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        if self._count:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            self._cancel = None

    def _heard(self, _: int, __: FrameType | None) -> None:
        self._count += 1
        if self._count > _HEARD:
            raise KeyboardInterrupt
        if self._cancel is not None:
            self._cancel()
        last = self._count == _HEARD
        if self._cancel is None or last:
            text = "; ".join(self._said if last else self._said[:1])
            # No print: this may be amid one.
            with contextlib.suppress(OSError):
                os.write(2, f"\nending: {text}\n".encode())


def run(work: Coroutine[Any, Any, _Found]) -> _Found:
    """Do work of which nothing has to be kept after it. Raises as :meth:`Ending.run`."""
    with Ending(_NOTHING) as ending:
        return ending.run(work)


def raise_file_limit() -> None:
    """Let this process have as many open files, and so connections, as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS has no limit for a hard one, and refuses it for a soft one.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
