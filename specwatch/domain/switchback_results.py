"""What follows from the episodes of an experiment on live traffic.

The difference of log time per token between two arms within one episode is one observation. As
the order is random, it is the difference that the arms make plus an error whose expectation,
given all earlier episodes, is 0, also where load and noise are correlated: so errors of different
episodes are uncorrelated. The speedup is the geometric mean over the episodes (over time, not
over tokens), and its interval is a confidence sequence, which holds at all times at once: one
may look after each episode and stop at will. It is that of the t-test with a normal mixture
over the size of the effect and the right Haar measure over the scale (M. Lindon, D. Ham,
M. Tingley, I. Bojinov, *Anytime-Valid Linear Models and Regression Adjusted Causal Inference in
Randomized Experiments*, 2022; T. Lai, *Annals of Statistics* 4, 1976), exact for normal errors at
each number of episodes; for others it is an asymptotic confidence sequence (I. Waudby-Smith
et al., *Annals of Statistics* 52, 2024).

Differences are not adjusted for the number of running requests: in an open loop a slower arm has
more of them, which is part of its effect, and an adjustment would remove that part.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from specwatch.domain.buckets import order_of
from specwatch.domain.interval import CONFIDENCE, Interval
from specwatch.domain.model import Segment, load_bin, load_bin_label
from specwatch.domain.switchback import (
    ALL_TRAFFIC,
    MOST_GROUPS,
    STANDBY,
    Episode,
    Grouping,
    Moments,
    SwitchbackDesign,
    SwitchbackState,
    TunedSchedule,
)

_EFFECT_VARIANCE = 0.5
"""Of the mixture, in variances of one observation: narrowest at about fifteen episodes."""
_WASHOUTS = tuple(n / 24 for n in range(1, 12))
"""Lengths of the washout that are compared with half a block, in blocks."""
_SETTLED = 0.005
"""Error of log time per token that is accepted for a shorter washout. Intervals are wider by it for
each of the two arms, since this error does not become smaller with more episodes."""
_LEAST_SWITCHES = 10
LEAST_EPISODES = 6
"""Episodes for an interval of 95 %; so many of a group may keep an arm from being dropped."""


class GroupResults(Struct, frozen=True):
    """The speedups of one group by arm, each interval valid on its own."""

    speedups: dict[str, Interval | None]
    share: float
    """Of the tokens of all traffic in the episodes, this group's; at most 1, although requests that
    end in a block have tokens from before it."""


class SwitchbackResults(Struct, frozen=True, kw_only=True):
    """Speedups against the reference arm; None where there are too few episodes."""

    reference: str
    speedups: dict[str, Interval | None]
    groups: dict[Grouping, dict[str, GroupResults]]
    """By the value of the group, in ascending order. The shares of a grouping add up to less than
    1 by what the tap does not cover."""
    best: str
    """The arm with the largest speedup of those that are certainly faster than the reference;
    otherwise that."""
    washout: float
    """Seconds at the beginning of a block that do not count."""


class ExperimentStatus(Struct, frozen=True, kw_only=True):
    """The experiment on the live traffic of a target now.

    ``arm`` is in force, ``paused`` why no episode may begin, ``next_at`` the Unix time of
    the next switch; ``excluded`` episodes did not count. ``speedups`` are those of other arms
    against the launch, None with too few episodes, ``groups`` those by load, temperature and prompt
    length, and ``best`` is the best arm, the launch if none is certainly faster; empty until the
    experiment was read. ``tuning`` is None where no schedule is learned.
    """

    arm: str
    paused: str = ""
    next_at: float | None = None
    episodes: int = 0
    excluded: int = 0
    speedups: Mapping[str, Interval | None] = {}
    groups: Mapping[Grouping, Mapping[str, GroupResults]] = {}
    best: str = ""
    tuning: TunedSchedule | None = None


def observe(state: SwitchbackState, design: SwitchbackDesign, episode: Episode) -> SwitchbackState:
    """The state with an episode added that was run to its end, and with arms dropped that lose.

    An episode counts as a whole or not at all: without incident, with three quarters of each
    block observed, and with enough tokens. The tokens are those of all blocks together, since a
    block has fewer when its arm is slow. An arm is dropped that certainly loses overall, the
    number of arms accounted for, and seems to win at no load: loads can only keep an arm, so their
    number does not add to the error. Other groups keep none: an order is for all requests. While a
    schedule is learned no arm is dropped: it may win at a load that is still to come. Raises
    ValueError for an episode that has an arm twice, or only one.
    """
    if not 2 <= len({block.arm for block in episode.blocks}) == len(episode.blocks):
        raise ValueError("an episode has two arms or more, and each once")
    complete = all(b.parts and b.parts[-1].end >= 0.75 * design.block for b in episode.blocks)
    paces = _paces(state, design, episode) if complete and not episode.incident else {}
    if ALL_TRAFFIC not in paces:
        return replace(state, excluded=state.excluded + 1)
    differences = {
        group: {first: dict(to) for first, to in arms.items()}
        for group, arms in state.differences.items()
    }
    for group, by_arm in paces.items():
        if group not in differences and len(differences) >= MOST_GROUPS:
            continue
        for first, second in itertools.combinations(sorted(by_arm), 2):
            to = differences.setdefault(group, {}).setdefault(first, {})
            difference = by_arm[first] - by_arm[second]
            to[second] = to.get(second, Moments()).with_value(difference)
    after = replace(
        state,
        episodes=state.episodes + 1,
        tokens=_tokens(state, design, episode, paces),
        differences=differences,
        settling=_settling(state, design, episode),
    )
    if design.tune != "off":
        return after
    dropped = set(state.dropped.get(design.usual, ()))
    confidence = 1 - (1 - CONFIDENCE) / (len(design.arms) - 1)
    for arm in set(design.arms) - {design.usual}:
        overall = speedup(after, arm, design.usual, confidence=confidence)
        by_load = [
            _difference(after, group, design.usual, arm)
            for group in differences
            if Grouping.LOAD.value_of(group) is not None
        ]
        wins = any(m is not None and m.count >= LEAST_EPISODES and m.mean > 0 for m in by_load)
        if overall is not None and overall.below(1.0) and not wins:
            dropped.add(arm)
    return replace(after, dropped={**state.dropped, design.usual: tuple(sorted(dropped))})


def _paces(
    state: SwitchbackState, design: SwitchbackDesign, episode: Episode
) -> dict[str, dict[str, float]]:
    """Log time per token by group, of those that have enough tokens, and by arm."""
    paces = {}
    for group in _observed_groups(episode):
        # Other groups are counted at the end of a request: those that end after half a block, and
        # began to decode in it, are of one arm.
        washout = washout_of(state, design) if group == ALL_TRAFFIC else design.block / 2
        totals = {block.arm: block.totals(group, washout) for block in episode.blocks}
        enough = sum(t for _, t in totals.values()) >= design.least_tokens * len(totals)
        if enough and all(seconds > 0 and tokens > 0 for seconds, tokens in totals.values()):
            paces[group] = {arm: math.log(s / tokens) for arm, (s, tokens) in totals.items()}
    if ALL_TRAFFIC not in paces:
        return {}
    # Of the whole episode: the load of a block depends on its arm.
    load = load_bin(sum(block.running for block in episode.blocks) / len(episode.blocks))
    of_all = {ALL_TRAFFIC: paces[ALL_TRAFFIC]}
    if load is not None:
        of_all[Grouping.LOAD.group(load_bin_label(load))] = paces[ALL_TRAFFIC]
    return {**of_all, **paces}


def _observed_groups(episode: Episode) -> list[str]:
    return sorted({group for b in episode.blocks for part in b.parts for group in part.groups})


def _tokens(
    state: SwitchbackState, design: SwitchbackDesign, episode: Episode, measured: Iterable[str]
) -> dict[str, float]:
    """``tokens`` of the state with those of the second halves of the blocks; ``measured`` groups
    come first."""
    tokens = dict(state.tokens)
    for group in dict.fromkeys([*measured, *_observed_groups(episode)]):
        if group in tokens or len(tokens) < MOST_GROUPS:
            counted = ALL_TRAFFIC if Grouping.LOAD.value_of(group) is not None else group
            added = sum(block.totals(counted, design.block / 2)[1] for block in episode.blocks)
            tokens[group] = tokens.get(group, 0.0) + added
    return tokens


def _settling(
    state: SwitchbackState, design: SwitchbackDesign, episode: Episode
) -> dict[str, tuple[Moments, ...]]:
    """``settling`` of the state with the switches of an episode. Whether a switch is to a faster
    arm is decided by earlier episodes, else noise would decide it."""
    settling = dict(state.settling)
    before = [episode.usual, *(block.arm for block in episode.blocks)]
    for arm, block in zip(before, episode.blocks, strict=False):
        change = _difference(state, ALL_TRAFFIC, arm, block.arm)
        totals = [block.totals(ALL_TRAFFIC, design.block * part) for part in (*_WASHOUTS, 0.5)]
        if arm == block.arm or change is None or min(map(min, totals)) <= 0:
            continue
        *paces, settled = [math.log(seconds / tokens) for seconds, tokens in totals]
        direction = "faster" if change.mean > 0 else "slower"
        known = settling.get(direction, (Moments(),) * len(_WASHOUTS))
        settling[direction] = tuple(
            moments.with_value(pace - settled) for moments, pace in zip(known, paces, strict=True)
        )
    return settling


def washout_of(state: SwitchbackState, design: SwitchbackDesign) -> float:
    """Seconds at the beginning of a block that do not count: half of it, until switches so far show
    that with fewer seconds the time per token would be the same within 0.5 % (at twice the standard
    error), both to faster and to slower arms. The first sub-interval never counts."""
    washout = design.block / 2
    for number in reversed(range(len(_WASHOUTS))):
        for direction in ("faster", "slower"):
            moments = state.settling.get(direction, (Moments(),) * len(_WASHOUTS))[number]
            if moments.count < _LEAST_SWITCHES:
                return washout
            error = math.sqrt(moments.variance / moments.count)
            if abs(moments.mean) + 2 * error > _SETTLED:
                return washout
        washout = design.block * _WASHOUTS[number]
    return washout


def _difference(state: SwitchbackState, group: str, first: str, second: str) -> Moments | None:
    """Log time per token of the first arm less that of the second; None if never compared."""
    low, high = sorted((first, second))
    moments = state.differences.get(group, {}).get(low, {}).get(high)
    if moments is None or low == first:
        return moments
    return Moments(moments.count, -moments.mean, moments.squares)


def compared_episodes(
    state: SwitchbackState, arm: str, reference: str, *, group: str = ALL_TRAFFIC
) -> int:
    """Episodes that counted for a speedup."""
    moments = _difference(state, group, reference, arm)
    return 0 if moments is None else moments.count


def _widening(count: int, confidence: float) -> tuple[float, float]:
    """Two terms of the confidence sequence; without an interval unless the first is larger."""
    widened = 1 + count * _EFFECT_VARIANCE
    return widened, (widened / (1 - confidence) ** 2) ** (1 / count)


def least_episodes(confidence: float) -> int:
    """Episodes that an interval needs."""
    for count in itertools.count(2):
        widened, ratio = _widening(count, confidence)
        if ratio < widened:
            return count
    raise AssertionError("the ratio tends to 1")


def speedup(
    state: SwitchbackState,
    arm: str,
    reference: str,
    *,
    group: str = ALL_TRAFFIC,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """Time per token of the reference over that of the arm; ``samples`` are episodes.

    The interval is valid at all times at once. None for too few episodes, 6 at 95 %. To decide
    by looking at n groups or arms, ask for a confidence of 1 - 0.05 / n.
    """
    moments = _difference(state, group, reference, arm)
    if moments is None or moments.count < 2:
        return None
    count = moments.count
    widened, ratio = _widening(count, confidence)
    if ratio >= widened:
        return None
    squared = (ratio - 1) / (1 - ratio / widened) * moments.squares / count
    half = math.sqrt(squared) + 2 * _SETTLED
    return Interval.around(math.exp(moments.mean), half, count, confidence)


def speedup_against_off(
    state: SwitchbackState, arm: str, standby_cost: Interval, *, group: str = ALL_TRAFFIC
) -> Interval | None:
    """Time per token without speculation over that of the arm; None for too few episodes.

    It is the speedup over standby, by this experiment, divided by ``standby_cost``, the time per
    token in standby over that without speculation; that of standby is the inverse of the cost. In
    logarithms the errors of both add up as squares: the two are assumed to be independent, and
    the cost to be at the time of the episodes, in their conditions, what it was in the minutes that
    it was measured in. The interval is as valid as that of the cost: at one look.
    """
    if arm == STANDBY:
        return standby_cost.inverse()
    over_standby = speedup(state, arm, STANDBY, group=group)
    return None if over_standby is None else over_standby.over(standby_cost)


def best_arm(state: SwitchbackState, design: SwitchbackDesign, reference: str = "") -> str:
    """The arm with the largest speedup of those that are certainly faster than the reference, by
    default the usual arm; otherwise that."""
    reference = reference or design.usual
    intervals = {arm: speedup(state, arm, reference) for arm in design.arms}
    faster = {arm: s.value for arm, s in intervals.items() if s is not None and s.above(1.0)}
    return max(faster, key=lambda arm: faster[arm], default=reference)


def fastest_other(
    state: SwitchbackState, design: SwitchbackDesign, reference: str
) -> tuple[str, Interval] | None:
    """The arm other than the reference that is the fastest by the lower end of its speedup against
    that; None with too few episodes.

    The intervals hold for all arms together, so that one may decide by the arm that they single
    out.
    """
    others = [arm for arm in design.arms if arm != reference]
    confidence = 1 - (1 - CONFIDENCE) / len(others)
    known = [(arm, speedup(state, arm, reference, confidence=confidence)) for arm in others]
    return max(
        ((arm, interval) for arm, interval in known if interval is not None),
        key=lambda one: one[1].lower,
        default=None,
    )


def assumed_loss(state: SwitchbackState, design: SwitchbackDesign, arm: str) -> float:
    """Share of its time that an arm loses against the best one, at the worst end of the interval;
    as long as that end says no more than nothing, ``design.assumed_loss``."""
    best = best_arm(state, design)
    if arm == best:
        return 0.0
    interval = speedup(state, arm, best)
    if interval is None:
        return design.assumed_loss
    worst = max(1 - interval.lower, 0.0)
    if 1 - interval.value > design.assumed_loss:
        return worst
    return min(worst, design.assumed_loss)


def results(
    state: SwitchbackState, design: SwitchbackDesign, reference: str | None = None
) -> SwitchbackResults:
    """All speedups against a reference arm, by default the usual one."""
    reference = reference or design.usual
    others = [arm for arm in design.arms if arm != reference]

    def speedups(group: str) -> dict[str, Interval | None]:
        return {arm: speedup(state, arm, reference, group=group) for arm in others}

    tokens = state.tokens.get(ALL_TRAFFIC, 0.0)
    groups: dict[Grouping, dict[str, GroupResults]] = {}
    for by in Grouping:
        known = {**state.tokens, **state.differences}
        named = {value: group for group in known if (value := by.value_of(group))}
        groups[by] = {
            one.value: GroupResults(
                speedups(named[one.value]),
                min(state.tokens.get(named[one.value], 0.0) / tokens, 1.0) if tokens else 0.0,
            )
            for one in sorted((Segment(by, value) for value in named), key=order_of)
        }
    return SwitchbackResults(
        reference=reference,
        speedups=speedups(ALL_TRAFFIC),
        groups=groups,
        best=best_arm(state, design, reference),
        washout=washout_of(state, design),
    )
