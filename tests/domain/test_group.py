"""The speedup of a group is that of all its work; who is unlike the others stands out."""

from __future__ import annotations

import random

import pytest

from specwatch.domain.group import Member, verdict_of
from specwatch.domain.interval import Interval


def about(value: float, half: float = 0.05, samples: int = 60) -> Interval:
    return Interval(value, value - half, value + half, samples)


def members(*speedups: float | None, half: float = 0.05, holdout: str = "") -> list[Member]:
    common = frozenset([holdout] if holdout else [])
    return [
        Member(f"chat-{number}", None if one is None else about(one, half), 100.0, common)
        for number, one in enumerate(speedups)
    ]


def test_the_speedup_of_a_group_is_weighted_by_work() -> None:
    busy = Member("busy", about(1.5), 900.0)
    idle = Member("idle", about(0.5), 100.0)
    verdict = verdict_of("chat", "tiny", [busy, idle])
    assert verdict.speedup is not None
    assert verdict.speedup.value == pytest.approx((1.5 * 900 + 0.5 * 100) / 1000)
    assert (verdict.seconds, verdict.speedup.samples) == (1000.0, 120)
    assert (verdict.losing, verdict.measured, verdict.watched) == (("idle",), 2, 2)


def test_errors_of_one_holdout_do_not_cancel() -> None:
    own = verdict_of("chat", "tiny", members(1.2, 1.2, 1.2, 1.2)).speedup
    common = verdict_of("chat", "tiny", members(1.2, 1.2, 1.2, 1.2, holdout="chat-9")).speedup
    assert own is not None
    assert common is not None
    assert own.upper - own.value == pytest.approx(0.05 / 2)
    assert common.upper - common.value == pytest.approx(0.05)
    assert common.value - common.lower == pytest.approx(0.05)


def test_pooled_intervals_hold_the_truth() -> None:
    """Of four servers whose estimates err by chance, independently or alike."""
    chance = random.Random(1)
    for holdout in ("", "chat-9"):
        held = 0
        for _ in range(400):
            error = chance.gauss(0, 0.02)
            errors = [error if holdout else chance.gauss(0, 0.02) for _ in range(4)]
            known = members(*(1.2 + one for one in errors), half=1.96 * 0.02, holdout=holdout)
            speedup = verdict_of("chat", "tiny", known).speedup
            assert speedup is not None
            held += speedup.lower <= 1.2 <= speedup.upper
        assert 0.92 <= held / 400 <= 0.98


@pytest.mark.parametrize(
    ("speedups", "names"),
    [
        ((1.24, 1.25, 1.23, 0.7), ["chat-3"]),
        ((1.24, 1.25, 1.23, 1.7), ["chat-3"]),
        ((0.7, 0.72, 0.71, 0.7), []),
        ((1.24, 1.25, None, 1.22), []),
        ((1.24, 0.7), []),
        ((1.24, 1.21, 1.14), []),
        ((1.5, 1.5, 1.5, 1.5, 0.7, 0.7), ["chat-4", "chat-5"]),
    ],
    ids=[
        "one loses",
        "one gains more",
        "all lose",
        "one is not measured",
        "two",
        "little",
        "two of six",
    ],
)
def test_a_server_stands_out_that_is_unlike_the_others(
    speedups: tuple[float | None, ...], names: list[str]
) -> None:
    verdict = verdict_of("chat", "tiny", members(*speedups))
    assert [one.target for one in verdict.outliers] == names


def test_a_server_that_is_not_certainly_unlike_the_others_does_not_stand_out() -> None:
    unsure = [*members(1.24, 1.25, 1.23), Member("chat-3", about(0.9, 0.4), 100.0)]
    assert verdict_of("chat", "tiny", unsure).outliers == ()


def test_a_group_of_which_nothing_is_measured_has_no_speedup() -> None:
    verdict = verdict_of(
        "chat", "tiny", [Member("chat-0", holdout=True, group_size=8), Member("chat-1")]
    )
    assert (verdict.speedup, verdict.measured, verdict.members) == (None, 0, 8)
    assert (verdict.watched, verdict.holdouts) == (2, ("chat-0",))
