"""Counting from a cursor that is read only after the first pages.

A daemon begins to watch while its database is away. Once the database is back, it has the cursor
at which the daemon's previous process stopped.
"""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import Cursor, Series
from specwatch.engines.families import GAUGES
from specwatch.scrape.counters import CounterTracker
from specwatch.scrape.open_window import OpenWindow


class FirstPages:
    """The first pages of the engine and of its proxy, None before they are read."""

    def __init__(self) -> None:
        self.engine: tuple[Mapping[Series, float], float] | None = None
        """With its Unix time."""
        self.proxy: Mapping[Series, float] | None = None

    def count_since(self, cursor: Cursor, window: OpenWindow) -> None:
        """Add what was counted between ``cursor`` and these pages to ``window``."""
        if self.engine is None:
            return
        page, wall = self.engine
        increments, restarted = CounterTracker(cursor.samples, cursor.process_start).advance(page)
        window.restarts += restarted
        window.observed_seconds += max(0.0, wall - cursor.wall)
        before = OpenWindow(window.start)
        before.add(increments, tapped=True)
        window.engine.add_ended(before.engine.tallies(_counters(page), []))
        window.inside.add_ended(before.inside.tallies(_counters(page), []))
        if cursor.proxy is not None and self.proxy is not None:
            increments, restarted = CounterTracker(*cursor.proxy).advance(self.proxy)
            window.proxy_restarts += restarted
            before.proxy.add(increments)
            window.proxy.add_ended(before.proxy.tallies(_counters(self.proxy), []))


def _counters(page: Mapping[Series, float]) -> dict[Series, float]:
    return {series: 0.0 for series in page if series.quantity not in GAUGES}
