"""One function of many things, called on several processors."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from specwatch.errors import SpecwatchError

_Item = TypeVar("_Item")
_Found = TypeVar("_Found")

_MOST = 4
"""Processes: what is served beside them is not to wait for long."""
_LEAST_ITEMS = 4
"""Things for each process: starting one for less takes longer than it saves."""


class WorkerLostError(SpecwatchError):
    """A process ended in the middle: killed, mostly for want of memory."""


@contextmanager
def spread(
    function: Callable[[_Item], _Found], items: Sequence[_Item], begin: Callable[[], None]
) -> Iterator[Iterator[_Found]]:
    """What the function makes of each item, in their order, as it is made.

    Where there are many, the work is done by copies of this process, which call ``begin`` first;
    not where other threads run, whose locks a copy would find as they are at that moment. What the
    function raises is raised here. Raises WorkerLostError where a copy ends before its work.
    """
    count = min(_MOST, _processors(), len(items) // _LEAST_ITEMS)
    if count < 2 or threading.active_count() > 1:
        yield map(function, items)
        return
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        results: list[Connection] = []
        for at in range(count):
            receiver, sender = context.Pipe(duplex=False)
            results.append(stack.enter_context(closing(receiver)))
            worker = context.Process(
                target=_work, args=(function, items[at::count], begin, sender, results), daemon=True
            )
            with closing(sender):
                worker.start()
            stack.callback(worker.join)
            stack.callback(worker.kill)
        yield (_received(results[at % count]) for at in range(len(items)))


def _processors() -> int:
    """Those that this process may use; one where copies of processes are not sound."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _work(
    function: Callable[[_Item], Any],
    items: Iterable[_Item],
    begin: Callable[[], None],
    sender: Connection,
    receivers: Iterable[Connection],
) -> None:
    """Send what is made of each item, or what was raised instead, after which there is no more."""
    for each in receivers:  # or nobody would notice that the process that asks has ended
        each.close()
    begin()
    try:
        for item in items:
            sender.send((function(item), None))
    except SpecwatchError as error:
        sender.send((None, error))
    except (BrokenPipeError, KeyboardInterrupt):
        return  # nobody asks any more


def _received(receiver: Connection) -> Any:
    try:
        found, error = receiver.recv()
    except EOFError as ended:
        raise WorkerLostError(
            "a process that made a part of the report was killed or failed: expected its part;"
            " see above, or whether the memory ran out (journalctl -k)"
        ) from ended
    if error is not None:
        raise error
    return found
