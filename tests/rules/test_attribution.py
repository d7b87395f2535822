"""What changed between two periods, and how much each change explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specwatch.config.rules import Condition, Rule
from specwatch.domain.baseline import Baseline
from specwatch.domain.model import Environment, Gauges, Histogram, Mode
from specwatch.domain.sample import Sample
from specwatch.rules.attribution import Attribution, Factor, attribute, explain
from tests.domain.minutes import K, per_request
from tests.domain.minutes import on as one_minute
from tests.domain.samples import baseline_of_paces

PLAIN = {0: 0.010, 2: 0.012, 4: 0.020}
"""Seconds of a token without speculation, by load bin."""
CONCURRENCY = {0: 1.0, 2: 3.5, 4: 12.0}
NOTHING = Baseline()
SOFTWARE = Environment("0.32.0", "abc-4")


def minute(
    number: int = 0,
    mix: Mapping[str, tuple[int, float]] | None = None,
    *,
    bin_: int = 0,
    cost: float = 1.5,
    drafted: float = 1.0,
    environment: Environment = SOFTWARE,
    output: float = 200.0,
    preemptions: int = 0,
) -> Sample:
    """Drafts and acceptance by temperature; a step costs ``cost`` plain ones, and the share
    ``drafted`` of them drafts."""
    buckets = {
        label: (drafts, round(K * drafts * acceptance))
        for label, (drafts, acceptance) in (mix or {"0": (1000, 0.8)}).items()
    }
    drafts, accepted = (sum(counts) for counts in zip(*buckets.values(), strict=True))
    steps = round(drafts / drafted)
    sample = one_minute(
        number,
        tpot=steps * cost * PLAIN[bin_] / (steps + accepted),
        drafts=drafts,
        accepted=accepted,
        plain_steps=steps - drafts,
        load=CONCURRENCY[bin_],
        buckets=buckets,
    )
    counted = msgspec.structs.replace(
        sample.tally,
        preemptions=preemptions,
        requests={"stop": 10},
        output_length=Histogram((), (10,), 10 * output),
    )
    gauges = msgspec.structs.replace(sample.gauges, kv_cache_usage_max=0.5)
    return replace(sample, tally=counted, gauges=gauges, environment=environment)


def minutes(count: int = 10, **facts: Any) -> list[Sample]:
    return [minute(number, **facts) for number in range(count)]


def baseline() -> Baseline:
    return baseline_of_paces({CONCURRENCY[bin_]: pace for bin_, pace in PLAIN.items()})


def contributions(attribution: Attribution) -> dict[Factor, float]:
    return {cause.factor: cause.contribution for cause in attribution.causes}


HALF = {"0": (500, 0.8), "(0.7,1]": (500, 0.2)}
HOT = {"0": (100, 0.8), "(0.7,1]": (900, 0.2)}
COLD = {"0": (900, 0.8), "(0.7,1]": (100, 0.2)}
WARM = {"0": (600, 0.8), "(0.7,1]": (400, 0.2)}
BAD = {"0": (500, 0.4), "(0.7,1]": (500, 0.1)}
ON: dict[str, Any] = {"mix": HALF}


@pytest.mark.parametrize(
    ("before", "now", "factor", "sentence"),
    [
        (
            {"mix": COLD},
            {"mix": WARM},
            Factor.TEMPERATURE_MIX,
            "draft tokens at temperature (0.7,1] rose from 10% to 40%: -0.72 tokens per step",
        ),
        (
            ON,
            {"mix": BAD},
            Factor.ACCEPTANCE,
            "acceptance at temperature 0 fell from 80% to 40%: -1.00 tokens per step",
        ),
        (
            ON,
            ON | {"drafted": 0.5},
            Factor.DRAFTING,
            "draft tokens per step fell from 4.00 to 2.00: -1.00 tokens per step",
        ),
        (
            ON,
            ON | {"cost": 2.0},
            Factor.UNEXPLAINED,
            "at the same load a step costs 1.33 times what it did, cause unknown: -0.50 of speedup",
        ),
        (
            ON | {"bin_": 2},
            ON | {"bin_": 4, "cost": 2.0},
            Factor.LOAD,
            "running requests rose from 3.5 to 12.0 (no load in common: all of a step's cost"
            " counts): -0.50 of speedup",
        ),
    ],
)
def test_a_single_change_is_the_only_cause(
    before: dict[str, Any], now: dict[str, Any], factor: Factor, sentence: str
) -> None:
    attribution = attribute(minutes(**now), minutes(60, **before), baseline())
    assert attribution.metric == "speedup_ratio"
    assert [(cause.factor, cause.share, cause.sentence) for cause in attribution.causes] == [
        (factor, 1.0, sentence)
    ]
    assert attribution.leading is attribution.causes[0]
    assert not attribution.within_noise


def test_two_changes_are_separated_and_ranked() -> None:
    """Acceptance halves and most of the traffic is hot: both orders are averaged."""
    attribution = attribute(
        minutes(mix={"0": (100, 0.4), "(0.7,1]": (900, 0.1)}), minutes(60, mix=HALF), baseline()
    )
    assert [cause.factor for cause in attribution.causes] == ["acceptance", "temperature_mix"]
    first = (math.log(2.04 / 3.0) + math.log(1.52 / 2.0)) / 2
    assert contributions(attribution)[Factor.TEMPERATURE_MIX] == pytest.approx(first)
    assert sum(cause.effect for cause in attribution.causes) == pytest.approx((1.52 - 3.0) / 1.5)


def test_more_load_explains_what_loads_in_common_cost() -> None:
    """Half of the work moves to a load where a step has always cost twice as much."""
    mixed = [minute(n, HALF, bin_=2 if n % 4 else 4, cost=1.0 if n % 4 else 2.0) for n in range(40)]
    now = [minute(n, HALF, bin_=4 if n % 4 else 2, cost=2.0 if n % 4 else 1.0) for n in range(40)]
    attribution = attribute(now, mixed, baseline())
    assert contributions(attribution).keys() == {Factor.LOAD}
    assert attribution.causes[0].sentence.startswith("running requests rose from 5.6 to 9.9: -")


def test_without_a_baseline_tokens_per_second_are_compared() -> None:
    attribution = attribute(minutes(cost=3.0), minutes(60), NOTHING)
    assert attribution.metric == "tokens_per_second"
    assert attribution.before == pytest.approx(4.2 / 0.015)
    assert attribution.change is not None
    assert attribution.change.value == pytest.approx(0.5)
    assert "no baseline" in attribution.notes[0]
    assert attribution.causes[0].sentence.endswith("-140.0 tokens per second")


def test_without_times_only_tokens_are_compared() -> None:
    def untimed(samples: Sequence[Sample]) -> list[Sample]:
        return [
            replace(s, tally=msgspec.structs.replace(s.tally, inter_token=None)) for s in samples
        ]

    attribution = attribute(untimed(minutes(mix=BAD)), untimed(minutes(60, mix=HALF)), baseline())
    assert (attribution.metric, attribution.before, attribution.now) == (
        "acceptance_length",
        3.0,
        2.0,
    )
    assert contributions(attribution).keys() == {Factor.ACCEPTANCE}


@pytest.mark.parametrize(
    ("timed", "metric"), [(5, "speedup_ratio"), (4, "acceptance_length")], ids=["half", "less"]
)
def test_times_count_where_half_of_the_drafts_have_them(timed: int, metric: str) -> None:
    now = [
        s if n < timed else replace(s, tally=msgspec.structs.replace(s.tally, inter_token=None))
        for n, s in enumerate(minutes())
    ]
    assert attribute(now, minutes(60), baseline()).metric == metric


def test_periods_that_count_time_otherwise_are_compared_by_tokens() -> None:
    """Per token in one, per request in the other: the pace would jump without any change."""
    older = [
        replace(
            s,
            tally=msgspec.structs.replace(
                s.tally, inter_token=None, tpot=Histogram((), (10,), 0.1)
            ),
        )
        for s in minutes(60)
    ]
    assert attribute(minutes(), older, baseline()).metric == "acceptance_length"


def test_time_by_request_has_the_same_causes() -> None:
    now, reference = (
        [per_request(sample) for sample in minutes(count, mix=mix)]
        for count, mix in ((10, BAD), (60, HALF))
    )
    attribution = attribute(now, reference, NOTHING)
    assert attribution.metric == "tokens_per_second"
    assert contributions(attribution)[Factor.ACCEPTANCE] == pytest.approx(math.log(2.0 / 3.0))


def test_without_temperatures_the_mix_counts_as_acceptance() -> None:
    unseen = [replace(sample, segments={}) for sample in minutes(60, mix=HALF)]
    attribution = attribute(minutes(mix=HOT), unseen, baseline())
    assert contributions(attribution).keys() == {Factor.ACCEPTANCE}
    assert attribution.causes[0].sentence.startswith("acceptance fell from 50% to 26%")
    assert any("temperatures are not known" in note for note in attribution.notes)


def test_a_temperature_that_is_new_is_a_change_of_the_mix() -> None:
    attribution = attribute(minutes(mix=HALF), minutes(60, mix={"0": (1000, 0.8)}), baseline())
    assert contributions(attribution).keys() == {Factor.TEMPERATURE_MIX}
    assert "rose from 0% to 50%" in attribution.causes[0].sentence
    gone = attribute(minutes(mix={"0": (1000, 0.8)}), minutes(60, mix=HALF), baseline())
    assert contributions(gone).keys() == {Factor.TEMPERATURE_MIX}


def test_changed_facts_are_named_beside_the_unexplained_part() -> None:
    now = minutes(environment=Environment("0.33.0", "xyz-2"), cost=2.0, output=900.0, preemptions=3)
    now = [
        replace(s, gauges=msgspec.structs.replace(s.gauges, kv_cache_usage_max=0.97)) for s in now
    ]
    attribution = attribute(now, minutes(60), baseline())
    changed = {fact.name: (fact.before, fact.now) for fact in attribution.facts if fact.changed}
    assert changed == {
        "engine_version": ("0.32.0", "0.33.0"),
        "configuration": ("abc", "xyz"),
        "draft_positions": ("4", "2"),
        "output_length": (200.0, 900.0),
        "kv_cache_usage": (0.5, pytest.approx(0.97)),
        "preemptions": (0.0, 180.0),
    }
    assert "KV cache 50% -> 97% full" in [fact.sentence for fact in attribution.facts]
    assert (
        "engine version 0.32.0 -> 0.33.0; configuration abc -> xyz"
        in attribution.causes[0].sentence
    )
    extent = {fact.name: (fact.before, fact.now) for fact in attribution.facts[-3:]}
    assert extent == {"minutes": (60, 10), "drafts": (60_000, 10_000), "requests": (600, 100)}


@pytest.mark.parametrize(
    ("now", "reference", "period"),
    [
        ([], minutes(), "present"),
        (minutes(), [], "reference"),
        (minutes(), [replace(s, mode=Mode.OFF) for s in minutes()], "reference"),
        ([replace(s, sound=False) for s in minutes()], minutes(), "present"),
        ([replace(s, gauges=Gauges()) for s in minutes()], minutes(), "present"),
    ],
)
def test_without_a_usable_period_nothing_is_compared(
    now: list[Sample], reference: list[Sample], period: str
) -> None:
    attribution = attribute(now, reference, baseline())
    assert (attribution.causes, attribution.leading) == ((), None)
    missing = f"the {period} period has no sound minute in which speculation ran"
    assert attribution.missing == missing


def test_a_change_within_noise_is_marked() -> None:
    wild = [minute(n, {"0": (1000, 0.2 + 0.1 * (n % 7))}) for n in range(60)]
    assert attribute(wild[3:13], wild, baseline()).within_noise
    attribution = attribute(minutes(3), minutes(60), baseline())
    assert attribution.within_noise
    assert "too few minutes" in attribution.notes[0]


def test_a_breach_is_explained_by_the_minutes_that_confirmed_it() -> None:
    """Half a window of 10 min and ``for`` 5 min, against the day before and no more."""
    rule = Rule(name="slow", conditions=(Condition(metric="speedup_ratio", below=1),))
    older = [minute(n, cost=9.0) for n in range(100)]
    day = [minute(n, cost=1.5) for n in range(100, 100 + 1440)]
    breach = [minute(n, cost=3.0) for n in range(1540, 1550)]
    chosen_baseline = explain(rule, older + day + breach, baseline(), now=60.0 * 1550)
    assert chosen_baseline.before == pytest.approx(4.2 / 1.5)
    assert chosen_baseline.now == pytest.approx(4.2 / 3.0)
    assert [fact.now for fact in chosen_baseline.facts if fact.name == "minutes"] == [10]


_mixes = st.dictionaries(
    st.sampled_from(["0", "(0,0.3]", "(0.7,1]", "unknown"]),
    st.tuples(st.integers(1, 2000), st.floats(0, 1)),
    min_size=1,
)
_periods = st.lists(
    st.builds(
        minute,
        st.just(0),
        _mixes,
        bin_=st.sampled_from(list(PLAIN)),
        cost=st.floats(0.5, 4),
        drafted=st.floats(0.1, 1),
    ),
    min_size=1,
    max_size=4,
)
_baselines = st.sampled_from([NOTHING, baseline()])


@given(_periods, _periods, _baselines, st.randoms())
def test_causes_add_up_to_the_change_in_any_order_of_the_minutes(
    now: list[Sample], reference: list[Sample], known: Baseline, random: object
) -> None:
    attribution = attribute(now, reference, known)
    assert attribution.now is not None
    assert attribution.before is not None
    change = math.log(attribution.now / attribution.before)
    assert sum(cause.contribution for cause in attribution.causes) == pytest.approx(
        change, abs=1e-7
    )
    assert sum(cause.effect for cause in attribution.causes) == pytest.approx(
        attribution.now - attribution.before, rel=1e-6, abs=1e-6 * attribution.now
    )
    if attribution.causes:
        assert sum(cause.share for cause in attribution.causes) == pytest.approx(1.0)
    random.shuffle(now)  # type: ignore[attr-defined]
    random.shuffle(reference)  # type: ignore[attr-defined]
    assert attribute(now, reference, known) == attribution


@given(_periods, _baselines)
def test_identical_periods_attribute_nothing(period: list[Sample], known: Baseline) -> None:
    attribution = attribute(period, period, known)
    assert attribution.causes == ()
    assert attribution.within_noise
    assert not any(fact.changed for fact in attribution.facts)
