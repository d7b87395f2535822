"""What the guard measures of a trial and of a switch, and expects while speculation is off."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from specwatch.domain.model import HOUR, MINUTE, Environment, Histogram, Mode, Objective
from specwatch.domain.sample import Sample
from specwatch.guard.foresight import (
    VERIFIABLE,
    Trial,
    explored,
    predicted_speedup,
    quiet_in,
    trial_speedup,
    verified,
)
from tests.domain.minutes import baseline, off, on

REQUESTS = 10


def asked(sample: Sample, first: float) -> Sample:
    """With requests that waited so many seconds for their first tokens, each."""
    counted = msgspec.structs.replace(
        sample.tally,
        generation_tokens=(sample.tally.generation_tokens or 0) + REQUESTS,
        prompt_tokens=300 * REQUESTS,
        ttft=Histogram((), (REQUESTS,), REQUESTS * first),
        output_length=Histogram((), (REQUESTS,), 100.0 * REQUESTS),
    )
    return replace(sample, tally=counted)


@pytest.mark.parametrize(("seconds", "known"), [(VERIFIABLE, True), (VERIFIABLE - MINUTE, False)])
def test_verifying_takes_as_long_as_check_config_says(seconds: float, known: bool) -> None:
    """Healthy a second after a minute began: nothing is known a minute earlier."""
    healthy = 120 * MINUTE + 1.0
    samples = [*(on(n, tpot=0.06) for n in range(100, 119)), *(off(n) for n in range(120, 140))]
    verification = verified(
        [sample for sample in samples if sample.start + sample.length <= healthy + seconds],
        baseline([off(n) for n in range(20)]),
        switched=119.0 * MINUTE,
        since=healthy,
        objective=Objective.TPOT,
    )
    assert (verification is not None) is known


@pytest.mark.parametrize(
    ("objective", "speedup"), [(Objective.TPOT, 1.25), (Objective.E2E, (50 + 20) / (40 + 60))]
)
def test_what_is_predicted_is_the_objective(objective: Objective, speedup: float) -> None:
    """Tokens come faster with speculation (50 s of them in 40), the first ones at 6 s, not 2."""
    known = baseline([asked(off(n), 2.0) for n in range(20)])
    past = [asked(on(n, tpot=0.04), 6.0) for n in range(60, 120)]
    present = [asked(off(n), 2.0) for n in range(120, 135)]
    interval = predicted_speedup(past, present, known, objective)
    assert interval.value == pytest.approx(speedup, rel=0.02)
    assert interval.above(1.0) is (speedup > 1)
    assert interval.below(1.0) is (speedup < 1)


def test_how_far_the_objective_is_from_the_pace_is_taken_from_minutes_alike() -> None:
    """Of those in which twice as much was asked for, the first tokens came at once."""
    known = baseline([asked(off(n), 2.0) for n in range(20)])
    alike = [asked(on(n, tpot=0.04), 6.0) for n in range(60, 120)]
    others = [asked(on(n, tpot=0.04, drafts=800, accepted=1200), 0.1) for n in range(120, 180)]
    present = [asked(off(n), 2.0) for n in range(180, 195)]
    interval = predicted_speedup(alike + others, present, known, Objective.E2E)
    assert interval.value == pytest.approx((50 + 20) / (40 + 60), rel=0.02)


BEGAN = 100
"""The minute in which a trial, or the time without speculation, begins."""
COLD = 2
"""Minutes after a restart in which the caches are empty."""


def plain(first: int, count: int, tpot: float) -> list[Sample]:
    return [off(first + n, tpot=tpot) for n in range(count)]


def speculating(first: int, count: int, tpot: float, around: float = 0.0) -> list[Sample]:
    """Minutes of a time per token that lies ``around`` above it and below it in turn."""
    return [on(first + n, tpot=tpot + around * (-1) ** n) for n in range(count)]


KNOWN = baseline(plain(0, 20, 0.05))
SWITCHED = {"switched": BEGAN * MINUTE, "objective": Objective.TPOT}


def trial(minutes: list[Sample]) -> Trial | None:
    """The speedup of a trial that began at ``BEGAN``, after the last of these minutes."""
    since, now = BEGAN * MINUTE, minutes[-1].start + MINUTE
    return trial_speedup(minutes, KNOWN, since=since, now=now, objective=Objective.TPOT)


def test_a_trial_is_judged_by_all_minutes_but_the_first_two() -> None:
    """Those are slow because the caches are empty, whatever speculation does."""
    result = trial([*speculating(BEGAN, COLD, 0.5), *speculating(BEGAN + COLD, 10, 0.04)])
    assert result.speedup.value == pytest.approx(1.25)
    assert result.speedup.samples == 10
    assert result.certain.above(1.0)


@pytest.mark.parametrize(
    ("minutes", "certain"),
    [
        (speculating(BEGAN + COLD, 20, 0.05, 0.005), None),
        (speculating(BEGAN + COLD, 20, 0.06), (20, False)),
        (
            [*speculating(BEGAN + COLD, 50, 0.03), *speculating(BEGAN + COLD + 50, 6, 0.07)],
            (56, True),
        ),
        (speculating(BEGAN + COLD, 80, 0.03), (60, True)),
    ],
    ids=[
        "not clear of 1",
        "a clear loss",
        "five bad minutes at the end do not undo a good hour",
        "it is of the last hour at most",
    ],
)
def test_the_longest_certain_stretch_decides_a_trial(
    minutes: list[Sample], certain: tuple[int, bool] | None
) -> None:
    result = trial(minutes)
    assert result.speedup.samples == len(minutes)
    stretch = result.certain
    assert certain == (None if stretch is None else (stretch.samples, stretch.above(1.0)))
    assert stretch is None or stretch.above(1.0) != stretch.below(1.0)


def test_a_trial_without_traffic_has_no_speedup() -> None:
    assert trial(speculating(BEGAN, 4, 0.04)) is None


def test_the_minutes_that_led_to_a_switch_are_compared_with_those_after_it() -> None:
    """The good time before the loss counts as little as the cold minutes after the restart. What
    a token takes without speculation is 0.06 s now, and was 0.05 s."""
    before = [*speculating(40, 48, 0.03), *speculating(88, 12, 0.08)]
    after = [*plain(BEGAN, COLD, 0.5), *plain(BEGAN + COLD, 10, 0.06)]
    known = [*plain(0, 20, 0.05), *plain(BEGAN, 20, 0.2)]
    verification = verified(
        before + after,
        baseline(known),
        switched=BEGAN * MINUTE - 1.0,
        since=BEGAN * MINUTE,
        objective=Objective.TPOT,
    )
    assert verification.before == pytest.approx(0.05 / 0.08)
    assert verification.slowdown == pytest.approx(0.06 / 0.05)
    assert verification.speedup.value == pytest.approx(0.06 / 0.08)


def test_where_no_stretch_told_the_last_ten_minutes_led_to_the_switch() -> None:
    """As where a rule about something else was in breach; another environment is not alike."""
    other = [
        replace(sample, environment=Environment("0.30.0")) for sample in speculating(90, 3, 0.02)
    ]
    before = [*speculating(40, 50, 0.03), *other, *speculating(93, 7, 0.04)]
    after = plain(BEGAN, COLD + 10, 0.05)
    verification = verified(
        before + after,
        baseline(plain(0, 20, 0.05)),
        switched=BEGAN * MINUTE,
        since=BEGAN * MINUTE,
        objective=Objective.TPOT,
    )
    assert verification.before == pytest.approx(1.25)
    alike = [*speculating(40, 50, 0.03), *speculating(90, 10, 0.04)]
    again = verified(
        alike + after,
        baseline(plain(0, 20, 0.05)),
        switched=BEGAN * MINUTE,
        since=BEGAN * MINUTE,
        objective=Objective.TPOT,
    )
    assert again.before == pytest.approx(1.25)


def test_a_switch_is_not_verified_by_too_few_minutes() -> None:
    before = speculating(80, 20, 0.08)
    known = baseline(plain(0, 20, 0.05))
    after = plain(BEGAN, COLD + 4, 0.05)
    given = {"switched": BEGAN * MINUTE, "since": BEGAN * MINUTE}
    assert verified(before + after, known, objective=Objective.TPOT, **given) is None
    assert (
        verified(before[-4:] + plain(BEGAN, 20, 0.05), known, objective=Objective.TPOT, **given)
        is None
    )


def standby(first: int, count: int, tpot: float) -> list[Sample]:
    return [replace(minute, mode=Mode.STANDBY) for minute in plain(first, count, tpot)]


def test_standby_is_verified_from_its_first_minute_on() -> None:
    """0.05 s a token by the baseline, 0.08 with speculation, 0.06 in standby."""
    before = [*speculating(40, 48, 0.03), *speculating(88, 12, 0.08)]
    given = {"since": BEGAN * MINUTE, "mode": Mode.STANDBY, **SWITCHED}
    after = [*standby(BEGAN, 6, 0.06), *plain(BEGAN + 6, 9, 0.5)]
    verification = verified(before + after, KNOWN, **given)
    assert verification.before == pytest.approx(0.05 / 0.08)
    assert verification.speedup.value == pytest.approx(0.06 / 0.08)
    assert verified(before + plain(BEGAN, 20, 0.06), KNOWN, **given) is None


def test_an_exploration_tells_what_speculation_was_worth_by_what_was_learned() -> None:
    """0.05 s a token by the baseline of before, 0.08 s by what the exploration measured."""
    known = [*plain(0, 20, 0.05), *plain(BEGAN, 60, 0.08)]
    before = speculating(40, 60, 0.04)
    verification = explored(
        before + plain(BEGAN, 30, 0.08),
        baseline(known),
        switched=BEGAN * MINUTE - 1.0,
        objective=Objective.TPOT,
    )
    assert verification.before == pytest.approx(1.25)
    assert verification.speedup.value == pytest.approx(verification.before * verification.slowdown)
    assert 1.3 < verification.slowdown <= 1.6
    newer = replace(before[-1], environment=Environment("0.33.0"))
    assert (
        explored(
            [*before[:-1], newer],
            baseline(known),
            switched=BEGAN * MINUTE,
            objective=Objective.TPOT,
        )
        is None
    ), "of what ran last one minute is known"
    assert (
        explored(before[:4], baseline(known), switched=BEGAN * MINUTE, objective=Objective.TPOT)
        is None
    )


def hours(tokens: dict[int, int], usual: int = 1000, count: int = 24) -> list[Sample]:
    """The hours of a day, of so many tokens each."""
    return [
        replace(off(0, tokens=tokens.get(n, usual)), start=n * HOUR, length=HOUR)
        for n in range(count)
    ]


def test_traffic_is_expected_to_rest_when_it_did_a_day_before() -> None:
    """In the first hour of less than a tenth of the mean that is to come."""
    day = hours({2: 0, 7: 87, 8: 0})
    assert quiet_in(day, 24 * HOUR) == 2 * HOUR
    assert quiet_in(day, 26 * HOUR) == 5 * HOUR, "one that has begun is not to come"
    assert quiet_in(hours({7: 97}), 24 * HOUR) is None
    assert quiet_in(hours({2: 0}, count=23), 24 * HOUR) == 2 * HOUR
    assert quiet_in(hours({2: 0}, count=22), 24 * HOUR) is None, "less than a day is known"
