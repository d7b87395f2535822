"""An error budget is what requests used up, each counted once, in bounded memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.rules import Slo
from specwatch.domain.model import HOUR, MINUTE, Histogram, Tally
from specwatch.rules.objectives import BURN_WINDOWS, BURNS, Goodput, SloBook, SloStatus

T0 = 1_700_002_800
"""A whole hour, Unix."""
BOUNDS = (0.25, 0.5, 1.0)


def slo(threshold: str = "500ms", objective: str = "99%", window: str = "30d") -> Slo:
    return Slo(
        name="first-token", metric="ttft", threshold=threshold, objective=objective, window=window
    )


def requests(good: int, bad: int = 0) -> Tally:
    """Half of the good ones are very fast; of the bad none is off the scale."""
    return Tally(ttft=Histogram(BOUNDS, (good - good // 2, good // 2, bad, 0), 1.0))


def status(book: SloBook, now: float) -> SloStatus:
    (reported,) = book.statuses("model", now)
    return reported


def of_one(counts: tuple[int, ...], objective: Slo) -> SloStatus:
    book = SloBook([objective])
    book.add(T0, MINUTE, Tally(ttft=Histogram(BOUNDS, counts, 1.0)))
    return status(book, T0 + MINUTE)


@pytest.mark.parametrize(
    ("threshold", "bad", "unknown"),
    [
        ("500ms", 10, 0),
        ("750ms", 6, 4),
        ("250ms", 30, 0),
        ("1s", 6, 0),
        ("4s", 0, 6),
        ("100ms", 30, 70),
    ],
)
def test_only_certainly_slow_requests_count_as_bad(threshold, bad, unknown):
    """Of what lies in the bucket of the threshold it is said how much that is."""
    status = of_one((70, 20, 4, 6), slo(threshold))
    assert (status.total, status.good, status.unknown) == (100, 100 - bad, unknown)
    assert status.error_ratio == pytest.approx(bad / 100)


@pytest.mark.parametrize(("bad", "left"), [(0, 1.0), (5, 0.5), (10, 0.0), (30, -2.0)])
def test_the_budget_is_what_the_objective_allows(bad, left):
    status = of_one((1000 - bad, 0, bad, 0), slo(objective="99%"))
    assert status.budget_left == pytest.approx(left)
    assert status.burn_rates[300] == pytest.approx(1 - left)


def test_without_requests_nothing_is_known():
    book = SloBook([slo()])
    for n, counted in enumerate([Tally(), Tally(ttft=Histogram((), (9,), 1.0)), requests(0)]):
        book.add(T0 + n * MINUTE, MINUTE, counted)
    reported = status(book, T0 + 180)
    assert (reported.total, reported.error_ratio, reported.budget_left) == (0, None, None)
    assert reported.burn_rates == dict.fromkeys(BURN_WINDOWS)


def test_burn_rates_are_of_their_own_windows():
    """Ten bad minutes of a hundred requests, then twenty good ones."""
    book = SloBook([slo(objective="90%")])
    for n in range(30):
        book.add(T0 + n * MINUTE, MINUTE, requests(*((0, 100) if n < 10 else (100, 0))))
    rates = status(book, T0 + 30 * MINUTE).burn_rates
    assert rates[300] == 0
    assert rates[1800] == pytest.approx(10 / 3)
    assert rates[3600] == rates[259200] == pytest.approx(10 / 3)


def test_a_burn_rate_is_exact_to_the_minute_for_six_hours():
    minutes = 7 * 60 + 17
    book = SloBook([slo(objective="90%")])
    for n in range(minutes):
        book.add(T0 + n * MINUTE, MINUTE, requests(9, 1 if n % 7 else 0))
    rates = status(book, T0 + minutes * MINUTE).burn_rates
    for span in (300, 1800, 3600, 7200, 21600):
        inside = range(minutes - span // 60, minutes)
        bad = sum(1 for n in inside if n % 7)
        assert rates[span] == pytest.approx(bad / (9 * len(inside) + bad) / 0.1)


def test_requests_before_the_window_do_not_count():
    book = SloBook([slo(window="2h")])
    book.add(T0, MINUTE, requests(0, 100))
    book.add(T0 + 2 * HOUR - MINUTE, MINUTE, requests(100))
    assert status(book, T0 + 2 * HOUR).error_ratio == 0.5
    book.add(T0 + 2 * HOUR, MINUTE, requests(100))
    assert status(book, T0 + 2 * HOUR + MINUTE).error_ratio == 0


def test_a_minute_counts_once_however_late_and_often_it_comes():
    """The order of a whole day, each minute up to three times, is of no account."""
    chance = random.Random(3)
    minutes = [(T0 + n * MINUTE, requests(n % 7, n % 3)) for n in range(24 * 60)]
    in_order, any_order = SloBook([slo()]), SloBook([slo()])
    for start, counted in minutes:
        in_order.add(start, MINUTE, counted)
    late = [minute for minute in minutes for _ in range(chance.randint(1, 3))]
    chance.shuffle(late)
    for start, counted in late:
        any_order.add(start, MINUTE, counted)
    first, second = (status(book, T0 + 24 * HOUR) for book in (in_order, any_order))
    assert first.total == sum(n % 7 + n % 3 for n in range(24 * 60))
    assert first.good == sum(n % 7 for n in range(24 * 60))
    assert (first.total, first.good) == (second.total, second.good)


def test_hours_of_a_store_stand_for_their_minutes():
    """An hour may be in parts; its minutes, before or after it, are in it already."""
    book = SloBook([slo()])
    book.add(T0 + MINUTE, MINUTE, requests(50, 50))
    for part in ((2000, 100), (900, 0)):
        book.add(T0, HOUR, requests(*part))
    book.add(T0 + 2 * MINUTE, MINUTE, requests(50, 50))
    book.add(T0 + HOUR, MINUTE, requests(1000))
    reported = status(book, T0 + HOUR + MINUTE)
    assert (reported.total, reported.good) == (4000, 3900)


def test_days_of_hours_and_a_minute_of_today_are_one_window():
    book = SloBook([slo(window="10d", objective="99%")])
    for n in range(9 * 24):
        book.add(T0 + n * HOUR, HOUR, requests(995, 5))
    now = T0 + 9 * 24 * HOUR
    assert status(book, now).error_ratio == pytest.approx(0.005)
    assert status(book, now).burn_rates[86400] == pytest.approx(0.5)
    assert status(book, now).burn_rates[300] is None
    book.add(now, MINUTE, requests(0, 9 * 24 * 5))
    assert status(book, now + MINUTE).budget_left == pytest.approx(0, abs=0.01)


def test_an_hour_that_is_half_inside_counts_by_its_middle():
    book = SloBook([slo(window="24h")])
    book.add(T0, HOUR, requests(0, 100))
    book.add(T0 + 23 * HOUR, HOUR, requests(100))
    assert status(book, T0 + 24 * HOUR + 29 * MINUTE).error_ratio == 0.5
    assert status(book, T0 + 24 * HOUR + 31 * MINUTE).error_ratio == 0


def test_memory_is_bounded():
    """Days of minutes leave the hours of the longest window, and minutes of six and a piece."""
    book = SloBook([slo(window="96h")])
    counted = requests(9, 1)
    for hour in range(4 * 24):
        book.add(T0 + hour * HOUR, HOUR, requests(540, 60))
    for n in range(4 * 24 * 60, 5 * 24 * 60):
        book.add(T0 + n * MINUTE, MINUTE, counted)
    now = T0 + 5 * 24 * HOUR
    assert len(book._hours) <= 4 * 24 + 2
    assert sum(len(hour.minutes) for hour in book._hours.values()) <= 7 * 60
    reported = status(book, now)
    assert reported.total == 10 * 4 * 24 * 60
    assert reported.error_ratio == pytest.approx(0.1)
    for late in (T0, now - 24 * HOUR):
        book.add(late, MINUTE, counted)
    assert status(book, now) == reported


def test_each_objective_has_its_own_account():
    other = Slo(name="pace", metric="tpot", threshold="1s", objective="50%", window="1h")
    book = SloBook([slo(), other])
    book.add(T0, MINUTE, Tally(ttft=requests(9, 1).ttft, tpot=requests(3, 1).ttft))
    first, second = book.statuses("model", T0 + MINUTE)
    assert (first.slo.name, first.total, first.error_ratio) == ("first-token", 10, 0.1)
    assert (second.slo.name, second.total, second.budget_left) == ("pace", 4, 1.0)
    assert {first.model_name, second.model_name} == {"model"}


PACE = Slo(name="pace", metric="tpot", threshold="500ms", objective="99%")
WHOLE = Slo(name="whole", metric="e2e", threshold="500ms", objective="99%")


def of_all(*parts: tuple[Slo, int, int]) -> Goodput:
    """The goodput of a minute in which each objective had so many good and bad requests."""
    book = SloBook([objective for objective, _, _ in parts])
    counted = {objective.metric: requests(good, bad).ttft for objective, good, bad in parts}
    book.add(T0, MINUTE, Tally(**counted))
    return book.goodput(T0 + MINUTE)[300]


@pytest.mark.parametrize(
    ("parts", "requests", "lower", "upper"),
    [
        pytest.param([(slo(), 90, 10)], 100, 90, 90, id="one objective gives one figure"),
        pytest.param(
            [(slo(), 90, 10), (PACE, 70, 30)], 100, 60, 70, id="nobody knows who missed both"
        ),
        pytest.param(
            [(slo(), 90, 10), (PACE, 70, 30), (WHOLE, 30, 70)], 100, 0, 30, id="never below none"
        ),
        pytest.param([(slo(), 100, 0), (PACE, 40, 0)], 100, 100, 100, id="outputs of one token"),
        pytest.param([(slo(), 95, 5), (PACE, 30, 10)], 100, 85, 90, id="some outputs of one token"),
        pytest.param([(slo(), 0, 0), (PACE, 0, 0)], 0, 0, 0, id="no requests"),
        pytest.param([(slo(), 9, 1), (PACE, 0, 0)], 10, None, None, id="a metric says nothing"),
    ],
)
def test_the_requests_that_met_all_objectives_lie_between_bounds(parts, requests, lower, upper):
    status = of_all(*parts)
    assert status == (MINUTE, requests, lower, upper)
    assert status.rate(status.upper) == (None if upper is None else pytest.approx(upper / MINUTE))


@pytest.mark.parametrize(
    ("thresholds", "counts", "bounds"),
    [
        pytest.param(
            ("1s", "500ms", "250ms"), (50, 30, 15, 5), (50, 50), id="the strictest decides"
        ),
        pytest.param(("4s",), (70, 20, 4, 6), (94, 100), id="beyond the end some may have met it"),
    ],
)
def test_thresholds_of_one_metric_give_one_figure_where_it_is_known(thresholds, counts, bounds):
    book = SloBook([slo(threshold) for threshold in thresholds])
    book.add(T0, MINUTE, Tally(ttft=Histogram(BOUNDS, counts, 1.0)))
    goodput = book.goodput(T0 + MINUTE)[300]
    assert (goodput.lower, goodput.upper) == bounds


def test_goodput_is_a_rate_of_the_time_that_was_watched():
    """Ten minutes of an hour, one of which made up for five that nobody watched."""
    book = SloBook([slo()])
    for n in range(9):
        book.add(T0 + n * MINUTE, MINUTE, requests(30, 30), 60.0)
    book.add(T0 + 50 * MINUTE, MINUTE, requests(180, 180), 360.0)
    book.add(T0 + 50 * MINUTE, MINUTE, requests(180, 180), 360.0)
    status = book.goodput(T0 + HOUR)[3600]
    assert status.watched == 9 * 60 + 360
    assert status.rate(status.requests) == pytest.approx(1.0)
    assert status.rate(status.lower) == status.rate(status.upper) == pytest.approx(0.5)
    empty = book.goodput(T0 + HOUR)[300]
    assert (empty.watched, empty.rate(empty.requests)) == (0, None)


def test_hours_of_a_store_bring_the_time_that_they_were_watched():
    """In parts, in place of their minutes; a model without a word of it was watched throughout."""
    book = SloBook([slo()])
    book.add(T0 + MINUTE, MINUTE, requests(50, 50))
    book.add(T0, HOUR, requests(900), 1200.0)
    book.add(T0, HOUR, requests(450, 450), 600.0)
    status = book.goodput(T0 + HOUR)[3600]
    assert status == (1800, 1800, 1350, 1350)
    assert status.rate(status.lower) == pytest.approx(0.75)


def test_another_length_is_refused():
    with pytest.raises(ValueError, match="300 s is neither a minute nor an hour"):
        SloBook([slo()]).add(T0, 300, requests(1))


@given(
    st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(1, 2000), st.integers(1, 2000)
)
def test_a_stricter_threshold_leaves_no_more_budget(counts, one, other):
    strict, lax = (
        of_one(tuple(counts), slo(f"{milliseconds}ms"))
        for milliseconds in (min(one, other), max(one, other))
    )
    assert strict.good <= lax.good + 1e-9
    assert 0 <= lax.good <= lax.total == sum(counts)


_SLOW = st.frozensets(st.integers(0, 29), max_size=30)


@given(st.lists(_SLOW, min_size=3, max_size=3), st.integers(1, 3), st.integers(0, 29))
def test_goodput_lies_within_its_bounds(slow, metrics, brief):
    """Thirty requests, some of which miss each objective, and some have no time per token."""
    parts, missed = [], set()
    for objective, late in zip((slo(), WHOLE, PACE)[:metrics], slow, strict=False):
        timed = set(range(brief, 30)) if objective is PACE else set(range(30))
        parts.append((objective, len(timed - late), len(timed & late)))
        missed |= timed & late
    status = of_all(*parts)
    assert status.lower <= 30 - len(missed) <= status.upper <= status.requests == 30
    assert metrics > 1 or status.lower == status.upper


@pytest.mark.parametrize(
    ("change", "burns"),
    [
        ({}, True),
        ({"requests": {3600: 99.0, 300: 10.0}}, False),
        ({"requests": {3600: 100.0, 300: 9.0}}, False),
        ({"watched": {3600: 2699.0}}, False),
        ({"burn_rates": {3600: 14.4, 300: 20.0}}, False),
        ({"burn_rates": {3600: 20.0, 300: None}}, False),
    ],
)
def test_a_budget_burns_with_exactly_the_least_traffic(change: dict[str, Any], burns: bool) -> None:
    exact: dict[str, Any] = {
        "burn_rates": {3600: 14.5, 300: 14.5},
        "requests": {3600: 100.0, 300: 10.0},
        "watched": {3600: 2700.0},
    }
    windows = exact | change
    fastest = SloStatus(PACE, "llama", 1.0, 1.0, 0.0, None, None, **windows)
    assert fastest._burns(BURNS[0]) is burns
