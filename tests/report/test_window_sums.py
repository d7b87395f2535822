"""What a stretch of windows adds up to is what its windows were."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.merge import sum_tallies
from specwatch.domain.model import HOUR, Histogram, Mode, Tally, Window
from specwatch.domain.sample import Sample, counted_in, samples_of, tally_of
from specwatch.report.grouped_data import drafted_of, slices_of
from specwatch.report.window_sums import Ledger, stretches
from tests.report.history import SINCE, counted, flat, hour
from tests.segments import segment

OUTPUTS = Histogram((), (100,), 10_000.0)


def samples(windows: list[Window], most: int = 1) -> list[Sample]:
    ledger = Ledger("tiny")
    for window in windows:
        ledger.take(slices_of([window], now=True))
    return ledger.samples(most)


def test_a_stretch_lasts_from_its_first_window_to_the_end_of_its_last() -> None:
    """Whatever lies between them; so is it told whether stretches follow one another."""
    windows = flat(hour(at) for at in (0, 1, 5))
    (sample,) = samples(windows)
    assert (sample.start, sample.length) == (SINCE, 6 * HOUR)
    first, second = samples(windows, 2)
    assert (first.start, first.length) == (SINCE, HOUR)
    assert (second.start, second.length) == (SINCE + HOUR, 5 * HOUR)


def test_a_stretch_adds_up_what_its_windows_took_and_were_asked_for() -> None:
    """Of alike windows it is the sum in all that is counted, and the same in all that is a mean."""
    whole = counted(output_length=OUTPUTS, prefix_cache_hits=300)
    windows = [
        msgspec.structs.replace(
            window,
            gauges=msgspec.structs.replace(
                window.gauges, waiting_seconds=600.0, sampled_seconds=7200.0
            ),
        )
        for window in flat(hour(at, whole) for at in range(3))
    ]
    (sample,) = samples(windows)
    one = samples_of(windows[:1])[0]
    assert sample.pace is not None
    assert one.pace is not None
    assert sample.pace.tokens == 3 * one.pace.tokens
    assert sample.pace.seconds == pytest.approx(3 * one.pace.seconds)
    assert sample.tally.drafts == 3 * (one.tally.drafts or 0)
    assert sample.tally.draft_tokens == 3 * (one.tally.draft_tokens or 0)
    assert sample.tally.accepted_tokens == 3 * (one.tally.accepted_tokens or 0)
    assert sample.steps == pytest.approx(3 * (one.steps or 0))
    assert sample.gauges.concurrency == one.gauges.concurrency
    assert sample.requests is not None
    assert one.requests is not None
    assert sample.requests.firsts == 3 * one.requests.firsts
    assert sample.requests.first_seconds == pytest.approx(3 * one.requests.first_seconds)
    assert sample.requests.prompt_tokens == 3 * one.requests.prompt_tokens
    assert sample.requests[3:] == pytest.approx(one.requests[3:])


@pytest.mark.parametrize("seed", range(8))
def test_a_stretch_of_any_windows_is_the_sum_of_their_samples(seed: int) -> None:
    """To the last digit, in the order of time; of windows of which some have no requests it has
    none. The same stretches without temperatures and segments are those of a chart."""
    chance = random.Random(seed)
    whole = [_any_hour(at, chance) for at in range(chance.randint(2, 9))]
    ledger = Ledger("tiny")
    for windows in whole:
        ledger.take(slices_of(windows, now=True))
    hours = [samples_of(windows)[0] for windows in whole]
    (found,) = ledger.samples(1)
    (plain,) = ledger.samples_in(100 * HOUR, SINCE)
    assert plain == replace(found, segments={})
    paces = [one.pace for one in hours if one.pace is not None]
    assert found.pace is not None
    assert found.pace.seconds == sum(pace.seconds for pace in paces)
    assert found.pace.tokens == sum(pace.tokens for pace in paces)
    total = sum_tallies(one.tally for one in hours)
    for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_per_position"):
        assert getattr(found.tally, name) == getattr(total, name)
    gauges = [one.gauges for one in hours]
    assert found.gauges.busy_seconds == sum(one.busy_seconds for one in gauges)
    assert found.gauges.running_seconds == sum(one.running_seconds for one in gauges)
    asked = [one.requests for one in hours if one.requests is not None]
    assert (found.requests is None) == (len(asked) < len(hours))
    if found.requests is not None:
        assert found.requests.firsts == sum(one.firsts for one in asked)
        assert found.requests.first_seconds == sum(one.first_seconds for one in asked)
        assert found.tally.prompt_tokens == total.prompt_tokens
        assert found.tally.prefix_cache_hits == total.prefix_cache_hits
    for one in {one for each in hours for by in each.segments.values() for one in by}:
        assert drafted_of(counted_in(found, one)) == drafted_of(tally_of(hours, one))


def _any_hour(at: int, chance: random.Random) -> list[Window]:
    """With any of three temperatures and a segment, some hours without prompts."""
    whole = counted(
        output_length=OUTPUTS,
        prefix_cache_hits=chance.randint(0, 300),
        accepted_per_position=tuple(chance.randint(1, 99) for _ in range(chance.randint(1, 4))),
    )
    if chance.random() < 0.05:
        whole = msgspec.structs.replace(whole, prompt_tokens=None)
    (window,) = hour(at, whole)
    labels = [
        label for label in ("0", ">1", "unknown", "prompt_length=512-2k") if chance.random() < 0.7
    ]
    gauges = msgspec.structs.replace(
        window.gauges,
        sampled_seconds=window.gauges.sampled_seconds + chance.random(),
        waiting_seconds=chance.random(),
    )
    return [
        msgspec.structs.replace(window, gauges=gauges),
        *(
            msgspec.structs.replace(
                window,
                series=msgspec.structs.replace(window.series, segment=segment(label)),
                gauges=gauges,
                tally=Tally(drafts=chance.randint(1, 9), draft_tokens=36, accepted_tokens=7),
            )
            for label in labels
        ),
    ]


def test_windows_with_a_restart_an_outage_or_a_gap_are_in_no_stretch() -> None:
    (sound,) = hour(0)
    for unsound in (
        msgspec.structs.replace(sound, restarts=1),
        msgspec.structs.replace(sound, down_seconds=1.0),
        msgspec.structs.replace(sound, scrapes_ok=0),
        msgspec.structs.replace(sound, observed_seconds=0.0),
        msgspec.structs.replace(sound, observed_seconds=1.5 * HOUR + 1),
        msgspec.structs.replace(sound, mode=Mode.MIXED),
    ):
        assert samples([unsound]) == []
    assert len(samples([msgspec.structs.replace(sound, observed_seconds=1.5 * HOUR)])) == 1


@pytest.mark.parametrize(
    ("count", "most", "lengths"), [(0, 3, []), (2, 3, [1, 1]), (7, 3, [2, 2, 3]), (6, 2, [3, 3])]
)
def test_runs_of_neighbours_are_of_about_one_length(
    count: int, most: int, lengths: list[int]
) -> None:
    result = stretches(range(count), most)
    assert [len(item) for item in result] == lengths
    assert [one for entry in result for one in entry] == list(range(count))
