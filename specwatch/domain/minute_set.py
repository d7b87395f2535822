"""Sets of minutes, one bit each: a month of a thousand series fits into memory."""

from __future__ import annotations

from collections.abc import Iterable

from specwatch.domain.model import HOUR, MINUTE


class MinuteSet:
    """Minutes by their start (Unix seconds, whole minutes)."""

    def __init__(self, starts: Iterable[int] = ()) -> None:
        self._hours: dict[int, int] = {}
        for start in starts:
            self.add(start)

    @property
    def hours(self) -> list[int]:
        """Starts of the hours with any minutes, ascending."""
        return sorted(self._hours)

    @property
    def first(self) -> int | None:
        """The earliest minute."""
        if not self._hours:
            return None
        hour = min(self._hours)
        mask = self._hours[hour]
        return hour + MINUTE * ((mask & -mask).bit_length() - 1)

    @property
    def last(self) -> int | None:
        """The latest minute."""
        return self.last_before(max(self._hours) + HOUR) if self._hours else None

    def add(self, start: int) -> None:
        """Add a minute."""
        hour = start - start % HOUR
        self._hours[hour] = self._hours.get(hour, 0) | 1 << (start - hour) // MINUTE

    def add_span(self, since: float, until: float) -> None:
        """Add all minutes that overlap a span."""
        minute = int(since // MINUTE) * MINUTE
        while minute < until:
            self.add(minute)
            minute += MINUTE

    def update(self, other: MinuteSet) -> None:
        """Add the minutes of another set."""
        for hour, mask in other._hours.items():
            self._hours[hour] = self._hours.get(hour, 0) | mask

    def within(self, since: int, until: int) -> MinuteSet:
        """The minutes that start in ``since <= start < until``."""
        minutes = MinuteSet()
        for hour, mask in self._hours.items():
            low, high = (min(max((time - hour) // MINUTE, 0), 60) for time in (since, until))
            kept = mask & ((1 << high) - (1 << low)) if low < high else 0
            if kept:
                minutes._hours[hour] = kept
        return minutes

    def of_hour(self, hour: int) -> MinuteSet:
        """The minutes of one hour."""
        minutes = MinuteSet()
        if hour in self._hours:
            minutes._hours[hour] = self._hours[hour]
        return minutes

    def without(self, other: MinuteSet) -> MinuteSet:
        """The minutes that another set lacks."""
        minutes = MinuteSet()
        for hour, mask in self._hours.items():
            kept = mask & ~other._hours.get(hour, 0)
            if kept:
                minutes._hours[hour] = kept
        return minutes

    def common(self, other: MinuteSet) -> int:
        """Number of minutes that are in another set too."""
        return len(self) - len(self.without(other))

    def last_before(self, start: int) -> int | None:
        """The latest that starts before ``start``; None without one."""
        for hour in sorted(self._hours, reverse=True):
            if hour >= start:
                continue
            count = min(60, (start - hour) // MINUTE)
            mask = self._hours[hour] & ((1 << count) - 1)
            if mask:
                return hour + MINUTE * (mask.bit_length() - 1)
        return None

    def __contains__(self, start: int) -> bool:
        hour = start - start % HOUR
        return bool(self._hours.get(hour, 0) >> (start - hour) // MINUTE & 1)

    def __len__(self) -> int:
        return sum(mask.bit_count() for mask in self._hours.values())
