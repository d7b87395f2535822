"""What ``/api/v1/targets`` shows of a daemon: types, and how they are filled.

An unknown is None. Times are Unix seconds, durations seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from specwatch.domain.group import GroupVerdict
from specwatch.domain.model import Mode
from specwatch.domain.switchback_results import ExperimentStatus
from specwatch.guard.status import GuardView, guard_view
from specwatch.problems import Problem, problems
from specwatch.rules import decision_view
from specwatch.rules.decision_view import DecisionView
from specwatch.rules.decisions import TargetDecision
from specwatch.rules.summary import (
    CoverageView,
    WindowView,
    window_view,
)
from specwatch.scrape.engine_stop import EngineStop
from specwatch.scrape.switch import SwitchSetting
from specwatch.scrape.taps import Trouble
from specwatch.status import (
    DaemonStatus,
    Failure,
    JudgingStatus,
    LeaseStatus,
    PagerStatus,
    ProxyStatus,
    SourceStatus,
    StoreStatus,
    TapStatus,
    TargetStatus,
)


class TapCoverage(CoverageView, frozen=True, kw_only=True):
    """How much a tap saw of a model; ``server_drafts`` is the server's own count."""

    server_drafts: int | None


class TapView(Struct, frozen=True):
    """The tap of a target; ``models`` are over the last minutes."""

    source: str | None
    trouble: tuple[Trouble, ...]
    failures: int
    models: dict[str, TapCoverage]
    proxy: ProxyStatus | None


class TargetView(Struct, frozen=True):
    """One target; see :class:`specwatch.status.TargetStatus`.

    ``not_shown`` are models that a defect keeps from being shown, and "" if it is the target.
    """

    name: str
    url: str
    group: str
    labels: Mapping[str, str]
    interval: float
    engine_version: str | None
    last_scrape: float | None
    last_success: float | None
    scrape_seconds: float | None
    scrapes: int
    skipped: int
    failures: Mapping[str, int]
    restarts: int
    last_window: int | None
    load: float | None
    failure: Failure | None
    models: dict[str, Mode]
    switch: SwitchSetting | None
    experiment: ExperimentStatus | None
    tap: TapView
    decision: DecisionView
    not_shown: list[str]
    guard: GuardView | None
    recent: list[WindowView]
    workload: str = ""
    pods: tuple[str, ...] = ()
    stops: Mapping[str, EngineStop] = {}


class DaemonView(Struct, frozen=True):
    """A daemon. Each target is encoded by itself, so that a defect in one hides no other.

    ``problems`` are those of all targets, the greatest harm first; ``shard`` is the part of the
    targets, and ``lease`` says which process of this name watches it. ``groups`` are those with
    more than one member.
    """

    daemon: str
    version: str
    started: float
    now: float
    ready: bool
    stuck: tuple[str, ...]
    store: StoreStatus
    judging: JudgingStatus
    alertmanagers: tuple[PagerStatus, ...]
    discovery: tuple[SourceStatus, ...]
    problems: tuple[Problem, ...]
    shard: str
    lease: LeaseStatus
    targets: list[msgspec.Raw]
    groups: tuple[GroupVerdict, ...] = ()


def daemon_view(status: DaemonStatus) -> DaemonView:
    """A daemon and its targets."""
    targets = [_target(target, status) for target in status.targets]
    return DaemonView(
        **_shared(status, DaemonView)
        | {"alertmanagers": status.pagers, "problems": problems(status), "targets": targets}
    )


def _shared(status: object, view: type[Struct]) -> dict[str, Any]:
    """The fields that a status has under the same names as its view."""
    return {name: getattr(status, name) for name in view.__struct_fields__ if hasattr(status, name)}


def _target(target: TargetStatus, status: DaemonStatus) -> msgspec.Raw:
    decision, broken = _decision(target, status)
    bare = TargetStatus(target.name, target.url, target.interval, failure=target.failure)
    make = functools.partial(_encoded, target, decision, broken)
    encoded = status.attempt(target.name, make, None)
    return encoded or _encoded(bare, decision, [*broken, ""])


def _decision(target: TargetStatus, status: DaemonStatus) -> tuple[DecisionView, list[str]]:
    """The decision on the models that can be shown, and the names of those that cannot."""

    def attempt(decision: TargetDecision) -> DecisionView | None:
        make = functools.partial(decision_view.target_view, decision, status.now)
        return status.attempt(target.name, make, None)

    decision = target.decision
    view = attempt(decision)
    if view is not None:
        return view, []
    names = {*decision.models, *decision.goodput}
    names |= {finding.model_name for finding in decision.findings}
    names |= {slo.model_name for slo in decision.slos}
    sound = {name for name in names if attempt(decision_view.of_models(decision, {name}))}
    rest = decision_view.of_models(decision, sound)
    return decision_view.target_view(rest, status.now), sorted(names - sound)


def _encoded(target: TargetStatus, decision: DecisionView, not_shown: list[str]) -> msgspec.Raw:
    fields = {
        "models": {model: str(mode) for model, mode in target.models.items()},
        "tap": _tap(target.tap),
        "decision": decision,
        "not_shown": not_shown,
        "guard": None if target.guard is None else guard_view(target.guard),
        "recent": [window_view(window) for window in target.recent],
    }
    view = TargetView(**_shared(target, TargetView) | fields)
    return msgspec.Raw(msgspec.json.encode(view))


def _tap(status: TapStatus) -> TapView:
    models = {
        model: TapCoverage(**_shared(coverage, TapCoverage) | {"source": str(coverage.source)})
        for model, coverage in status.models.items()
    }
    source = status.source and str(status.source)
    return TapView(**_shared(status, TapView) | {"source": source, "models": models})
