"""The value of a metric over a window, and what it is read from."""

from __future__ import annotations

from typing import Literal, NamedTuple

from specwatch.domain.interval import Interval
from specwatch.domain.model import Segment, Tally
from specwatch.domain.sample import Sample
from specwatch.domain.speedup import Stretches
from specwatch.rules.evidence import Evidence

Basis = Literal["measured", "assumed", "counted"]
"""Measured against a baseline, assumed without one, or simply counted."""


class Reading(NamedTuple):
    """A metric over a window; ``value`` is in the unit of the metric, and never NaN."""

    value: float | None
    interval: Interval | None = None
    drafts: int = 0
    requests: int = 0
    """Finished requests; like ``drafts`` of the window and segment."""
    basis: Basis = "counted"
    missing: str | None = None
    """Why there is no value, in words."""
    note: str | None = None
    """A remark on the value, in words."""
    open_ended: bool = False
    """Whether the value, or the upper end of its interval, is really greater than given."""
    moot: bool = False
    """Whether the metric does not apply now, and so has no value."""
    stretches: Stretches | tuple[Interval, ...] = ()
    """Of a speedup, over stretches that end now, shortest first, each with an interval that is
    valid when looking every minute. If there are any, they decide; outside a breach those after the
    first that is certain are left out."""

    def deciding(self, below: float) -> Interval | None:
        """The shortest stretch whose whole interval is below a threshold, else the whole window."""
        return next((stretch for stretch in self.stretches if stretch.below(below)), self.interval)


class Query(NamedTuple):
    """What is asked of the evidence; ``usable`` says that only usable minutes count."""

    evidence: Evidence
    window: float
    segment: Segment
    draft_cost_ratio: float
    usable: bool

    @property
    def samples(self) -> list[Sample]:
        """Minutes with speculation on."""
        return self.evidence.speculative(self.window, sound=self.usable)

    @property
    def tally(self) -> Tally:
        """Their sum in the segment."""
        return self.evidence.tally(self.window, self.segment, sound=self.usable)

    @property
    def requests(self) -> int:
        """Those that finished in them."""
        return finished_in(self.tally)


def finished_in(counted: Tally) -> int:
    """Requests that finished."""
    return sum(counted.requests.values()) or (counted.ttft.count if counted.ttft else 0)


def no_value(missing: str, basis: Basis = "counted", *, moot: bool = False) -> Reading:
    """A reading without a value, and why."""
    return Reading(None, basis=basis, missing=missing, moot=moot)


def value_or(value: float | None, missing: str, basis: Basis = "counted") -> Reading:
    """A reading of a value, or why it is missing."""
    return no_value(missing, basis) if value is None else Reading(value, basis=basis)
