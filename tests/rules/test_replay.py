"""A replay tells when rules would have fired from a time on, as a daemon would have judged."""

from __future__ import annotations

import pytest

from specwatch.domain.model import MINUTE
from specwatch.rules.judge import Judge
from specwatch.rules.replay import WARM_UP, Replay, RuleHistory
from tests.rules.test_judge import LOW, at
from tests.scrape.closing import minute

LOW_FROM, GOOD_FROM = 20, 40
"""The minutes between them accept a fifth of the drafts, all others three fifths."""
FIRED, CLEARED = at(25), at(47)


def replayed(since: float, last: int = 60, without: range = range(0)) -> RuleHistory:
    replay = Replay(Judge("t", (LOW,), ()), since)
    for number in range(last):
        if number not in without:
            low = LOW_FROM <= number < GOOD_FROM
            replay.take(minute(number, acceptance=0.2 if low else 0.6))
    (history,) = replay.histories()
    return history


@pytest.mark.parametrize(
    ("since", "fired", "judged"),
    [
        (at(0), [FIRED], 60),
        (FIRED + MINUTE, [FIRED], 34),
        (CLEARED - MINUTE, [FIRED], 14),
        (CLEARED, [], 13),
        (CLEARED + 5 * MINUTE, [], 8),
    ],
    ids=["all", "fires before", "clears in its first minute", "clears at it", "clears before"],
)
def test_what_had_ended_before_is_left_out(since: float, fired: list[float], judged: int) -> None:
    history = replayed(since)
    assert [firing.fired for firing in history.firings] == fired
    assert all(firing.cleared == CLEARED for firing in history.firings)
    assert history.judged == judged


def test_what_lasts_has_no_end_and_counts_from_the_first_minute_on() -> None:
    (firing,) = replayed(at(30), last=38).firings
    assert firing.cleared is None
    assert firing.seconds(at(30), at(38)) == 8 * MINUTE
    assert firing.seconds(at(0), at(38)) == 38 * MINUTE - (FIRED - at(0))


def test_minutes_that_were_left_out_are_judged_without_data() -> None:
    history = replayed(at(0), without=range(10, 15))
    assert history.judged == 60
    assert history.unknown > replayed(at(0)).unknown


def test_causes_are_looked_for_in_the_minutes_before() -> None:
    (firing,) = replayed(at(0)).firings
    (cause,) = (one for one in firing.attribution.causes if one.factor == "acceptance")
    assert cause.share > 0.95


def test_samples_are_kept_as_long_as_causes_are_looked_for() -> None:
    replay = Replay(Judge("t", (LOW,), ()), at(0))
    last = WARM_UP // MINUTE + 3
    for number in (0, 1, 2, last):
        replay.take(minute(number))
    (kept,) = replay._samples.values()
    assert [sample.start for sample in kept] == [at(last)]
