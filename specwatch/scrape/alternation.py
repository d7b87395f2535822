"""Whether several servers answer in turn, by pages that do not say when their process started."""

from __future__ import annotations

from collections.abc import Mapping

from specwatch.domain.model import Series
from specwatch.engines.sample_names import GAUGES
from specwatch.scrape.counters import increments_of

DOUBT_SECONDS = 60.0
"""After counters fell, for which it is not certain yet that this was a restart."""
_REMEMBERED_SECONDS = 600.0
_MOST_SERVERS = 16
_CLOSER = 0.1
"""A page is of an earlier server that has counted so much less than it would have since the last
page. Where several servers are known to answer, it is of the one that has counted least."""

Counts = Mapping[Series, float]


class Alternation:
    """Watches the counters of one URL.

    After a restart counters fall, once, and count on from there. Behind a load balancer they fall
    when a server answers that has counted less, jump when the other one does, and fall again to
    where they had been. So what is counted in the first minute, and in the minute after a fall, is
    held back: it is dropped if they fall to the counters of an earlier page, and counted after that
    minute.
    """

    def __init__(self) -> None:
        self._earlier: list[Counts] = []
        """The last counters of servers after which another one, or another process, answered."""
        self._fell_at = self._alternated_at = float("-inf")
        self._held: dict[Series, float] = {}
        self._begun = False

    def is_another(self, last: Counts | None, page: Counts, now: float) -> bool:
        """Whether a page at ``now`` (monotonic) is of another server than the one before.

        Nothing of it was counted since that page.
        """
        if not self._begun:
            self._begun = True
            self._fell_at = now
        if last is None:
            return False
        counters = {one: value for one, value in page.items() if one.quantity not in GAUGES}
        since_last = increments_of(counters, last)
        if since_last is None:
            return self._fell(last, counters, now)
        closer = 1.0 if self._alternates(now) else _CLOSER
        known = self._closest(counters, closer * _size(since_last), now)
        if known is None:
            return False
        self._earlier[known] = last
        self._fell_at = now
        return self._alternates(now)

    def counted(self, increments: Counts, now: float) -> Counts:
        """What can be counted of the increments of a page, with what was held back before."""
        if now - self._fell_at < DOUBT_SECONDS:
            for series, increment in increments.items():
                self._held[series] = self._held.get(series, 0.0) + increment
            return {}
        if not self._alternates(now):
            self._earlier.clear()
        return self.release(increments)

    def release(self, increments: Counts) -> Counts:
        """Increments with all that was held back."""
        if not self._held:
            return increments
        held = self._held
        self._held = {}
        for series, increment in increments.items():
            held[series] = held.get(series, 0.0) + increment
        return held

    def without_held(self, counters: Counts) -> Counts:
        """The counters of the last page less what was held back: from there a successor counts."""
        if not self._held:
            return counters
        return {series: value - self._held.get(series, 0.0) for series, value in counters.items()}

    def _fell(self, last: Counts, counters: Counts, now: float) -> bool:
        known = self._closest(counters, float("inf"), now)
        if known is None:
            self._earlier = [*self._earlier, last][-_MOST_SERVERS:]
            self._fell_at = now
            return self._alternates(now)
        self._earlier[known] = last
        self._held = {}
        self._fell_at = float("-inf")
        self._alternated_at = now
        return True

    def _closest(self, counters: Counts, most: float, now: float) -> int | None:
        """The earlier server whose counters these continue, with less than ``most`` more."""
        found = None
        for place, earlier in enumerate(self._earlier):
            grown = increments_of(counters, earlier)
            size = None if grown is None else _size(grown)
            # After a restart counters soon pass those of a short-lived process before it. Those of
            # a server that answers again have seldom doubled meanwhile.
            likely = self._alternates(now) or (size is not None and size <= _size(earlier))
            if size is not None and size < most and likely:
                found, most = place, size
        return found

    def _alternates(self, now: float) -> bool:
        return now - self._alternated_at < _REMEMBERED_SECONDS


def _size(counts: Counts) -> float:
    """All counts together; sums of histograms may be negative."""
    return sum(value for series, value in counts.items() if series.part != "sum")
