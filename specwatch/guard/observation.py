"""A target at one moment, as the guard sees it, and what rules that disable have found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode, Segment
from specwatch.domain.units import format_duration
from specwatch.guard.foresight import Trial, Verification
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import GuardState
from specwatch.rules.decision_view import finding_view
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.verdicts import Finding, Verdict


@dataclass(frozen=True, slots=True)
class Breach:
    """A confirmed breach of a rule that disables.

    ``speedups`` are those that it rests on; empty for a rule about something else.
    """

    rule: str
    model_name: str
    segment: Segment
    speedups: tuple[Interval, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SwitchOutcome:
    """The result of trying to switch; ``error`` is empty if that succeeded."""

    error: str = ""
    changed: bool = True
    """Whether the server was, or may have been, touched."""
    retry: bool = False
    """Whether another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A target now. Times are Unix seconds; None means unknown.

    ``scraped_at`` is the last successful scrape, from which ``mode`` and ``models`` are; ``load``
    (the most requests that ran or waited) is from the last two.
    """

    now: float
    scraped_at: float | None = None
    as_of: float | None = None
    """Since when ``mode`` and ``models`` hold: of a workload, the oldest of its pods' pages and the
    list of its pods. None if unknown."""
    healthy: bool = False
    """Whether ``/health`` answers 200; asked only while an action is under way."""
    mode: Mode | None = None
    models: tuple[str, ...] = ()
    load: float | None = None
    breaches: tuple[Breach, ...] = ()
    suspects: tuple[str, ...] = ()
    """Rules that disable and are in breach, not for long enough yet."""
    passing: bool = False
    """Whether a rule that disables was evaluated on data now, and passed."""
    undecided: bool = False
    """Whether no rule, or one that was in breach before a restart of the daemon, was evaluated."""
    service: Service | None = None
    service_error: str = ""
    """Why the server cannot be switched; empty if it can, or if that is unknown."""
    service_retry: bool = False
    """Whether that may change by itself."""
    handover: float | None = None
    """Seconds for which the restart that an earlier holder of the guard began may still go on, 0
    when it must have ended; None where this holder began it."""
    outcome: SwitchOutcome | None = None
    switchable: bool = False
    """Whether the server follows orders of its switch."""
    switch_error: str = ""
    """Why its switch cannot be reached; empty if it can, and without a switch."""
    switch_lost: float = 0.0
    """Seconds for which the switch could not be reached."""
    prepared_at: float | None = None
    """When the hook before had been run; None if there is none, or it did not succeed yet."""
    from_files: bool = False
    """Whether the page may have totals of earlier processes."""
    in_standby: bool = False
    """Whether the page shows standby, by any order."""
    overridden: str = ""
    """Who holds the switch in place of a guard; empty if nobody does."""
    followed: bool | None = None
    """Whether its counters follow the order of its switch; None if unknown."""
    standby_cost: Interval | None = None
    """Time in standby over time without speculation, at the same conditions."""
    trial: Trial | None = None
    """The speedup of a trial so far."""
    predicted: Interval | None = None
    """The speedup that speculation would have now."""
    verification: Verification | None = None
    """Whether switching speculation off helped."""
    unjudged: str = ""
    """Why the present traffic cannot be judged; empty unless it has not been for a while."""
    aged: str = ""
    """How old the baseline is, if it is too old."""
    quiet_in: float | None = None
    """Seconds until traffic is expected to rest."""
    group: str = ""
    """The group of the target; empty while it is unknown."""
    others: tuple[GuardState, ...] = ()
    """The guards of the other members of its group."""
    chosen: bool = False
    """Whether it is the member that becomes a holdout of its group now."""

    @property
    def unusable_switch(self) -> str:
        """The beginning of a sentence, if its switch cannot be used; empty if it can."""
        error = self.switch_error
        return f"its switch cannot be used ({error}), and " if error else ""

    @property
    def settled(self) -> ProcessState | None:
        """Whether the process runs; None while its manager changes that, or if unknown."""
        if self.service is None or self.service.life is ProcessState.CHANGING:
            return None
        return self.service.life


class GuardedRules(NamedTuple):
    """What the rules that disable have found; the fields are those of :class:`Situation`."""

    breaches: tuple[Breach, ...]
    suspects: tuple[str, ...]
    passing: bool
    undecided: bool


def guarded_rules(findings: Iterable[Finding]) -> GuardedRules:
    """What rules that disable have found; breaches of an earlier process do not count yet."""
    findings = tuple(findings)
    ours = [finding for finding in findings if finding.rule.action == "disable"]
    breach = Verdict.BREACH
    suspects = [
        finding for finding in ours if finding.verdict is not breach and finding.seen is breach
    ]
    judged = [finding for finding in ours if finding.at > 0]
    return GuardedRules(
        tuple(_breach(finding) for finding in judged if finding.verdict is breach),
        tuple(sorted({suspect.rule.name for suspect in suspects})),
        any(finding.verdict is finding.seen is Verdict.PASS for finding in judged),
        not any(finding.at > 0 for finding in findings)
        or any(finding.verdict is breach and not finding.at for finding in ours),
    )


def unmeasured(decision: TargetDecision, now: float, max_age: float) -> tuple[str, str]:
    """Why the present traffic is unjudged, and otherwise how old the baseline is if it is older
    than ``max_age`` seconds. ``now`` is a Unix time."""
    aged = ""
    for name, one in decision.models.items():
        unjudged = one.unjudged(now)
        if unjudged is not None:
            return f"{name}: {unjudged.missing}", ""
        age = now - one.baseline.measured_at
        if one.baseline and one.assessment.tokens and age > max_age:
            aged = f"{name}: the baseline is {format_duration(age // 60 * 60)} old"
    return "", aged


def _breach(finding: Finding) -> Breach:
    speedups = tuple(
        deciding
        for condition, reading in finding.readings
        if condition.metric in ("speedup_ratio", "speedup_ratio_unadjusted")
        and (deciding := reading.deciding(condition.threshold)) is not None
    )
    return Breach(
        finding.rule.name,
        finding.model_name,
        finding.segment,
        speedups,
        msgspec.to_builtins(finding_view(finding)),
    )
