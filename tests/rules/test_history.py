"""The past of a model: minutes as long as rules look, the day before in sums, nothing twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from specwatch.domain.model import ALL, HOUR, MINUTE, Environment, Histogram, Mode, Tally
from specwatch.domain.sample import Sample, samples_of, total
from specwatch.rules.history import BLOCK, FRESH, History
from tests.scrape.closing import START, K, minute
from tests.segments import segment

HERE = Environment("0.32.0", f"c-{K}")


def sample(number: int, **given: object) -> Sample:
    (only,) = samples_of(minute(number, **given))  # type: ignore[arg-type]
    return only


def filled(numbers: Iterable[int], **given: object) -> History:
    history = History(HOUR)
    for number in numbers:
        assert history.add(sample(number, **given))
    return history


def test_minutes_are_kept_as_long_as_the_horizon_and_no_longer() -> None:
    history = filled(range(100), steps=100)
    last = START + 100 * MINUTE
    fresh = [sample for sample in history.minutes if sample.length == MINUTE]
    blocks = [sample for sample in history.minutes if sample.length == BLOCK]
    settled = (last - FRESH) // BLOCK * BLOCK
    assert [sample.start for sample in fresh] == list(range(settled, last, MINUTE))
    assert [block.start for block in blocks] == list(range(last - HOUR, settled, BLOCK))
    assert total(history.minutes).drafts == 60 * 100


def test_only_like_minutes_are_merged() -> None:
    history = History(HOUR)
    for number in range(30):
        mode = Mode.ON if number % 2 else Mode.OFF
        load = 3.0 if number % 5 else 30.0
        restarts = int(number == 3)
        assert history.add(sample(number, mode=mode, running=load, restarts=restarts, steps=100))
    for kept in history.minutes:
        off = kept.mode is Mode.OFF
        assert (kept.tally.drafts is None) is off
        assert kept.sound is not (kept.start == START + 3 * MINUTE)
        assert kept.gauges.concurrency in (3.0, 30.0)
    assert total(history.minutes).drafts == 15 * 100


def test_a_minute_not_later_than_the_last_is_ignored() -> None:
    history = filled([5])
    assert not history.add(sample(5))
    assert not history.add(sample(4))
    assert len(history.minutes) == 1


def test_the_reference_is_the_day_before_the_last_hour() -> None:
    history = filled(range(0, 26 * 60, 10), steps=100, buckets={"0": (40, 0.5)})
    now = START + 26 * HOUR
    reference = history.reference(now, HERE)
    hours = 24
    assert reference[ALL].drafts == hours * 6 * 100
    assert reference[segment("0")].drafts == hours * 6 * 40
    assert reference[segment("0")].draft_tokens == hours * 6 * 40 * K


def test_minutes_without_speculation_are_not_in_the_reference() -> None:
    history = filled(range(0, 180, 10), mode=Mode.OFF)
    assert history.reference(START + 3 * HOUR, HERE) == {}


def test_requests_without_speculation_are_summed_apart_and_up_to_now() -> None:
    history = filled(range(0, 180, 10), steps=100)
    for number, mode in enumerate((Mode.OFF, Mode.STANDBY, Mode.STOPPED)):
        assert history.add(sample(180 + number, mode=mode, steps=200))
    found = history.finished(START + 4 * HOUR, HERE)
    assert [(hour.without, hour.of(ALL).requests) for hour in found] == [
        *[(False, {"stop": 6 * 5})] * 3,
        (True, {"stop": 3 * 10}),
    ]
    assert history.finished(START + 4 * HOUR, Environment("0.33.0", f"c-{K}")) == []
    two_hours = history.finished(START + 2 * HOUR, HERE)
    assert [hour.without for hour in two_hours] == [False, True]


def test_roll_ups_stand_in_place_of_the_minutes_of_their_hours() -> None:
    history = filled(range(0, 60, 10), steps=100)
    (first,) = minute(0)
    counted = Tally(drafts=600, draft_tokens=2400, accepted_tokens=1200)
    (rolled,) = samples_of([msgspec.structs.replace(first, length=HOUR, tally=counted)])
    history.add_hours([rolled])
    assert history.add(sample(60))
    assert history.reference(START + 2 * HOUR, HERE)[ALL].drafts == 600


def test_another_draft_or_version_is_no_reference() -> None:
    history = filled(range(0, 180, 10), steps=100)
    now = START + 4 * HOUR
    assert history.reference(now, HERE)[ALL].drafts == 18 * 100
    for other in (Environment("0.33.0", f"c-{K}"), Environment("0.32.0", "c-2")):
        assert history.reference(now, other) == {}


def test_earlier_minutes_come_in_order_and_once() -> None:
    whole, late = filled(range(80), steps=100), filled(range(70, 80), steps=100)
    earlier = [sample(number, steps=100) for number in range(75)]
    assert len(late.add_earlier(earlier)) == 70
    assert late.add_earlier(earlier) == []
    assert list(late.minutes) == list(whole.minutes)
    assert late.reference(START + 3 * HOUR, HERE) == whole.reference(START + 3 * HOUR, HERE)
    empty = History(HOUR)
    assert len(empty.add_earlier(earlier[:5])) == 5
    assert empty.add(sample(5))


def test_a_minute_kept_for_its_pace_has_all_that_a_speedup_needs() -> None:
    whole = sample(0, steps=100, buckets={"0": (40, 0.5)})
    lengths = Histogram((10.0,), (3, 1), 60.0)
    tally = msgspec.structs.replace(
        whole.tally, prompt_tokens=1000, prefix_cache_hits=300, output_length=lengths, e2e=lengths
    )
    history = History(HOUR)
    history.add(replace(whole, tally=tally))
    (paced,) = history.paced
    expected = replace(whole, tally=tally)
    assert (paced.pace, paced.steps, paced.requests) == (
        expected.pace,
        expected.steps,
        expected.requests,
    )
    assert (paced.tally.e2e, paced.buckets) == (None, {})
