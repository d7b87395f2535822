"""Calls one function with many items on several processors."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from specwatch.errors import SpecwatchError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST = 4
"""Processes at most, so that the server on the same machine is not slowed down."""
_LEAST_ITEMS = 4
"""Items for each process: to start one for fewer takes longer than it saves."""


_PR_SET_PDEATHSIG = 1
"""See prctl(2)."""


class WorkerLostError(SpecwatchError):
    """A worker process was killed, most likely by a lack of memory."""


@contextmanager
def spread(
    function: Callable[[_Item], _Result], items: Sequence[_Item], prepare: Callable[[], None]
) -> Iterator[Iterator[_Result]]:
    """The results of the function for the items, in their order, as they become available.

    With many items, the work is done by copies of this process; ``prepare`` is called before,
    and closes what is not to be copied. Not where other threads run, whose locks a copy would find
    as they are at that moment, nor where no process can be started. What the function raises is
    raised here. Raises WorkerLostError where a copy ends before its work.
    """
    count = min(_MOST, _processors(), len(items) // _LEAST_ITEMS)
    if count < 2 or threading.active_count() > 1:
        yield map(function, items)
        return
    prepare()
    with ExitStack() as stack:
        results: list[Connection] = []
        try:
            for first in range(count):
                _start(function, items[first::count], results, stack)
        except OSError:  # too many processes or files
            stack.close()
            yield map(function, items)
            return
        yield (_received(results[index % count]) for index in range(len(items)))


def _start(
    function: Callable[[_Item], Any],
    items: Sequence[_Item],
    results: list[Connection],
    stack: ExitStack,
) -> None:
    """Start a process whose results come through one more connection; the stack ends it."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    results.append(stack.enter_context(closing(receiver)))
    with closing(sender):
        worker = context.Process(
            target=_work, args=(function, items, sender, results, os.getpid()), daemon=True
        )
        worker.start()
    stack.callback(worker.join)
    stack.callback(worker.kill)


def _processors() -> int:
    """Processors that this process may use; one on systems where forking is unsafe."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _work(
    function: Callable[[_Item], Any],
    items: Iterable[_Item],
    sender: Connection,
    receivers: Iterable[Connection],
    asking: int,
) -> None:
    """Send the result of each item, or the error that it raised, which ends the work."""
    # It ends with the process that asks, and with it what both have open: a lock of a file, too.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != asking:
        return
    for receiver in receivers:
        receiver.close()
    try:
        for item in items:
            sender.send((function(item), None))
    except SpecwatchError as error:
        sender.send((None, error))
    except (BrokenPipeError, KeyboardInterrupt):
        return  # the parent has stopped reading


def _received(receiver: Connection) -> Any:
    try:
        result, error = receiver.recv()
    except EOFError as ended:
        raise WorkerLostError(
            "a process that made a part of the report was killed or failed: expected its part;"
            " see above, or whether the memory ran out (journalctl -k)"
        ) from ended
    if error is not None:
        raise error
    return result
