"""A change of acceptance is one of the draft, not of the temperatures that are asked for."""

from __future__ import annotations

import random

import pytest

from specwatch.domain.acceptance import AcceptanceChange, acceptance_change
from tests.domain.samples import minute, minutes, tally

THEN = {
    "all": tally(rate=0.6, drafts=20_000),
    "0": tally(rate=0.8, drafts=10_000),
    ">1": tally(rate=0.4, drafts=10_000),
}


def mixed(greedy: float, hot: float, *, share: float, count: int = 30):
    """Minutes of two temperatures, of which the first has a share of the drafts."""
    first, second = round(1000 * share), round(1000 * (1 - share))
    buckets = {"0": tally(rate=greedy, drafts=first), ">1": tally(rate=hot, drafts=second)}
    accepted = sum(bucket.accepted_tokens for bucket in buckets.values())
    return minutes(count, tally(rate=accepted / 4000), buckets=buckets)


def change(samples, reference=THEN) -> AcceptanceChange:
    change_found = acceptance_change(samples, reference)
    assert isinstance(change_found, AcceptanceChange), change_found
    return change_found


def test_a_shift_of_traffic_to_hotter_requests_is_no_change():
    change_found = change(mixed(0.8, 0.4, share=0.1))
    assert change_found.interval.value == pytest.approx(0, abs=1e-9)
    assert change_found.note is None


def test_a_worse_draft_is_seen_at_the_mix_of_now():
    change_found = change(mixed(0.7, 0.4, share=0.2)).interval
    assert change_found.value == pytest.approx(-0.02)
    assert change_found.upper < 0


def test_two_thirds_of_a_fall_hidden_by_a_better_mix_is_seen():
    assert change(mixed(0.7, 0.3, share=0.9)).interval.value == pytest.approx(-0.1)


def test_without_buckets_it_is_the_whole_difference_and_says_so():
    change_found = change(minutes(30, tally(rate=0.5)))
    assert change_found.interval.value == pytest.approx(-0.1)
    assert change_found.note == "temperature mix unknown"


def test_a_bucket_that_the_reference_hardly_knows_is_left_out():
    reference = {**THEN, "0": tally(rate=0.1, drafts=99)}
    assert change(mixed(0.8, 0.4, share=0.4), reference).interval.value == pytest.approx(0)


@pytest.mark.parametrize(
    ("samples", "reference", "why"),
    [
        (mixed(0.8, 0.4, share=0.6), {**THEN, "0": tally(drafts=99)}, "too few drafts at"),
        (minutes(9, buckets={"(0,0.3]": tally()}), THEN, "too few drafts at"),
        (minutes(9), {}, "too few drafts, now"),
        (minutes(9, tally(drafts=10)), THEN, "too few drafts, now"),
        (mixed(0.8, 0.4, share=0.6, count=4), THEN, "too few minutes"),
        (minutes(4), {"all": THEN["all"]}, "too few minutes"),
        ([], THEN, "too few drafts, now"),
    ],
)
def test_it_says_why_there_is_no_comparison(samples, reference, why):
    """A shift to temperatures that the reference has not is not taken for a change."""
    change_found = acceptance_change(samples, reference)
    assert isinstance(change_found, str)
    assert change_found.startswith(why)


def test_minutes_that_differ_widen_the_interval():
    rates = [0.3 + 0.6 * (n % 2) for n in range(30)]
    steady = change(minutes(30, tally(rate=0.6))).interval
    restless = change([minute(n, tally(rate=rate)) for n, rate in enumerate(rates)]).interval
    assert restless.value == pytest.approx(steady.value)
    assert restless.upper - restless.lower > 5 * (steady.upper - steady.lower)


def test_the_interval_contains_no_change_95_times_of_100():
    """Drafts come in clusters: each minute has an acceptance of its own, now and then."""
    chance = random.Random(5)

    def rate() -> float:
        return min(max(chance.gauss(0.6, 0.08), 0), 1)

    hits = 0
    for _ in range(300):
        then = sum(rate() for _ in range(200)) / 200
        now = [minute(n, tally(rate=rate(), drafts=200, requests=0)) for n in range(12)]
        change_found = change(now, {"all": tally(rate=then, drafts=40_000)}).interval
        hits += change_found.lower <= 0 <= change_found.upper
    assert 0.92 <= hits / 300 <= 0.98
