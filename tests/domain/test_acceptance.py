"""A change of acceptance is one of the draft, not of the temperatures that are asked for."""

from __future__ import annotations

import random

import pytest

from specwatch.domain.acceptance import AcceptanceChange, acceptance_change
from tests.domain.samples import minute, minutes, tally
from tests.segments import segment

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
    result = acceptance_change(
        samples, {segment(label): counted for label, counted in reference.items()}
    )
    assert isinstance(result, AcceptanceChange), result
    return result


@pytest.mark.parametrize(
    ("samples", "reference", "value", "note"),
    [
        pytest.param(mixed(0.8, 0.4, share=0.1), THEN, 0.0, None, id="traffic became hotter"),
        pytest.param(mixed(0.7, 0.4, share=0.2), THEN, -0.02, None, id="a worse draft at 0"),
        pytest.param(mixed(0.7, 0.3, share=0.9), THEN, -0.1, None, id="a better mix hides a fall"),
        pytest.param(
            mixed(0.8, 0.4, share=0.4),
            {**THEN, "0": tally(rate=0.1, drafts=99)},
            0.0,
            None,
            id="the reference hardly knows a bucket",
        ),
        pytest.param(
            minutes(30, tally(rate=0.5)), THEN, -0.1, "temperature mix unknown", id="no buckets"
        ),
    ],
)
def test_a_change_is_that_of_the_draft_at_the_present_mix(samples, reference, value, note):
    result = change(samples, reference)
    assert result.interval.value == pytest.approx(value, abs=1e-9)
    assert (result.interval.upper < 0) is (value < 0)
    assert result.note == note


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
    result = acceptance_change(
        samples, {segment(label): counted for label, counted in reference.items()}
    )
    assert isinstance(result, str)
    assert result.startswith(why)


def test_minutes_that_differ_widen_the_interval():
    rates = [0.3 + 0.6 * (n % 2) for n in range(30)]
    steady = change(minutes(30, tally(rate=0.6))).interval
    restless = change([minute(n, tally(rate=rate)) for n, rate in enumerate(rates)]).interval
    assert restless.value == pytest.approx(steady.value)
    assert restless.upper - restless.lower > 5 * (steady.upper - steady.lower)


def share_covered(runs: int) -> float:
    """Drafts come in clusters: each minute has an acceptance of its own, now and then."""
    chance = random.Random(5)

    def rate() -> float:
        return min(max(chance.gauss(0.6, 0.08), 0), 1)

    hits = 0
    for _ in range(runs):
        then = sum(rate() for _ in range(200)) / 200
        now = [minute(n, tally(rate=rate(), drafts=200, requests=0)) for n in range(12)]
        result = change(now, {"all": tally(rate=then, drafts=40_000)}).interval
        hits += result.lower <= 0 <= result.upper
    return hits / runs


def test_the_interval_contains_no_change_95_times_of_100():
    assert 0.9 <= share_covered(60) < 1.0
