"""A judge decides on closed minutes alone, at their own time, and tells what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from specwatch.config.rules import Condition, Rule, Scope
from specwatch.config.rules.rule import POSITIVE
from specwatch.domain.baseline import MAX_AGE, BaselineKey, Origin, join, measured
from specwatch.domain.model import ALL, MINUTE, TEMPERATURE, Environment, Mode, Objective, Window
from specwatch.domain.sample import samples_of, total
from specwatch.rules.judge import Judge
from specwatch.rules.verdicts import Finding, Verdict
from tests.scrape.closing import START, minute
from tests.segments import segment

LOW = Rule(
    name="low",
    conditions=(Condition(metric="acceptance_ratio", below=0.4, clear=0.45),),
    window="5m",
    for_="2m",
    clear_for="3m",
)
LOSES = Rule(
    name="loses",
    conditions=(Condition(metric="speedup_ratio", below=1.0),),
    window="10m",
    for_="2m",
    clear_for="2m",
    action="disable",
)


def judge_of(*rules: Rule, target: str = "t") -> Judge:
    return Judge(target, rules, ())


def at(number: int) -> float:
    return float(START + number * MINUTE)


def feed(judge: Judge, first: int, last: int, **given: Any) -> list[tuple[int, Finding]]:
    """The minutes from ``first`` to ``last``; what changed, by the minute after which it did."""
    changed = []
    for number in range(first, last):
        for finding in judge.observe(minute(number, **given), at(number + 1)):
            changed.append((number, finding))
    return changed


def test_another_objective_applies_to_known_minutes() -> None:
    judge = judge_of(LOSES)
    for number in range(24):
        windows = minute(number, Mode.OFF if number < 12 else Mode.ON, step=0.03)
        judge.observe(map(_with_prompts, windows), at(number + 1))
    before = judge.assessments()["m"]
    assert before.objective is Objective.E2E
    assert before.speedup != before.per_token
    judge.objective = Objective.TPOT
    after = judge.assessments()["m"]
    assert after.objective is Objective.TPOT
    assert after.speedup is not None
    assert before.per_token is not None
    assert after.speedup.value == before.per_token.value
    judge.observe(map(_with_prompts, minute(24, step=0.03)), at(25))
    assert judge.assessments()["m"].objective is Objective.TPOT


def _with_prompts(window: Window) -> Window:
    return msgspec.structs.replace(
        window, tally=msgspec.structs.replace(window.tally, prompt_tokens=10_000)
    )


def baseline(running: float = 3.0, step: float = 0.02) -> list[Any]:
    windows = [w for n in range(-60, -30) for w in minute(n, Mode.OFF, running=running, step=step)]
    key = BaselineKey("t", "m", "0.32.0", "c")
    return measured(key, Origin.CALIBRATION, samples_of(windows))


def test_a_rule_fires_after_its_time_and_clears_after_its_time() -> None:
    judge = judge_of(LOW)
    assert feed(judge, 0, 10, acceptance=0.6) == []
    fired = feed(judge, 10, 25, acceptance=0.2)
    assert [finding.verdict for _, finding in fired] == [Verdict.BREACH]
    cleared = feed(judge, 25, 40, acceptance=0.6)
    assert [finding.verdict for _, finding in cleared] == [Verdict.PASS]
    # Of five minutes at 0.6 and 0.2 the third at 0.2 brings the rate below 0.4; two more confirm.
    assert fired[0][0] == 15 - 1
    # The fourth at 0.6 brings it above 0.45: 0.6 * 4/5 + 0.2 / 5 = 0.52; three more clear.
    assert cleared[0][0] == 31


def test_a_loss_against_the_baseline_is_a_breach_and_a_gain_is_not() -> None:
    judge = judge_of(LOSES)
    judge.measurements = baseline()
    assert feed(judge, 0, 20, step=0.03, acceptance=0.5) == []  # tau 3, cost 1.5
    ((number, finding),) = feed(judge, 20, 35, step=0.03, acceptance=0.05)  # tau 1.2
    assert finding.verdict is Verdict.BREACH
    (reading,) = [reading for _, reading in finding.readings]
    assert reading.interval is not None
    assert reading.interval.upper < 1.0
    assert 20 + 5 <= number <= 20 + 7 + 2, "seven minutes of a loss, confirmed by two"


@pytest.mark.parametrize(
    ("known", "restarts"), [(False, 0), (True, 1)], ids=["no baseline", "restarts"]
)
def test_a_loss_that_cannot_be_measured_is_no_data(known: bool, restarts: int) -> None:
    judge = judge_of(LOSES)
    judge.measurements = baseline() if known else []
    assert feed(judge, 0, 20, step=0.2, acceptance=0.1, restarts=restarts) == []
    (finding,) = judge.findings()
    assert (finding.verdict, finding.seen) == (Verdict.NO_DATA, Verdict.NO_DATA)


@pytest.mark.parametrize(
    "changes",
    [
        {"engine_version": "0.33.0"},
        {"configuration": "other"},
        {"model_name": "n"},
        {"target": "u"},
    ],
    ids=str,
)
def test_a_baseline_of_another_version_or_model_is_not_used(changes: dict[str, str]) -> None:
    given = {"target": "t", "model_name": "m", "engine_version": "0.32.0", "configuration": "c"}
    other = BaselineKey(**{**given, **changes})
    judge = judge_of(LOSES)
    judge.measurements = measured(
        other, Origin.CALIBRATION, samples_of(minute_windows(range(-60, -30)))
    )
    feed(judge, 0, 2, step=0.2, acceptance=0.1)
    assert judge.baselines()["m"].bins == {}


def minute_windows(numbers: range) -> list[Window]:
    return [window for number in numbers for window in minute(number, Mode.OFF)]


def test_minutes_without_speculation_make_a_baseline() -> None:
    judge = judge_of(LOSES)
    feed(judge, 0, 30, mode=Mode.OFF)
    (measurement,) = judge.take_measurements()
    assert (measurement.origin, len(measurement.points)) == (Origin.WINDOWS, 30)
    assert judge.take_measurements() == []
    ((_, finding),) = feed(judge, 30, 42, step=0.07, acceptance=0.5)
    assert finding.verdict is Verdict.BREACH
    assert judge.assessments()["m"].measured


def test_measurements_of_an_earlier_judge_are_continued() -> None:
    first, second = judge_of(LOSES), judge_of(LOSES)
    feed(first, 0, 30, mode=Mode.OFF)
    (stored,) = first.take_measurements()
    second.measurements = [stored]
    feed(second, 30, 36, mode=Mode.OFF)
    (measurement,) = second.take_measurements()
    assert len(measurement.points) == 6, "only what the store does not have"
    assert len(second.baselines()["m"].bins[2].points) == 36
    second.measurements = [stored]  # read before what was taken was written
    feed(second, 36, 37, mode=Mode.OFF)
    assert len(second.baselines()["m"].bins[2].points) == 37
    second.measurements = [join(stored, measurement)]
    (known,) = second.baselines()["m"].bins.values()
    assert (len(known.points), known.points_behind) == (37, 37)
    assert known.ttft is not None
    assert known.ttft.count == 37 * 100


def test_a_stored_baseline_adds_no_model() -> None:
    judge = judge_of(LOSES)
    judge.measurements = baseline()
    assert judge.assessments() == judge.baselines() == {}
    feed(judge, 0, 1, model_name="other")
    assert set(judge.baselines()) == {"other"}
    feed(judge, 0, 1)
    assert judge.baselines()["m"].bins


def observe_nameless(judge: Judge, number: int) -> None:
    windows = minute(number, Mode.OFF)
    judge.observe(
        [msgspec.structs.replace(e, environment=Environment(None, "c-0")) for e in windows],
        at(number),
    )


def test_minutes_of_a_version_that_is_not_known_yet_are_no_baseline() -> None:
    judge = judge_of(LOSES)
    for number in range(9):
        observe_nameless(judge, number)
    assert judge.take_measurements() == []
    feed(judge, 9, 12, mode=Mode.OFF)
    observe_nameless(judge, 12)
    (measurement,) = judge.take_measurements()
    assert len(measurement.points) == 3


def test_a_server_that_never_reports_its_version_has_a_baseline_too() -> None:
    judge = judge_of(LOSES)
    for number in range(20):
        observe_nameless(judge, number)
    (measurement,) = judge.take_measurements()
    assert len(measurement.points) == 10


def test_minutes_before_an_upgrade_do_not_count() -> None:
    """The minutes of 0.32 at a gain, with the baseline of a faster 0.33."""
    judge = judge_of(LOSES)
    fast = replace(baseline(step=0.01)[0], key=BaselineKey("t", "m", "0.33.0", "c"))
    judge.measurements = [*baseline(), fast]
    assert feed(judge, 0, 20, step=0.05, acceptance=0.5) == []

    def upgraded(number: int, mode: Mode) -> list[Window]:
        return [
            msgspec.structs.replace(
                window,
                environment=msgspec.structs.replace(window.environment, engine_version="0.33.0"),
            )
            for window in minute(number, mode, step=0.01)
        ]

    for mode, numbers in ((Mode.OFF, range(20, 35)), (Mode.ON, range(35, 40))):
        for number in numbers:
            assert judge.observe(upgraded(number, mode), at(number + 1)) == ()
    assert judge.assessments()["m"].samples == 5


def test_a_breach_without_a_rule_is_not_restored() -> None:
    judge = judge_of(LOW.model_copy(update={"scope": Scope(model_name="m")}))
    assert not judge.restore("low", "m", segment("0"), at(-10))
    assert not judge.restore("low", "other", ALL, at(-10))
    assert not judge.restore("gone", "m", ALL, at(-10))
    assert judge.restore("low", "m", ALL, at(-10))


def test_the_breach_of_a_model_unseen_for_a_day_ends() -> None:
    """Until then it is judged on no data; one that was restored and never seen ends too."""
    judge = judge_of(LOW)
    feed(judge, 0, 30, acceptance=0.2)
    day = 24 * 60
    assert judge.observe((), at(29 + day)) == ()
    (finding,) = judge.findings()
    assert (finding.verdict, finding.seen) == (Verdict.BREACH, Verdict.NO_DATA)
    (finding,) = judge.observe((), at(31 + day))
    assert (finding.verdict, finding.since) == (Verdict.NO_DATA, at(31 + day))
    assert judge.findings() == ()
    judge.restore("low", "m", ALL, at(-10))
    assert judge.observe((), at(2 * day)) == ()
    (finding,) = judge.observe((), at(3 * day + 1))
    assert finding.verdict is Verdict.NO_DATA


def test_the_breach_of_a_temperature_unseen_for_a_day_ends() -> None:
    judge = judge_of(LOW.model_copy(update={"scope": Scope(dimension=TEMPERATURE)}))
    feed(judge, 0, 30, acceptance=0.5, buckets={">1": (500, 0.1)})
    for hour in range(24):
        assert feed(judge, 30 + 60 * hour, 31 + 60 * hour, acceptance=0.5) == []
    changed = feed(judge, 30 + 25 * 60, 35 + 25 * 60, acceptance=0.5)
    assert [(finding.segment, finding.verdict) for _, finding in changed] == [
        (segment(">1"), Verdict.NO_DATA)
    ]
    assert judge.findings() == ()


def test_a_model_that_is_replaced_ends_its_breach_and_keeps_its_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specwatch.rules.judge.MOST_MODELS", 3)
    judge = judge_of(LOW)
    feed(judge, 0, 12, mode=Mode.OFF)
    feed(judge, 12, 25, acceptance=0.2)
    ended = [
        finding
        for n in range(3)
        for finding in judge.observe(minute(25 + n, model_name=f"m{n}"), at(26 + n))
    ]
    assert [(finding.model_name, finding.verdict) for finding in ended] == [("m", Verdict.NO_DATA)]
    assert len(judge.findings()) == 3
    (measurement,) = judge.take_measurements()
    assert len(measurement.points) == 12
    assert judge.take_measurements() == []
    judge.load(minute(0, model_name="late"))
    assert "late" not in judge.baselines()
    assert not judge.restore("low", "late", ALL, at(0))


def test_other_objectives_change_nothing_but_the_books() -> None:
    judge = judge_of(LOW, LOSES)
    feed(judge, 0, 20, mode=Mode.OFF)
    feed(judge, 20, 40, acceptance=0.2)
    minutes = judge.recent("m")
    judge.set_objectives(())
    assert [finding.rule.name for finding in judge.findings()] == ["low", "loses"]
    assert judge.recent("m") == minutes
    (measurement,) = judge.take_measurements()
    assert len(measurement.points) == 20
    assert feed(judge, 40, 45, acceptance=0.2) == []


def test_the_past_may_come_after_the_present() -> None:
    judge = judge_of(LOW)
    feed(judge, 30, 35, acceptance=0.2)
    judge.load(window for number in range(35) for window in minute(number, acceptance=0.2))
    assert total(judge.recent("m")).drafts == 35 * 2000


def test_minutes_are_kept_for_the_longest_window_of_a_rule() -> None:
    long = LOW.model_copy(update={"name": "long", "window": 7200.0})
    judge = judge_of(LOW, long)
    judge.load(window for number in range(130) for window in minute(number))
    feed(judge, 130, 131)
    assert 115 <= (total(judge.recent("m")).drafts or 0) / 2000 <= 120
    judge.rules = [LOW]
    feed(judge, 131, 132)
    assert 55 <= (total(judge.recent("m")).drafts or 0) / 2000 <= 60


def test_a_restored_breach_continues_and_is_not_reported_again() -> None:
    judge = judge_of(LOW)
    judge.restore("low", "m", ALL, at(-10))
    judge.restore("gone", "m", ALL, at(-10))
    assert feed(judge, 0, 12, acceptance=0.2) == []
    (finding,) = judge.findings()
    assert (finding.verdict, finding.since) == (Verdict.BREACH, at(-10))
    assert [ended.verdict for _, ended in feed(judge, 12, 24, acceptance=0.7)] == [Verdict.PASS]


def test_loaded_minutes_are_not_judged() -> None:
    judge = judge_of(LOW)
    judge.load(window for number in range(30) for window in minute(number, acceptance=0.2))
    assert judge.findings() == ()
    assert feed(judge, 20, 30, acceptance=0.2) == []  # known already
    assert judge.findings() == ()
    ((number, _),) = feed(judge, 30, 40, acceptance=0.2)
    assert number == 32


def test_a_scope_of_each_temperature_judges_each_by_itself() -> None:
    by_temperature = LOW.model_copy(update={"scope": Scope(dimension=TEMPERATURE)})
    judge = judge_of(by_temperature)
    changed = feed(judge, 0, 12, acceptance=0.5, buckets={"0": (500, 0.8), ">1": (500, 0.1)})
    assert [(finding.segment, finding.verdict) for _, finding in changed] == [
        (segment(">1"), Verdict.BREACH)
    ]
    positive = LOW.model_copy(update={"scope": Scope(dimension=TEMPERATURE, value=POSITIVE)})
    judge = judge_of(positive)
    feed(judge, 0, 2, acceptance=0.5, buckets={"0": (500, 0.1), ">1": (500, 0.8)})
    assert [finding.segment for finding in judge.findings()] == [segment(">1")]


def test_a_scope_of_segments_judges_each_by_itself() -> None:
    counted = {"output=text": (500, 0.8), "output=tool_call": (500, 0.1), "stream=yes": (1000, 0.1)}
    judge = judge_of(LOW.model_copy(update={"scope": Scope(dimension="output")}))
    changed = feed(judge, 0, 12, acceptance=0.5, buckets={"0": (1000, 0.1), **counted})
    assert [(finding.segment, finding.verdict) for _, finding in changed] == [
        (segment("output=tool_call"), Verdict.BREACH)
    ]
    assert {finding.segment for finding in judge.findings()} == {
        segment("output=text"),
        segment("output=tool_call"),
    }
    by_temperature = judge_of(LOW.model_copy(update={"scope": Scope(dimension=TEMPERATURE)}))
    feed(by_temperature, 0, 2, acceptance=0.5, buckets={"0": (1000, 0.1), **counted})
    assert {finding.segment for finding in by_temperature.findings()} == {segment("0")}


def test_a_scope_names_targets_and_models_by_pattern() -> None:
    rule = LOW.model_copy(update={"scope": Scope(target="chat-*", model_name="big*")})
    assert judge_of(rule, target="code").rules == ()
    judge = judge_of(rule, target="chat-1")
    windows = [*minute(0, model_name="big-1"), *minute(0, model_name="small")]
    judge.observe(windows, at(1))
    assert [finding.model_name for finding in judge.findings()] == ["big-1"]


def test_new_rules_keep_the_findings_of_unchanged_rules() -> None:
    judge = judge_of(LOW, LOSES)
    feed(judge, 0, 12, acceptance=0.2)
    judge.rules = [LOW]
    assert [finding.rule.name for finding in judge.findings()] == ["low"]
    changed = LOW.model_copy(update={"for_": 60.0})
    judge.rules = [changed]
    assert judge.findings() == ()


def test_a_baseline_that_ages_is_chosen_anew_every_hour() -> None:
    """Though nothing new is measured: what has expired is no measure of anything."""
    judge = judge_of(LOSES)
    aged = [
        replace(one, points=tuple(p._replace(at=at(60) - MAX_AGE) for p in one.points))
        for one in baseline()
    ]
    judge.measurements = aged
    feed(judge, 40, 50, step=0.03, acceptance=0.05)
    assert judge.assessments()["m"].speedup is not None
    feed(judge, 110, 130, step=0.03, acceptance=0.05)
    assert judge.assessments()["m"].speedup is None
