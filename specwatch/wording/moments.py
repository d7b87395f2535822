"""Times of day as people read them, in UTC: a report is read in more places than one."""

from __future__ import annotations

from datetime import UTC, datetime

from specwatch.wording.figures import UNKNOWN, finite


def moment(time: float | None) -> str:
    """A Unix time as ``2026-11-19 14:33 UTC``; a day that no calendar has as the bare number."""
    time = finite(time)
    if time is None:
        return UNKNOWN
    try:
        return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{time:.0f}"
