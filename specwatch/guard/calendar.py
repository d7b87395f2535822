"""When the guard may act of its own accord."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

from specwatch.config.guard import Day, Maintenance, Windows

_DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def closed(windows: Windows, now: float) -> str:
    """Why acting is not allowed at ``now`` (Unix seconds); empty where it is."""
    for each in windows.forbid:
        if inside(each, now):
            return f"not in the forbidden time {each.from_} to {each.to} {each.timezone}"
    if windows.allow and not any(inside(each, now) for each in windows.allow):
        times = ", ".join(f"{each.from_} to {each.to} {each.timezone}" for each in windows.allow)
        return f"only in the allowed time {times}"
    return ""


def inside(one: Maintenance, now: float) -> bool:
    """Whether ``now`` (Unix seconds) is in it, by the wall clock of its time zone."""
    # UTC needs no database of time zones, which a small machine may lack.
    zone = datetime.UTC if one.timezone == "UTC" else ZoneInfo(one.timezone)
    local = datetime.datetime.fromtimestamp(now, zone)
    begin = datetime.time.fromisoformat(one.from_)
    end = datetime.time.fromisoformat(one.to)
    time, weekday = local.time(), local.weekday()
    if begin < end:
        return begin <= time < end and _DAYS[weekday] in one.days
    begun = time >= begin and _DAYS[weekday] in one.days
    return begun or (time < end and _DAYS[weekday - 1] in one.days)
