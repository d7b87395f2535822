"""The answer: what was measured, against what, of how much traffic, and what that is worth."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from specwatch.domain.baseline import Origin
from specwatch.domain.model import HOUR, Environment, Mode, Objective, Window
from specwatch.report.build import build
from specwatch.report.grouped_data import ReportSources
from specwatch.report.layout import Table
from specwatch.report.model import ReportAnswer
from specwatch.report.sections.answer import answer as answer_section
from tests.report.history import (
    HOURS,
    ON,
    SINCE,
    TARGET,
    bucket,
    counted,
    flat,
    hour,
    measurement,
    report,
    step,
)
from tests.segments import segment

DAY = 24 * HOUR
UNTIL = SINCE + HOURS * HOUR
NEWER = Environment("0.33.0", "cafe-4")
NO_DRAFTS = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}


def answer(*arguments: Any, **others: Any) -> ReportAnswer:
    return report(*arguments, **others).answer


def day(tpot: float = 0.02, count: int = HOURS, **others: Any) -> list[Window]:
    """Hours that are alike but for their traffic; 30 ms a token is what the baselines have."""
    return flat(
        hour(at, counted(tpot=tpot, tokens=10_000 + 10 * at), **others) for at in range(count)
    )


OUTCOMES = {
    "half again as fast": (day(0.02), "pays"),
    "a fifth faster": (day(0.025), "not_worth_it"),
    "a fifth slower": (day(0.0375), "loses"),
    "sometimes faster and sometimes slower": (
        flat(hour(at, counted(tpot=0.024 if at % 2 else 0.036)) for at in range(HOURS)),
        "even",
    ),
    "a little more often faster than slower": (
        flat(hour(at, counted(tpot=0.022 if at % 2 else 0.036)) for at in range(HOURS)),
        "even",
    ),
    "nothing found to draft, which costs all the same": (
        flat(hour(at, counted(rate=None, tpot=0.0375, **NO_DRAFTS)) for at in range(HOURS)),
        "loses",
    ),
}


@pytest.mark.parametrize(("windows", "outcome"), OUTCOMES.values(), ids=OUTCOMES)
def test_the_outcome_is_by_the_whole_interval(windows, outcome):
    measured = answer(windows, measurement())
    assert measured.outcome == outcome
    assert measured.speedup.lower <= measured.speedup.value <= measured.speedup.upper
    assert (measured.speedup.lower < 1 < measured.speedup.upper) == (outcome == "even")
    assert (measured.speedup.basis, measured.missing) == ("measured", None)
    assert measured.objective == "tpot"


SPEEDUPS = {
    "half again as fast": (day(0.02), 1.5),
    "a fifth slower": (day(0.0375), 0.8),
    "hours with a restart decide nothing": (
        flat(
            hour(at) if at % 4 else hour(at, counted(tpot=0.3), restarts=1) for at in range(HOURS)
        ),
        1.5,
    ),
    "a server without a baseline of its own is left out": (
        flat(
            hour(at, counted(tpot=0.3), environment=NEWER) if at < 6 else hour(at)
            for at in range(HOURS)
        ),
        1.5,
    ),
    "another number of draft tokens is the same server": (
        flat(
            hour(at, environment=Environment("0.32.0", "cafe-4" if at < 9 else "cafe-2"))
            for at in range(HOURS)
        ),
        1.5,
    ),
}


@pytest.mark.parametrize(("windows", "speedup"), SPEEDUPS.values(), ids=SPEEDUPS)
def test_the_speedup_is_against_the_baseline(windows, speedup):
    assert answer(windows, measurement()).speedup.value == pytest.approx(speedup)


def test_a_server_that_mostly_had_no_baseline_is_not_measured():
    most = flat(hour(at, environment=NEWER if at < 18 else ON) for at in range(HOURS))
    assert answer(most, measurement()).outcome == "unknown"


def test_hours_saved_are_busy_hours_times_what_was_gained():
    """24 hours of which 50 minutes each were busy, at 1.5: 10 hours more without."""
    result = answer(day(busy=3000.0), measurement(), gpus=8)
    assert result.hours_saved.value == pytest.approx(HOURS * 3000 / HOUR * 0.5)
    assert result.gpu_hours_saved.value == pytest.approx(8 * result.hours_saved.value)
    for end in ("lower", "upper"):
        saved = getattr(result.hours_saved, end)
        assert saved == pytest.approx(20 * (getattr(result.speedup, end) - 1))
        assert getattr(result.gpu_hours_saved, end) == pytest.approx(8 * saved)
    lost = answer(day(0.06), measurement())
    assert lost.hours_saved.value == pytest.approx(-10.0)
    assert (lost.gpus, lost.gpu_hours_saved) == (None, None)


def test_hours_without_speculation_save_nothing():
    half = flat(hour(at, mode=Mode.ON if at < 12 else Mode.OFF) for at in range(HOURS))
    result = answer(half, measurement())
    assert result.hours_saved.value == pytest.approx(10 * 0.5)


def test_without_a_baseline_the_speedup_is_assumed_and_saves_no_hours():
    """S = tau / (1 + k c) of Leviathan and others: what they count as drafts, as they cost."""
    windows = day()
    result = answer(windows, gpus=4, draft_cost_ratio=0.05)
    drafts = sum(window.tally.drafts for window in windows)
    accepted = sum(window.tally.accepted_tokens for window in windows)
    assert result.speedup.value == pytest.approx((1 + accepted / drafts) / (1 + 4 * 0.05))
    assert (result.speedup.basis, result.speedup.lower) == ("assumed", None)
    assert (result.outcome, result.missing) == ("unknown", "no baseline")
    assert (result.hours_saved, result.gpu_hours_saved) == (None, None)


@pytest.mark.parametrize(
    ("hours", "known", "missing"),
    [
        (HOURS, {"at": SINCE - 40 * DAY}, "no baseline young enough"),
        (HOURS, {"running": 40.0}, "no baseline at the load that there was"),
        (HOURS, {"model": "other"}, "no baseline"),
        (3, {}, "too few minutes of traffic"),
    ],
    ids=["too old", "another load", "another model", "too few hours"],
)
def test_a_baseline_that_does_not_apply_is_none(hours, known, missing):
    result = answer(day(count=hours), measurement(**known))
    assert (result.outcome, result.missing) == ("unknown", missing)
    assumed = "model" in known
    assert (result.speedup is not None) == assumed
    if "at" in known:
        patient = answer(day(), measurement(**known), max_age=60 * DAY)
        assert patient.outcome == "pays"


@pytest.mark.parametrize("before", [0, 9], ids=["at all", "in the period"])
def test_speculation_that_did_not_run(before):
    windows = flat(hour(at, mode=Mode.ON if at < 0 else Mode.OFF) for at in range(-before, HOURS))
    result = answer(windows, measurement())
    assert result.outcome == "off"
    assert (result.speedup, result.hours_saved) == (None, None)


def test_a_baseline_of_some_loads_is_told_to_be_of_some():
    """A third of the tokens at a load that nobody measured: the rest is what the figures are of."""
    loads = [hour(at, counted(), running=30.0 if at % 3 == 0 else 4.0) for at in range(HOURS)]
    model = report(flat(loads), measurement(4.0))
    assert model.health.warnings[-1].startswith("33% of the tokens came at loads or with")
    busy = sum(load.busy for load in model.loads if load.speedup is not None)
    assert busy == pytest.approx(2 / 3 * sum(load.busy for load in model.loads))
    gained = model.answer.speedup.value - 1
    assert model.answer.hours_saved.value == pytest.approx(busy / HOUR * gained)
    assert "baseline" not in str(report(day(), measurement()).health.warnings)


def test_hours_count_alike_whatever_ran_in_them():
    """Half the day one request runs at twice the pace, half of it eight at 0.75: 12 - 12 * 0.25
    hours, though more is lost to the requests than is won."""
    slow, quick = counted(tpot=0.04, tokens=80_000), counted(tpot=0.015, tokens=10_000)
    windows = [
        hour(at, slow if at % 2 else quick, running=8.0 if at % 2 else 1.0, busy=3600.0)
        for at in range(HOURS)
    ]
    result = answer(flat(windows), measurement(1.0), measurement(8.0))
    assert result.speedup.value < 1
    assert result.hours_saved.value == pytest.approx(12 * 1.0 - 12 * 0.25)
    assert result.hours_saved.lower <= result.hours_saved.value <= result.hours_saved.upper


def test_traffic_of_which_it_is_not_known_whether_it_speculates():
    model = report(flat(hour(at, mode=Mode.UNKNOWN) for at in range(HOURS)), measurement())
    assert (model.answer.outcome, model.answer.speedup) == ("unknown", None)
    assert "it is not known whether the server speculates" in model.answer.sentence
    assert "unless it was started with --no-slots" in model.answer.recommendation
    assert model.traffic.seconds[Mode.UNKNOWN] > 0
    assert model.traffic.seconds[Mode.OFF] == 0


def test_nobody_asked():
    nothing = counted(tokens=0, requests=0, rate=None)
    for mode in Mode:
        windows = flat(hour(at, nothing, mode=mode, busy=0.0) for at in range(3))
        result = answer(windows, measurement())
        assert result.outcome == "no_traffic", mode
        assert result.speedup is None


def test_each_hour_is_compared_with_the_baseline_of_its_own_server():
    """An upgrade in the middle of the day made plain serving faster: 30 ms, then 20 ms."""
    tokens = [5000 * (1 + at % 3) for at in range(HOURS)]
    windows = flat(
        hour(at, counted(tpot=0.015, tokens=tokens[at]), environment=ON if at < 9 else NEWER)
        for at in range(HOURS)
    )
    newer = measurement(tpot=0.02, environment=Environment("0.33.0", "cafe-0"))
    model = report(windows, measurement(tpot=0.03), newer)
    speedup = (0.03 * sum(tokens[:9]) + 0.02 * sum(tokens[9:])) / (0.015 * sum(tokens))
    assert model.answer.speedup.value == pytest.approx(speedup)
    (load,) = model.loads
    assert load.speedup.value == pytest.approx(speedup)


def test_hours_without_speculation_are_a_baseline_where_nobody_measured_one():
    """As after a backfill: 40 ms a token without, 20 ms with, and 100 ms to the first in both."""
    off = [hour(at, counted(rate=None, tpot=0.04), mode=Mode.OFF) for at in range(-8, 0)]
    windows = flat([*off, *map(hour, range(HOURS))])
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
    result = answer(flat(windows), measurement(3.0, 0.03), measurement(12.0, 0.05))
    assert (result.winning_loads, result.losing_loads) == (("3-4",), ("9-16",))
    assert (result.winning_segments, result.losing_segments) == (
        (segment("0"),),
        (segment(">1"),),
    )


def test_coarse_and_missing_figures_of_an_old_server():
    """V0 counts no drafts: that it is faster is known all the same."""
    whole = msgspec.structs.replace(counted(rate=None), inter_token=None)
    windows = flat(hour(at, whole) for at in range(HOURS))
    by_request = measurement()
    by_request = replace(
        by_request, points=tuple(point._replace(by_token=False) for point in by_request.points)
    )
    result = answer(windows, by_request)
    assert result.outcome == "pays"
    assert result.speedup.value == pytest.approx(1.5, rel=1e-3)


def test_hours_of_a_server_without_a_baseline_are_not_saved():
    """An upgrade at half time, with the baseline of the old version only."""
    windows = flat(hour(at, environment=ON if at < HOURS / 2 else NEWER) for at in range(HOURS))
    model = report(windows, measurement())
    assert model.answer.speedup.value == pytest.approx(1.5)
    assert model.answer.hours_saved.value == pytest.approx(HOURS / 2 * 3000 / HOUR * 0.5)


def test_latencies_are_compared_where_nearly_all_loads_are_known():
    off = [hour(at, mode=Mode.OFF) for at in range(-9, 0)]
    most = [hour(at, running=50.0 if at % 4 == 0 else 4.0) for at in range(HOURS)]
    assert report(flat([*off, *most])).segments[0].tpot.off is None
    nearly = [hour(at, running=50.0 if at == 7 else 4.0) for at in range(HOURS)]
    assert report(flat([*off, *nearly])).segments[0].tpot.off is not None


def test_the_minutes_of_a_short_period_are_compared_one_by_one():
    """Of a few stretches a slow drift looked like noise without end."""
    random = Random(5)
    windows = [
        hour(
            minute,
            counted(tpot=0.02 * (1 + 0.005 * minute + random.gauss(0, 0.01))),
            running=1.2 if random.random() < 0.7 else 1.8,
            busy=45.0,
            length=60,
        )
        for minute in range(40)
    ]
    known = [measurement(running) for running in (1.0, 2.0)]
    speedup = report(flat(windows), *known).answer.speedup
    assert speedup.upper / speedup.lower < 1.1


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_noise_within_a_load_widens_the_interval_and_the_mix_of_loads_does_not(noise):
    random = Random(3)
    windows = [
        hour(at, counted(tpot=pace * random.uniform(1 - noise, 1 + noise)), running=running)
        for at in range(HOURS)
        for running, pace in ((4.0, 0.02), (12.0, 0.05))
    ]
    speedup = answer(flat(windows), measurement(4.0), measurement(12.0)).speedup
    assert (speedup.upper - speedup.lower > 0.01) == bool(noise)
    assert noise or speedup.value == pytest.approx(0.03 / 0.035)


def test_an_expired_measurement_does_not_hide_the_hours_without_speculation():
    off = [hour(at, mode=Mode.OFF) for at in range(-20, 0)]
    windows = flat([*off, *map(hour, range(HOURS))])
    old = measurement(origin=Origin.WINDOWS, at=SINCE - 40.0 * DAY)
    assert report(windows, old).answer.speedup.basis == "measured"


def test_what_was_measured_later_counts_only_where_nothing_else_is_known():
    windows = flat(hour(at) for at in range(HOURS))
    later = measurement(tpot=0.06, at=UNTIL + 9.0 * DAY)
    both = report(windows, measurement(), later)
    assert both.answer.speedup.value == pytest.approx(1.5)
    assert "after this period" not in str(both.health.warnings)
    alone = report(windows, later)
    assert alone.answer.speedup.value == pytest.approx(3.0)
    assert "after this period" in str(alone.health.warnings)


@pytest.mark.parametrize(("before", "known"), [(HOURS, True), (HOURS // 2, False)])
def test_amounts_are_compared_with_a_period_that_was_watched_as_long(before, known):
    traffic = report(flat(hour(at) for at in range(-before, HOURS))).traffic
    assert (traffic.requests_before is not None) is known
    assert (traffic.generation_tokens_before is not None) is known


def test_a_latency_beyond_the_last_bound_is_marked():
    slow = counted(tpot=30.0)
    model = report(
        flat(hour(at, slow, environment=ON if at < 20 else NEWER) for at in range(HOURS))
    )
    (change,) = model.changes
    assert "tpot_p99" in change.after.beyond
    assert "tpot_p99" in model.series.latency[0].beyond
    assert "ttft_p99" not in model.series.latency[0].beyond


def test_a_model_that_got_another_name_was_watched_until_then():
    windows = flat(hour(at, model="old" if at < 20 else "new") for at in range(HOURS))
    steps = [
        step(SINCE + 100.0, "i1", "observing", "confirmed", "x"),
        step(SINCE + 21.0 * HOUR, "i1", "confirmed", "disabled", "off"),
        step(SINCE + 23.0 * HOUR, "i1", "disabled", "observing", "on"),
    ]
    new, old = build(ReportSources(target=TARGET, windows=windows, steps=steps), SINCE, UNTIL)
    health = old.health
    assert (health.expected, health.observed, health.gap_count) == (20 * HOUR, 20 * HOUR, 0)
    assert (old.seconds_off_by_guard, new.seconds_off_by_guard) == (0, 2 * HOUR)


@pytest.mark.parametrize(
    ("mode", "why", "recommendation", "time"),
    [
        (
            Mode.PREFILL,
            "the server only prefills",
            "Nothing to do: look at the servers that decode.",
            "Time in which it only prefilled",
        ),
        (Mode.SLEEPING, "the server sleeps", "Keep it as it is.", "Time in which it slept"),
    ],
)
def test_a_server_in_a_mode_that_is_never_judged_is_left_out(mode, why, recommendation, time):
    none = counted(drafts=None, draft_tokens=None, accepted_tokens=None)
    model = report(flat(hour(at, none, mode=mode) for at in range(HOURS)))
    assert (model.answer.outcome, model.answer.speedup) == ("unknown", None)
    assert why in model.answer.sentence
    assert model.answer.recommendation == recommendation
    (figures,) = (part for part in answer_section(model).parts if isinstance(part, Table))
    assert time in [row[0].text for row in figures.rows]
