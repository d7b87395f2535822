"""A running daemon as its HTTP API shows it, and waiting for what it shows."""

from __future__ import annotations

import abc
import http.client
import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.e2e.waiting import eventually
from tests.e2e.witness import Counts, counted, running
from tests.lab.http_get import page


class DaemonApi(abc.ABC):
    """A running daemon."""

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Base URL of its HTTP server."""

    @abc.abstractmethod
    def log_text(self) -> str:
        """What it logged."""

    def metrics(self) -> str:
        """Its own metrics page."""
        return page(self.url + "/metrics")

    def status(self) -> dict[str, Any]:
        """The answer of ``/api/v1/targets``."""
        status: dict[str, Any] = json.loads(page(self.url + "/api/v1/targets"))
        return status

    def wait(
        self, true: Callable[[dict[str, Any]], bool], *, what: str, within: float = 120.0
    ) -> dict[str, Any]:
        """The first status for which ``true`` returns true."""
        last: dict[str, Any] = {}

        def look() -> dict[str, Any] | None:
            last.clear()
            try:
                last.update(self.status())
            except (OSError, http.client.HTTPException) as error:
                last["no answer"] = str(error)  # it is being started again
                return None
            return last if true(last) else None

        try:
            return eventually(look, what=what, within=within, every=0.2)
        except AssertionError as error:
            raise AssertionError(f"{error}\nstatus: {last}\nlog:\n{self.log_text()}") from None

    def wait_scraped(self, after: float) -> None:
        """Return once every target was read by a scrape that ended after this Unix time."""
        self.wait(
            lambda status: all((t["last_success"] or 0) > after for t in status["targets"]),
            what="every target is scraped",
        )

    def wait_written(self, after: float) -> None:
        """Return once windows were written after this Unix time and none is queued."""
        self.wait(
            lambda status: (
                (status["store"]["last_write"] or 0) > after and not status["store"]["queued"]
            ),
            what="windows are written",
            within=240.0,
        )


def settled(metrics: Callable[[], str], daemons: Iterable[DaemonApi]) -> Counts:
    """What a server has counted, once it is idle and every daemon has scraped that."""
    seen: list[Counts] = []

    def still() -> bool:
        page = metrics()
        seen.append(counted(page))
        return not running(page) and seen[-2:-1] == seen[-1:]

    eventually(still, what="the server is idle", within=240, every=0.5)
    idle = time.time()
    for daemon in daemons:
        daemon.wait_scraped(idle)
    return seen[-1]
