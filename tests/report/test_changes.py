"""When the server became another one, and what that did."""

from __future__ import annotations

import pytest

from specwatch.domain.baseline import Baseline, BaselineKey, Origin, choose, measured
from specwatch.domain.model import MINUTE, Environment, Histogram, Mode, Tally
from specwatch.domain.sample import samples_of
from specwatch.report.changes import MOST_CHANGES, changes
from specwatch.report.estimates import Bounds
from specwatch.report.model import ReportSide
from tests.report.hours import at, drafted, window

BOUNDS = (0.01, 0.02, 0.04)
UNKNOWN = ReportSide(
    hours=0.0, acceptance_rate=None, mean_length=None, tpot_p50=None, tpot_p99=None
)


def none(environment: Environment) -> Baseline:
    return Baseline()


def served(hour, *, rate=0.5, tpot=(0, 100, 0, 0), pace=0.02, **others):
    """An hour of 100 requests, whose mean time per token is ``pace``."""
    observed = Histogram(BOUNDS, tpot, pace * sum(tpot))
    if others.get("mode") is Mode.OFF:
        return window(hour, Tally(tpot=observed), **others)
    return window(hour, drafted(1000, rate, tpot=observed), **others)


def of(*windows, since=0.0, until=48.0, baseline=none):
    return changes(windows, baseline, at(since), at(until))


BEFORE_AFTER = {
    "a version": ({}, {"version": "0.32.0"}, "vLLM 0.31.0 -> 0.32.0"),
    "llama.cpp's build": (
        {"version": "b4567-aa"},
        {"version": "b4600-bb"},
        "version b4567-aa -> b4600-bb",
    ),
    "k": ({}, {"fingerprint": "aaaa-5"}, "k 4 -> 5"),
    "the configuration": ({}, {"fingerprint": "bbbb-4"}, "configuration"),
    "the configuration while speculation is off": (
        {"fingerprint": "aaaa-0", "mode": Mode.OFF},
        {"fingerprint": "bbbb-0", "mode": Mode.OFF},
        "configuration",
    ),
    "all at once": (
        {},
        {"version": "0.32.0", "fingerprint": "bbbb-5"},
        "vLLM 0.31.0 -> 0.32.0, k 4 -> 5, configuration",
    ),
    "weights changed without a restart": ({}, {"fingerprint": "aaaa-4 weights-1"}, "weights"),
    "a schedule for a fixed length": ({}, {"fingerprint": "aaaa-4 schedule"}, "lengths of drafts"),
    "k of several models": ({}, {"fingerprint": "aaaa-3+4"}, "k 4 -> 3+4"),
}


@pytest.mark.parametrize(("before", "after", "what"), BEFORE_AFTER.values(), ids=BEFORE_AFTER)
def test_what_changed_is_said(before, after, what):
    (change,) = of(served(0, **before), served(1, **before), served(2, **after), served(3, **after))
    assert (change.at, change.what) == (at(2), what)
    assert (change.before.hours, change.after.hours) == (2, 2)


NO_CHANGE = {
    "nothing": {},
    "speculation off": {"fingerprint": "aaaa-0", "mode": Mode.OFF},
    "a version that is not known": {"version": None},
    "a page that is not known": {"fingerprint": None},
    "a version that does not say its k": {"fingerprint": "aaaa-?"},
}


@pytest.mark.parametrize("after", NO_CHANGE.values(), ids=NO_CHANGE)
def test_what_is_no_change_is_not_told(after):
    assert of(served(0), served(1, **after), served(2)) == ()
    assert of(served(0), served(1, **after)) == ()


def test_another_k_after_speculation_was_off_is_a_change():
    off = {"fingerprint": "aaaa-0", "mode": Mode.OFF}
    (change,) = of(served(0), served(1, **off), served(2, fingerprint="aaaa-5"))
    assert (change.at, change.what) == (at(2), "k 4 -> 5")


def test_both_sides_are_measured_with_speculation_alone():
    off = {"fingerprint": "aaaa-0", "mode": Mode.OFF, "tpot": (0, 0, 0, 100)}
    (change,) = of(
        served(0, rate=0.5),
        served(1, rate=0.3),
        served(1, **off, seconds=600.0),
        served(2, rate=0.8, version="0.32.0", tpot=(100, 0, 0, 0)),
    )
    assert change.before == ReportSide(
        hours=2 + 600 / 3600,
        acceptance_rate=0.4,
        mean_length=2.6,
        tpot_mean=change.before.tpot_mean,
        tpot_p50=0.015,
        tpot_p99=pytest.approx(0.0199),
        buckets=dict.fromkeys(("tpot_p50", "tpot_p99"), Bounds(lower=0.01, upper=0.02)),
    )
    assert (change.after.hours, change.after.acceptance_rate) == (1, 0.8)
    assert change.after.tpot_p50 == 0.005


def test_a_side_is_a_day_at_most_and_ends_at_the_next_change():
    windows = [
        *(served(h) for h in range(-40, 0)),
        *(served(h, version="0.32.0") for h in range(0, 10)),
        *(served(h, version="0.33.0") for h in range(10, 40)),
        *(served(h) for h in range(40, 44)),
    ]
    several = of(*windows)
    assert [change.what.rpartition(" ")[2] for change in several] == ["0.32.0", "0.33.0", "0.31.0"]
    hours = [(change.before.hours, change.after.hours) for change in several]
    assert hours == [(24, 10), (10, 24), (24, 4)]


def test_of_an_hour_that_had_both_it_is_told_where_they_met():
    windows = [
        served(0),
        served(1, seconds=1200.0),
        served(1, seconds=2400.0, version="0.32.0", rate=0.7),
        served(2, version="0.32.0", rate=0.7),
    ]
    for given in (windows, windows[::-1]):
        (change,) = of(*given)
        assert change.at == at(1) + 1200
        assert change.before.hours == pytest.approx(4 / 3)
        assert change.after.hours == pytest.approx(5 / 3)
        assert (change.before.acceptance_rate, change.after.acceptance_rate) == (0.5, 0.7)


def test_what_was_there_for_a_moment_only_is_no_change():
    other = served(1, seconds=600.0, version="0.32.0")
    assert of(served(0), served(1, seconds=3000.0), other, served(2)) == ()


def test_of_several_in_an_hour_the_one_that_stayed_is_told():
    windows = [
        served(0),
        served(1, seconds=900.0),
        *(served(1, seconds=900.0, version=f"0.{minor}.0") for minor in (32, 33, 34)),
        served(2, version="0.33.0"),
    ]
    (change,) = of(*windows)
    assert change.what == "vLLM 0.31.0 -> 0.33.0"


def test_only_changes_of_the_period_are_told_with_what_lies_before_it():
    windows = [
        served(-2, version="0.30.0"),
        served(-1),
        served(0, version="0.32.0"),
        served(1, version="0.33.0"),
    ]
    several = of(*windows, since=0, until=1)
    assert [change.what for change in several] == ["vLLM 0.31.0 -> 0.32.0"]
    assert several[0].before.hours == 1


def test_two_servers_behind_one_address_do_not_fill_the_report():
    minutes = [
        window(change, length=MINUTE, seconds=60.0, version=f"0.3{change % 2}.0")
        for change in range(100)
    ]
    several = of(*minutes)
    assert len(several) == MOST_CHANGES
    assert several[-1].at == minutes[-1].start


def test_without_traffic_nothing_is_known_of_a_side():
    (change,) = of(window(0), window(1, version="0.32.0"))
    assert (change.before.hours, change.before.acceptance_rate, change.before.speedup) == (
        1,
        None,
        None,
    )
    assert change.before.tpot_p99 is change.before.mean_length is None


def test_speedups_are_against_the_baseline_of_each_side():
    def baseline_of(environment):
        plain = {"0.31.0": 0.04, "0.32.0": 0.03}[environment.engine_version]
        off = [served(h, mode=Mode.OFF, fingerprint="aaaa-0", pace=plain) for h in range(-20, -10)]
        key = BaselineKey("chat", "model")
        return choose(measured(key, Origin.WINDOWS, samples_of(off)), environment, now=at(0))

    windows = [served(h, pace=0.02) for h in range(8)]
    windows += [served(h, pace=0.025, version="0.32.0") for h in range(8, 16)]
    (change,) = of(*windows, baseline=baseline_of)
    assert change.before.speedup.value == pytest.approx(2.0)
    assert change.after.speedup.value == pytest.approx(1.2)
    assert change.after.speedup.lower <= 1.2 + 1e-9
    assert change.after.speedup.upper >= 1.2 - 1e-9
    assert change.after.speedup.basis == "measured"


def test_a_version_that_is_no_version_is_clean_and_short():
    (change,) = of(served(0), served(1, version="0\x1b[31m" + "y" * 9000))
    assert change.what.isprintable()
    assert len(change.what) < 120


def test_nothing_at_all():
    assert of() == ()
    assert of(served(0)) == ()
