"""Experiments on live traffic: their design, what they observe, and their state as it is stored.

The number of draft tokens can be switched at run time. A *switchback experiment* (I. Bojinov,
D. Simchi-Levi, J. Zhao, *Design and Analysis of Switchback Experiments*, Management Science 69,
2023) alternates *arms* on a small share of the time; an arm is a mode of the server: no draft
tokens, a fixed number of them, or the mode that it was launched in. An *episode* is a randomised
complete block: each active arm once, in random order, for ``block`` seconds. Load and noise
are thereby unrelated to arms, however correlated they are. :mod:`switchback_schedule` says which
arm is in force, :mod:`switchback_results` what follows from the episodes.

Times are Unix seconds, durations are seconds.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from specwatch.domain.interval import Interval
from specwatch.domain.model import Environment

FORMAT = 1
"""Of a stored experiment."""
LAUNCH = "launch"
"""The arm that vLLM was launched in."""
STANDBY = "0"
"""The arm of no draft tokens, with which the drafter still runs."""
TUNED = "tuned"
"""The arm with the schedule that :mod:`tuning` has learned."""
ALL_TRAFFIC = "all"
"""The group that has all requests."""
MOST_GROUPS = 64
"""Groups that a state keeps; further ones are ignored. There are at most 38: 22 of temperatures,
8 of loads, 7 of prompt lengths, and all traffic."""
_CLIP = 4.0
_PRIOR_VARIANCE, _PRIOR_COUNT = 0.25, 4
"""Assumed variance of a logarithm, and the observations that it counts for."""


class Grouping(enum.StrEnum):
    """By what speedups are measured separately; a group is named by it and a value."""

    LOAD = "load"
    TEMPERATURE = "temperature"
    PROMPT_LENGTH = "prompt length"

    def group(self, value: str) -> str:
        """``temperature (0,0.3]``."""
        return f"{self} {value}"

    def value_of(self, group: str) -> str | None:
        """``(0,0.3]`` of the group ``temperature (0,0.3]``; None for a group of another kind."""
        value = group.removeprefix(f"{self} ")
        return None if value == group else value


class SwitchbackDesign(Struct, frozen=True, kw_only=True):
    """What is compared, and what it may cost. Raises ValueError where that is impossible."""

    arms: tuple[str, ...]
    usual: str
    """The arm in use outside episodes; each episode includes it."""
    seed: int
    block: float = 60.0
    """Seconds of one arm in an episode."""
    share: float = 0.05
    """Largest share of the elapsed time in arms other than the usual one, at most 0.5."""
    regret: float = 0.02
    """Largest share of the elapsed time that slower arms may lose."""
    assumed_loss: float = 0.5
    """Share of its time that an arm is assumed to lose until its speedup is measured."""
    lateness: float = 5.0
    """Seconds by which a switch may be late without the shares being exceeded."""
    least_tokens: int = 200
    """Mean generated tokens a block below which an episode does not count for a group."""
    launch_schedule: tuple[tuple[int, int], ...] = ()
    """By ascending number of requests in a step, from which on the launch has how many draft
    tokens."""
    tune: Literal["off", "observe", "act"] = "off"
    """Whether a schedule is learned, and with ``act`` used."""

    def __post_init__(self) -> None:
        if len(self.arms) < 2 or len(set(self.arms)) < len(self.arms):
            raise ValueError(f"an experiment needs two different arms or more, got {self.arms}")
        if self.usual not in self.arms:
            raise ValueError(f"the usual arm {self.usual!r} must be one of {self.arms}")
        if not (0 < self.share <= 0.5 and 0 < self.regret <= 1 and 0 <= self.assumed_loss <= 1):
            raise ValueError("share must be in (0, 0.5], regret in (0, 1], assumed_loss in [0, 1]")
        if not 0 <= self.lateness < self.block:
            raise ValueError("lateness must be less than block, and not negative")


class SubInterval(Struct, frozen=True):
    """A part of a block, such as from one scrape to the next."""

    end: float
    """Seconds from the beginning of the block."""
    groups: Mapping[str, tuple[float, float]]
    """For each group the seconds of decoding (the sum of inter-token times over all requests) and
    the tokens generated in them. A group must not depend on the arm: temperature or
    prompt length, but not the load at the time; groups by load are added by ``observe``. Those of
    all traffic are counted while they are decoded, those of other groups at the end of a request.
    """


class ArmBlock(Struct, frozen=True):
    """One arm of an episode."""

    arm: str
    running: float
    """Mean number of running requests."""
    parts: Sequence[SubInterval]
    """In order of time, without gaps."""

    def totals(self, group: str, washout: float) -> tuple[float, float]:
        """Seconds of decoding and tokens of a group, without the parts that begin earlier."""
        seconds, tokens, begin = 0.0, 0.0, 0.0
        for part in self.parts:
            if begin >= washout and group in part.groups:
                seconds += part.groups[group][0]
                tokens += part.groups[group][1]
            begin = part.end
        return seconds, tokens


class Episode(Struct, frozen=True):
    """The blocks of an episode in order of time."""

    usual: str
    """The arm before the first block."""
    blocks: tuple[ArmBlock, ...]
    incident: bool = False
    """Whether an error, a restart or a switch by somebody else fell into it."""


class Moments(Struct, frozen=True, array_like=True):
    """Number, mean, and sum of squared deviations of observations."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def with_value(self, value: float) -> Moments:
        """These and one more, which counts as no further from the mean than four standard
        deviations: one extreme value decides nothing. The limit depends on earlier values only."""
        spread = self.squares + _PRIOR_COUNT * _PRIOR_VARIANCE
        limit = _CLIP * math.sqrt(spread / (max(self.count - 1, 0) + _PRIOR_COUNT))
        apart = min(max(value - self.mean, -limit), limit)
        count = self.count + 1
        squares = self.squares + apart * apart * self.count / count
        return Moments(count, self.mean + apart / count, squares)

    @property
    def variance(self) -> float:
        """Of one observation; infinite for fewer than two."""
        return self.squares / (self.count - 1) if self.count > 1 else math.inf


class SwitchbackState(Struct, frozen=True, kw_only=True):
    """An experiment as it is stored: enough to continue after being killed.

    It contains sums only, so its size does not depend on how long the experiment lasts.
    """

    environment: str
    """Identifies software and configuration: results hold for one."""
    began: float
    counted: float
    """When the time in force of ``arm`` was last added up."""
    arm: str
    """The arm in force."""
    usual: str
    loss: float = 0.0
    """Share of its time that the arm in force is assumed to lose."""
    other_seconds: float = 0.0
    """Time in arms other than the usual one."""
    lost_seconds: float = 0.0
    """The part of it that those arms lose, conservatively."""
    plans: int = 0
    """Episodes planned so far; together with the seed it determines the plan."""
    start: float | None = None
    """When the present or the next episode begins."""
    stratum_end: float = 0.0
    """When the stratum of that start ends: the next one begins no earlier."""
    order: tuple[str, ...] = ()
    """The arms of the present episode."""
    dropped: Mapping[str, tuple[str, ...]] = {}
    """By usual arm those that lose against it, and are not run any more while it is in use."""
    episodes: int = 0
    excluded: int = 0
    """Episodes that did not count: an incident, a block observed in part, or too few tokens."""
    tokens: Mapping[str, float] = {}
    """By group the tokens of the second halves of all blocks that counted."""
    differences: Mapping[str, Mapping[str, Mapping[str, Moments]]] = {}
    """By group and two arms, in alphabetical order: log time per token of the first less that of
    the second."""
    settling: Mapping[str, tuple[Moments, ...]] = {}
    """For switches to a ``faster`` and to a ``slower`` arm, and by length of the washout: log time
    per token of a block after it, less that of the second half of the block."""
    tuned: Mapping[str, str] = {}
    """By label of a load bin the arm that the learned schedule has there, where it is not the
    launch; what is observed of the arm ``TUNED`` is of this schedule."""

    @property
    def other_share(self) -> float:
        """Share of the elapsed time in arms other than the usual one."""
        return self.other_seconds / max(self.counted - self.began, 1.0)

    @property
    def lost_share(self) -> float:
        """Share of the elapsed time that those arms lost, conservatively."""
        return self.lost_seconds / max(self.counted - self.began, 1.0)


def environment_of(software: Environment, schedule: str = "") -> str:
    """The ``environment`` of a state; without the launch's schedule the beginning of it."""
    return f"{software.engine_version}/{software.configuration}/{schedule}"


def new_state(design: SwitchbackDesign, environment: str, now: float) -> SwitchbackState:
    """The state at the beginning, with the usual arm in force."""
    return SwitchbackState(
        environment=environment, began=now, counted=now, arm=design.usual, usual=design.usual
    )


def in_environment(state: SwitchbackState, environment: str) -> SwitchbackState:
    """The state for this environment: in another one than before there are no results, no arm is
    dropped, and the present episode is abandoned, while the time used still counts."""
    if environment == state.environment:
        return state
    return replace(
        state,
        environment=environment,
        order=(),
        start=None,
        dropped={},
        episodes=0,
        excluded=0,
        tokens={},
        differences={},
        settling={},
        tuned={},
    )


class TunedSchedule(Struct, frozen=True, kw_only=True):
    """What an experiment advises as the schedule of the launch.

    ``schedule`` has first and last number of requests in a step, and the draft tokens; it is empty
    while no load has an arm that is certainly faster than the launch. ``gain`` is its speedup
    against the launch. ``episodes`` is how many the load has that was seen most, of ``needed`` for
    an answer.
    """

    schedule: tuple[tuple[int, int, int], ...] = ()
    gain: Interval | None = None
    episodes: int
    needed: int


class Switchback(Struct, frozen=True, kw_only=True, tag_field="kind", tag="switchback"):
    """An experiment of a target as it is stored. ``stopped`` is empty while it runs, else who
    stopped it, and why."""

    format: int = FORMAT
    target: str
    design: SwitchbackDesign
    state: SwitchbackState
    stopped: str = ""
