"""What was measured by experiment, as the report has it; in the units of :mod:`.model`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from specwatch.domain.experiments import Verdict, Zone
from specwatch.report.estimates import Ratio


class ProbedTemperature(Struct, frozen=True, kw_only=True):
    """One temperature of a probe, and the zone of its acceptance against the break-even line."""

    temperature: float
    acceptance_rate: Ratio | None
    zone: Zone
    speedup: Ratio | None = None


class MeasuredLoad(Struct, frozen=True, kw_only=True):
    """One load of a bench or a comparison: so many clients, or requests a second.

    ``throughput`` is in tokens a second, ``per_user`` the median of what single requests got after
    their first token; of a comparison both are with speculation, and so is ``tpot_p99``.
    ``throughput_off``, ``speedup`` and ``verdict`` are of a comparison only. A load that was broken
    off is not ``complete``.
    """

    concurrency: int | None
    rate: float | None
    throughput: float
    per_user: float | None = None
    tpot_p99: float | None = None
    throughput_off: float | None = None
    speedup: Ratio | None = None
    verdict: Verdict | None = None
    complete: bool = True


class Experiment(Struct, frozen=True, kw_only=True):
    """A probe, a bench or a comparison, which ended at the time ``at``.

    ``asked`` is what was to be measured, in words; if it is not ``complete`` some of that is
    missing. ``speculation`` is whether the server speculated, of a comparison always true.
    """

    at: float
    kind: Literal["probe", "bench", "comparison"]
    complete: bool
    speculation: bool
    asked: str
    sentence: str
    temperatures: tuple[ProbedTemperature, ...] = ()
    break_even_acceptance: Ratio | None = None
    """Of a probe, at its load."""
    loads: tuple[MeasuredLoad, ...] = ()
    speedup: Ratio | None = None
    crossing: float | None = None
    """The load at which the speedup falls to 1, in the unit of the loads."""
    verdict: Verdict | None = None


class LiveArm(Struct, frozen=True, kw_only=True):
    """The speedup of an arm against the launch; None with too few episodes."""

    arm: str
    speedup: Ratio | None
    episodes: int


class LiveGroup(Struct, frozen=True, kw_only=True):
    """The speedups of all requests, or of those with this ``value``; ``share`` of the tokens."""

    by: Literal["all", "load", "temperature", "prompt length"]
    value: str
    share: float
    arms: tuple[LiveArm, ...]


class LiveExperiment(Struct, frozen=True, kw_only=True):
    """The experiment of a target, all of it from the time ``began`` on (Unix seconds).

    ``usual`` is the arm in use between episodes, the launch or the tuned schedule. ``share`` of
    the time was in other arms, ``regret`` is the share that they lost at most; both have a limit.
    ``excluded`` episodes did not count. ``dropped`` arms lose, and are not ordered any more.
    ``stopped`` says by whom, and why. Times and tokens of ``covered``, a share of the tokens, are
    known by temperature and prompt length.
    """

    sentence: str
    began: float
    episodes: int
    excluded: int
    usual: str
    share: float
    share_allowed: float
    regret: float
    regret_allowed: float
    covered: float
    dropped: tuple[str, ...] = ()
    stopped: str = ""
    groups: tuple[LiveGroup, ...] = ()
