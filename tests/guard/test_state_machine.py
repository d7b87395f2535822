"""The state machine on random walks, and the times of day at which it may act."""

from __future__ import annotations

import datetime
import random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.guard import Maintenance, Windows
from specwatch.guard.state import GuardState, wait
from tests.guard.wandering import Wandering


@given(seed=st.integers(0, 2**32))
def test_no_walk_leads_to_what_is_forbidden(seed: int) -> None:
    """No action without leave, over the budget, within the cooldown or at a forbidden time; no
    hold left without a person; nothing for ever; no goal that contradicts the phase."""
    walk = Wandering(random.Random(seed))
    for _ in range(150):
        walk.turn()


def window(begin: str, end: str, timezone: str = "UTC", *days: str) -> Maintenance:
    chosen = {"days": list(days)} if days else {}
    return Maintenance.model_validate({"from": begin, "to": end, "timezone": timezone, **chosen})


def moment_of(text: str, timezone: str = "UTC", fold: int = 0) -> float:
    moment = datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(timezone), fold=fold)
    return moment.timestamp()


NIGHT, BERLIN = ("22:00", "02:00"), "Europe/Berlin"


@pytest.mark.parametrize(
    ("one", "now", "expected"),
    [
        (window("02:00", "05:00"), moment_of("2026-07-01 02:00"), True),
        (window("02:00", "05:00"), moment_of("2026-07-01 05:00"), False),
        (window("02:00", "05:00"), moment_of("2026-07-01 01:59:59.9"), False),
        (window(*NIGHT), moment_of("2026-07-01 00:00"), True),
        (window(*NIGHT), moment_of("2026-07-01 02:00"), False),
        (window(*NIGHT), moment_of("2026-07-01 12:00"), False),
        (window("00:00", "00:00"), moment_of("2026-07-01 12:00"), True),
        # 2026-07-03 is a Friday: the night belongs to the day on which it begins.
        (window(*NIGHT, "UTC", "fri"), moment_of("2026-07-03 23:00"), True),
        (window(*NIGHT, "UTC", "fri"), moment_of("2026-07-04 01:00"), True),
        (window(*NIGHT, "UTC", "fri"), moment_of("2026-07-03 01:00"), False),
        (window(*NIGHT, "UTC", "sun"), moment_of("2026-07-06 01:00"), True),
        (window("02:00", "05:00", BERLIN), moment_of("2026-07-01 00:30"), True),
        (window("02:00", "05:00", BERLIN), moment_of("2026-01-01 00:30"), False),
        # Clocks go from 02:00 to 03:00, and from 03:00 back to 02:00.
        (window("02:00", "02:59", BERLIN), moment_of("2026-03-29 01:59:59", BERLIN) + 1, False),
        (window("02:00", "05:00", BERLIN), moment_of("2026-03-29 01:59:59", BERLIN) + 1, True),
        (window("02:15", "02:45", BERLIN), moment_of("2026-10-25 02:30", BERLIN), True),
        (window("02:15", "02:45", BERLIN), moment_of("2026-10-25 02:30", BERLIN, fold=1), True),
        (window("02:15", "02:45", BERLIN), moment_of("2026-10-25 02:50", BERLIN), False),
    ],
)
def test_a_window_is_of_its_time_zones_wall_clock(
    one: Maintenance, now: float, expected: bool
) -> None:
    assert one.contains(now) is expected


ALLOWED_BUT = Windows(allow=(window("01:00", "05:00"),), forbid=(window("02:00", "03:00"),))


@pytest.mark.parametrize(
    ("windows", "time", "why"),
    [
        (ALLOWED_BUT, "01:30", ""),
        (ALLOWED_BUT, "02:30", "guard.windows excludes 02:00 to 03:00 UTC"),
        (ALLOWED_BUT, "06:00", "guard.windows allows only 01:00 to 05:00 UTC"),
        (Windows(), "06:00", ""),
    ],
)
def test_an_excluded_time_wins_over_an_allowed_one(windows: Windows, time: str, why: str) -> None:
    assert windows.closed(moment_of(f"2026-07-01 {time}")) == why


def test_another_reason_of_the_windows_is_shown() -> None:
    """``wait`` takes what differs after a colon only for the same reason."""
    excluded, not_allowed = (
        ALLOWED_BUT.closed(moment_of(f"2026-07-01 {time}")) for time in ("02:30", "06:00")
    )
    step = wait(GuardState("chat", waiting=excluded), not_allowed)
    assert step is not None
    assert step.state.waiting == not_allowed
