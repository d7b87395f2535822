"""A running daemon as its HTTP surface shows it, and waiting for what it shows."""

from __future__ import annotations

import abc
import http.client
import json
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.waiting import eventually
from tests.e2e.witness import Counts, counted, running


def get(url: str) -> tuple[int, str]:
    """Status and body of a GET."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    try:
        connection.request("GET", f"{place.path}?{place.query}" if place.query else place.path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class DaemonApi(abc.ABC):
    """A daemon that somebody started somewhere."""

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where it serves."""

    @abc.abstractmethod
    def log_text(self) -> str:
        """What it logged."""

    def page(self) -> str:
        """Its own metrics page."""
        status, body = get(self.url + "/metrics")
        assert status == 200, body
        return body

    def status(self) -> dict[str, Any]:
        """What ``/api/v1/targets`` says."""
        code, body = get(self.url + "/api/v1/targets")
        assert code == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def wait(
        self, true: Callable[[dict[str, Any]], bool], *, what: str, within: float = 120.0
    ) -> dict[str, Any]:
        """The first status for which something is true."""
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

    def wait_written(self, after: float, within: float = 240.0) -> None:
        """Return once something was written after this Unix time and nothing waits."""
        self.wait(
            lambda status: (
                (status["store"]["last_write"] or 0) > after and not status["store"]["queued"]
            ),
            what="windows are written",
            within=within,
        )


def settled(metrics: Callable[[], str], daemons: Iterable[DaemonApi]) -> Counts:
    """What a server has counted, once it is idle and every daemon has seen that."""
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
