"""Schedules learned from experiments: when they change, and what they gain."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from specwatch.domain.switchback import (
    LAUNCH,
    TUNED,
    ArmBlock,
    Episode,
    Moments,
    SubInterval,
    SwitchbackDesign,
    SwitchbackState,
    new_state,
)
from specwatch.domain.switchback_results import observe
from specwatch.domain.tuning import advice, learned, tuned_schedule, untuned, with_tuned

FLAT = ((1, 4),)
DESIGN = SwitchbackDesign(
    arms=(LAUNCH, "0", "2"), usual=LAUNCH, seed=1, launch_schedule=FLAT, tune="act"
)


def moments(speedup: float, count: int = 30, spread: float = 0.05) -> Moments:
    """Of so many differences, for an arm that comes first, and is so much faster than the other."""
    return Moments(count, -math.log(speedup), spread**2 * (count - 1))


def state(loads: dict[str, dict[str, float]], *, count: int = 30, **changes: Any):
    """Of an experiment that has shown these speedups against the launch, by load and arm."""
    differences = {}
    for load, speedups in loads.items():
        zero, two = speedups.get("0", 0.8), speedups.get("2", 1.0)
        differences[f"load {load}"] = {
            "0": {"2": moments(zero / two, count), LAUNCH: moments(zero, count)},
            "2": {LAUNCH: moments(two, count)},
        }
    empty = new_state(DESIGN, "e", 0.0)
    return replace(empty, episodes=count, differences=differences, **changes)


def tuned(known: SwitchbackState, design: SwitchbackDesign = DESIGN) -> dict[str, str]:
    return dict(learned(known, design).tuned)


def test_each_load_has_the_fastest_arm_that_is_certainly_faster_than_the_launch() -> None:
    known = state({"1": {"2": 1.2}, "3-4": {"0": 1.2, "2": 1.3}, "65+": {"0": 1.1}, "2": {}})
    assert tuned(known) == {"1": "2", "3-4": "2", "65+": "0"}
    assert tuned(known, replace(DESIGN, tune="off")) == {}


def test_what_is_not_certain_leaves_the_launch() -> None:
    assert tuned(state({"1": {"2": 1.2}}, count=8)) == {}
    assert tuned(state({"1": {"2": 1.2}}, count=12)) == {"1": "2"}
    assert tuned(state({"1": {"2": 1.03}})) == {}


def test_an_arm_in_use_is_left_only_for_one_that_is_certainly_faster() -> None:
    used = {"1": "2"}
    assert tuned(state({"1": {"0": 1.22, "2": 1.2}}, tuned=used)) == used
    assert tuned(state({"1": {"0": 1.22, "2": 1.2}})) == {"1": "0"}
    assert tuned(state({"1": {"0": 1.5, "2": 1.2}}, tuned=used)) == {"1": "0"}
    assert tuned(state({"1": {"2": 1.0}}, tuned=used)) == used
    assert tuned(state({"1": {"2": 0.9}}, tuned=used)) == {}
    assert tuned(state({"2": {"2": 1.2}}, tuned=used)) == {"1": "2", "2": "2"}


@pytest.mark.parametrize(
    ("arms", "launch", "schedule"),
    [
        ({}, FLAT, ()),
        ({"1": "2"}, FLAT, ((1, 1, 2), (2, 256, 4))),
        (
            {"3-4": "2", "5-8": "2", "65+": "0"},
            FLAT,
            ((1, 2, 4), (3, 8, 2), (9, 64, 4), (65, 256, 0)),
        ),
        (
            {"1": "2"},
            ((1, 4), (6, 1), (300, 0)),
            ((1, 1, 2), (2, 5, 4), (6, 299, 1), (300, 300, 0)),
        ),
        ({"5-8": "2"}, ((1, 4), (6, 1)), ((1, 4, 4), (5, 8, 2), (9, 256, 1))),
        ({"1": "2"}, (), ()),
    ],
)
def test_the_schedule_is_the_launchs_apart_from_the_loads_that_have_an_arm(
    arms: dict[str, str], launch: tuple[tuple[int, int], ...], schedule: tuple
) -> None:
    known = state({}, tuned=arms)
    assert tuned_schedule(known, replace(DESIGN, launch_schedule=launch)) == schedule


def test_the_gain_is_the_mean_over_the_time_at_each_load() -> None:
    known = state({"1": {"2": 1.2}, "9-16": {}})
    known.differences["load 9-16"]["2"][LAUNCH] = moments(1.0, 90)
    known = learned(known, DESIGN)
    advised = advice(known, DESIGN)
    assert advised is not None
    assert advised.schedule == ((1, 1, 2), (2, 256, 4))
    assert (advised.episodes, advised.needed) == (90, 9)
    gain = advised.gain
    assert gain is not None
    assert gain.value == pytest.approx(1.2 ** (30 / 120))
    assert gain.samples == 120
    assert 1 < gain.lower < gain.value < gain.upper < 1.2
    alone = advice(learned(state({"1": {"2": 1.2}}), DESIGN), DESIGN)
    assert alone is not None
    assert alone.gain is not None
    assert gain.up == pytest.approx(alone.gain.up / 4)


def test_without_a_schedule_there_is_no_gain() -> None:
    advised = advice(state({"1": {"2": 1.2}}, count=7), DESIGN)
    assert advised is not None
    assert (advised.schedule, advised.gain, advised.episodes, advised.needed) == ((), None, 7, 9)
    assert advice(state({}), replace(DESIGN, tune="off")) is None


def measured(speedup: float, **changes: Any) -> SwitchbackState:
    """With a schedule in use that was measured against the launch."""
    known = state({"1": {"2": 1.2}}, tuned={"1": "2"}, **changes)
    overall = {LAUNCH: {TUNED: moments(1 / speedup)}}
    return replace(known, differences={**known.differences, "all": overall})


def test_the_schedule_is_the_usual_arm_unless_it_is_withheld_or_loses() -> None:
    known = learned(measured(1.1), DESIGN)
    design = with_tuned(DESIGN, known, withheld=False)
    assert (design.arms, design.usual) == ((LAUNCH, "0", "2", TUNED), TUNED)
    assert with_tuned(design, known, withheld=False) == design
    assert untuned(design) == DESIGN.arms
    assert with_tuned(DESIGN, known, withheld=True).usual == LAUNCH
    assert with_tuned(DESIGN, learned(measured(0.99), DESIGN), withheld=False).usual == TUNED
    lost = learned(measured(0.9), DESIGN)
    assert lost.dropped == {LAUNCH: (TUNED,)}
    assert with_tuned(DESIGN, lost, withheld=False).usual == LAUNCH
    observing = replace(DESIGN, tune="observe")
    assert with_tuned(observing, known, withheld=False) == observing
    assert with_tuned(DESIGN, state({}), withheld=False) == DESIGN


def test_another_schedule_is_measured_from_the_start() -> None:
    known = learned(measured(0.9, dropped={LAUNCH: ("0",)}), DESIGN)
    assert known.dropped == {LAUNCH: (TUNED,)}
    assert learned(known, DESIGN) == known
    busy = {"0": {LAUNCH: moments(1.2)}}
    known = replace(known, differences={**known.differences, "load 65+": busy})
    after = learned(known, DESIGN)
    assert after.tuned == {"1": "2", "65+": "0"}
    assert after.dropped == {}
    assert after.differences["all"] == {LAUNCH: {}}
    assert after.differences["load 1"] == known.differences["load 1"]
    off = learned(known, replace(DESIGN, tune="off"))
    assert (off.tuned, off.dropped, off.differences["all"]) == ({}, {}, {LAUNCH: {}})


def test_no_arm_is_dropped_that_may_win_at_a_load_still_to_come() -> None:
    design = with_tuned(DESIGN, state({}, tuned={"1": "2"}), withheld=False)
    paces = {LAUNCH: 0.03, "0": 0.04, "2": 0.025, TUNED: 0.02}

    def blocks(number: int) -> tuple[ArmBlock, ...]:
        noise = 1 + 0.01 * (number % 3)
        return tuple(
            ArmBlock(
                arm,
                3.0,
                [
                    SubInterval(60.0 * n / 12, {"all": (100.0, 100 / pace / noise)})
                    for n in range(1, 13)
                ],
            )
            for arm, pace in paces.items()
        )

    known = state({}, tuned={"1": "2"})
    for number in range(12):
        known = observe(known, design, Episode(TUNED, blocks(number)))
    assert known.episodes == 42
    assert known.dropped == {}
    known = observe(known, replace(design, tune="off"), Episode(TUNED, blocks(0)))
    assert known.dropped == {TUNED: ("0", "2", LAUNCH)}
