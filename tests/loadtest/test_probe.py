"""What the answers of a sweep say: acceptance with its interval, the line, zones, who was there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.baseline import Baseline, BaselineKey, Measurement, Origin
from specwatch.domain.baseline_points import Point
from specwatch.domain.experiments import Distribution
from specwatch.domain.model import Environment, Gauges, Histogram, Mode, Series, Tally
from specwatch.domain.model import load_bin as load_bin_of
from specwatch.domain.sample import Sample
from specwatch.engines.llamacpp import LLAMACPP
from specwatch.lab.loadtest.acceptance import (
    DraftCounts,
    acceptance_of,
    length_interval,
    rate_interval,
)
from specwatch.lab.loadtest.acceptance import drawn as units
from specwatch.lab.loadtest.calibration import Slice, Stage
from specwatch.lab.loadtest.engine import MeasuredModel
from specwatch.lab.loadtest.other_traffic import other_traffic
from specwatch.lab.loadtest.probe import (
    Source,
    StepCost,
    Sweep,
    cost_of,
    line_of,
    notes_of,
    problems_of,
    shortfall_of,
    temperatures_of,
)
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from specwatch.lab.loadtest.result_parts import distribution_of
from specwatch_tap.acceptance import Acceptance as Record

K = 4
ENGINE = MeasuredModel("tiny", "tiny", Mode.ON, Environment("0.32.0", "abc-4"))


def part(lengths: Sequence[int]) -> DraftCounts:
    """A request whose drafts had so many tokens accepted."""
    histogram = tuple(lengths.count(number) for number in range(K + 1))
    return DraftCounts(len(lengths), K * len(lengths), sum(lengths), histogram)


def drawn(count: int, chance: float, seed: int, drafts: int = 12) -> list[DraftCounts]:
    """Requests that each have a chance of their own around ``chance``."""
    generator = random.Random(seed)
    result = []
    for _ in range(count):
        own = min(max(generator.gauss(chance, 0.1), 0.02), 0.98)
        lengths = [
            next((number for number in range(K) if generator.random() > own), K)
            for _ in range(drafts)
        ]
        result.append(part(lengths))
    return result


def test_acceptance_adds_up_over_requests() -> None:
    result = acceptance_of([part([4, 0]), part([2]), part([1, 1, 4])])
    assert (result.drafts, result.draft_tokens, result.accepted_tokens) == (6, 24, 12)
    assert result.mean_length == 3
    assert result.histogram == (1, 2, 1, 0, 2)
    assert result.per_position == (5 / 6, 3 / 6, 2 / 6, 2 / 6)
    assert (result.rate.value, result.rate.lower) == (0.5, None), "too few for an interval"


def test_what_is_unknown_of_one_request_is_unknown_of_all() -> None:
    result = acceptance_of([part([4, 0]), DraftCounts(None, 8, 4)])
    assert (result.drafts, result.mean_length, result.histogram) == (None, None, None)
    assert result.accepted_tokens == 8
    assert acceptance_of([DraftCounts(0, 0, 0)]) is None


def share_inside(chance: float, draws: int) -> float:
    """The share of draws of twenty requests whose interval has the rate of all requests."""
    whole = acceptance_of(drawn(1500, chance, 1))
    inside = 0
    for seed in range(100, 100 + draws):
        result = rate_interval(drawn(20, chance, seed))
        assert 0 <= result.lower <= result.value <= result.upper <= 1
        inside += result.lower <= whole.rate.value <= result.upper
    return inside / draws


def test_the_interval_covers_the_rate_that_requests_have() -> None:
    assert share_inside(0.7, 12) >= 10 / 12


@pytest.mark.parametrize("length", [0, K])
def test_an_acceptance_of_all_or_nothing_has_an_interval(length: int) -> None:
    """Twenty requests that kept nothing do not prove that none ever will."""
    result = rate_interval([part([length] * 9)] * 20)
    ends = (result.lower, result.upper) if length == 0 else (1 - result.upper, 1 - result.lower)
    assert ends == pytest.approx((0, 0.168), abs=0.001)
    assert rate_interval([part([length] * 9)] * 4) is None, "too few"


def test_equal_requests_have_an_interval_without_width() -> None:
    result = rate_interval([part([2, 2])] * 8)
    assert (result.lower, result.value, result.upper) == pytest.approx((0.5, 0.5, 0.5))


def test_requests_of_one_prompt_are_drawn_together() -> None:
    """At temperature 0 they are the same: a hundred of ten prompts are as sure as the ten."""
    ten = [
        replace(one, prompts=frozenset(str(number))) for number, one in enumerate(drawn(10, 0.6, 1))
    ]
    once, often = rate_interval(ten), rate_interval(ten * 10)
    assert (often.lower, often.value, often.upper) == pytest.approx(
        (once.lower, once.value, once.upper)
    )
    assert often.samples == 10
    assert rate_interval(ten[:4] * 25) is None, "too few prompts"
    whole = acceptance_of(ten[:4] * 25)
    assert whole.drafts == sum(one.drafts or 0 for one in ten[:4]) * 25


def test_blocks_with_a_prompt_in_common_are_drawn_together() -> None:
    """Also where one block ties others together that came before it."""
    blocks = [
        replace(part([2, 3]), prompts=frozenset(prompts))
        for prompts in ("ab", "cd", "ef", "bc", "ab", "g")
    ]
    result = units([*blocks, DraftCounts(0, 0, 0, None, frozenset("g")), part([1])])
    assert sorted("".join(sorted(one.prompts)) for one in result) == ["", "abcd", "ef", "g"]
    (most,) = [one for one in result if "a" in one.prompts]
    assert (most.drafts, most.draft_tokens, most.accepted_tokens) == (8, 32, 20)
    assert most.histogram == (0, 0, 4, 4, 0)
    unknown = units([DraftCounts(None, 4, 2, None, frozenset("a")), blocks[0]])
    assert (unknown[0].drafts, unknown[0].histogram) == (None, None)


def test_prompts_sent_again_are_noted() -> None:
    result = sweep({0.5: drawn(6, 0.8, 1)})
    result.answers[0.5] = [answer(0.5, prompt=str(number % 3)) for number in range(6)]
    (note,) = notes_of(result)
    assert note.startswith("3 distinct prompts, each sent more than once")


def test_a_length_counts_steps_that_drafted_nothing() -> None:
    parts = [part([2, 4])] * 6
    always, half = length_interval(parts), length_interval(parts, drafting=0.5)
    assert (always.value, half.value) == pytest.approx((4, 2.5))


@pytest.mark.parametrize(
    ("count", "p95", "p99"),
    [(19, None, None), (20, 18.05, None), (99, 93.1, None), (100, 94.05, 98.01)],
)
def test_a_quantile_needs_a_value_beyond_it(
    count: int, p95: float | None, p99: float | None
) -> None:
    """P99 of twenty is no more than the largest."""
    result = distribution_of(map(float, range(count)))
    assert (result.p95, result.p99) == (pytest.approx(p95), pytest.approx(p99))
    assert msgspec.json.decode(msgspec.json.encode(result), type=Distribution) == result


def test_counters_and_records_make_the_same_part() -> None:
    whole = Tally(drafts=3, draft_tokens=12, accepted_tokens=7, accepted_per_position=(3, 2, 1, 1))
    record = Record("record", 3, 12, 7, (3, 2, 1, 1))
    assert DraftCounts.of_counters(whole) == DraftCounts.of_record(record)
    assert DraftCounts.of_counters(Tally(drafts=3)) is None


def answer(
    temperature: float = 0.0,
    *,
    tokens: int | None = 8,
    error: ErrorKind | None = None,
    prompt: str = "hello",
) -> Answer:
    return Answer(
        Ask(prompt, 8, temperature),
        sent=0.0,
        ended=1.0,
        first=0.2,
        last=0.9,
        tokens=tokens,
        error=error,
    )


def sweep(
    rates: dict[float, list[DraftCounts]], *, source: Source = "records", stage: Stage | None = None
) -> Sweep:
    return Sweep(
        stage or Stage(ENGINE, 1),
        source,
        rates,
        {
            one: [answer(one, prompt=str(number)) for number in range(len(parts))]
            for one, parts in rates.items()
        },
        alone=True,
        complete=True,
    )


def test_assumed_zones_follow_from_the_assumed_cost_of_a_draft_token() -> None:
    """Above it wins and below it loses, by the whole interval."""
    result = sweep(
        {
            0.0: drawn(20, 0.8, 1),
            0.5: drawn(20, 0.35, 2),
            1.0: drawn(20, 0.1, 3),
            1.5: drawn(4, 0.9, 4),
        }
    )
    rates = [
        temperature.acceptance.rate
        for temperature in temperatures_of(result, "no baseline", 0.1)[:3]
    ]
    line = line_of("no baseline", rates[1].value)
    assert (line.basis, line.acceptance.value) == ("assumed", rates[1].value)
    ones = temperatures_of(result, "no baseline", rates[1].value)
    assert [one.zone for one in ones] == ["wins", "near", "loses", "unknown"]
    assert [
        temperature.zone for temperature in temperatures_of(result, "no baseline", 0.01)[:2]
    ] == ["wins"] * 2


def stage(seconds_per_step: float, slices: int = 8, *, requests: int = 0) -> Stage:
    """Slices with 100 steps each, of which all drafted and kept 2 tokens of 4."""
    result = Stage(ENGINE, 1)
    for number in range(slices):
        noise = 1 + 0.01 * (number % 3 - 1)
        tally = Tally(
            drafts=100,
            draft_tokens=400,
            accepted_tokens=200,
            generation_tokens=300,
            inter_token=Histogram((), (100,), 100 * seconds_per_step * noise),
        )
        gauges = Gauges(1.0, 1.0, 1.0, 0.0, 1)
        sample = Sample(1000 + number, 1, Mode.ON, tally, gauges, ENGINE.environment)
        result.slices.append(Slice(sample))
    result.total = Tally(requests={"length": requests})
    return result


def baseline(running: float = 1.0, seconds: float = 0.01) -> Baseline:
    points = tuple(
        Point(number, running, 100 * seconds * (1 + number % 2 / 100), 100.0)
        for number in range(12)
    )
    key, load_bin = BaselineKey("chat", "tiny"), load_bin_of(running)
    assert load_bin is not None
    return Baseline({load_bin: Measurement(key, load_bin, Origin.CALIBRATION, points)})


def test_a_measured_line_is_the_cost_of_a_step() -> None:
    """A step that costs two plain ones pays from one token more on: a quarter of four."""
    result = sweep(
        {0.0: drawn(20, 0.8, 1), 1.0: drawn(20, 0.5, 2), 2.0: drawn(20, 0.1, 3)},
        stage=stage(0.02),
    )
    cost = cost_of(result, baseline())
    assert isinstance(cost, StepCost)
    assert cost.step.value == pytest.approx(2, rel=0.02)
    line = line_of(cost, 0.1)
    assert (line.basis, line.load) == ("measured", "1")
    assert line.acceptance.value == pytest.approx(0.25, abs=0.01)
    ones = temperatures_of(result, cost, 0.1)
    assert [one.zone for one in ones] == ["wins", "near", "loses"]
    for one in ones:
        assert one.speedup.value == pytest.approx(one.acceptance.mean_length / 2, rel=0.02)
        assert one.speedup.lower < one.speedup.value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: setattr(one, "alone", False), "others used the server"),
        (lambda one: one.stage.slices.clear(), "tokens came in 0 slices, 5 are needed"),
        (lambda one: one.stage.slices.__delitem__(slice(3, None)), "came in 3 slices"),
    ],
)
def test_a_line_that_cannot_be_measured_says_why(
    change: Callable[[Sweep], None], message: str
) -> None:
    result = sweep({0.0: drawn(20, 0.8, 1)}, stage=stage(0.02))
    change(result)
    cost = cost_of(result, baseline())
    assert isinstance(cost, str)
    assert message in cost
    assert shortfall_of(result) == cost, "which no other baseline would mend"


def test_a_baseline_of_another_load_is_not_used() -> None:
    cost = cost_of(sweep({0.0: drawn(20, 0.8, 1)}, stage=stage(0.02)), baseline(running=6.0))
    assert cost == "the baseline is for load 5-8, and this was 1"
    assert cost_of(sweep({}, stage=stage(0.02)), Baseline()) == "no baseline"


def test_failures_are_problems_and_counted() -> None:
    result = sweep({0.5: drawn(20, 0.8, 1)})
    result.answers[0.5] += [answer(0.5, tokens=None, error=ErrorKind.TIMEOUT)] * 2
    assert problems_of(result) == ["temperature 0.5: 2 of 22 requests failed (timeout 2)"]
    (one,) = temperatures_of(result, "no baseline", 0.1)
    assert (one.requests, one.errors) == (20, {"timeout": 2})


def test_the_source_and_the_number_of_prompts_are_noted() -> None:
    result = sweep({0.5: drawn(3, 0.8, 1)}, source="counters")
    counters, few = notes_of(result)
    assert "server's counters" in counters
    assert "no interval at temperature 0.5: fewer than 5 blocks of prompts" in few
    result = sweep({0.5: drawn(6, 0.8, 1, drafts=10)})
    result.stage.total = Tally(drafts=61, prefix_cache_queries=10, prefix_cache_hits=5)
    unlike, cached = notes_of(result)
    assert unlike == "the records have 60 drafts, and the server counted 61 drafts"
    assert "50% came from the prefix cache" in cached
    result.stage.engine = replace(ENGINE, engine=LLAMACPP)
    assert notes_of(result)[0] == "the records have 60 steps, and the server counted 61 drafts"


def test_a_missing_acceptance_is_explained() -> None:
    result = sweep({0.0: drawn(6, 0.8, 1), 0.5: [DraftCounts(0, 0, 0, (0,))] * 6})
    assert notes_of(result) == ["nothing was drafted at temperature 0.5"]
    assert problems_of(result) == []
    result = sweep({0.0: drawn(6, 0.8, 1)})
    result.parts[0.0] = []
    (problem,) = problems_of(result)
    assert "the acceptance is not known: no response carried a record" in problem
    result.complete = False
    assert problems_of(result) == []


def page(requests: float, tokens: float, running: float = 0.0) -> dict[Series, float]:
    return {
        Series("requests", "", "tiny", "0", "length"): requests,
        Series("generation_tokens", "", "tiny", "0", ""): tokens,
        Series("running", "", "tiny", "0", ""): running,
        Series("waiting", "", "tiny", "0", ""): 0.0,
    }


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        (page(1, 8), page(3, 24), True, None),
        (page(1, 8), page(4, 32), False, "1 request more ended than were sent"),
        (page(1, 8), page(3, 25), False, "it counted 1 token more than were received"),
        (page(1, 8), page(2, 16), None, "1 request less ended than were sent"),
        (page(1, 8), page(3, 24, running=1), False, "1 request of others ran or waited"),
        (page(1, 8, running=2), page(3, 24), False, "2 requests of others ran or waited"),
    ],
)
def test_counters_show_whether_others_used_the_server(
    before: dict[Series, float],
    after: dict[Series, float],
    verdict: bool | None,
    reason: str | None,
) -> None:
    """Two requests of ours, of eight tokens each."""
    result = other_traffic(ENGINE, before, after, [answer(), answer()])
    assert result.alone is verdict
    assert reason is None or result.reason == reason


def test_after_a_failed_request_it_is_unknown_whether_others_used_the_server() -> None:
    """Nobody knows how many tokens it had, unless more ended than all of ours."""
    failed = answer(tokens=None, error=ErrorKind.BROKE_OFF)
    assert other_traffic(ENGINE, page(0, 0), page(2, 20), [answer(), failed]).alone is None
    assert other_traffic(ENGINE, page(0, 0), page(3, 20), [answer(), failed]).alone is False
    refused = answer(tokens=None, error=ErrorKind.REFUSED)
    assert other_traffic(ENGINE, page(0, 0), page(1, 8), [answer(), refused]).alone is True
