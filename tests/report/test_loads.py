"""By load: the speedup of each, where it crosses 1, and what stopping there would be worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Environment, Histogram, Mode, Window
from specwatch.report.estimates import Ratio
from specwatch.report.loads import crossing
from specwatch.report.model import ModelReport, ReportLoad
from tests.report.history import HOURS, ON, counted, flat, hour, measurement, report

PLAIN = {1.0: 0.02, 3.0: 0.03, 6.0: 0.04, 12.0: 0.05, 100.0: 0.2}
"""Seconds per token without speculation, by running requests."""


def at_loads(speedups: Mapping[float, float], tokens: int = 10_000, **others: Any) -> ModelReport:
    """Hours at each load in turn, as much faster there as asked for."""
    windows = []
    for at in range(HOURS):
        running = list(speedups)[at % len(speedups)]
        whole = counted(tpot=PLAIN[running] / speedups[running], tokens=tokens)
        windows.append(hour(at, whole, running=running))
    known = (measurement(speedup, PLAIN[speedup]) for speedup in speedups)
    return report(flat(windows), *known, **others)


def test_each_load_has_the_speedup_that_it_had():
    result = at_loads({1.0: 1.6, 3.0: 1.3, 12.0: 0.9})
    assert [load.load for load in result.loads] == ["1", "3-4", "9-16"]
    assert [load.speedup.value for load in result.loads] == pytest.approx([1.6, 1.3, 0.9])
    assert [load.running for load in result.loads] == pytest.approx([1, 3, 12])
    assert [load.busy for load in result.loads] == [8 * 3000.0] * 3
    assert sum(load.share for load in result.loads) == pytest.approx(1)


def test_the_line_of_each_load():
    """o = tau / S, alpha* = (o - 1) / k."""
    (one, *_) = at_loads({1.0: 1.6, 3.0: 1.3}).loads
    whole = counted()
    tau = 10_000 / (10_000 - whole.accepted_tokens)
    assert one.step_cost.value == pytest.approx(tau / 1.6, rel=1e-3)
    assert one.break_even_acceptance.value == pytest.approx((tau / 1.6 - 1) / 4, rel=1e-2)
    assert one.acceptance_rate == pytest.approx(whole.accepted_tokens / whole.draft_tokens)


def test_latencies_of_a_load_beside_those_without_speculation_there():
    windows = flat(
        [
            hour(-1, counted(rate=None, tpot=0.08, requests=40), mode=Mode.OFF, running=12.0),
            hour(0, counted(tpot=0.02), running=3.0),
            hour(1, counted(tpot=0.05, requests=60), running=12.0),
        ]
    )
    low, high = report(windows).loads
    assert (low.tpot_on.count, low.tpot_off) == (100, None)
    assert (high.tpot_on.count, high.tpot_off.count) == (60, 40)
    assert high.tpot_off.mean == pytest.approx(0.08)


def test_loads_without_speculation_have_no_row():
    windows = flat([hour(0, running=3.0), hour(1, mode=Mode.OFF, running=12.0)])
    assert [load.load for load in report(windows).loads] == ["3-4"]


def test_without_a_baseline_a_load_has_traffic_and_no_speedup():
    (only,) = report(flat(hour(at) for at in range(HOURS))).loads
    assert (only.share, only.speedup, only.break_even_acceptance) == (1.0, None, None)


def row(running: float, speedup: float | None) -> ReportLoad:
    measured = None if speedup is None else Ratio(value=speedup, lower=0.0, upper=9.0)
    return ReportLoad(
        load=str(running),
        share=0.1,
        busy=1.0,
        running=running,
        acceptance_rate=0.5,
        speedup=measured,
    )


CROSSINGS = {
    "half way, in logarithms": ([(4.0, 1.25), (16.0, 0.8)], 8.0),
    "nearer to what is nearer to 1": ([(4.0, 1.1), (16.0, 1 / 1.1**3)], 4 * math.sqrt(2)),
    "at a load that is exactly even": ([(4.0, 1.0), (16.0, 0.8)], 4.0),
    "a load that was not measured lies between": ([(2.0, 1.25), (4.0, None), (8.0, 0.8)], 4.0),
    "the last time, where it dips before": (
        [(1.0, 1.2), (2.0, 0.9), (4.0, 1.25), (16.0, 0.8)],
        8.0,
    ),
    "never: it pays everywhere": ([(4.0, 1.25), (16.0, 1.1)], None),
    "never: it loses everywhere": ([(4.0, 0.9), (16.0, 0.8)], None),
    "never for good: it pays at the highest load": ([(2.0, 1.2), (4.0, 0.9), (16.0, 1.1)], None),
    "one load": ([(4.0, 0.9)], None),
    "no load": ([], None),
    "nothing measured": ([(4.0, None), (8.0, None)], None),
}


def test_the_crossing():
    for why, (loads, at) in CROSSINGS.items():
        result = crossing([row(*load) for load in loads])
        found = None if result is None else result.running
        assert found == (at if at is None else pytest.approx(at)), why


def test_a_schedule_stops_above_the_winning_loads_and_its_gain_is_not_known():
    """Of the time, 50 ms/0.8 in all of 20 ms/1.6, 30 ms/1.3 and that: k = 0 is not off."""
    what_if = at_loads({1.0: 1.6, 3.0: 1.3, 12.0: 0.8}).what_if
    lost = 0.05 / 0.8
    assert what_if.loads == ("1", "3-4")
    assert what_if.setting == ((1, 8, 4), (9, 256, 0))
    assert what_if.share == pytest.approx(lost / (0.02 / 1.6 + 0.03 / 1.3 + lost))
    assert what_if.gain is None
    assert (what_if.now, what_if.without_drafts) == (pytest.approx(0.8), pytest.approx(1 / 1.1))


def standby(running: float, cost: float, count: int = 12) -> list[Window]:
    """Minutes in standby at a load, that take so many times as long as without speculation."""
    whole = counted(rate=None, tpot=PLAIN[running] * cost)
    minutes = (
        hour(n, whole, mode=Mode.STANDBY, running=running, length=60, busy=60.0, environment=ON)
        for n in range(count)
    )
    return flat(minutes)


def test_a_schedule_to_standby_gains_what_the_standby_cost_leaves():
    """Of off there, 1/1.1 in standby and 0.4 now: 50 ms / 0.4 become 50 ms * 1.1."""
    what_if = at_loads({1.0: 1.6, 12.0: 0.4}, standby=lambda: standby(12.0, 1.1)).what_if
    assert what_if.setting == ((1, 8, 4), (9, 256, 0))
    assert what_if.standby_cost.value == pytest.approx(1.1)
    assert what_if.without_drafts == pytest.approx(1 / 1.1)
    assert what_if.fewer is None
    before, after = 0.02 / 1.6 + 0.05 / 0.4, 0.02 / 1.6 + 0.05 * 1.1
    assert what_if.gain == pytest.approx(before / after)


def test_where_standby_costs_more_than_a_few_drafts_the_schedule_keeps_the_fewest():
    """A step costs 3.4 / 0.4 plain ones, with one draft token (1 + 7.5 / 4): 2 tokens of it."""
    what_if = at_loads({1.0: 1.6, 12.0: 0.4}, standby=lambda: standby(12.0, 3.0)).what_if
    assert what_if.setting == ((1, 8, 4), (9, 256, 1))
    assert what_if.fewer == pytest.approx(2 / (1 + 7.5 / 4), rel=0.01)
    before, after = 0.02 / 1.6 + 0.05 / 0.4, 0.02 / 1.6 + 0.05 / what_if.fewer
    assert what_if.gain == pytest.approx(before / after)


def test_standby_at_another_load_says_nothing_of_this_one():
    model = at_loads({1.0: 1.6, 12.0: 0.4}, standby=lambda: standby(1.0, 1.1))
    assert model.what_if.standby_cost is None
    assert model.what_if.gain is None
    assert model.what_if.without_drafts == pytest.approx(1 / 1.1)


@pytest.mark.parametrize(
    ("minutes", "cost", "missing"),
    [(12, pytest.approx(1.2), None), (3, None, "too few minutes of traffic")],
)
def test_a_period_with_standby_has_its_cost(minutes, cost, missing):
    windows = flat([hour(0), hour(1, counted(rate=None), mode=Mode.STANDBY, environment=ON)])
    other = [
        msgspec.structs.replace(one, series=msgspec.structs.replace(one.series, model_name="x"))
        for one in windows
    ]
    rows = standby(12.0, 1.2, minutes)
    model = report(windows, measurement(12.0, PLAIN[12.0]), standby=lambda: [*rows, *other])
    assert model.traffic.seconds[Mode.STANDBY] == 3600.0
    assert (model.standby_cost and model.standby_cost.value, model.standby_cost_missing) == (
        cost,
        missing,
    )


@pytest.mark.parametrize(
    ("speedups", "setting"),
    [
        ({1.0: 1.6, 3.0: 1.3}, None),
        ({1.0: 0.95, 3.0: 1.5, 12.0: 0.7}, ((1, 8, 4), (9, 256, 0))),
        ({12.0: 1.2, 100.0: 0.7}, ((1, 64, 4), (65, 256, 0))),
    ],
    ids=["nothing loses", "a schedule has one end", "the open load bin is above all others"],
)
def test_a_schedule_ends_at_the_lowest_of_the_loads_that_lose_at_the_top(speedups, setting):
    what_if = at_loads(speedups).what_if
    assert (what_if and what_if.setting) == setting


def test_where_every_load_loses_speculation_is_off_at_all():
    what_if = at_loads({1.0: 0.9, 3.0: 0.8}).what_if
    assert (what_if.loads, what_if.setting) == ((), ())
    assert what_if.gain == pytest.approx((0.02 / 0.9 + 0.03 / 0.8) / 0.05)


def test_a_load_that_loses_by_chance_is_not_dropped():
    """Its interval contains 1, whatever its estimate."""
    tpots = [0.02 / 1.6, *(0.05 / item for item in (0.6, 1.5, 0.9))]
    windows = flat(
        hour(at, counted(tpot=tpots[at % 4]), running=12.0 if at % 4 else 1.0)
        for at in range(HOURS)
    )
    model = report(windows, measurement(1.0, 0.02), measurement(12.0, 0.05))
    last = model.loads[-1].speedup
    assert last.lower < last.value < 1 < last.upper
    assert model.what_if is None


def test_an_unmeasured_load_below_those_that_lose_stays_on():
    tpots = {1.0: 0.0125, 12.0: 0.025, 30.0: 0.0625}
    windows = flat(
        hour(at, counted(tpot=list(tpots.values())[at % 3]), running=list(tpots)[at % 3])
        for at in range(HOURS)
    )
    what_if = report(windows, measurement(1.0, 0.02), measurement(30.0, 0.05)).what_if
    assert what_if.loads == ("1", "9-16")
    assert what_if.setting == ((1, 16, 4), (17, 256, 0))


def one_measured(speedups: Mapping[float, float], load: float, **others: Any) -> ModelReport:
    """Hours at each load in turn, of which one has a baseline."""
    windows = []
    for at in range(HOURS):
        running = list(speedups)[at % len(speedups)]
        whole = counted(tpot=PLAIN[running] / speedups[running], **others)
        windows.append(hour(at, whole, running=running))
    return report(flat(windows), measurement(load, PLAIN[load]))


def test_no_schedule_keeps_loads_of_which_nothing_is_measured():
    """It loses at the one load that was measured: that says off, not on at 1."""
    what_if = one_measured({1.0: 1.6, 12.0: 0.5}, 12.0).what_if
    assert (what_if.loads, what_if.setting, what_if.gain) == ((), (), pytest.approx(2.0))


def test_no_schedule_is_for_a_highest_load_of_which_nothing_is_measured():
    windows = flat(
        hour(at, counted(tpot=tpot), running=running)
        for at, (running, tpot) in (
            (at, [(1.0, 0.0125), (12.0, 0.0625), (100.0, 0.0625)][at % 3]) for at in range(HOURS)
        )
    )
    assert report(windows, measurement(1.0, 0.02), measurement(12.0, 0.05)).what_if is None


def test_no_schedule_where_next_to_nothing_is_accepted():
    """What looks like a gain at load 1 cannot be one: the baseline of that load is wrong."""
    paces = [(1.0, 0.019), (12.0, 0.1)]
    windows = flat(
        hour(at, counted(rate=0.001, tpot=paces[at % 2][1]), running=paces[at % 2][0])
        for at in range(HOURS)
    )
    model = report(windows, measurement(1.0, 0.02), measurement(12.0, 0.05))
    assert model.what_if.setting == ()
    assert model.answer.recommendation.startswith("Switch speculation off")


def test_no_schedule_and_no_best_k_where_the_draft_length_varies():
    """A schedule by batch size is on: 4 tokens at load 1, and 2 at 12, where it loses all the same.

    Over all drafts the third position is accepted in a quarter of them: a half of those with one.
    """
    drafts = {"accepted_tokens": 5000, "drafts": 4000}
    four = counted(**drafts, draft_tokens=16_000, accepted_per_position=(2500, 1500, 700, 300))
    two = counted(**drafts, draft_tokens=8000, accepted_per_position=(3000, 2000, 0, 0))
    windows = flat(
        hour(
            at,
            msgspec.structs.replace(item, inter_token=Histogram((), (9000,), 9000 * tpot)),
            running=running,
        )
        for at, (item, tpot, running) in (
            (at, [(four, 0.0125, 1.0), (two, 0.0625, 12.0)][at % 2]) for at in range(HOURS)
        )
    )
    model = report(windows, measurement(1.0, 0.02), measurement(12.0, 0.05))
    assert (model.best_k, model.best_k_unknown) == (None, "varying_length")
    assert model.what_if is None
    assert model.draft_lengths is DraftLengths.UNEXPLAINED
    assert "num_speculative_tokens" not in model.answer.recommendation


def test_the_best_k_is_predicted_from_what_each_position_kept():
    """Every draft keeps two of four: a third and a fourth only cost."""
    windows = flat(hour(at, counted(rate=0.5)) for at in range(HOURS))
    best_k = report(windows, measurement()).best_k
    assert (best_k.k, best_k.now, len(best_k.speedups)) == (2, 4, 5)
    assert best_k.speedups[0] == 1.0
    assert best_k.speedups[4] == pytest.approx(1.5, rel=1e-3)


def test_the_best_k_is_that_of_the_present_drafter():
    """Sixteen hours with another k, which are of no use to tell."""
    two = counted(
        rate=None,
        drafts=4000,
        draft_tokens=8000,
        accepted_tokens=6000,
        accepted_per_position=(3500, 2500),
    )
    windows = flat(
        hour(at) if at < 16 else hour(at, two, environment=Environment("0.32.0", "cafe-2"))
        for at in range(HOURS)
    )
    assert report(windows, measurement()).best_k.now == 2
