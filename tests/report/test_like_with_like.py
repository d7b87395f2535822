"""What is compared is alike: loads, environments, times, and the time watched."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from specwatch.domain.baseline import Origin
from specwatch.domain.model import HOUR, Environment, Mode, Window
from specwatch.report.build import build
from specwatch.report.model import ModelReport
from specwatch.report.sources import ReportSources, StoredStep
from tests.report.history import ON, SINCE, TARGET, counted, flat, hour, measurement

HOURS = 48
UNTIL = SINCE + HOURS * HOUR
DAY = 24 * HOUR
NEWER = Environment("0.33.0", "cafe-4")


def reports(windows: list[Window], *measurements: Any, **others: Any) -> tuple[ModelReport, ...]:
    sources = ReportSources(target=TARGET, windows=windows, measurements=measurements, **others)
    return build(sources, SINCE, UNTIL)


def report(windows: list[Window], *measurements: Any, **others: Any) -> ModelReport:
    (found,) = reports(windows, *measurements, **others)
    return found


def test_hours_of_a_server_without_a_baseline_are_not_saved():
    """An upgrade at half time, with the baseline of the old version only."""
    windows = flat(hour(at, environment=ON if at < HOURS / 2 else NEWER) for at in range(HOURS))
    found = report(windows, measurement())
    assert found.answer.speedup.value == pytest.approx(1.5)
    assert found.answer.hours_saved.value == pytest.approx(HOURS / 2 * 3000 / HOUR * 0.5)


def test_latencies_are_compared_where_nearly_all_loads_are_known():
    off = [hour(at, mode=Mode.OFF) for at in range(-9, 0)]
    most = [hour(at, running=50.0 if at % 4 == 0 else 4.0) for at in range(HOURS)]
    assert report(flat([*off, *most])).temperatures[0].tpot.off is None
    nearly = [hour(at, running=50.0 if at == 7 else 4.0) for at in range(HOURS)]
    assert report(flat([*off, *nearly])).temperatures[0].tpot.off is not None


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


def test_the_mix_of_loads_is_no_noise():
    """Each load is known exactly, so that all is."""
    windows = [
        hour(at, counted(tpot=0.02 if running < 5 else 0.05), running=running)
        for at in range(HOURS)
        for running in (4.0, 12.0)
    ]
    found = report(flat(windows), measurement(4.0), measurement(12.0)).answer.speedup
    assert found.value == pytest.approx(0.03 / 0.035)
    assert found.upper - found.lower < 0.01


def test_the_noise_within_a_load_stays_noise():
    random = Random(3)
    windows = [
        hour(at, counted(tpot=pace * random.uniform(0.7, 1.3)), running=running)
        for at in range(HOURS)
        for running, pace in ((4.0, 0.02), (12.0, 0.05))
    ]
    found = report(flat(windows), measurement(4.0), measurement(12.0)).answer.speedup
    assert found.upper - found.lower > 0.01


def test_an_expired_measurement_does_not_hide_the_hours_without_speculation():
    windows = flat(
        [*(hour(at) for at in range(HOURS)), *(hour(at, mode=Mode.OFF) for at in range(-20, 0))]
    )
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
    found = report(flat(hour(at) for at in range(-before, HOURS))).traffic
    assert (found.requests_before is not None) is known
    assert (found.generation_tokens_before is not None) is known


def test_a_latency_beyond_the_last_bound_is_marked():
    slow = counted(tpot=30.0)
    found = report(
        flat(hour(at, slow, environment=ON if at < 20 else NEWER) for at in range(HOURS))
    )
    (change,) = found.changes
    assert "tpot_p99" in change.after.beyond
    assert "tpot_p99" in found.series.latency[0].beyond
    assert "ttft_p99" not in found.series.latency[0].beyond


def test_a_model_that_got_another_name_was_watched_until_then():
    windows = flat(hour(at, model="old" if at < 20 else "new") for at in range(HOURS))
    steps = [
        StoredStep(SINCE + 100.0, "i1", "observing", "confirmed", "x"),
        StoredStep(SINCE + 30.0 * HOUR, "i1", "confirmed", "disabled", "off"),
        StoredStep(SINCE + 32.0 * HOUR, "i1", "disabled", "observing", "on"),
    ]
    new, old = reports(windows, steps=steps)
    assert (old.health.expected, old.health.observed, old.health.gap_count) == (
        20 * HOUR,
        20 * HOUR,
        0,
    )
    assert (old.seconds_off_by_guard, new.seconds_off_by_guard) == (0, 2 * HOUR)
