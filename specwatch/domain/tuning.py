"""A schedule learned from an experiment: which number of draft tokens is best at which load.

vLLM looks up the number of draft tokens by the number of requests in a step, where it was launched
with a schedule. For each load bin the episodes with so many running requests in the mean say which
arm is the fastest; where none is certainly faster than the launch, the launch's own number stays.

All comparisons hold together with 95 %, at all times: each has a confidence of 1 - 0.05 / n, for n
load bins times pairs of arms (Bonferroni), so one may look at all of them after each episode, and
choose. The gain of a schedule is the mean over the loads, weighted by the time at each, of the log
speedup there. As episodes begin at random times (:mod:`switchback_schedule`), their numbers by load
are an unbiased sample of that time. Its interval adds up those of the loads, and so holds whichever
arms were chosen; it is one at the loads of the episodes so far.

The load of an episode is a mean over minutes, while vLLM looks at each step, prompts included: so
near the border of two bins the gain is approximate, and :data:`TUNED` as an arm measures it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from msgspec.structs import replace

from specwatch.domain.interval import CONFIDENCE, Interval
from specwatch.domain.model import LOAD_BINS, load_bin, load_bin_label
from specwatch.domain.switchback import (
    LAUNCH,
    TUNED,
    Grouping,
    SwitchbackDesign,
    SwitchbackState,
    TunedSchedule,
)
from specwatch.domain.switchback_results import (
    compared_episodes,
    least_episodes,
    speedup,
)

LARGEST_BATCH = 256
"""Where a schedule by batch size ends; vLLM continues the last range."""
_LOADS = tuple(load_bin_label(number) for number in range(len(LOAD_BINS)))


def learned(state: SwitchbackState, design: SwitchbackDesign) -> SwitchbackState:
    """The state with the schedule that its episodes teach; to be called between episodes.

    Hysteresis: at each load the arm in use stays until another one is certainly faster. What was
    observed of :data:`TUNED` is forgotten with each new schedule, and a schedule that certainly
    loses against the launch is dropped: it is not used again unless it changes. No other arm is.
    """
    tuned = {}
    for load in () if design.tune == "off" else _LOADS:
        used = state.tuned.get(load, LAUNCH)
        speedups = {arm: _speedup(state, design, load, arm) for arm in _fixed_arms(design)}
        faster = {arm: s.value for arm, s in speedups.items() if s is not None and s.above(1.0)}
        faster[LAUNCH] = 1.0
        better = [
            arm
            for arm in faster
            if (over := _speedup(state, design, load, arm, used)) is not None and over.above(1.0)
        ]
        best = max(better, key=lambda arm: faster[arm], default=used)
        if best != LAUNCH:
            tuned[load] = best
    if tuned != state.tuned:
        state = _with_schedule(state, tuned)
    if design.tune == "off":
        return state
    measured = speedup(state, TUNED, LAUNCH)
    lost = measured is not None and measured.below(1.0)
    return replace(state, dropped={LAUNCH: (TUNED,)} if lost else {})


def _with_schedule(state: SwitchbackState, tuned: Mapping[str, str]) -> SwitchbackState:
    """The state with another schedule, and without what was observed of the one before."""
    differences = {
        group: {
            first: {arm: moments for arm, moments in to.items() if arm != TUNED}
            for first, to in arms.items()
            if first != TUNED
        }
        for group, arms in state.differences.items()
    }
    return replace(state, tuned=tuned, differences=differences, dropped={})


def with_tuned(
    design: SwitchbackDesign, state: SwitchbackState, *, withheld: bool
) -> SwitchbackDesign:
    """The design with the learned schedule as an arm, if there is one that may be used: the usual
    arm unless it is ``withheld``, or has lost against the launch."""
    if design.tune != "act" or not state.tuned:
        return design
    lost = TUNED in state.dropped.get(LAUNCH, ())
    usual = LAUNCH if withheld or lost else TUNED
    return replace(design, arms=(*untuned(design), TUNED), usual=usual)


def untuned(design: SwitchbackDesign) -> tuple[str, ...]:
    """The arms of a design without the learned schedule."""
    return tuple(arm for arm in design.arms if arm != TUNED)


def tuned_schedule(
    state: SwitchbackState, design: SwitchbackDesign
) -> tuple[tuple[int, int, int], ...]:
    """The learned schedule: first and last number of requests in a step, and the draft tokens.

    Other loads have the schedule of the launch. Empty where nothing is learned.
    """
    if not state.tuned or not design.launch_schedule:
        return ()
    launch = dict(design.launch_schedule)
    firsts = sorted({1, *launch, *(first for first, _ in LOAD_BINS)})
    draft_tokens, own = {}, 0
    for first in firsts:
        own = launch.get(first, own)
        bin_ = load_bin(first)
        arm = state.tuned.get(_LOADS[bin_]) if bin_ is not None else None
        draft_tokens[first] = own if arm is None else int(arm)
    starts = [next(same) for _, same in itertools.groupby(firsts, key=draft_tokens.__getitem__)]
    ends = [*(start - 1 for start in starts[1:]), max(starts[-1], LARGEST_BATCH)]
    return tuple((start, end, draft_tokens[start]) for start, end in zip(starts, ends, strict=True))


def advice(state: SwitchbackState, design: SwitchbackDesign) -> TunedSchedule | None:
    """The learned schedule and what it gains; None where none is learned."""
    if design.tune == "off":
        return None
    episodes = {
        load: max(
            compared_episodes(state, arm, LAUNCH, group=Grouping.LOAD.group(load))
            for arm in design.arms
            if arm != LAUNCH
        )
        for load in _LOADS
    }
    total = sum(episodes.values())
    gain = half = 0.0
    for load, arm in state.tuned.items():
        known = _speedup(state, design, load, arm)
        if known is not None:
            gain += math.log(known.value) * episodes[load] / total
            half += known.up * episodes[load] / total
    schedule = tuned_schedule(state, design)
    return TunedSchedule(
        schedule=schedule,
        gain=Interval.around(math.exp(gain), half, total) if schedule else None,
        episodes=max(episodes.values()),
        needed=least_episodes(_confidence(design)),
    )


def _fixed_arms(design: SwitchbackDesign) -> list[str]:
    """The arms with a fixed number of draft tokens."""
    return [arm for arm in untuned(design) if arm != LAUNCH]


def _confidence(design: SwitchbackDesign) -> float:
    """Of each comparison, so that all of them hold together."""
    pairs = math.comb(len(_fixed_arms(design)) + 1, 2)
    return 1 - (1 - CONFIDENCE) / (len(_LOADS) * pairs)


def _speedup(
    state: SwitchbackState, design: SwitchbackDesign, load: str, arm: str, reference: str = LAUNCH
) -> Interval | None:
    """Of an arm at a load."""
    group, confidence = Grouping.LOAD.group(load), _confidence(design)
    return speedup(state, arm, reference, group=group, confidence=confidence)
