"""What a load needs of this process: an end that keeps what was measured, and open files."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

_Found = TypeVar("_Found")


def run(work: Coroutine[Any, Any, _Found]) -> _Found:
    """``asyncio.run`` with as many connections as may be, and a SIGTERM that does what Ctrl-C does:
    it cancels. Raises KeyboardInterrupt for work that leaves it at that.
    """
    raise_file_limit()
    return asyncio.run(_stoppable(work))


def raise_file_limit() -> None:
    """Let this process have as many open files, and so connections, as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS has no limit for a hard one, and refuses it for a soft one.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _stoppable(work: Coroutine[Any, Any, _Found]) -> _Found:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
