"""The scrapers of the configured targets; each scrapes in its own thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import structlog

from specwatch.config.target import Target
from specwatch.daemon.scraper import Scraper
from specwatch.domain.model import HOUR, Cursor, Moment
from specwatch.status import TargetStatus

_log = structlog.get_logger("specwatch.daemon.watched_targets")

_MOST_THREADS = 512
"""Threads: one for each target that is being scraped, so that a slow one delays no other."""
_SLOTS = 20
"""Scrape jobs per interval. A job of the scheduler costs as much as a scrape, so in a large fleet
many targets share one."""
_GOLDEN_RATIO = 0.618
"""Multiples of it, modulo 1, are spread evenly however many there are."""
_MOST_LEFT = 100
"""Targets that left the configuration and are kept in case they come back."""


class _Slot(NamedTuple):
    """A scrape job: the names of its targets, and what forgets it."""

    interval: float
    names: set[str]
    forget: Callable[[], None]


class WatchedTargets:
    """A scraper for each target; iterates over them as they are now."""

    def __init__(
        self, make: Callable[[Target, Cursor | None, int | None], Scraper], *, shared: bool = False
    ) -> None:
        """``make`` makes the scraper of a target from its cursor, with windows after the last one
        that was closed early; it may raise ConfigError. A target that comes back goes on as it was
        left, and where targets are ``shared``, from its cursor: others have watched it."""
        self._make = make
        self._shared = shared
        self._closed: dict[str, int | None] = {}
        """By target the start of the last window of this process."""
        self.by_name: dict[str, Scraper] = {}
        self.left: dict[str, Scraper] = {}
        """Those that left the configuration."""
        self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="scrape")
        self._waiting: set[Scraper] = set()
        self._slots: list[_Slot] = []
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
        self, targets: Sequence[Target], cursors: Mapping[str, Cursor], *, reload: bool = False
    ) -> None:
        """Watch these targets and no others; unchanged ones go on undisturbed, but for a
        ``reload`` of those whose authority is in a file.

        Raises ConfigError, and changes nothing, if one cannot be watched.
        """
        known = {**self.left, **self.by_name}
        scrapers: dict[str, Scraper] = {}
        for target in targets:
            present = self.by_name.get(target.name)
            # An authority's file may have changed where its name has not.
            reread = reload and target.ca_file is not None
            same = present is not None and present.target == target and not reread
            scrapers[target.name] = (
                present
                if present and same
                else self._make(target, _cursor_of(target, cursors), self._closed.get(target.name))
            )
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
        most_left = 0 if self._shared else max(_MOST_LEFT, just_left)
        for name in list(self.left)[: -most_left or None]:
            del self.left[name]
        self.by_name = scrapers

    def schedule(self, every: Callable[..., Callable[[], None]], *, again: bool = False) -> None:
        """Begin scrapes of targets that came with ``every``, as of
        :class:`specwatch.runtime.scheduler.Schedule`, and end those of targets that left.

        Others go on undisturbed; ``again`` says that the schedule has forgotten them.
        """
        intervals = {name: one.target.interval for name, one in self.by_name.items()}
        kept = []
        for slot in [] if again else self._slots:
            for name in [name for name in slot.names if intervals.get(name) != slot.interval]:
                slot.names.discard(name)
            if slot.names:
                kept.append(slot)
            else:
                slot.forget()
        self._slots = kept
        scheduled = {name for slot in kept for name in slot.names}
        for name, interval in intervals.items():
            if name in scheduled:
                continue
            alike = [slot for slot in self._slots if slot.interval == interval]
            if len(alike) == _SLOTS:
                min(alike, key=lambda slot: len(slot.names)).names.add(name)
                continue
            names = {name}
            delay = interval * (len(alike) * _GOLDEN_RATIO % 1)
            forget = every(interval, self._scrape, names, delay=delay)
            self._slots.append(_Slot(interval, names, forget))

    def _scrape(self, names: Collection[str]) -> None:
        """Start a scrape of each; returns at once. One that still waits for a thread skips it."""
        for scraper in filter(None, map(self.by_name.get, list(names))):
            if scraper in self._waiting:
                scraper.skip()
                continue
            self._waiting.add(scraper)
            try:
                self._pool.submit(self._turn, scraper)
            except RuntimeError as error:
                if self._ended:
                    return
                # It is queued, and taken by the next thread that is free.
                _log.error("no_thread", target=scraper.target.name, detail=str(error))

    def _turn(self, scraper: Scraper) -> None:
        self._waiting.discard(scraper)
        try:
            scraper.turn()
        except Exception:
            # A defect in the turn of one target stops no other, and is logged.
            _log.exception("turn_failed", target=scraper.target.name)

    def close(self) -> None:
        """Begin no more turns, and hand over the open windows; waits for no server."""
        self._ended = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        scrapers = list(self)
        for scraper in scrapers:
            scraper.leave()
        for scraper in scrapers:
            scraper.finish()

    def status_of(self, name: str) -> TargetStatus:
        """A target now; an empty status of one that has left the configuration."""
        scraper = self.by_name.get(name)
        return TargetStatus(name, "", 0.0) if scraper is None else scraper.status(current=False)

    def is_healthy(self, name: str) -> bool:
        """Whether a target's health check succeeds."""
        scraper = self.by_name.get(name)
        return scraper is not None and scraper.healthy()

    def resume(self, cursors: Mapping[str, Cursor]) -> None:
        """The database was away at the start: count now what happened before our first page."""
        for scraper in self:
            scraper.resume(_cursor_of(scraper.target, cursors))
        _log.info("resumed_late", targets=sorted(cursors))

    def supersede(self, cursors: Mapping[str, Cursor]) -> None:
        """Another process of our name has written: count from where it stopped."""
        for scraper in self:
            cursor = _cursor_of(scraper.target, cursors)
            if cursor is not None:
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


def _cursor_of(target: Target, cursors: Mapping[str, Cursor]) -> Cursor | None:
    """Where reading a target stopped; None if its pod was replaced since."""
    cursor = cursors.get(target.name)
    replaced = cursor is not None and target.pod is not None and target.pod.started > cursor.wall
    return None if replaced else cursor
