"""The scrapers of the configured targets, whose turns are in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from specwatch.config.target import Target
from specwatch.daemon.scraper import Scraper
from specwatch.domain.model import HOUR, Cursor, Moment
from specwatch.status import TargetStatus

_log = structlog.get_logger("specwatch.daemon.watched_targets")

_SLOTS = 20
"""Times in an interval at which scrapes begin, until targets have to share them: to wake up costs
as much as some scrapes."""
_SHARING = 10
"""Targets that share a time at most, since the last one waits for the others."""
_GOLDEN_RATIO = 0.618
"""Multiples of it, modulo 1, are spread evenly however many there are."""
_MOST_LEFT = 100
"""Targets that left the configuration and are kept in case they come back."""


@dataclass(slots=True, eq=False)
class _Slot:
    """Targets that are scraped at the same time, next at ``at`` of the loop's clock."""

    interval: float
    at: float
    scrapers: set[Scraper]


class WatchedTargets:
    """A scraper for each target; iterates over them as they are now."""

    def __init__(
        self,
        make: Callable[[Target, Cursor | None, int | None, float | None], Scraper],
        *,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """``make`` makes the scraper of a target from its cursor, with windows after the last one
        that was closed early, and since when it is watched; it may raise ConfigError. A target that
        comes back goes on as it was left. Scrapes are timed by the clock of the event loop that
        ``new_loop`` makes.
        """
        self._make = make
        self._new_loop = new_loop
        self._closed: dict[str, int | None] = {}
        """By target the start of the last window of this process."""
        self.by_name: dict[str, Scraper] = {}
        self.left: dict[str, Scraper] = {}
        """Those that left the configuration."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots: list[_Slot] = []
        self._turns: set[asyncio.Task[None]] = set()
        self._ended = self._turned = False

    def __iter__(self) -> Iterator[Scraper]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def turned(self) -> bool:
        """Whether there was a time at which each had been scraped."""
        self._turned = self._turned or all(scraper.turned for scraper in self)
        return self._turned

    def configure(
        self,
        targets: Sequence[Target],
        cursors: Mapping[str, Cursor],
        *,
        reload: bool = False,
        watched_since: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Watch these targets and no others; unchanged ones go on undisturbed, but for a
        ``reload`` of those whose authority is in a file. ``watched_since`` has, of those that were
        found, since when their source is read (Unix time).

        Raises ConfigError, and changes nothing, if one cannot be watched.
        """
        known = {**self.left, **self.by_name}
        scrapers: dict[str, Scraper] = {}
        for target in targets:
            present = self.by_name.get(target.name)
            # An authority's file may have changed where its name has not.
            reread = reload and target.ca_file is not None
            if present is not None and present.target == target and not reread:
                scrapers[target.name] = present
                continue
            cursor = cursors.get(target.name)
            since = watched_since.get(target.name)
            if cursor is not None and _was_replaced(target, cursor):
                since = cursor.wall
                cursor = None
            closed = self._closed.get(target.name)
            scrapers[target.name] = self._make(target, cursor, closed, since)
        for name, scraper in self.by_name.items():
            if name not in scrapers:
                self._closed[name] = scraper.finish()
                self.left[name] = scraper
            elif scrapers[name] is not scraper:
                scraper.leave()
        for name, scraper in scrapers.items():
            if name in known and known[name] is not scraper:
                scraper.adopt(known[name])
                self.left.pop(name, None)
        oldest = max(filter(None, self._closed.values()), default=0) - HOUR
        self._closed = {name: t for name, t in self._closed.items() if t and t >= oldest}
        # All that left just now: a source may list nothing for a moment.
        just_left = len(self.by_name.keys() - scrapers.keys())
        for name in list(self.left)[: -max(_MOST_LEFT, just_left)]:
            del self.left[name]
        self.by_name = scrapers

    def schedule(self) -> None:
        """Begin scrapes of targets that came, and end those of targets that left.

        Others go on undisturbed.
        """
        if self._ended:
            return
        if self._loop is None:
            self._loop = self._new_loop()
            threading.Thread(target=_run, args=(self._loop,), name="scrape", daemon=True).start()
        self._loop.call_soon_threadsafe(self._set_slots, self._loop, list(self))

    @property
    def silent(self) -> float:
        """Seconds by which scrapes are late that the event loop has not begun."""
        loop, slots = self._loop, self._slots
        if loop is None or not slots:
            return 0.0
        return max(0.0, loop.time() - min(slot.at for slot in slots))

    def _set_slots(self, loop: asyncio.AbstractEventLoop, scrapers: Sequence[Scraper]) -> None:
        new = set(scrapers)
        for slot in self._slots:
            slot.scrapers.intersection_update(scrapers)
            new -= slot.scrapers
        self._slots = [slot for slot in self._slots if slot.scrapers]
        for scraper in filter(new.__contains__, scrapers):
            interval = scraper.target.interval
            alike = [slot for slot in self._slots if slot.interval == interval]
            emptiest = min(alike, key=lambda slot: len(slot.scrapers), default=None)
            if emptiest and len(alike) >= _SLOTS and len(emptiest.scrapers) < _SHARING:
                emptiest.scrapers.add(scraper)
                continue
            delay = interval * (len(alike) * _GOLDEN_RATIO % 1)
            slot = _Slot(interval, loop.time() + delay, {scraper})
            self._slots.append(slot)
            loop.call_at(slot.at, self._scrape, loop, slot)

    def _scrape(self, loop: asyncio.AbstractEventLoop, slot: _Slot) -> None:
        """Begin the turns of a slot, and set its next time; those that were missed are skipped."""
        if self._ended or not slot.scrapers:
            return
        slot.at += slot.interval * (1 + max(0.0, loop.time() - slot.at) // slot.interval)
        loop.call_at(slot.at, self._scrape, loop, slot)
        for scraper in slot.scrapers:
            turn = loop.create_task(_turn(scraper))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    def close(self) -> None:
        """Begin no more turns, and hand over the open windows; waits for no server."""
        self._ended = True
        scrapers = list(self)
        for scraper in scrapers:
            scraper.leave()
        for scraper in scrapers:
            scraper.finish()
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(loop), loop)

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        await asyncio.gather(*self._turns, return_exceptions=True)
        await asyncio.sleep(0)  # until the connections are closed
        loop.stop()

    def status_of(self, name: str) -> TargetStatus:
        """A target now; an empty status of one that has left the configuration."""
        scraper = self.by_name.get(name)
        return TargetStatus(name, "", 0.0) if scraper is None else scraper.status(current=False)

    def shown(self, name: str) -> TargetStatus:
        """As :meth:`status_of`, but only what its last page shows."""
        scraper = self.by_name.get(name)
        return TargetStatus(name, "", 0.0) if scraper is None else scraper.shown

    def is_healthy(self, name: str) -> bool:
        """Whether a target's health check succeeds."""
        scraper = self.by_name.get(name)
        return scraper is not None and scraper.healthy()

    def resume(self, cursors: Mapping[str, Cursor]) -> None:
        """The database was away at the start: count now what happened before our first page."""
        for scraper in self:
            cursor = cursors.get(scraper.target.name)
            replaced = cursor is not None and _was_replaced(scraper.target, cursor)
            scraper.resume(None if replaced else cursor)
        _log.info("resumed_late", targets=sorted(cursors))

    def supersede(self, cursors: Mapping[str, Cursor]) -> None:
        """Another process of our name has written: count from where it stopped."""
        for scraper in self:
            cursor = cursors.get(scraper.target.name)
            if cursor is not None and not _was_replaced(scraper.target, cursor):
                scraper.supersede(cursor)

    def sentence(self, now: Moment) -> str:
        """``Watching 3 targets, 1 failing (chat)``."""
        scrapers, stuck = list(self), self.stuck(now)
        failing = [scraper.target.name for scraper in scrapers if scraper.failing]
        message = f"Watching {len(scrapers)} target{'s' if len(scrapers) != 1 else ''}"
        if failing:
            message += f", {len(failing)} failing ({', '.join(failing[:3])})"
        if stuck:
            message += f", {len(stuck)} stuck"
        return message

    def stuck(self, now: Moment) -> tuple[str, ...]:
        """Names of targets whose last scrape does not end."""
        return tuple(scraper.target.name for scraper in self if scraper.stuck(now))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _turn(scraper: Scraper) -> None:
    try:
        await scraper.turn()
    except Exception:
        # A defect in the turn of one target stops no other, and is logged.
        _log.exception("turn_failed", target=scraper.target.name)


def _was_replaced(target: Target, cursor: Cursor) -> bool:
    """Whether the pod of a target was replaced since its cursor."""
    return target.pod is not None and target.pod.started > cursor.wall
