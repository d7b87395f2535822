"""The worlds: simulated servers that differ in when speculation pays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from specwatch.simulated.acceptance import SimulatedAcceptance
from specwatch.simulated.costs import SimulatedCosts
from specwatch.simulated.engine import SimulatedEngine
from specwatch.simulated.profile import CONSTANT, SimulatedProfile
from specwatch.simulated.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.simulated.workload import SimulatedRequest, SimulatedTraffic, SimulatedWorkload

HOUR = 3600.0
DAY = 24 * HOUR

COSTS = SimulatedCosts(
    base=0.1,
    per_sequence=0.0005,
    per_token=0.006,
    free_tokens=8,
    draft_base=0.008,
    draft_per_sequence=0.0001,
)
"""A large model on a small machine: arithmetic costs from two requests with four drafts on."""

WARM, HOT = 0.7, 1.2


@dataclass(frozen=True, slots=True)
class World:
    """One world. ``period`` and ``grain`` are in seconds.

    The truth repeats after ``period`` and stays the same within each ``grain`` of it. ``hot`` is
    the share of requests at the highest temperature over time, where it changes. ``deploys``: each
    period begins with a new process that speculates, as when somebody puts in a new draft.
    """

    name: str
    summary: str
    settings: SimulatedSettings
    period: float = HOUR
    grain: float = HOUR
    hot: SimulatedProfile | None = None
    deploys: bool = False

    def group(self, minute: int) -> int:
        """Number of the grain that a minute lies in."""
        return int((60.0 * minute) % self.period // self.grain)

    @property
    def groups(self) -> int:
        """How many grains a period has."""
        return math.ceil(self.period / self.grain)

    def engine(self, *, speculating: bool, seed: int | None = None) -> SimulatedEngine:
        """The server of this world, with speculation as configured or without."""
        settings = dataclasses.replace(
            self.settings,
            speculation=self.settings.speculation if speculating else None,
            seed=self.settings.seed if seed is None else seed,
            keep_log=True,
        )
        engine = SimulatedEngine(settings)
        if self.hot is not None:
            engine.workload = MixedWorkload(settings, self.hot)
        return engine


class MixedWorkload(SimulatedWorkload):
    """Traffic whose temperatures change over time."""

    def __init__(self, settings: SimulatedSettings, hot: SimulatedProfile) -> None:
        """``hot`` is the share of the highest temperature; the others are as configured."""
        self._hot = hot
        self._highest = max(temperature for temperature, _ in settings.traffic.temperatures)
        super().__init__(settings.traffic, settings.seed, settings.max_model_len)

    def draw(self) -> SimulatedRequest:
        request = super().draw()
        if self._random.random() < self._hot.at(self.next_arrival):
            return dataclasses.replace(request, temperature=self._highest)
        return request


def at_rate(world: World, rate: float) -> World:
    """The same server with so many requests a second, at any time."""
    traffic = dataclasses.replace(world.settings.traffic, rate=rate, rate_profile=CONSTANT)
    settings = dataclasses.replace(world.settings, traffic=traffic)
    return dataclasses.replace(world, settings=settings)


def _world(
    name: str,
    summary: str,
    *,
    scale: float,
    traffic: Mapping[str, object] | None = None,
    costs: SimulatedCosts = COSTS,
    drift: SimulatedProfile | None = None,
    **more: object,
) -> World:
    lengths = {"prompt_tokens": 60.0, "output_tokens": 24.0, "length_shape": 0.6, "max_tokens": 200}
    settings = SimulatedSettings(
        speculation=SimulatedSpeculation(4),
        costs=costs,
        acceptance=SimulatedAcceptance(scale=scale),
        drift=drift or SimulatedProfile(),
        traffic=SimulatedTraffic(**{"rate": 1.0, **lengths, **(traffic or {})}),  # type: ignore[arg-type]
        seed=1,
    )
    return World(name, summary, settings, **more)  # type: ignore[arg-type]


def _hours(*points: tuple[float, float], period: float) -> SimulatedProfile:
    return SimulatedProfile(tuple((at * HOUR, factor) for at, factor in points), period * HOUR)


BUSY_DAY = _hours((0, 0.15), (6, 0.15), (10, 1.0), (18, 1.0), (22, 0.15), period=24)
QUIET_NIGHT = _hours((0, 0), (6, 0), (8, 1), (20, 1), (22, 0), period=24)
HOT_NIGHT = _hours((0, 0.95), (7, 0.95), (9, 0.05), (19, 0.05), (21, 0.95), period=24)
SLOW = _hours((0, 1.0), (120, 0.35), period=240)
"""Down within five days; and up again, as the last point is the first of the next period."""
SUDDEN = _hours((0, 1.0), (15, 1.0), (15.0003, 0.35), (25, 0.35), period=25)
TEMPERATURES = {"temperatures": ((0.0, 1.0), (HOT, 0.0))}

WORLDS: Mapping[str, World] = {
    world.name: world
    for world in (
        _world("helps", "speculation clearly helps", scale=0.6),
        _world("hurts", "it clearly hurts", scale=0.2),
        _world("even", "exactly at break-even", scale=0.344),
        _world(
            "load", "it helps at low load and hurts at high load", scale=0.5,
            traffic={"rate": 2.0, "rate_profile": BUSY_DAY}, period=DAY, grain=HOUR / 4,
        ),
        _world(
            "temperature", "it helps at low temperature only", scale=0.6,
            traffic=TEMPERATURES, hot=HOT_NIGHT, period=DAY, grain=HOUR / 4,
        ),
        _world("drift", "acceptance drifts slowly", scale=0.6, drift=SLOW,
               period=240 * HOUR, grain=2 * HOUR),
        _world("drop", "acceptance drops suddenly", scale=0.6, drift=SUDDEN,
               period=25 * HOUR, grain=5 * HOUR, deploys=True),
        _world(
            "nights", "it helps, and nights are idle", scale=0.6,
            traffic={"rate_profile": QUIET_NIGHT}, period=DAY, grain=HOUR / 4,
        ),
    )
}  # fmt: skip
"""By name."""
