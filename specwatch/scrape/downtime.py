"""How long an engine did not answer. All times are seconds of the monotonic clock."""

from __future__ import annotations


class Downtime:
    """The time without an answer between an engine's pages, and how much of it counts as down.

    ``max_gap`` is the longest time over which nothing is lost: a shorter silence is not downtime.
    After a longer time without a scrape it is unknown whether the engine ran.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        """Seconds counted as down since the last good page."""
        self._last_try: float | None = None
        self._silent_since: float | None = None
        self._counted_until = 0.0

    def until_last_try(self) -> float:
        """Count the silence up to the last scrape; returns the seconds added."""
        return 0.0 if self._last_try is None else self._count(self._last_try)

    def fail(self, now: float, max_gap: float, *, silent: bool) -> float:
        """A scrape failed, ``silent`` if unanswered; returns the seconds of downtime to add."""
        added = 0.0
        untried = self._untried(now, max_gap)
        if untried:
            self._silent_since = None
        elif self._is_down(now, max_gap):
            added = self._count(now)
        if not silent:
            self._silent_since = None
        elif self._silent_since is None:
            begun = now if self._last_try is None or untried else self._last_try
            self._silent_since = self._counted_until = begun
        self._last_try = now
        return added

    def until_page(self, now: float, max_gap: float, *, restarted: bool) -> float:
        """A page came, after a restart if ``restarted``; returns the seconds of downtime to add."""
        if self._untried(now, max_gap) or not (restarted or self._is_down(now, max_gap)):
            return 0.0
        return self._count(now)

    def end(self, now: float) -> None:
        """Start again from zero after a page."""
        self._last_try, self._silent_since, self.seconds = now, None, 0.0

    def _untried(self, now: float, max_gap: float) -> bool:
        """Whether specwatch itself did not scrape for long."""
        return self._last_try is not None and now - self._last_try > max_gap

    def _is_down(self, now: float, max_gap: float) -> bool:
        return self._silent_since is not None and now - self._silent_since > max_gap

    def _count(self, until: float) -> float:
        if self._silent_since is None:
            return 0.0
        added = until - self._counted_until
        self.seconds += added
        self._counted_until = until
        return added
