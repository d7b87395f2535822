"""The state of a daemon, as values for the page, the API and the exported metrics."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from msgspec import Struct

from specwatch.domain.buckets import order_of
from specwatch.domain.group import GroupVerdict, Member, verdict_of
from specwatch.domain.merge import merge_windows, present_since
from specwatch.domain.model import ALL, MINUTE, Mode, SeriesId, Source, Window
from specwatch.domain.switchback_results import ExperimentStatus
from specwatch.errors import ScrapeError
from specwatch.guard.status import GuardStatus
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.engine_stop import EngineStop
from specwatch.scrape.switch import SwitchSetting
from specwatch.scrape.taps import Trouble

_Shown = TypeVar("_Shown")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a target cannot be read, and since when (Unix time)."""

    reason: str
    detail: str
    since: float


def failure_of(before: Failure | None, error: ScrapeError | None, now: float) -> Failure | None:
    """The failure for an error, lasting since ``before`` did; None without an error."""
    if error is None:
        return None
    return Failure(error.reason, str(error), before.since if before else now)


@dataclass(frozen=True, slots=True)
class ProxyStatus:
    """The proxy of a target now. ``failures`` are failed scrapes by reason."""

    url: str
    failure: Failure | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class TapStatus:
    """The tap of a target now; ``source`` is None without one."""

    source: Source | None = None
    trouble: tuple[Trouble, ...] = ()
    failures: int = 0
    """Failures of the tap itself since its process began."""
    models: Mapping[str, Coverage] = field(default_factory=dict)
    """Its coverage of each model over the last minutes."""
    proxy: ProxyStatus | None = None


class Means(enum.StrEnum):
    """What measures a target's serving without speculation, the cheapest first."""

    EXPLORE = "explore"
    """Its guard does, by itself."""
    EXPERIMENT = "experiment"
    """Its experiment, which compares with standby."""
    SWITCH = "switch"
    """An experiment, once one is configured."""
    DISABLE = "disable"
    """An order to its guard, which restarts it."""
    CALIBRATE = "calibrate"
    """A calibration of another server."""


class TargetStatus(Struct, frozen=True):
    """One target now. Times are Unix seconds, durations seconds."""

    name: str
    url: str
    interval: float
    configured_group: str = ""
    labels: Mapping[str, str] = {}
    models: Mapping[str, Mode] = {}
    stops: Mapping[str, EngineStop] = {}
    """Of the models in mode ``stopped``."""
    engine_version: str | None = None
    last_scrape: float | None = None
    last_success: float | None = None
    as_of: float | None = None
    """Of a workload: when the oldest page was read, and the list of its pods, on which ``models``
    rests; 0 while a pod has not been read, or has no list. None: as ``last_success``."""
    scrape_seconds: float | None = None
    scrapes: int = 0
    skipped: int = 0
    """Scrapes that were due while the previous one was still running."""
    failures: Mapping[str, int] = {}
    """Failed scrapes by reason."""
    failure: Failure | None = None
    restarts: int = 0
    from_files: bool = False
    """Whether the last page did not say when its process started: its counters may be those of
    earlier processes, too."""
    alternated_at: float | None = None
    """When a process answered again after another had: several servers share its URL."""
    recent: tuple[Window, ...] = ()
    """The last minutes of the present process in its present mode, summed to one window for each
    series: those of all requests first."""
    last_window: int | None = None
    """End of the newest minute that is closed."""
    current: tuple[Window, ...] = ()
    """The minute that is being filled, if requested."""
    tap: TapStatus = TapStatus()
    load: float | None = None
    """The most requests that ran or waited at the last two pages. One page is not enough: vLLM's
    gauges are from the last finished step, and miss a request in its first step."""
    switch: SwitchSetting | None = None
    """That of the last page; None without a switch that follows orders."""
    decision: TargetDecision = TargetDecision()
    guard: GuardStatus | None = None
    experiment: ExperimentStatus | None = None
    """None without one."""
    workload: str = ""
    """Of a pod, the workload that is guarded in its place; its ``guard`` is that one's."""
    pods: tuple[str, ...] = ()
    """Of a workload, its pods that are watched here: it is a target of its own, which nothing
    scrapes."""

    @property
    def has_minutes(self) -> bool:
        """Whether a minute has ended since it is watched."""
        return self.last_window is not None or bool(self.recent)

    @property
    def means(self) -> Means:
        """The cheapest way to measure what cannot be judged now."""
        guard = self.guard
        if guard is not None and guard.explores:
            return Means.EXPLORE
        if self.experiment is not None:
            return Means.EXPERIMENT
        if self.switch is not None:
            return Means.SWITCH
        return Means.DISABLE if guard is not None and guard.able else Means.CALIBRATE

    @property
    def guarded(self) -> str:
        """The name of what is guarded: the target, or the workload that it is a pod of."""
        return self.workload or self.name

    @property
    def group(self) -> str:
        """The servers that do the same work: by default those that serve the same model."""
        return self.configured_group or min(self.models, default="")

    def without_speculation(self, model: str) -> bool:
        """Whether it is certain that the model is not served with speculation now."""
        mode = self.models.get(model)
        return mode is not None and mode.without_speculation

    def member(self, model: str, now: float) -> Member:
        """One of its models as a member of its group, at ``now`` (Unix seconds)."""
        guard, known = self.guard, self.decision.models.get(model)
        member = Member(self.name, prefills=self.models.get(model) is Mode.PREFILL)
        if guard is not None:
            holdout = guard.state is not None and guard.state.holdout
            member = member._replace(holdout=holdout, group_size=guard.group_size)
        if known is None or not known.current(now) or self.without_speculation(model):
            return member
        assessment = known.assessment
        common = {one.holdout for one in known.baseline.holdouts if assessment.simultaneous}
        return member._replace(
            speedup=assessment.speedup, seconds=assessment.seconds, holdouts=frozenset(common)
        )

    @property
    def breaches(self) -> list[Finding]:
        """Rules in breach, without those that speculation which is off leaves without data."""
        return [
            finding
            for finding in self.decision.findings
            if finding.in_breach
            and (
                finding.seen is not Verdict.NO_DATA
                or not self.without_speculation(finding.model_name)
            )
        ]


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The store now. ``behind_since`` is None while writing works.

    ``damaged_files`` are the names of damaged SQLite files that were put aside, and are still
    beside the database.
    """

    where: str
    written: int = 0
    queued: int = 0
    dropped: int = 0
    failures: int = 0
    error: str | None = None
    behind_since: float | None = None
    last_write: float | None = None
    damaged_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgingStatus:
    """The state of judging. ``queued`` changes of verdicts wait for the database, ``dropped`` were
    discarded; ``defects`` counts failures of specwatch itself."""

    defects: int = 0
    queued: int = 0
    dropped: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class PagerStatus:
    """The state of sending to one Alertmanager; times are Unix seconds.

    ``firing`` is the number of alerts, ``behind`` whether a change is still to be sent;
    ``failures`` are failed attempts by reason.
    """

    url: str
    firing: int = 0
    behind: bool = False
    last_success: float | None = None
    failing_since: float | None = None
    error: str | None = None
    sent: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeliveryStatus:
    """The delivery of the last report by one channel.

    ``undelivered``: it has not reached every recipient; ``last_delivery`` is the Unix time of the
    last delivered report.
    """

    channel: str
    undelivered: bool
    last_delivery: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source of discovery now.

    ``targets`` are those known last, ``failures`` failed refreshes by reason, ``refused`` sentences
    about what it lists and cannot be watched; ``last_success`` is in Unix seconds.
    """

    source: str
    targets: int = 0
    last_success: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    failure: Failure | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Which process watches as the daemon of this name.

    ``standby``: another one, and this one takes over when that ends. ``holder`` is the URL of the
    page of the one that watches, ``since`` when it began to (Unix seconds), ``left`` in how many
    seconds its lease ends unless it is renewed; ``error`` says why that may be out of date.
    ``never_read`` are configured targets that no daemon of this name has ever read, so the one that
    watches may not have them.
    """

    standby: bool = False
    holder: str = ""
    since: float | None = None
    error: str | None = None
    left: float | None = None
    never_read: tuple[str, ...] = ()


HUNG_SECONDS = 30.0
"""After which a loop that has not turned counts as hung."""


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """A daemon now."""

    daemon: str
    version: str
    started: float
    now: float
    targets: tuple[TargetStatus, ...]
    store: StoreStatus
    stuck: tuple[str, ...] = ()
    """Targets without a finished scrape within three intervals."""
    silent: float = 0.0
    """Seconds for which one of the daemon's loops has not turned."""
    ready: bool = False
    external_url: str = ""
    """Where people reach the daemon."""
    judging: JudgingStatus = JudgingStatus()
    pagers: tuple[PagerStatus, ...] = ()
    deliveries: tuple[DeliveryStatus, ...] = ()
    discovery: tuple[SourceStatus, ...] = ()
    shard: str = ""
    """The part of the targets that it watches, such as ``2/3``; empty for all."""
    lease: LeaseStatus = LeaseStatus()
    not_shown: Callable[[str, Exception], None] = lambda _, __: None
    """Called with the name of a target that a defect keeps from being shown, and the error."""

    @property
    def alive(self) -> bool:
        """Whether the daemon's loops turn, whatever becomes of its targets."""
        return self.silent <= HUNG_SECONDS

    @property
    def servers(self) -> tuple[TargetStatus, ...]:
        """The targets that are scraped: all but workloads."""
        return tuple(target for target in self.targets if not target.pods)

    @property
    def groups(self) -> tuple[GroupVerdict, ...]:
        """The verdicts of the groups with more than one member: those first of which a server loses
        or stands out, then by group and model."""
        members: dict[tuple[str, str], list[Member]] = {}
        for target in self.servers:
            for model in {*target.models, *target.decision.models} if target.group else ():
                make = partial(target.member, model, self.now)
                member = self.attempt(target.name, make, Member(target.name))
                members.setdefault((target.group, model), []).append(member)
        verdicts = (verdict_of(*scope, known) for scope, known in sorted(members.items()))
        several = [verdict for verdict in verdicts if verdict.members > 1]
        return tuple(sorted(several, key=lambda one: not (one.outliers or one.losing)))

    def attempt(self, target: str, make: Callable[[], _Shown], instead: _Shown) -> _Shown:
        """The result of ``make``, or ``instead`` if it fails: a defect in one target or model must
        not hide the others."""
        try:
            return make()
        except Exception as error:
            self.not_shown(target, error)
            return instead


_Held = Mapping[SeriesId, tuple[Window, ...]]


class Recent:
    """The last few minutes of each series of one target, of one process in one mode of speculation.

    One thread may add while others read.
    """

    def __init__(self, minutes: int = 5) -> None:
        self._minutes = minutes
        # Both are replaced as a whole, never changed, so that readers need no lock.
        self._windows: _Held = {}
        self._sums: tuple[_Held, tuple[Window, ...]] = ({}, ())
        """What is held, and its sums."""
        self.end: int | None = None
        """The end of the newest minute."""

    def add(self, windows: Iterable[Window]) -> None:
        """Add closed windows; drop those that are too old, or older than a restart or a change of
        mode."""
        held = {series: list(kept) for series, kept in self._windows.items()}
        for window in windows:
            held.setdefault(window.series, []).append(window)
        newest = max((window.start for kept in held.values() for window in kept), default=0)
        if newest:
            self.end = newest + MINUTE
        oldest = newest - (self._minutes - 1) * MINUTE
        since = {
            series.model_name: max(present_since(kept), oldest)
            for series, kept in held.items()
            if series.segment == ALL
        }
        young = {
            series: tuple(
                window for window in kept if window.start >= since.get(series.model_name, oldest)
            )
            for series, kept in held.items()
        }
        self._windows = {series: kept for series, kept in young.items() if kept}

    def forget(self, models: Collection[str]) -> None:
        """Drop the windows of these models."""
        if models:
            self._windows = {
                series: kept
                for series, kept in self._windows.items()
                if series.model_name not in models
            }

    def merged(self) -> tuple[Window, ...]:
        """One window for each series, from the first to the last minute held of it."""
        held = self._windows
        if self._sums[0] is not held:
            # Those of all requests first: where not all can be shown, they are.
            ordered = sorted(held, key=lambda series: order_of(series.segment))
            self._sums = held, tuple(_sum(held[series]) for series in ordered)
        return self._sums[1]


def _sum(windows: tuple[Window, ...]) -> Window:
    start = min(window.start for window in windows)
    end = max(window.start + window.length for window in windows)
    return merge_windows(windows, start=start, length=end - start)
