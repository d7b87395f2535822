"""Experiments on live traffic in sentences."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from specwatch.domain.interval import Interval
from specwatch.domain.speedup import mended_by_calibration
from specwatch.domain.standby import StandbyCost
from specwatch.domain.switchback import LAUNCH, TUNED, SwitchbackState, TunedSchedule
from specwatch.domain.switchback_results import (
    LEAST_EPISODES,
    ExperimentStatus,
    SwitchbackResults,
    compared_episodes,
)
from specwatch.wording import figures
from specwatch.wording.text import LONGEST_SENTENCE, shown


def arm_name(arm: str) -> str:
    """``the launch``, ``the tuned schedule``, ``0 draft tokens (standby)``, ``2 draft tokens``."""
    if arm == LAUNCH:
        return "the launch"
    if arm == TUNED:
        return "the tuned schedule"
    if not (arm.isascii() and arm.isdigit() and len(arm) < 5):
        return shown(arm)
    name = figures.counted(int(arm), "draft token")
    return name if int(arm) else f"{name} (standby)"


def bounds(speedup: Interval | None) -> str:
    """``0.76 to 0.87``."""
    return "" if speedup is None else f"{speedup.lower:.2f} to {speedup.upper:.2f}"


def pace(arm: str, reference: str, speedup: Interval) -> str:
    """``2 draft tokens is 1.10 times as fast as the launch (1.05 to 1.16)``."""
    slower = speedup.value < 1
    ratio = speedup.inverse() if slower else speedup
    text = (
        f"{arm_name(arm)} is {ratio.value:.2f} times as {'slow' if slower else 'fast'} as"
        f" {arm_name(reference)} ({bounds(ratio)})"
    )
    certain = speedup.above(1.0) or speedup.below(1.0)
    return text if certain else f"not clear yet: {text}"


def comparison(arm: str, reference: str, speedup: Interval | None, episodes: int) -> str:
    """What is known about one arm against another; ``episodes`` counted for it."""
    if speedup is None:
        known = f"not known yet: {episodes} of {LEAST_EPISODES} episodes"
        return f"{arm_name(arm)} against {arm_name(reference)}: {known}"
    counted = figures.counted(speedup.samples, "episode")
    return f"{pace(arm, reference, speedup)}, by experiment, {counted}"


def against_off(target: str, cost: StandbyCost) -> str:
    """How much slower standby is than off, or why that is unknown, and what measures it."""
    if cost.cost is not None:
        return (
            f"against off: standby takes {cost.cost.value:.2f} times as long per token as vLLM"
            f" without speculation ({bounds(cost.cost)}),"
            f" {figures.counted(cost.cost.samples, 'minute')}"
        )
    why = cost.missing or ""
    whose = shlex.quote(shown(target))
    remedy = f"let it run for a quarter of an hour: specwatch switch {whose} --k 0 --lease 15m"
    if mended_by_calibration(why):
        remedy = (
            f"measure serving without speculation: specwatch calibrate --off URL --target {whose}"
        )
    return (
        "against standby only: how much slower standby is than off is not known:"
        f" {shown(why, LONGEST_SENTENCE)}; {remedy}"
    )


def answer(state: SwitchbackState, known: SwitchbackResults) -> str:
    """What is known about the best arm; where that is the reference, about the fastest other one.

    ``state`` is that of the results.
    """

    def episodes(arm: str) -> int:
        return compared_episodes(state, arm, known.reference)

    def merit(arm: str) -> tuple[bool, float, int]:
        speedup = known.speedups[arm]
        return arm == known.best, speedup.value if speedup else 0.0, episodes(arm)

    arm = max(known.speedups, key=merit)
    return comparison(arm, known.reference, known.speedups[arm], episodes(arm))


def coverage(share: float) -> str:
    """Of which share of the tokens temperature and prompt length are known."""
    known = figures.percent(min(share, 1.0))
    return (
        f"temperature and prompt length are known of {known} of the tokens: of those of streamed"
        " requests for one completion"
    )


def best_arm(best: str, speedups: Mapping[str, Interval | None]) -> str:
    """Which arm is the best, by speedups against the launch."""
    speedup = speedups.get(best)
    if best != LAUNCH and speedup is not None:
        return pace(best, LAUNCH, speedup)
    known = [speedup for speedup in speedups.values() if speedup is not None]
    if known and len(known) == len(speedups) and all(speedup.below(1.0) for speedup in known):
        return "the launch is the fastest"
    return "no arm is known to be faster than the launch"


def tuning(advised: TunedSchedule) -> str:
    """The schedule that an experiment proposes as that of the launch, or why it proposes none."""
    gain = advised.gain
    if gain is None:
        missing = (
            "no arm is certainly faster than the launch at any load"
            if advised.episodes >= advised.needed
            else f"no load has more than {advised.episodes} of the {advised.needed} episodes needed"
        )
        return f"no schedule is proposed: {missing}"
    ranges = ", ".join(str(list(entry)) for entry in advised.schedule)
    standby = any(k == 0 for *_, k in advised.schedule)
    return (
        f'proposed for the launch: "num_speculative_tokens_per_batch_size": [{ranges}]'
        f"{' (0 is standby)' if standby else ''}, expected {gain.value:.2f} times as fast"
        f" ({bounds(gain)}) at the loads of {figures.counted(gain.samples, 'episode')}"
    )


def standing(experiment: ExperimentStatus, now: float) -> str:
    """The arm in force, or why there is only the launch, and the best arm."""
    next_switch = (
        experiment.next_at and f", next switch in {figures.span(experiment.next_at - now)}"
    )
    if experiment.paused:
        in_force = f"{arm_name(TUNED)} in force, " if experiment.arm == TUNED else ""
        state = f"{in_force}waiting: {shown(experiment.paused, LONGEST_SENTENCE)}"
    else:
        state = f"{arm_name(experiment.arm)} in force{next_switch or ''}"
    if not experiment.best:
        return state
    episodes = figures.counted(experiment.episodes, "episode")
    left_out = f", {experiment.excluded} left out" if experiment.excluded else ""
    best = best_arm(experiment.best, experiment.speedups)
    advised = f"; {tuning(experiment.tuning)}" if experiment.tuning else ""
    return f"{state}; {episodes}{left_out}; {best}{advised}"
