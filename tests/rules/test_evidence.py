"""Evidence hands out windows and sums, each minute and each count once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from specwatch.config.rules import DEFAULT_RULES
from specwatch.domain.breakeven import assess
from specwatch.domain.model import ALL, HOUR, MINUTE, Mode
from specwatch.domain.speedup import NOTHING, PresentSpeedup, Unjudged
from specwatch.rules.model_record import ModelRecord
from specwatch.rules.verdicts import Finding, Verdict, judge
from tests.domain.minutes import measurements, off, on
from tests.domain.samples import START, baseline, evidence, minute, minutes, tally
from tests.segments import segment


def test_a_window_takes_what_ends_after_its_start_up_to_now():
    examined = evidence(minutes(10), now=START + 8 * 60.0)
    assert [(sample.start - START) // 60 for sample in examined.window(180)] == [5, 6, 7]


def test_drafts_of_an_unsound_minute_count_and_its_latencies_do_not():
    parts = {"0": tally(drafts=300), ">1": tally(drafts=200)}
    examined = evidence(
        [minute(0, sound=False, buckets=parts), minute(1), minute(2, mode=Mode.OFF)]
    )
    assert examined.tally(600, ALL).drafts == 2000
    assert examined.tally(600, ALL, sound=True).drafts == 1000
    assert examined.tally(600, segment(">1")).drafts == 200
    assert examined.tally(600, segment("(0,0.3]")).drafts is None


def test_the_speedup_is_that_of_the_assessment():
    samples = minutes(20, buckets={"0": tally(drafts=700)})
    chosen_baseline = evidence(samples, baseline=baseline())
    whole = assess(samples[-10:], baseline())
    assert chosen_baseline.compared(600).interval() == whole.speedup
    assert chosen_baseline.assessment(600) == whole


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (minute(14), None),
        (minute(40, running=40.0), "no baseline at the load that there was"),
        (minute(40, mode=Mode.OFF), "nothing was generated with speculation"),
    ],
)
def test_a_speedup_that_is_not_of_the_newest_minutes_says_until_when_and_why(later, why):
    chosen_baseline = evidence([*minutes(12), later], baseline=baseline()).assessment(HOUR)
    assert chosen_baseline.speedup is not None
    assert chosen_baseline.until == START + 60 * (12 if why else 15)
    assert chosen_baseline.missing_lately == why


@pytest.mark.parametrize(
    ("silent", "sound", "stale"),
    [(0, True, False), (2, True, False), (3, True, True), (0, False, True)],
)
def test_evidence_is_stale_after_three_minutes_without_a_sound_one(silent, sound, stale):
    examined = evidence([minute(0, sound=sound)], now=START + 60.0 + 60 * silent)
    assert examined.stale is stale
    assert evidence([]).stale


@pytest.mark.parametrize("mode", Mode)
def test_a_model_speculates_as_long_as_its_newest_minute_does(mode):
    samples = [minute(0), minute(1, mode=mode), minute(2)]
    assert evidence(samples, now=START + 120.0).speculating is (mode is Mode.ON)
    assert evidence(samples).speculating
    assert not evidence([]).speculating


def test_minutes_are_compared_one_by_one_whatever_they_are_kept_as() -> None:
    """Twelve of them are kept as two blocks and two minutes, of which no noise could be told."""
    known = ModelRecord("chat", "tiny", HOUR, ())
    known.compare_with(measurements([off(n) for n in range(10)]), max_age=10 * HOUR)
    for n in range(100, 112):
        sample = on(n, tpot=0.04)
        assert known.history.add(sample)
        known.learn(sample)
    examined = known.examine(112 * MINUTE).assessment(HOUR)
    assert len(known.history.minutes) < 12
    assert (examined.samples, examined.missing) == (12, None)
    assert examined.speedup is not None
    assert examined.speedup.value == pytest.approx(1.25)


def test_a_server_may_come_back_without_speculation_after_hours_of_silence() -> None:
    known = ModelRecord("chat", "tiny", HOUR, ())
    known.compare_with(measurements([off(n) for n in range(10)]), max_age=10 * HOUR)
    for sample in [*(on(n) for n in range(100, 130)), off(400), off(401)]:
        assert known.history.add(sample)
        examined = known.examine(sample.start + sample.length).assessment(HOUR)
    assert examined.missing == NOTHING


def record_of(accepted: Sequence[int]) -> list[PresentSpeedup]:
    """What is known after each minute of so many accepted tokens of 400 drafts.

    A step takes 62.5 ms, with speculation or without it 50 ms: with none accepted the speedup is
    0.8, with 600 it is 2.
    """
    known = ModelRecord("chat", "tiny", HOUR, ())
    known.compare_with(measurements([off(n) for n in range(10)]), max_age=10 * HOUR)
    seen = []
    for n, count in enumerate(accepted, start=100):
        took = 0.0625 * (1 + 0.02 * (n % 3 - 1))
        sample = on(n, tpot=took * 400 / (400 + count), accepted=count)
        assert known.history.add(sample)
        known.learn(sample)
        known.present = known.examine(sample.start + sample.length).present
        seen.append(known.present)
    return seen


def test_a_sudden_loss_is_known_within_minutes_and_since_when() -> None:
    """Over the hour it still gains; and when it is over, that is known as soon."""
    seen = record_of([*[600] * 60, *[0] * 12, *[600] * 12])
    assert [present.losing_since for present in seen[:61]] == [None] * 61
    assert seen[71].speedup is not None
    assert seen[71].speedup.value == pytest.approx(0.8, abs=0.02)
    late = next(n for n, present in enumerate(seen) if present.losing_since is not None)
    assert late <= 60 + 6
    assert {present.losing_since for present in seen[late:72]} == {160.0 * MINUTE}
    assert seen[-1].losing_since is None
    assert seen[-1].speedup is not None
    assert seen[-1].speedup.above(1)


def test_a_small_loss_before_a_great_one_began_when_it_did() -> None:
    seen = record_of([*[600] * 60, *[80] * 30, *[0] * 12])
    assert seen[-1].losing_since == 190.0 * MINUTE


def test_a_server_that_has_become_slower_altogether_loses_only_without_the_adjustment() -> None:
    """Each step takes twice as long, and accepts as much as before."""
    known = ModelRecord("chat", "tiny", HOUR, ())
    known.compare_with(measurements([off(n) for n in range(10)]), max_age=10 * HOUR)
    for n in range(100, 160):
        slower = (1 + 0.02 * (n % 3 - 1)) * (1 if n < 140 else 2)
        sample = on(n, tpot=0.0625 * slower * 400 / 800, accepted=400)
        assert known.history.add(sample)
        known.learn(sample)
    examined = known.examine(160.0 * MINUTE)
    for seconds in (10 * MINUTE, 20 * MINUTE):
        adjusted = examined.compared(seconds).interval()
        plain = examined.compared(seconds, adjusted=False).interval()
        assert adjusted is not None
        assert plain is not None
        assert adjusted.value == pytest.approx(1.6, rel=0.05)
        assert plain.value == pytest.approx(0.8, rel=0.05)


def test_a_server_that_does_not_speculate_now_does_not_lose() -> None:
    known = ModelRecord("chat", "tiny", HOUR, ())
    assert known.history.add(off(0))
    known.present = PresentSpeedup(losing_since=10.0)
    assert known.examine(60.0).present == PresentSpeedup()


def unjudged_after(loads: Sequence[float | None], *, rule: bool = False) -> list[Any]:
    """What is unjudged after each minute at so many running, None for one without traffic; or what
    the default rule says. The baseline is of four running."""
    known = ModelRecord("chat", "tiny", HOUR, ())
    known.compare_with(measurements([off(n) for n in range(10)]), max_age=10 * HOUR)
    before: Finding | None = None
    seen: list[Any] = []
    for n, running in enumerate(loads, start=100):
        sample = on(n, drafts=0, accepted=0) if running is None else on(n, load=running)
        assert known.history.add(sample)
        known.learn(sample)
        evidence = known.examine(sample.start + sample.length)
        known.present = evidence.present
        before = judge(
            UNJUDGED_RULE, evidence, target="chat", model_name="tiny", segment=ALL, before=before
        )
        seen.append(before.verdict if rule else known.present.unjudged)
    return seen


UNJUDGED_RULE = next(rule for rule in DEFAULT_RULES if rule.name == "unjudged")
NO_BASELINE_HERE = "no baseline at the load that there was"


def test_traffic_at_loads_that_were_never_measured_is_unjudged_since_it_came() -> None:
    """For longer than an hour too, which is what is in memory."""
    seen = unjudged_after([*[4] * 60, *[40] * 200])
    assert seen[:64] == [None] * 64
    assert seen[64:] == [Unjudged(160.0 * MINUTE, NO_BASELINE_HERE)] * 196


def test_what_can_be_judged_again_or_does_not_come_any_more_is_not_unjudged() -> None:
    seen = unjudged_after([*[40] * 60, *[4] * 90])
    assert seen[59] is not None
    assert seen[-1] is None
    seen = unjudged_after([*[40] * 60, *[None] * 10])
    assert seen[-2] is not None
    assert seen[-1] is None


def test_a_few_minutes_among_many_that_can_be_judged_are_not_unjudged() -> None:
    assert set(unjudged_after([*[4] * 40, *[40] * 4, *[4] * 40])) == {None}


def test_the_default_rule_says_after_half_an_hour_that_nobody_can_judge() -> None:
    verdicts = unjudged_after([*[4] * 60, *[40] * 60, *[4] * 80], rule=True)
    breaches = [n for n, verdict in enumerate(verdicts) if verdict is Verdict.BREACH]
    assert breaches[0] == 60 + 30 + 5
    assert breaches == list(range(breaches[0], breaches[-1] + 1)), "once, not again and again"
    assert 120 < breaches[-1] < 190
