"""Limits of experiments over many days, and the times of day of their episodes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.domain.test_switchback_schedule import DAY, HOUR, START, Server, check_share, design


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("late", [0.0, 5.0])
def test_other_arms_never_have_more_than_their_share_and_in_the_end_nearly_all_of_it(
    count: int, share: float, late: float
) -> None:
    check_share(count, share, late, 10 * DAY)


def test_all_times_of_day_have_equally_many_episodes():
    server = Server(design(regret=1.0, lateness=0.0))
    server.run(60 * DAY)
    stratum = 2 * 60 / 0.05
    hours = Counter((begin - START) % DAY // HOUR for begin in server.begins)
    assert len(hours) == 24
    assert min(hours.values()) > 0.6 * 60 * HOUR / stratum
    within = [(begin - START) % stratum / (stratum - 180) for begin in server.begins]
    assert 0.45 < sum(within) / len(within) < 0.55
    assert sum(place < 0.25 for place in within) > 0.2 * len(within)
