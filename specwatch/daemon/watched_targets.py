"""The scrapers of the configured targets; each scrapes in its own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from specwatch.config.target import Target
from specwatch.daemon.scraper import Scraper
from specwatch.domain.model import Cursor, Moment
from specwatch.status import TargetStatus

_log = structlog.get_logger("specwatch.daemon.watched_targets")

_MOST_THREADS = 512
"""Threads: one for each target that is being scraped, so that a slow one delays no other."""
_MOST_LEFT = 100
"""Targets that left the configuration and are kept in case they come back."""


class WatchedTargets:
    """A scraper for each target; iterates over them as they are now."""

    def __init__(self, make: Callable[[Target, Cursor | None], Scraper]) -> None:
        """``make`` makes the scraper of a target, and may raise ConfigError."""
        self._make = make
        self.by_name: dict[str, Scraper] = {}
        self.left: dict[str, Scraper] = {}
        """Those that left the configuration."""
        self._pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="scrape")
        self._waiting: set[Scraper] = set()
        self._ended = False

    def __iter__(self) -> Iterator[Scraper]:
        return iter(list(self.by_name.values()))

    def __len__(self) -> int:
        return len(self.by_name)

    def configure(self, targets: Sequence[Target], cursors: Mapping[str, Cursor]) -> None:
        """Watch these targets and no others; unchanged ones go on undisturbed.

        Raises ConfigError, and changes nothing, if one cannot be watched.
        """
        known = {**self.left, **self.by_name}
        scrapers: dict[str, Scraper] = {}
        for target in targets:
            present = self.by_name.get(target.name)
            # An authority's file may have changed where its name has not.
            same = present is not None and present.target == target and target.ca_file is None
            scrapers[target.name] = (
                present if present and same else self._make(target, cursors.get(target.name))
            )
        for name, scraper in self.by_name.items():
            if name not in scrapers:
                scraper.finish()
                self.left[name] = scraper
            elif scrapers[name] is not scraper:
                scraper.leave()
        for name, scraper in scrapers.items():
            if name in known and known[name] is not scraper:
                scraper.adopt(known[name])
                self.left.pop(name, None)
        self.left = dict(list(self.left.items())[-_MOST_LEFT:])
        self.by_name = scrapers

    def scrape(self, scrapers: Sequence[Scraper]) -> None:
        """Start a scrape of each; returns at once. One that still waits for a thread skips it."""
        for scraper in scrapers:
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
            scraper.resume(cursors.get(scraper.target.name))
        _log.info("resumed_late", targets=sorted(cursors))

    def supersede(self, cursors: Mapping[str, Cursor]) -> None:
        """Another process of our name has written: count from where it stopped."""
        for scraper in self:
            if scraper.target.name in cursors:
                scraper.supersede(cursors[scraper.target.name])

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
