"""The report of a target: one pass over its windows, and every count in it exact."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.rules import Slo
from specwatch.domain.model import (
    HOUR,
    MINUTE,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Tally,
    Window,
)
from specwatch.report.build import build
from specwatch.report.grouped_data import ReportSources
from specwatch.report.health import health
from specwatch.report.model import ModelReport
from specwatch.report.objectives import objectives
from specwatch.wording.figures import moment
from tests.domain.samples import TPOT_BOUNDS, observed
from tests.report.history import (
    HOURS,
    MODEL,
    OFF,
    ON,
    SINCE,
    TARGET,
    bucket,
    counted,
    flat,
    hour,
    report,
    step,
)
from tests.report.history import measurement as measured
from tests.segments import segment

UNTIL = SINCE + HOURS * HOUR
LABELS = ("0", "(0,0.3]", "(0.7,1]", ">1", "unknown")


def lived() -> list[Window]:
    """Two days of hours of unlike load, mode, traffic and acceptance, each in two parts."""
    random = Random(5)
    return flat(
        hour(
            at,
            counted(tokens=random.randrange(1000, 9999), rate=None if mode is Mode.OFF else 0.6),
            mode=mode,
            running=running,
            buckets={label: bucket(random.randrange(1, 30)) for label in random.sample(LABELS, 3)},
        )
        for at in range(-HOURS, HOURS)
        for running, mode in ((2.0, random.choice(list(Mode))), (12.0, Mode.ON))
    )


def test_time_is_distinguished_by_mode():
    modes = [*[Mode.ON] * 3, Mode.OFF, *Mode]
    modes.remove(Mode.ON)
    traffic = report(flat(hour(at, mode=mode) for at, mode in enumerate(modes))).traffic
    assert traffic.seconds == {mode: {Mode.ON: 3, Mode.OFF: 2}.get(mode, 1) * HOUR for mode in Mode}
    assert (traffic.busy_on, traffic.busy_off) == (3 * 3000.0, 2 * 3000.0)


def test_an_engine_that_switched_it_off_is_named_with_the_time_and_what_to_do():
    modes = [Mode.STOPPED, *[Mode.ON] * 3, *[Mode.STOPPED] * 2]
    windows = flat(hour(at, mode=mode) for at, mode in enumerate(modes))
    model = report(windows)
    assert model.traffic.seconds[Mode.STOPPED] == 3 * HOUR
    assert model.stopped_since == SINCE + 4 * HOUR
    assert f"switched it off by {moment(SINCE + 4 * HOUR)}." in model.answer.sentence
    assert "until the engine starts again" in model.answer.recommendation
    again = report(flat([windows, hour(6, mode=Mode.ON)]))
    assert again.stopped_since is None
    off = report(flat(hour(at, counted(rate=None), mode=Mode.STOPPED) for at in range(HOURS)))
    assert off.answer.outcome == "off"
    assert "of it by the engine itself" in off.answer.sentence


def test_what_lies_outside_both_periods_counts_nowhere():
    windows = lived()
    strangers = [hour(-HOURS - 1), hour(-5 * HOURS), hour(HOURS), hour(2 * HOURS)]
    more = flat([*strangers, windows])
    assert msgspec.structs.replace(report(more), health=None) == msgspec.structs.replace(
        report(windows), health=None
    )


def test_models_are_reported_by_name_and_only_those_of_the_period():
    windows = flat(
        [hour(0, model="b"), hour(1, model="a"), hour(-2, model="gone"), hour(3, model="a")]
    )
    models = build(ReportSources(target=TARGET, windows=windows), SINCE, UNTIL)
    assert [model.model_name for model in models] == ["a", "b"]
    assert [model.traffic.requests for model in models] == [200, 100]


def test_no_windows_no_report():
    assert build(ReportSources(target=TARGET, windows=()), SINCE, UNTIL) == ()


def test_nothing_before_is_not_nothing():
    failed = hour(-1, Tally(), busy=0.0, observed_seconds=0.0, scrapes_ok=0, scrapes_failed=720)
    model = report(flat([hour(0), failed]))
    assert model.traffic.requests_before is None
    assert model.segments[0].acceptance_before is None
    assert model.segments[0].ttft.before is None


def test_a_server_that_counts_nothing_is_counted_by_its_tap():
    """llama.cpp: no acceptance, no latency, no mode; all that is known comes from its proxy."""
    silent = Tally(prompt_tokens=1000, generation_tokens=5000)
    parts = {"0": bucket(10, 0.8, 2000), ">1": bucket(30, 0.4, 1000)}
    windows = flat(
        hour(at, silent, mode=Mode.OFF, environment=Environment(), buckets=parts)
        for at in range(-3, 3)
    )
    model = report(windows)
    whole, zero, hot = model.segments
    assert whole.requests == 3 * 40
    assert whole.acceptance.drafts == 3 * (parts["0"].drafts + parts[">1"].drafts)
    assert whole.acceptance.accepted_tokens == sum(
        row.acceptance.accepted_tokens for row in (zero, hot)
    )
    assert whole.tpot.on.count == 3 * 40
    assert model.traffic.seconds == {**dict.fromkeys(Mode, 0.0), Mode.ON: 3 * HOUR}
    assert [point.drafts for point in model.series.acceptance["all"]] == [
        whole.acceptance.drafts / 3
    ] * 3
    assert [point.requests for point in model.series.latency] == [40] * 3
    assert model.answer.outcome == "unknown"


def test_the_other_parts_are_in_it():
    steps = [
        step(SINCE + 60.0, "i1", "observing", "suspect", "acceptance fell"),
        step(SINCE + 120.0, "i1", "suspect", "observing", "it came back"),
    ]
    model = report(flat(hour(at) for at in range(HOURS)), steps=steps, gpus=2)
    assert [incident.id for incident in model.incidents] == ["i1"]
    assert model.health.observed == HOURS * HOUR
    assert model.answer.sentence
    assert model.answer.gpus == 2
    assert model.changes == ()


def test_a_change_of_version_is_told():
    newer = Environment("0.33.0", "cafe-4")
    windows = flat(hour(at, environment=ON if at < 12 else newer) for at in range(-HOURS, HOURS))
    (change,) = report(windows).changes
    assert change.at == SINCE + 12 * HOUR


def test_switching_speculation_off_is_no_change():
    windows = flat(
        hour(at, mode=Mode.OFF if at % 3 else Mode.ON, environment=OFF if at % 3 else ON)
        for at in range(HOURS)
    )
    assert report(windows).changes == ()


def test_the_order_of_the_windows_of_an_hour_does_not_matter():
    windows = lived()
    random = Random(1)
    shuffled = sorted(windows, key=lambda each: (each.start, random.random()))
    one, other = report(windows), report(shuffled)
    assert one.traffic == other.traffic
    assert one.series.acceptance == other.series.acceptance
    for row, again in zip(one.segments, other.segments, strict=True):
        assert (row.acceptance, row.requests) == (again.acceptance, again.requests)


counts = st.none() | st.integers(0, 50)
latencies = st.none() | st.sampled_from(
    [
        Histogram((), (0,), 0.0),
        Histogram((), (7,), 0.3),
        Histogram((0.1, 1.0), (0, 0, 0), 0.0),
        Histogram((0.1, 1.0), (3, 0, 9), 99.0),
        Histogram((0.1, 2.0), (1, 4, 0), 2.0),
        observed([0.01, 0.02, 0.7], TPOT_BOUNDS),
    ]
)
tallies = st.builds(
    Tally,
    drafts=counts,
    draft_tokens=counts,
    accepted_tokens=counts,
    accepted_per_position=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    generation_tokens=counts,
    requests=st.dictionaries(st.sampled_from(["stop", "abort"]), st.integers(0, 9)),
    ttft=latencies,
    tpot=latencies,
    inter_token=latencies,
    request_acceptance=latencies,
)
environments = st.builds(
    Environment,
    st.sampled_from([None, "0.31.0", "0.32.0"]),
    st.sampled_from([None, "cafe-4", "cafe-0", "beef-2", "cafe-?", ""]),
)
odd_windows = st.builds(
    Window,
    series=st.builds(
        SeriesId,
        st.just("d"),
        st.just(TARGET),
        st.just(MODEL),
        st.sampled_from(list(map(segment, ("all", "all", "0", ">1", "unknown", "<b>")))),
    ),
    start=st.integers(-HOURS, HOURS).map(lambda at: SINCE + at * HOUR),
    length=st.just(HOUR),
    mode=st.sampled_from(Mode),
    tally=tallies,
    gauges=st.sampled_from(
        [Gauges(), Gauges(60.0, 0.0), Gauges(60.0, 60.0, 90.0), Gauges(60.0, 1.0, 200.0)]
    ),
    environment=environments,
    observed_seconds=st.sampled_from([0.0, 10.0, 3600.0, 9999.0]),
    scrapes_ok=st.integers(0, 2),
    restarts=st.sampled_from([0, 0, 1]),
)


@given(st.lists(odd_windows, max_size=25), st.booleans(), st.none() | st.integers(0, 8))
def test_whatever_the_windows_there_is_a_report_that_can_be_read_back(windows, known, gpus):
    """Odd ones: nothing counted, no gauges, counters that contradict one another."""
    ordered = sorted(windows, key=lambda each: each.start)
    measurements = [measured(1.0), measured(2.0, 0.04, environment=Environment())] if known else []
    sources = ReportSources(target=TARGET, windows=ordered, measurements=measurements, gpus=gpus)
    models = build(sources, SINCE, UNTIL)
    assert bool(models) == any(SINCE <= window.start < UNTIL for window in windows)
    for one in models:
        assert msgspec.json.decode(msgspec.json.encode(one), type=ModelReport) == one
        assert all(row.share is None or 0 <= row.share <= 1 for row in one.segments)


def test_minutes_of_a_short_period():
    windows = flat(hour(at, length=MINUTE, busy=60.0, scrapes_ok=12) for at in range(-30, 30))
    (models,) = build(ReportSources(target=TARGET, windows=windows), SINCE, SINCE + 30 * MINUTE)
    assert models.traffic.requests == models.traffic.requests_before == 30 * 100
    assert len(models.series.latency) == 30


@pytest.mark.parametrize("length", [HOUR, MINUTE])
def test_health_and_objectives_are_those_of_all_the_windows(length):
    """Although what a tap saw of each temperature is only kept in sums."""
    slos = [Slo(name="first", metric="ttft", threshold="100ms", objective="90%")]
    random = Random(3)
    windows = flat(
        hour(
            at,
            length=length,
            busy=length / 2,
            buckets={
                label: bucket(
                    drafts=random.randrange(200),
                    records={"record": 1, "derived": random.randrange(3)},
                    uncovered={"several": random.randrange(4)},
                )
                for label in random.sample(LABELS, 4)
            },
        )
        for at in range(-60, 60)
        if at % 7
    )
    until = SINCE + 60 * length
    sources = ReportSources(target=TARGET, windows=iter(windows), slos=slos)
    (models,) = build(sources, SINCE, until)
    assert models.health == health(windows, SINCE, until)
    assert models.health.uncovered["several"] > 30
    assert models.objectives == objectives(slos, windows, SINCE, until)
    labels = {window.series.segment for window in windows}
    assert {row.segment: row.requests for row in models.segments} == {
        label: sum(
            window.tally.requests["stop"]
            for window in windows
            if window.series.segment == label and SINCE <= window.start < until
        )
        for label in labels
    }
