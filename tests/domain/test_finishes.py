"""How requests finish is compared at the same traffic, and beyond what it varies by itself."""

from __future__ import annotations

import pytest

from specwatch.domain.finishes import finish_change
from specwatch.domain.interval import Interval
from specwatch.domain.model import Tally
from tests.domain.samples import finished_hours, minute


def ended(length: int, stop: int, prompt: int | None = 200) -> Tally:
    """Requests that ended at their limit or by themselves, with prompts of so many tokens."""
    requests = {"length": length, "stop": stop}
    tokens = None if prompt is None else prompt * (length + stop)
    return Tally(drafts=100, requests=requests, prompt_tokens=tokens)


def minutes(*tallies: Tally, count: int = 30):
    return [minute(n, tallies[n % len(tallies)]) for n in range(count)]


def of_all(*tallies: Tally):
    return [{"all": counted} for counted in tallies]


QUIET = of_all(ended(20, 380), ended(22, 378), ended(18, 382))
OFF = {"all": ended(20, 380)}


def change(samples, off=OFF, on=QUIET, hours: int = 24) -> Interval:
    result = finish_change("length", samples, finished_hours(off, on, hours))
    assert isinstance(result, Interval), result
    return result


def test_a_jump_is_certain_where_the_share_hardly_varies():
    jumped = change(minutes(ended(6, 14)))
    assert jumped.value == pytest.approx(0.25)
    assert jumped.lower > 0.1


def test_the_same_share_is_no_change():
    same = change(minutes(ended(1, 19)))
    assert same.lower < 0 < same.upper
    assert same.upper < 0.1


def test_the_same_jump_is_not_certain_where_the_share_varies_by_as_much_from_hour_to_hour():
    batches_at_night = of_all(ended(20, 380), ended(140, 260), ended(60, 340))
    assert change(minutes(ended(6, 14)), on=batches_at_night).lower < 0


def test_a_few_requests_prove_nothing():
    assert change(minutes(ended(1, 1), ended(0, 1), ended(0, 1))).lower < 0.1


def test_temperatures_are_compared_one_by_one():
    """More requests come at the temperature of which half always end at their limit."""
    capped, free = ended(200, 200), ended(20, 380)
    by_label = {"all": ended(220, 580), "0": capped, ">1": free}
    samples = [
        minute(n, buckets={"0": ended(9, 9), ">1": ended(0, 2) if n % 5 else ended(1, 1)})
        for n in range(30)
    ]
    result = finish_change("length", samples, finished_hours(by_label, [by_label]))
    assert isinstance(result, Interval)
    assert result.value == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    ("samples", "off", "hours", "why"),
    [
        (
            minutes(ended(6, 14, prompt=900)),
            OFF,
            24,
            "another traffic: its prompts have 900 tokens, those without speculation had 200",
        ),
        (minutes(ended(6, 14)), {"all": ended(1, 13)}, 24, "too few requests at temperatures"),
        (minutes(ended(6, 14), count=1), OFF, 24, "too few requests at temperatures"),
        (minutes(ended(6, 14)), OFF, 20, "too few earlier hours"),
    ],
    ids=["other prompts", "hardly off", "hardly any traffic", "a new server"],
)
def test_without_the_same_traffic_there_is_no_comparison(samples, off, hours, why):
    result = finish_change("length", samples, finished_hours(off, QUIET, hours))
    assert isinstance(result, str)
    assert result.startswith(why)


def test_prompts_of_unknown_length_are_compared():
    assert change(minutes(ended(6, 14, prompt=None))).lower > 0.1
