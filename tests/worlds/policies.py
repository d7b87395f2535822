"""The field's simpler policies, on the same pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from specwatch.scrape import tally
from specwatch.scrape.exposition import PageReader
from tests.worlds.life import Policy, Server

REARM = 6 * 3600.0


class AlwaysOn:
    """Never touches it."""

    name = "always-on"

    def step(self, server: Server) -> None:
        """Nothing."""

    def end(self) -> dict[str, Any]:
        return {"final_state": "on"}


class AlwaysOff:
    """Switches it off at once, and after every deploy."""

    name = "always-off"

    def step(self, server: Server) -> None:
        if server.speculating:
            server.restart(speculation=False)

    def end(self) -> dict[str, Any]:
        return {"final_state": "off"}


class _OfCounters:
    """Adds up drafts, draft tokens, accepted tokens and finished requests from page to page."""

    def __init__(self) -> None:
        self._reader = PageReader()
        self._before: tuple[float, ...] | None = None
        self._off_since: float | None = None

    def news(self, server: Server) -> tuple[float, ...] | None:
        """What was counted since the last page; None where there is nothing to compare."""
        if server.page is None:
            return None
        samples = self._reader.read(server.page.encode())
        counted = tally.tally_of(next(iter(tally.parts_of(samples).models.values())), [])
        if counted.drafts is None:
            self._before = None
            return None
        now = (
            float(counted.drafts),
            float(counted.draft_tokens or 0),
            float(counted.accepted_tokens or 0),
            float(sum(counted.requests.values())),
        )
        before, self._before = self._before, now
        if before is None or now[0] < before[0]:
            return None
        return tuple(b - a for a, b in zip(before, now, strict=True))


class Threshold(_OfCounters):
    """Off where less than half of the draft is accepted over 10 minutes; tried again after 6 h."""

    name = "threshold-0.5"

    def __init__(self) -> None:
        super().__init__()
        self._recent: deque[tuple[float, float, float]] = deque()

    def step(self, server: Server) -> None:
        news = self.news(server)
        if server.speculating is False:
            self._recent.clear()
            if self._off_since is None:
                self._off_since = server.now
            if server.now - self._off_since >= REARM:
                self._off_since = None
                server.restart(speculation=True)
            return
        self._off_since = None
        if news is None:
            return
        self._recent.append((server.now, news[1], news[2]))
        full = self._recent[0][0] <= server.now - 600
        while self._recent[0][0] < server.now - 600:
            self._recent.popleft()
        drafted, accepted = (sum(row[column] for row in self._recent) for column in (1, 2))
        if full and drafted and accepted / drafted < 0.5:
            self._recent.clear()
            server.restart(speculation=False)

    def end(self) -> dict[str, Any]:
        return {"final_state": "on" if self._off_since is None else "off"}


class Gate(_OfCounters):
    """Off permanently when the mean accepted length over 100 requests is below a threshold.

    As the SpeculationGate of TensorRT-LLM: a rolling mean over completed requests, and no way back
    but a new process.
    """

    name = "gate"
    window, threshold = 100.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self._recent: deque[tuple[float, float, float]] = deque()
        self._off = False

    def step(self, server: Server) -> None:
        news = self.news(server)
        if server.speculating is False:
            self._recent.clear()
        if news is None:
            return
        self._recent.append((news[3], news[0], news[2]))
        while sum(row[0] for row in self._recent) - self._recent[0][0] >= self.window:
            self._recent.popleft()
        requests, drafts, accepted = (
            sum(row[column] for row in self._recent) for column in (0, 1, 2)
        )
        if requests >= self.window and drafts and accepted / drafts < self.threshold:
            self._recent.clear()
            self._off = True
            server.restart(speculation=False)

    def end(self) -> dict[str, Any]:
        return {"final_state": "off" if self._off else "on"}


SIMPLE: Mapping[str, Callable[[], Policy]] = {
    "always-on": AlwaysOn,
    "always-off": AlwaysOff,
    "threshold-0.5": Threshold,
    "gate": Gate,
}
"""By name."""
