"""A sample is what a decision may believe of one minute."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.domain.model import (
    MINUTE,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Tally,
    Window,
)
from specwatch.domain.sample import Pace, pace_of, samples_of, tally_of, total
from tests.domain import minutes
from tests.segments import segment


def window(start: int = 0, temperature: str = "all", **more) -> Window:
    sound = {"observed_seconds": 60.0, "scrapes_ok": 12, "mode": Mode.ON, "tally": Tally(drafts=1)}
    series = SeriesId("daemon", "chat", "tiny", segment(temperature))
    return Window(series=series, start=start, length=MINUTE, **{**sound, **more})


@pytest.mark.parametrize(
    ("more", "sound"),
    [
        ({}, True),
        ({"mode": Mode.OFF}, True),
        ({"mode": Mode.MIXED}, False),
        ({"restarts": 1}, False),
        ({"scrapes_ok": 0}, False),
        ({"observed_seconds": 0.0}, False),
        ({"observed_seconds": 5.0}, True),
        ({"observed_seconds": 90.0}, True),
        ({"observed_seconds": 90.5}, False),
        ({"scrapes_failed": 3}, True),
        ({"down_seconds": 5.0}, False),
    ],
)
def test_restarts_gaps_and_changes_of_mode_are_not_sound(more, sound):
    (sample,) = samples_of([window(**more)])
    assert sample.sound is sound


@given(st.permutations(range(9)))
def test_buckets_stand_beside_all_temperatures_in_any_order(order):
    windows = [
        window(start, label, tally=Tally(drafts=number))
        for start in (0, 60, 120)
        for number, label in enumerate(("all", "0", ">1"), start + 1)
    ]
    samples = samples_of(windows[n] for n in order)
    assert [sample.start for sample in samples] == [0, 60, 120]
    assert [sample.tally.drafts for sample in samples] == [1, 61, 121]
    assert [{k.value: t.drafts for k, t in sample.buckets.items()} for sample in samples] == [
        {"0": n + 2, ">1": n + 3} for n in (0, 60, 120)
    ]


def test_buckets_without_all_temperatures_are_left_out():
    assert samples_of([window(0, "0"), window(60, "all")])[0].buckets == {}


def test_parts_of_an_hour_keep_to_their_own_mode_and_load():
    """A roll-up has several windows of one start: bucket windows belong to one of them each."""
    busy, idle = (Gauges(60, 60, 60 * load) for load in (4, 1))
    hour = [
        window(0, label, mode=mode, gauges=load, environment=environment, tally=Tally(drafts=n))
        for n, (mode, load, environment) in enumerate(
            [
                (Mode.ON, busy, Environment("1")),
                (Mode.ON, idle, Environment("1")),
                (Mode.OFF, busy, Environment("1")),
                (Mode.ON, busy, Environment("2")),
            ],
            1,
        )
        for label in ("all", "0")
    ]
    samples = samples_of(hour)
    assert len(samples) == 4
    assert all(sample.buckets[segment("0")].drafts == sample.tally.drafts for sample in samples)


def test_coverage_is_that_of_the_buckets():
    part = window(0, "0", server_drafts=100, source_drafts=80)
    assert samples_of([window(), part])[0].coverage == 0.8
    assert samples_of([window()])[0].coverage is None


def test_the_pace_is_the_time_between_tokens_over_all_but_the_first():
    tally = Tally(
        generation_tokens=1100,
        ttft=Histogram((), (100,), 3.0),
        inter_token=Histogram((), (400,), 25.0),
        tpot=Histogram((), (100,), 99.0),
    )
    assert pace_of(tally) == Pace(25.0, 1000.0, by_token=True)


def test_without_the_time_between_tokens_it_is_that_of_requests():
    assert pace_of(Tally(tpot=Histogram((), (20,), 0.8))) == Pace(0.8, 20.0, by_token=False)


@pytest.mark.parametrize(
    "tally",
    [
        Tally(),
        Tally(tpot=Histogram((), (0,), 0.0)),
        Tally(generation_tokens=0, inter_token=Histogram((), (0,), 0.0)),
        Tally(generation_tokens=9, inter_token=Histogram((), (9,), 0.0)),
        Tally(
            generation_tokens=9,
            ttft=Histogram((), (9,), 1.0),
            inter_token=Histogram((), (9,), 1.0),
        ),
    ],
)
def test_without_tokens_or_time_there_is_no_pace(tally):
    assert pace_of(tally) is None


def test_a_server_that_says_nothing_has_the_pace_of_its_buckets():
    """As llama.cpp behind a proxy: the windows say off, and what was drafted gives it away."""
    whole = window(mode=Mode.OFF, tally=Tally())
    parts = [
        msgspec.structs.replace(
            whole,
            series=msgspec.structs.replace(whole.series, segment=segment(label)),
            tally=Tally(
                drafts=count, accepted_tokens=count, tpot=Histogram((), (count,), count * 0.1)
            ),
        )
        for label, count in (("0", 4), (">1", 6))
    ]
    (sample,) = samples_of([whole, *parts])
    assert sample.mode is Mode.ON
    assert sample.pace == Pace(pytest.approx(1.0), 10.0, by_token=False)
    assert (sample.steps, sample.tally.accepted_tokens) == (10, 10)


def test_each_step_yields_a_token_and_what_was_accepted_with_it():
    """Steps that found nothing to draft are among them, as lookups have them."""
    assert minutes.on(0, drafts=400, accepted=600).steps == 400
    assert minutes.on(0, drafts=400, accepted=600, plain_steps=200).steps == 600
    assert minutes.per_request(minutes.on(0, drafts=400, plain_steps=200)).steps == 400
    assert minutes.off(0).steps is None


def test_there_are_never_fewer_steps_than_drafts():
    """The last tokens of a draft may be cut off, as by a stop string."""
    sample = minutes.on(0, drafts=400, accepted=600)
    sample = replace(sample, tally=msgspec.structs.replace(sample.tally, accepted_tokens=700))
    assert sample.steps == 400


def test_totals_add_up():
    samples = [minutes.on(n, buckets={"0": (10, 20), ">1": (n, n)}) for n in range(3)]
    assert total(samples).drafts == 1200
    accepted = [tally_of(samples, segment(label)).accepted_tokens for label in ("0", ">1")]
    assert accepted == [60, 3]
    assert total([]) == Tally()


def test_only_what_decisions_read_is_kept():
    tally = Tally(
        inter_token=Histogram((1.0, 2.0), (3, 4, 5), 9.0),
        uncovered={"refused": 1},
        records={"record": 2},
        requests={"stop": 3},
    )
    (sample,) = samples_of([window(tally=tally)])
    assert sample.tally == Tally(inter_token=Histogram((), (12,), 9.0), requests={"stop": 3})


def test_a_request_finds_the_mean_of_all_time_or_the_other_clients():
    """Half of the time nobody asks, and three run for the rest: one that comes finds 1.5."""
    tally = Tally(prompt_tokens=60, ttft=Histogram((0.1,), (4, 0), 0.2))
    gauges = Gauges(sampled_seconds=60.0, busy_seconds=30.0, running_seconds=90.0)
    (sample,) = samples_of([window(tally=tally, gauges=gauges)])
    assert sample.requests is not None
    assert (sample.requests.population, sample.requests.arrival_load) == (3.0, 2.5)
    closed = replace(sample, closed_loop=True)
    assert closed.requests is not None
    assert closed.requests.arrival_load == 3.0
