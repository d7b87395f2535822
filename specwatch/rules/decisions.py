"""What the rules decided: changes of verdicts, and the decision on a target now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specwatch.domain.model import UNJUDGED, Segment
from specwatch.domain.speedup import NOT_SEEN, PresentSpeedup
from specwatch.rules.evidence import LATELY

if TYPE_CHECKING:
    from specwatch.config.rules import Condition
    from specwatch.domain.baseline import Baseline
    from specwatch.domain.breakeven import Assessment
    from specwatch.domain.draft_lengths import DraftLengths
    from specwatch.domain.ranks import Rank
    from specwatch.domain.speedup import Unjudged
    from specwatch.rules.attribution import ChangeCause
    from specwatch.rules.equal_load import BaselineLatencies
    from specwatch.rules.objectives import Goodput, SloStatus
    from specwatch.rules.reading import Reading
    from specwatch.rules.verdicts import Finding

_NOT_KNOWN = PresentSpeedup()


@dataclass(frozen=True, slots=True)
class Decision:
    """A change of a confirmed verdict with its inputs, as it is stored.

    ``at`` is the Unix time in seconds from which on it holds.
    """

    daemon: str
    target: str
    model_name: str
    segment: Segment
    rule: str
    at: float
    verdict: str
    severity: str
    action: str
    inputs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelDecision:
    """Whether speculation pays for one model, and what that rests on.

    ``prior`` is an assumed speedup, where there is no baseline at all; it follows from
    ``draft_cost_ratio``, the cost of a draft token in steps of the target, which is the assumed
    break-even acceptance too.
    ``baseline_latencies`` are those of :meth:`specwatch.rules.judge.Judge.baseline_latencies`.
    """

    assessment: Assessment
    baseline: Baseline
    prior: float | None = None
    draft_cost_ratio: float = 0.1
    baseline_latencies: BaselineLatencies = field(default_factory=dict)
    present: PresentSpeedup = _NOT_KNOWN
    draft_lengths: DraftLengths | None = None
    """Why its drafts vary in length; then there is no ``prior``."""
    ranks: tuple[Rank, ...] = ()
    """Data-parallel ranks over the last hour, of a server that has several."""

    def current(self, now: float) -> bool:
        """Whether there is a measured speedup that is current at ``now`` (Unix seconds)."""
        until = self.assessment.until
        return until is not None and until >= now - LATELY and self.unjudged(now) is None

    def unjudged(self, now: float) -> Unjudged | None:
        """Traffic that could not be judged for :data:`UNJUDGED` by ``now`` (Unix seconds); None if
        there is none."""
        unjudged = self.present.unjudged
        return unjudged if unjudged and now - unjudged.since >= UNJUDGED else None

    def missing(self, now: float) -> str | None:
        """Why there is no current measured speedup, as words; None if there is one."""
        unjudged = self.unjudged(now)
        if unjudged is not None:
            return unjudged.missing
        if self.current(now):
            return None
        return self.assessment.missing or self.assessment.missing_lately or NOT_SEEN


@dataclass(frozen=True, slots=True)
class TargetDecision:
    """The decision on one target.

    ``goodput`` is by model and seconds of the window. ``causes`` are the likely causes of breaches
    by rule, model and segment, where one stands out from noise.
    """

    models: Mapping[str, ModelDecision] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    slos: tuple[SloStatus, ...] = ()
    goodput: Mapping[str, Mapping[int, Goodput]] = field(default_factory=dict)
    causes: Mapping[tuple[str, str, Segment], ChangeCause] = field(default_factory=dict)


def leading(one: Finding) -> tuple[Condition, Reading] | None:
    """The condition that represents a finding: of ``any`` the first that is met."""
    if one.rule.combine == "any":
        for condition, read in one.readings:
            if read.value is not None and condition.met_by(read.value):
                return condition, read
    return one.readings[0] if one.readings else None
