"""A connection to Postgres that does not wait without limit for a server that hangs.

Timeouts of the server end nothing while its processes are frozen, and its kernel still acknowledges
what is sent, so that ``tcp_user_timeout`` and keepalives do not help.
"""

from __future__ import annotations

import select
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

Result = TypeVar("Result")

SILENT_SECONDS = 10.0
"""Seconds without an answer after which a connection is given up: more than twice those after which
the server ends a statement."""


class BoundedConnection(psycopg.Connection[Any]):
    """Fails, and is closed, when the server says nothing for :data:`SILENT_SECONDS`."""

    def wait(self, gen: PQGen[Result], *_: Any, **__: Any) -> Result:
        """As that of psycopg, which has no limit."""
        poll = select.poll()
        try:
            wanted = next(gen)
            poll.register(self.pgconn.socket)
            while True:
                mask = select.POLLIN if wanted & Wait.R else 0
                mask |= select.POLLOUT if wanted & Wait.W else 0
                poll.modify(self.pgconn.socket, mask)
                events = poll.poll(SILENT_SECONDS * 1000)
                if not events:
                    gen.close()
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"the server hangs: it did not answer for {SILENT_SECONDS:.0f} s"
                    )
                event = events[0][1]
                # A broken connection can be read: that says why.
                readable = Ready.R if event & ~select.POLLOUT else 0
                writable = Ready.W if event & select.POLLOUT else 0
                wanted = gen.send(Ready(readable | writable))
        except StopIteration as ended:
            result: Result = ended.value
            return result
