"""The answer: what was measured, of how much traffic, and what that is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specwatch.domain.baseline import MAX_AGE, Origin
from specwatch.domain.model import HOUR, Environment, Mode, Objective, Window
from specwatch.report.build import build
from specwatch.report.model import ModelReport, ReportAnswer
from specwatch.report.sources import ReportSources
from tests.report.history import ON, SINCE, TARGET, bucket, counted, flat, hour, measurement

HOURS = 24
UNTIL = SINCE + HOURS * HOUR


def report(windows: list[Window], *measurements: Any, **others: Any) -> ModelReport:
    sources = ReportSources(target=TARGET, windows=windows, measurements=measurements, **others)
    (found,) = build(sources, SINCE, UNTIL)
    return found


def answer(*arguments: Any, **others: Any) -> ReportAnswer:
    return report(*arguments, **others).answer


def day(tpot: float = 0.02, count: int = HOURS, **others: Any) -> list[Window]:
    """Hours that are alike but for their traffic; 30 ms a token is what the baselines have."""
    return flat(
        hour(at, counted(tpot=tpot, tokens=10_000 + 10 * at), **others) for at in range(count)
    )


OUTCOMES = {
    "half again as fast": (0.02, "pays"),
    "a fifth faster": (0.025, "not_worth_it"),
    "a fifth slower": (0.0375, "loses"),
}


@pytest.mark.parametrize(("tpot", "outcome"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_the_outcome_is_by_the_whole_interval(tpot, outcome):
    found = answer(day(tpot), measurement())
    assert found.outcome == outcome
    assert found.speedup.value == pytest.approx(0.03 / tpot)
    assert found.speedup.lower <= found.speedup.value <= found.speedup.upper
    assert (found.speedup.basis, found.missing) == ("measured", None)
    assert found.objective == "tpot"


def test_an_interval_about_one_is_even():
    windows = flat(hour(at, counted(tpot=0.024 if at % 2 else 0.036)) for at in range(HOURS))
    found = answer(windows, measurement())
    assert found.outcome == "even"
    assert found.speedup.lower < 1 < found.speedup.upper


def test_hours_saved_are_busy_hours_times_what_was_gained():
    """24 hours of which 50 minutes each were busy, at 1.5: 10 hours more without."""
    found = answer(day(busy=3000.0), measurement(), gpus=8)
    assert found.hours_saved.value == pytest.approx(HOURS * 3000 / HOUR * 0.5)
    assert found.gpu_hours_saved.value == pytest.approx(8 * found.hours_saved.value)
    for end in ("lower", "upper"):
        saved = getattr(found.hours_saved, end)
        assert saved == pytest.approx(20 * (getattr(found.speedup, end) - 1))
        assert getattr(found.gpu_hours_saved, end) == pytest.approx(8 * saved)


def test_hours_lost_are_negative_and_gpus_may_be_unknown():
    found = answer(day(0.06), measurement())
    assert found.hours_saved.value == pytest.approx(-10.0)
    assert (found.gpus, found.gpu_hours_saved) == (None, None)


def test_hours_without_speculation_save_nothing():
    windows = flat(
        [
            *(hour(at) for at in range(12)),
            *(hour(at, mode=Mode.OFF) for at in range(12, HOURS)),
        ]
    )
    found = answer(windows, measurement())
    assert found.hours_saved.value == pytest.approx(10 * 0.5)


def test_without_a_baseline_the_speedup_is_assumed_and_saves_no_hours():
    """S = tau / (1 + k c) of Leviathan and others: what they count as drafts, as they cost."""
    windows = day()
    found = answer(windows, gpus=4, draft_cost_ratio=0.05)
    drafts = sum(window.tally.drafts for window in windows)
    accepted = sum(window.tally.accepted_tokens for window in windows)
    assert found.speedup.value == pytest.approx((1 + accepted / drafts) / (1 + 4 * 0.05))
    assert (found.speedup.basis, found.speedup.lower, found.speedup.upper) == (
        "assumed",
        None,
        None,
    )
    assert (found.outcome, found.missing) == ("unknown", "no baseline")
    assert (found.hours_saved, found.gpu_hours_saved) == (None, None)


def test_a_baseline_that_is_too_old_is_none():
    old = measurement(at=SINCE - 40 * 24 * HOUR)
    found = answer(day(), old)
    assert (found.outcome, found.missing) == ("unknown", "no baseline young enough")
    assert answer(day(), old, max_age=60 * 24 * HOUR).outcome == "pays"


def test_a_baseline_of_another_load_is_none():
    found = answer(day(running=30.0), measurement(4.0))
    assert (found.outcome, found.missing) == ("unknown", "no baseline at the load that there was")


def test_a_baseline_of_some_loads_is_told_to_be_of_some():
    """A third of the tokens at a load that nobody measured: the rest is what the figures are of."""
    loads = [hour(at, counted(), running=30.0 if at % 3 == 0 else 4.0) for at in range(HOURS)]
    found = report(flat(loads), measurement(4.0))
    assert found.health.warnings[-1].startswith("33% of the tokens came at loads or with")
    busy = sum(load.busy for load in found.loads if load.speedup is not None)
    assert busy == pytest.approx(2 / 3 * sum(load.busy for load in found.loads))
    gained = found.answer.speedup.value - 1
    assert found.answer.hours_saved.value == pytest.approx(busy / HOUR * gained)
    assert "baseline" not in str(report(day(), measurement()).health.warnings)


def test_hours_count_alike_whatever_ran_in_them():
    """Half the day one request runs at twice the pace, half of it eight at 0.75: 12 - 12 * 0.25
    hours, though more is lost to the requests than is won."""
    slow, quick = counted(tpot=0.04, tokens=80_000), counted(tpot=0.015, tokens=10_000)
    windows = [
        hour(at, slow if at % 2 else quick, running=8.0 if at % 2 else 1.0, busy=3600.0)
        for at in range(HOURS)
    ]
    found = answer(flat(windows), measurement(1.0), measurement(8.0))
    assert found.speedup.value < 1
    assert found.hours_saved.value == pytest.approx(12 * 1.0 - 12 * 0.25)
    assert found.hours_saved.lower <= found.hours_saved.value <= found.hours_saved.upper


def test_a_baseline_of_another_model_is_none():
    assert answer(day(), measurement(model="other")).missing == "no baseline"


def test_too_few_hours():
    found = answer(day(count=3), measurement())
    assert (found.outcome, found.missing) == ("unknown", "too few minutes of traffic")


@pytest.mark.parametrize(
    ("hours", "known"),
    [(3, {}), (HOURS, {"running": 40.0}), (HOURS, {"at": SINCE - 2 * MAX_AGE})],
    ids=["too few hours", "other loads", "expired"],
)
def test_nothing_is_assumed_where_a_baseline_does_not_apply(hours, known):
    found = answer(day(count=hours), measurement(**known))
    assert (found.outcome, found.speedup) == ("unknown", None)


def test_speculation_that_did_not_run():
    windows = flat(hour(at, mode=Mode.OFF) for at in range(HOURS))
    found = answer(windows, measurement())
    assert found.outcome == "off"
    assert (found.speedup, found.hours_saved) == (None, None)


def test_traffic_of_which_it_is_not_known_whether_it_speculates():
    found = report(flat(hour(at, mode=Mode.UNKNOWN) for at in range(HOURS)), measurement())
    assert (found.answer.outcome, found.answer.speedup) == ("unknown", None)
    assert "it is not known whether the server speculates" in found.answer.sentence
    assert "without --no-slots" in found.answer.recommendation
    assert found.traffic.seconds_unknown > 0
    assert found.traffic.seconds_off == 0


def test_speculation_that_stopped_before_the_period_did_not_run():
    windows = flat([*(hour(at) for at in range(-9, 0)), hour(0, mode=Mode.OFF)])
    assert answer(windows, measurement()).outcome == "off"


@pytest.mark.parametrize("mode", Mode)
def test_nobody_asked(mode):
    nothing = counted(tokens=0, requests=0, rate=None)
    windows = flat(hour(at, nothing, mode=mode, busy=0.0) for at in range(HOURS))
    found = answer(windows, measurement())
    assert found.outcome == "no_traffic"
    assert found.speedup is None


def test_speculation_that_found_nothing_to_draft_ran():
    """It costs something all the same."""
    drafted = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    windows = flat(hour(at, counted(rate=None, tpot=0.0375, **drafted)) for at in range(HOURS))
    found = answer(windows, measurement())
    assert found.outcome == "loses"
    assert found.speedup.value == pytest.approx(0.8)


def test_hours_into_which_a_restart_falls_decide_nothing():
    windows = flat(
        hour(at, counted(tpot=0.3), restarts=1) if at % 4 == 0 else hour(at) for at in range(HOURS)
    )
    assert answer(windows, measurement()).speedup.value == pytest.approx(1.5)


def test_each_hour_is_compared_with_the_baseline_of_its_own_server():
    """An upgrade in the middle of the day made plain serving faster: 30 ms, then 20 ms."""
    newer = Environment("0.33.0", "cafe-4")
    plain = {ON: 0.03, newer: 0.02}
    windows = flat(
        hour(at, counted(tpot=0.015, tokens=5000 * (1 + at % 3)), environment=env)
        for at, env in ((at, ON if at < 9 else newer) for at in range(HOURS))
    )
    found = report(
        windows,
        measurement(tpot=plain[ON]),
        measurement(tpot=plain[newer], environment=Environment("0.33.0", "cafe-0")),
    )
    tokens = {env: sum(5000 * (1 + at % 3) for at in range(HOURS) if (at < 9) is (env is ON))
              for env in plain}  # fmt: skip
    took = 0.015 * sum(tokens.values())
    without = sum(plain[env] * tokens[env] for env in plain)
    assert found.answer.speedup.value == pytest.approx(without / took)
    (load,) = found.loads
    assert load.speedup.value == pytest.approx(without / took)


def test_a_server_without_a_baseline_of_its_own_is_not_compared_with_that_of_another():
    other = Environment("0.33.0", "cafe-4")
    few = flat(
        hour(at, counted(tpot=0.3 if at < 6 else 0.02), environment=other if at < 6 else ON)
        for at in range(HOURS)
    )
    assert answer(few, measurement()).speedup.value == pytest.approx(1.5)
    most = flat(hour(at, environment=other if at < 18 else ON) for at in range(HOURS))
    assert answer(most, measurement()).outcome == "unknown"


def test_another_number_of_draft_tokens_is_the_same_server():
    windows = flat(
        hour(at, environment=Environment("0.32.0", "cafe-4" if at < 9 else "cafe-2"))
        for at in range(HOURS)
    )
    assert answer(windows, measurement()).speedup.value == pytest.approx(1.5)


def test_hours_without_speculation_are_a_baseline_where_nobody_measured_one():
    """As after a backfill: 40 ms a token without, 20 ms with, and 100 ms to the first in both."""
    windows = flat(
        [
            *(hour(at, counted(rate=None, tpot=0.04), mode=Mode.OFF) for at in range(-8, 0)),
            *(hour(at) for at in range(HOURS)),
        ]
    )
    assert answer(windows).speedup.value == pytest.approx((400 + 10) / (200 + 10))
    assert answer(windows, objective=Objective.TPOT).speedup.value == pytest.approx(2.0)
    assert answer(windows, objective=Objective.TTFT).speedup.value == pytest.approx(1.0)
    stored = measurement(origin=Origin.WINDOWS, points=20, at=SINCE - 20 * HOUR)
    assert answer(windows, stored).speedup.value == pytest.approx(1.5)


def test_winning_and_losing_temperatures_and_loads():
    windows = []
    for at in range(HOURS):
        busy, tpot = (12.0, 0.06) if at % 2 else (3.0, 0.02)
        parts = {"0": bucket(rate=0.9), ">1": bucket(rate=0.05), "unknown": bucket(rate=0.9)}
        windows.append(hour(at, counted(tpot=tpot), running=busy, buckets=parts))
    found = answer(flat(windows), measurement(3.0, 0.03), measurement(12.0, 0.05))
    assert (found.winning_loads, found.losing_loads) == (("3-4",), ("9-16",))
    assert (found.winning_temperatures, found.losing_temperatures) == (("0",), (">1",))


def test_coarse_and_missing_figures_of_an_old_server():
    """V0 counts no drafts: that it is faster is known all the same."""
    whole = replace(counted(rate=None), inter_token=None)
    windows = flat(hour(at, whole) for at in range(HOURS))
    by_request = measurement()
    by_request = replace(
        by_request, points=tuple(point._replace(by_token=False) for point in by_request.points)
    )
    found = answer(windows, by_request)
    assert found.outcome == "pays"
    assert found.speedup.value == pytest.approx(1.5, rel=1e-3)
