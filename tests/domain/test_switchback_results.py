"""Intervals of experiments hold the truth at all times, in worlds unlike their assumptions."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from specwatch.domain.interval import Interval
from specwatch.domain.switchback import (
    ALL_TRAFFIC,
    MOST_GROUPS,
    ArmBlock,
    Episode,
    Grouping,
    Moments,
    SubInterval,
    SwitchbackDesign,
    SwitchbackState,
    new_state,
)
from specwatch.domain.switchback_results import (
    assumed_loss,
    best_arm,
    fastest_other,
    observe,
    results,
    speedup,
    speedup_against_off,
    washout_of,
)
from tests.worlds.switchback import WORLDS, Simulation, World, coverage

ARMS = ("usual", "standby", "k=4")
SPEEDUPS = {"usual": 1.0, "standby": 0.8, "k=4": 1.3}
DESIGN = SwitchbackDesign(arms=ARMS, usual="usual", seed=1)
EMPTY = new_state(DESIGN, "", 0.0)


def block(arm: str, paces: Sequence[float], running: float = 8.0, **groups: float) -> ArmBlock:
    """One of which each sub-interval has 100 s of decoding, at so many seconds a token; of groups
    the pace is given as a factor."""
    width = DESIGN.block / len(paces)
    parts = [
        SubInterval(
            (n + 1) * width,
            {
                group: (100.0, 100.0 / (pace * factor))
                for group, factor in {ALL_TRAFFIC: 1.0, **groups}.items()
            },
        )
        for n, pace in enumerate(paces)
    ]
    return ArmBlock(arm, running, parts)


def episode(chance: random.Random, noise: float = 0.05, **changes) -> Episode:
    arms = chance.sample(ARMS, len(ARMS))
    paces = {arm: 0.03 / SPEEDUPS[arm] * math.exp(chance.gauss(0, noise)) for arm in arms}
    blocks = tuple(block(arm, [paces[arm]] * 12, **changes) for arm in arms)
    return Episode("usual", blocks)


def observed(count: int, state: SwitchbackState = EMPTY, **changes) -> SwitchbackState:
    chance = random.Random(5)
    for _ in range(count):
        state = observe(state, DESIGN, episode(chance, **changes))
    return state


def test_intervals_hold_the_truth_after_every_episode():
    """In the worst of the worlds, where a speedup drifts and minutes are like their neighbours."""
    simulation = Simulation(WORLDS["everything"], {"usual": 1.0, "other": 1.3}, 8, 4, drops=False)
    held = coverage(simulation, 12)
    assert (held.always, held.stopped, held.wrong) == (1.0, 1.0, 0.0)
    assert simulation.most_share <= 1
    assert simulation.most_regret <= 1


def test_errors_of_an_interval_without_allowance_are_as_frequent_as_it_says():
    """Looking after each of 1000 episodes: not more than 5 %, and not by being far too wide."""
    values = np.random.default_rng(6).normal(0.0, 0.2, (500, 1000))
    counts = np.arange(1, 1001)
    means = values.cumsum(1) / counts
    squares = (values**2).cumsum(1) - counts * means**2
    wrong = np.zeros(500, bool)
    for n in (*range(6, 100), *range(100, 1001, 10)):
        unit = replace(EMPTY, differences={"all": {"a": {"b": Moments(n, 0.0, 1.0)}}})
        interval = speedup(unit, "a", "b")
        half = (interval.up - 0.01) * np.sqrt(squares[:, n - 1])
        wrong |= np.abs(means[:, n - 1]) > half
    assert 0.01 < wrong.mean() <= 0.05


def test_the_speedup_is_that_of_time_per_token_and_has_two_directions():
    state = observed(30)
    interval = speedup(state, "k=4", "standby")
    assert interval.value == pytest.approx(1.3 / 0.8, rel=0.03)
    assert interval.lower < 1.3 / 0.8 < interval.upper
    assert interval.samples == 30
    back = speedup(state, "standby", "k=4").inverse()
    assert (back.value, back.lower) == pytest.approx((interval.value, interval.lower))
    assert speedup(state, "k=4", "usual", confidence=0.99).up > speedup(state, "k=4", "usual").up


def test_there_is_no_interval_of_fewer_than_six_episodes():
    assert speedup(observed(5), "k=4", "usual") is None
    assert speedup(observed(6), "k=4", "usual") is not None


def test_one_extreme_value_moves_a_mean_by_four_standard_deviations_of_one_at_most():
    state = observed(100)
    before = speedup(state, "k=4", "usual")
    stalled = Episode(
        "usual", tuple(block(arm, [30.0 if arm == "k=4" else 0.03] * 12) for arm in ARMS)
    )
    after = speedup(observe(state, DESIGN, stalled), "k=4", "usual")
    assert abs(math.log(after.value / before.value)) < 0.01


def settled(carry_over: float, noise: float, episodes: int) -> float:
    world = World(noise=noise, carry_over=carry_over)
    simulation = Simulation(world, {"usual": 1.0, "other": 1.3}, 1, seed=2)
    for _, _ in zip(range(episodes), simulation.episodes(), strict=False):
        pass
    return washout_of(simulation.states[0], simulation.designs[0])


def test_the_washout_is_measured():
    """0.5 % of the time per token are left of 0.26 after a few time constants."""
    assert settled(0.0, 0.02, 15) <= 5.0
    assert 7.5 <= settled(4.0, 0.02, 20) <= 17.5


def test_the_washout_is_half_a_block_as_long_as_little_is_known():
    assert washout_of(EMPTY, DESIGN) == 30.0
    assert settled(0.0, 0.02, 9) == 30.0
    assert settled(0.0, 0.3, 12) > 20.0


def test_what_is_before_the_end_of_the_washout_does_not_count():
    slow = [9.0] * 6 + [0.03] * 6
    first = Episode(
        "usual", tuple(block(arm, slow if arm == "k=4" else [0.03] * 12) for arm in ARMS)
    )
    state = observe(EMPTY, DESIGN, first)
    assert state.differences["all"]["k=4"]["usual"].mean == pytest.approx(0.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: replace(e, incident=True),
        lambda e: replace(e, blocks=(*e.blocks[:2], replace(e.blocks[2], parts=()))),
        lambda e: replace(
            e, blocks=(*e.blocks[:2], replace(e.blocks[2], parts=e.blocks[2].parts[:8]))
        ),
        lambda e: replace(e, blocks=(*e.blocks[:2], block("k=4", [math.inf] * 12))),
        lambda e: replace(e, blocks=tuple(block(arm, [10.0] * 12) for arm in ARMS)),
    ],
    ids=["incident", "no scrape", "cut short", "stood still", "few tokens"],
)
def test_an_episode_is_left_out_as_a_whole(change):
    whole = Episode("usual", tuple(block(arm, [0.03] * 12) for arm in ARMS))
    assert observe(EMPTY, DESIGN, whole).episodes == 1
    state = observe(EMPTY, replace(DESIGN, least_tokens=600), change(whole))
    assert (state.episodes, state.excluded, state.differences) == (0, 1, {})


def test_an_arm_with_few_tokens_does_not_leave_an_episode_out_if_the_others_have_many():
    """Otherwise the episodes in which it is slow would be left out."""
    slow = Episode("usual", tuple(block(arm, [9.0 if arm == "k=4" else 0.03] * 12) for arm in ARMS))
    assert observe(EMPTY, DESIGN, slow).episodes == 1


@pytest.mark.parametrize("arms", [("usual", "k=4", "usual"), ("usual",), ()])
def test_an_episode_has_two_arms_or_more_and_each_once(arms):
    with pytest.raises(ValueError, match="each once"):
        observe(EMPTY, DESIGN, Episode("usual", tuple(block(arm, [0.03] * 12) for arm in arms)))


def test_groups_have_their_own_speedups_and_loads_are_those_of_whole_episodes():
    state, chance = EMPTY, random.Random(8)
    for _ in range(20):
        blocks = []
        for arm in chance.sample(ARMS, 3):
            pace = 0.03 * math.exp(chance.gauss(0, 0.02))
            cold = 1 / 1.5 if arm == "k=4" else 1.0
            running = {"usual": 4.0, "standby": 12.0, "k=4": 2.0}[arm]
            groups = {"temperature 0": cold, "temperature >1": 1.1, "prompt length 1-256": cold}
            blocks.append(block(arm, [pace] * 12, running, **groups))
        state = observe(state, DESIGN, Episode("usual", tuple(blocks)))
    known = results(state, DESIGN)
    names = {by: list(groups) for by, groups in known.groups.items()}
    assert names == {"load": ["5-8"], "temperature": ["0", ">1"], "prompt length": ["1-256"]}
    by_temperature = known.groups[Grouping.TEMPERATURE]
    assert by_temperature["0"].speedups["k=4"].value == pytest.approx(1.5, rel=0.03)
    assert by_temperature[">1"].speedups["k=4"].value == pytest.approx(1.0, rel=0.03)
    by_length = known.groups[Grouping.PROMPT_LENGTH]["1-256"]
    assert by_length.speedups["k=4"].value == pytest.approx(1.5, rel=0.03)
    load = known.groups[Grouping.LOAD]["5-8"]
    assert (load.speedups, load.share) == (known.speedups, 1.0)
    assert by_temperature[">1"].share == pytest.approx(1 / 1.1)
    assert set(results(state, DESIGN, "k=4").speedups) == {"usual", "standby"}


def test_values_of_a_group_are_in_ascending_order():
    named = {
        "load": ["1", "2", "3-4", "17-32", "65+"],
        "temperature": ["0", "(0,0.3]", "(0.3,0.7]", ">1", "unknown"],
        "prompt length": [
            "1-256",
            "257-2048",
            "2049-16384",
            "2049-8192",
            "8193-16384",
            "16385+",
            "unknown",
        ],
    }
    groups = [f"{by} {value}" for by, values in named.items() for value in sorted(values)]
    state = replace(EMPTY, tokens=dict.fromkeys([*groups, "all", "of an older version"], 1.0))
    known = results(state, DESIGN).groups
    assert {by: list(values) for by, values in known.items()} == named


def test_a_share_is_at_most_1_and_0_without_tokens():
    for all_tokens, tokens, share in ((10.0, 4.0, 0.4), (10.0, 11.0, 1.0), (0.0, 0.0, 0.0)):
        state = replace(EMPTY, tokens={"all": all_tokens, "temperature 0": tokens})
        assert results(state, DESIGN).groups[Grouping.TEMPERATURE]["0"].share == share


def test_other_groups_do_not_count_before_half_a_block():
    """Until then requests end that began in the arm before."""
    state, chance = observed(30, noise=0.0), random.Random(3)
    assert washout_of(state, DESIGN) < DESIGN.block / 3
    early = replace(DESIGN, least_tokens=0)
    for _ in range(8):
        blocks = []
        for arm in chance.sample(ARMS, 3):
            paces = [0.03 if n < 6 else 0.03 / SPEEDUPS[arm] for n in range(12)]
            blocks.append(block(arm, paces, **{"temperature 0": 1.0}))
        state = observe(state, early, Episode("usual", tuple(blocks)))
    speedups = results(state, early).groups[Grouping.TEMPERATURE]["0"].speedups
    assert speedups["k=4"].value == pytest.approx(1.3, rel=1e-6)


def test_an_arm_that_certainly_loses_is_dropped_and_stays_so():
    assert observed(4).dropped == {"usual": ()}
    state = observed(30)
    assert state.dropped == {"usual": ("standby",)}
    chance = random.Random(1)
    for _ in range(60):
        blocks = (block("usual", [0.03] * 12), block("standby", [0.03 / chance.uniform(2, 4)] * 12))
        state = observe(state, DESIGN, Episode("usual", blocks))
    assert state.dropped == {"usual": ("standby",)}


def test_an_arm_that_seems_to_win_at_a_load_is_not_dropped():
    chance, state = random.Random(5), EMPTY
    for n in range(60):
        quick = n % 4 == 0
        paces = {**SPEEDUPS, "standby": 1.2} if quick else SPEEDUPS
        blocks = tuple(
            block(arm, [0.03 / paces[arm]] * 12, 2.0 if quick else 8.0)
            for arm in chance.sample(ARMS, 3)
        )
        state = observe(state, DESIGN, Episode("usual", blocks))
    assert speedup(state, "standby", "usual").below(1.0)
    assert state.dropped == {"usual": ()}


def test_an_arm_that_loses_is_dropped_although_it_wins_at_a_temperature():
    """An order is for all requests, so that no arm is used at one temperature only."""
    chance, state = random.Random(5), EMPTY
    for _ in range(30):
        blocks = tuple(
            block(
                b.arm,
                [0.03 / SPEEDUPS[b.arm]] * 12,
                **{"temperature 0": 0.7 if b.arm == "standby" else 1},
            )
            for b in episode(chance).blocks
        )
        state = observe(state, DESIGN, Episode("usual", blocks))
    assert speedup(state, "standby", "usual", group="temperature 0").above(1.0)
    assert state.dropped == {"usual": ("standby",)}


def test_the_more_arms_the_more_certain_a_loss_has_to_be():
    state = replace(EMPTY, differences={"all": {"standby": {"usual": Moments(30, 0.08, 0.34)}}})
    assert speedup(state, "standby", "usual").upper == pytest.approx(0.995, abs=0.002)
    few, many = ({f"k={n}" for n in range(count)} for count in (0, 8))
    dropped = []
    for extra in (few, many):
        plan = replace(DESIGN, arms=("usual", "standby", *sorted(extra)))
        pair = Episode("usual", (block("usual", [0.03] * 12), block("standby", [0.0326] * 12)))
        dropped.append(observe(state, plan, pair).dropped["usual"])
    assert dropped == [("standby",), ()]


def test_the_best_arm_is_the_one_in_use_until_another_is_certainly_faster():
    assert best_arm(observed(5), DESIGN) == "usual"
    assert best_arm(observed(30), DESIGN) == "k=4"
    assert results(observed(30), DESIGN).best == "k=4"


def test_the_fastest_other_arm_is_that_of_the_largest_lower_end():
    assert fastest_other(observed(3), DESIGN, "usual") is None
    arm, interval = fastest_other(observed(30), DESIGN, "usual")
    assert (arm, interval.confidence) == ("k=4", 0.975)
    unsure, sure = Moments(7, -0.5, 9.0), Moments(50, -0.1, 0.1)
    state = replace(
        EMPTY, differences={"all": {"k=4": {"usual": sure}, "standby": {"usual": unsure}}}
    )
    assert speedup(state, "standby", "usual").value > speedup(state, "k=4", "usual").value
    assert fastest_other(state, DESIGN, "usual")[0] == "k=4"


def test_an_unknown_arm_loses_as_assumed_and_a_known_one_at_the_worst_end_of_its_interval():
    assert assumed_loss(EMPTY, DESIGN, "standby") == 0.5
    assert assumed_loss(EMPTY, DESIGN, "usual") == 0.0
    state = observed(100)
    assert assumed_loss(state, DESIGN, "k=4") == 0.0
    interval = speedup(state, "standby", "k=4")
    assert assumed_loss(state, DESIGN, "standby") == pytest.approx(1 - interval.lower)
    wide = {"all": {"standby": {"usual": Moments(6, 0.0, 5.0)}}}
    assert assumed_loss(replace(EMPTY, differences=wide), DESIGN, "standby") == 0.5
    terrible = {"all": {"standby": {"usual": Moments(6, 1.0, 5.0)}}}
    assert assumed_loss(replace(EMPTY, differences=terrible), DESIGN, "standby") > 0.9


def test_a_stored_state_is_small_however_many_episodes_and_groups_there_were():
    chance, state = random.Random(2), EMPTY
    for n in range(2 * MOST_GROUPS):
        state = observe(state, DESIGN, episode(chance, **{f"prompt {n}": 1.0}))
    assert len(state.differences) == len(state.tokens) == MOST_GROUPS
    crowd = observe(EMPTY, DESIGN, episode(chance, **{f"P{n}": 1.0 for n in range(100)}))
    assert len(crowd.differences) == MOST_GROUPS
    assert {ALL_TRAFFIC, "load 5-8"} <= crowd.differences.keys() & crowd.tokens.keys()
    assert len(crowd.tokens) == MOST_GROUPS
    assert state.episodes == 2 * MOST_GROUPS
    stored = msgspec.json.encode(state)
    assert len(stored) < 20_000
    assert msgspec.json.decode(stored, type=SwitchbackState) == state


def test_counters_that_went_back_before_the_washout_are_not_taken_for_a_pace():
    state = observed(3)
    steady = block("k=4", [0.03] * 12)
    backward = SubInterval(5.0, {ALL_TRAFFIC: (100.0, -1e6)})
    broken = replace(steady, parts=[steady.parts[0], backward, *steady.parts[2:]])
    after = observe(state, DESIGN, Episode("usual", (broken, block("usual", [0.03] * 12))))
    assert after.episodes == 4
    assert after.settling["slower"][0].count == state.settling["slower"][0].count + 1
    assert after.settling["faster"] == state.settling["faster"]


def test_against_off_the_speedup_over_standby_is_divided_by_the_standby_cost():
    """As if independent: squares of relative errors add up."""
    moments = {"0": {"launch": Moments(40, 0.3, 0.4), "2": Moments(3, 0.2, 0.1)}}
    state = replace(EMPTY, differences={ALL_TRAFFIC: moments})
    cost = Interval.around(1.25, 0.1, 12)
    over_standby = speedup(state, "launch", "0")
    against_off = speedup_against_off(state, "launch", cost)
    assert against_off.value == pytest.approx(math.exp(0.3) / 1.25)
    assert against_off.up == pytest.approx(math.hypot(over_standby.up, 0.1))
    assert against_off.down == pytest.approx(math.hypot(over_standby.down, 0.1))
    assert speedup_against_off(state, "0", cost) == cost.inverse()
    assert speedup_against_off(state, "2", cost) is None
    assert speedup_against_off(state, "launch", cost, group="load 1") is None
