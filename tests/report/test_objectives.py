"""What a period used up of its error budgets, what is left of them, and its goodput."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from specwatch.config.rules import Slo
from specwatch.domain.model import HOUR, MINUTE, Mode, Tally
from specwatch.report.estimates import Bounds
from specwatch.report.layout import Sentence
from specwatch.report.model import ReportGoodput, WorstHour
from specwatch.report.objectives import goodput, objectives
from specwatch.report.sections.operation import objectives as section
from tests.report import sample
from tests.report.hours import T0, at, slow, window


def slo(**others):
    given = {"name": "first", "metric": "ttft", "threshold": "500ms", "objective": "99%"}
    return Slo(**{**given, **others})


def test_the_period_counts_for_what_is_spent_and_all_that_there_is_for_what_is_left():
    windows = [window(-1, slow(900, 100)), window(0, slow(995, 5)), window(1, slow(980, 20))]
    (objective,) = objectives([slo()], windows, at(0), at(2))
    assert (objective.name, objective.metric, objective.threshold) == ("first", "ttft", 0.5)
    assert (objective.objective, objective.window) == (0.99, 30 * 86400.0)
    assert (objective.requests, objective.bad) == (2000, 25)
    assert objective.spent == pytest.approx(25 / (2000 * 0.01))
    assert objective.budget_left == pytest.approx(1 - 125 / (3000 * 0.01))


def test_the_budget_left_is_of_the_objectives_own_window():
    windows = [window(0, slow(900, 100)), *(window(h, slow(999, 1)) for h in range(1, 4))]
    (objective,) = objectives([slo(window="3h")], windows, at(0), at(4))
    assert objective.bad == 103
    assert objective.budget_left == pytest.approx(1 - 3 / (3000 * 0.01))


def test_the_worst_hour_has_the_most_bad_requests_of_all_its_parts():
    """Parts of an hour, by mode and load, count together, and so do its minutes."""
    parts = [window(2, slow(5, 6)), window(2, slow(5, 5), mode=Mode.OFF, running=9.0)]
    windows = [window(1, slow(50, 10)), *parts, window(3, slow(1, 0))]
    (objective,) = objectives([slo()], windows, at(0), at(4))
    assert objective.worst_hour == WorstHour(start=at(2), requests=21, bad=11)
    minutes = [window(m, slow(5, 1), length=MINUTE, seconds=60.0) for m in range(70)]
    (objective,) = objectives([slo()], minutes, T0, T0 + 2 * HOUR)
    assert objective.worst_hour == WorstHour(start=T0, requests=360, bad=60)


def test_requests_in_the_bucket_of_the_threshold_are_not_known_to_be_slow():
    (objective,) = objectives([slo(threshold="750ms")], [window(0, slow(90, 10))], at(0), at(1))
    assert (objective.bad, objective.unknown) == (0, 10)
    model = replace(sample.full().targets[0], objectives=(objective,), goodput=())
    _, note = section(model).parts
    assert isinstance(note, Sentence)
    assert note.text.startswith("Of 10 of 100 requests it is not known whether they met ")


def test_without_requests_nothing_is_known():
    for windows in ([], [window(0)], [window(0, slow(0, 0))]):
        (objective,) = objectives([slo()], windows, at(0), at(1))
        assert (objective.requests, objective.bad) == (0, 0)
        assert objective.spent is objective.budget_left is objective.worst_hour is None


def parts(*tallies):
    """Windows of temperatures in the first hour."""
    labels = ("0", ">1")
    return [window(0, t, temperature=label) for t, label in zip(tallies, labels, strict=False)]


COUNTED = {
    "only the period": ([window(-1, slow(1, 9)), window(0, slow(10, 0)), window(1, slow(1, 9))], 0),
    "buckets where the server counts nothing, as llama.cpp": (
        [window(0), *parts(slow(4, 2), slow(3, 1))],
        3,
    ),
    "the server where it counts, and not its buckets too": (
        [window(0, slow(8, 2)), *parts(slow(8, 2))],
        2,
    ),
}


@pytest.mark.parametrize(("windows", "bad"), COUNTED.values(), ids=COUNTED)
def test_each_request_counts_once(windows, bad):
    (objective,) = objectives([slo()], windows, at(0), at(1))
    assert (objective.requests, objective.bad) == (10, bad)
    assert (objective.worst_hour is None) is (not bad)


def test_each_objective_is_for_itself():
    both = [slo(), slo(name="pace", metric="tpot", threshold="1s", objective="50%")]
    result = objectives(both, [window(0, slow(8, 2, "tpot"))], at(0), at(1))
    assert [(item.name, item.requests, item.bad) for item in result] == [
        ("first", 0, 0),
        ("pace", 10, 0),
    ]
    assert objectives([], [window(0)], at(0), at(1)) == ()


PACE = slo(name="pace", metric="tpot", threshold="500ms")


def of_both(first, pace):
    """Good and bad requests by the first token, and by the time per token."""
    return Tally(ttft=slow(*first).ttft, tpot=slow(*pace, "tpot").tpot)


def test_goodput_is_of_the_period_and_of_the_time_watched():
    windows = [
        window(0, slow(0, 100)),
        window(1, slow(900, 100), seconds=1000.0),
        window(2, slow(350, 150), seconds=200.0, down_seconds=300.0),
        window(3, slow(0, 100)),
    ]
    assert goodput([slo()], windows, at(1), at(3)) == (
        ReportGoodput(
            mode="all",
            requests=1500,
            watched=1500.0,
            offered=1.0,
            met=Bounds(lower=1250 / 1500, upper=1250 / 1500),
            share=Bounds(lower=1250 / 1500, upper=1250 / 1500),
        ),
    )


def test_several_objectives_give_bounds_and_modes_are_told_apart():
    """A minute that the mode changed in is of neither."""
    windows = [
        window(0, of_both((80, 20), (90, 10)), seconds=100.0),
        window(1, of_both((70, 30), (60, 40)), seconds=400.0, mode=Mode.OFF),
        window(2, of_both((50, 0), (0, 50)), seconds=100.0, mode=Mode.MIXED),
    ]
    whole, on, off = goodput([slo(), PACE], windows, at(0), at(3))
    assert [request.mode for request in (whole, on, off)] == ["all", "on", "off"]
    assert (whole.requests, whole.share) == (250, Bounds(lower=100 / 250, upper=150 / 250))
    assert (on.requests, on.offered, on.share) == (100, 1.0, Bounds(lower=0.7, upper=0.8))
    assert (off.offered, off.share) == (0.25, Bounds(lower=0.3, upper=0.6))
    assert off.met == Bounds(lower=30 / 400, upper=60 / 400)
    assert len(goodput([slo(), PACE], windows[:1], at(0), at(3))) == 1


def test_a_server_that_does_not_say_that_it_speculates_is_given_away_by_its_tap():
    windows = [
        window(0, slow(9, 1), mode=Mode.OFF),
        window(0, Tally(drafts=5), temperature="0", mode=Mode.OFF),
        window(1, slow(8, 2), mode=Mode.OFF),
    ]
    _, on, off = goodput([slo()], windows, at(0), at(2))
    assert (on.share, off.share) == (Bounds(lower=0.9, upper=0.9), Bounds(lower=0.8, upper=0.8))


def test_without_requests_there_is_no_share_and_without_objectives_no_goodput():
    (idle,) = goodput([slo()], [window(0, slow(0, 0))], at(0), at(1))
    assert (idle.offered, idle.met, idle.share) == (0, Bounds(lower=0, upper=0), None)
    (silent,) = goodput([slo(), PACE], [window(0, slow(9, 1))], at(0), at(1))
    assert (silent.requests, silent.met, silent.share) == (10, None, None)
    (unwatched,) = goodput([slo()], [], at(0), at(1))
    assert unwatched.offered is unwatched.met is None
    assert goodput([], [window(0)], at(0), at(1)) == ()
