"""When the episodes of an experiment on live traffic begin, and which arm is in force.

Time is divided into strata in which the allowed share is used by one episode, which begins at a
random time within: so all times of day are represented alike. An episode begins only after
the time that allows for it, so the share is kept at every moment, not only on average; the
same holds for the regret. Order and time are determined by the seed and the stored state.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from specwatch.domain.switchback import SwitchbackDesign, SwitchbackState
from specwatch.domain.switchback_results import assumed_loss


class ArmInForce(NamedTuple):
    """What to do now. Store ``state`` before switching to ``arm``."""

    state: SwitchbackState
    arm: str
    until: float
    """When to ask again at the latest; at best on time, and at any time before."""
    finished: bool = False
    """Whether an episode has just come to its end, complete: it is now to be observed."""


def next_step(
    state: SwitchbackState, design: SwitchbackDesign, now: float, *, paused: bool = False
) -> ArmInForce:
    """The arm in force from ``now`` on.

    ``paused`` returns to the usual arm at once, and abandons the present episode: its blocks are
    not to be observed. Between episodes it may depend on anything, such as too little traffic;
    within one only on incidents, never on what the arms have shown, or results would be biased.
    An episode is abandoned too if a switch was missed by more than ``design.lateness``, or
    if the usual arm or the set of arms has changed.
    """
    elapsed = max(now - state.counted, 0.0) if state.arm != state.usual else 0.0
    state = replace(
        state,
        counted=max(now, state.counted),
        other_seconds=state.other_seconds + elapsed,
        lost_seconds=state.lost_seconds + elapsed * state.loss,
    )
    arms = _active(state, design)
    finished = False
    if state.order:
        begin = now if state.start is None else state.start
        index = int((now - begin) // design.block)
        expected = state.order.index(state.arm)
        late = index > expected and now - begin - (expected + 1) * design.block > design.lateness
        changed = state.usual != design.usual or not set(state.order) <= set(arms)
        sound = not (paused or late or changed)
        if sound and index < len(state.order):
            return _in_force(state, design, max(index, expected), begin)
        finished = sound
        state = replace(state, order=(), start=None)
    state = replace(state, arm=design.usual, usual=design.usual, loss=0.0)
    if paused or len(arms) < 2:
        return ArmInForce(state, design.usual, now + design.block, finished)
    allowed, length = _allowance(state, design)
    start = state.start
    if start is not None and max(start, allowed) <= now <= start + design.block:
        order = list(arms)
        Random(f"{design.seed} order {state.plans}").shuffle(order)
        return _in_force(replace(state, start=now, order=tuple(order)), design, 0, now)
    if start is None or start <= now:
        # What was allowed long ago is not made up for: episodes would follow each other closely.
        begin = max(allowed, state.stratum_end, now)
        latest = max(length - design.block * len(arms), 0.0)
        plans = state.plans + 1
        start = begin + latest * Random(f"{design.seed} start {plans}").random()
        state = replace(state, plans=plans, start=start, stratum_end=begin + length)
    return ArmInForce(state, design.usual, start, finished)


def _active(state: SwitchbackState, design: SwitchbackDesign) -> tuple[str, ...]:
    """The arms of the next episode."""
    dropped = state.dropped.get(design.usual, ())
    return tuple(arm for arm in design.arms if arm not in dropped)


def _in_force(
    state: SwitchbackState, design: SwitchbackDesign, index: int, begin: float
) -> ArmInForce:
    """Within an episode."""
    arm = state.order[index]
    loss = 0.0 if arm == design.usual else assumed_loss(state, design, arm)
    state = replace(state, arm=arm, usual=design.usual, loss=loss)
    return ArmInForce(state, arm, begin + (index + 1) * design.block)


def _allowance(state: SwitchbackState, design: SwitchbackDesign) -> tuple[float, float]:
    """When another episode is allowed, and how long it takes to earn the time for one."""
    others = [arm for arm in _active(state, design) if arm != design.usual]
    longest = design.block + design.lateness
    loss = longest * sum(assumed_loss(state, design, arm) for arm in others)
    share = (state.other_seconds + longest * len(others)) / design.share
    allowed = state.began + max(share, (state.lost_seconds + loss) / design.regret)
    return allowed, max(longest * len(others) / design.share, loss / design.regret)
