"""What the exported metrics are about: the daemon, its targets, their models, rules and so on.

However many models a target has and whatever their names, our page stays bounded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from specwatch.domain.breakeven import BinBreakEven
from specwatch.domain.interval import Interval
from specwatch.domain.model import ALL, Gauges, Segment, Tally, Window, load_bin_label
from specwatch.rules.attribution import ChangeCause
from specwatch.rules.decisions import leading
from specwatch.rules.objectives import SloStatus
from specwatch.rules.verdicts import Finding, Verdict
from specwatch.status import DaemonStatus, TargetStatus
from specwatch.wording.text import clean

MOST_SERIES = 2000
"""Series that are exported, shared evenly by the targets: one of them cannot crowd out others."""
_LEAST_SERIES = 24
"""Series that each target may have, however many targets there are."""
_LEAST_FINDINGS = 32
"""Verdicts that each target may have, however many targets there are."""
_MOST_GROUPS = 12
_MOST_SEGMENTS = 60
_LONGEST_LABEL = 200

Item = TypeVar("Item")
Labels = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Subject(Generic[Item]):
    """The names of the labels, and the items of a status with the values of their labels."""

    labels: Labels
    items: Callable[[DaemonStatus], Iterable[tuple[Labels, Item]]]


class WatchedTarget(NamedTuple):
    """A target, and up to how many of its models, series and objectives are exported."""

    status: TargetStatus
    share: int
    stuck: bool

    @property
    def info(self) -> Mapping[Labels, int]:
        """Where it is, what it runs, its group, and its workload if it is a pod."""
        status = self.status
        texts = (status.url, status.engine_version or "", status.group, status.workload)
        return {tuple(map(label, texts)): 1}

    @property
    def labels(self) -> Mapping[str, str]:
        """Its configured or discovered labels, by the names that they are exported with."""
        return {
            f"label_{re.sub('[^a-zA-Z0-9_]', '_', name)}": label(text)
            for name, text in self.status.labels.items()
        }

    @property
    def left_out(self) -> int:
        """Models, series, verdicts and objectives that are too many to be exported."""
        target, decision = self.status, self.status.decision
        counts = len(target.models), len(target.recent), len(decision.slos)
        findings = len(decision.findings) - max(self.share, _LEAST_FINDINGS)
        return sum(max(0, count - self.share) for count in counts) + max(0, findings)


class RecentSeries(NamedTuple):
    """The last minutes of a series; rates are over ``seconds``.

    Those are of all requests, so that the rates of a dimension add up, and contain outages: a
    process that was only out of reach counted on.
    """

    window: Window
    seconds: float

    @property
    def tally(self) -> Tally:
        """What was counted."""
        return self.window.tally

    @property
    def gauges(self) -> Gauges:
        """What was sampled."""
        return self.window.gauges

    @property
    def finished(self) -> int | None:
        """Requests that finished; None if they are not counted."""
        return sum(self.tally.requests.values()) if self.tally.requests else None

    @property
    def hit_ratio(self) -> float | None:
        """Tokens found in the prefix cache over those that were looked up."""
        queries, hits = self.tally.prefix_cache_queries, self.tally.prefix_cache_hits
        return hits / queries if queries and hits is not None else None

    def rate(self, count: int | None) -> float | None:
        """``count`` a second; None if it or the time is unknown."""
        return None if count is None or self.seconds <= 0 else count / self.seconds


def label(text: str) -> str:
    """A server's text as a label: clean and short; a digest marks one that was changed."""
    if len(text) <= _LONGEST_LABEL and text.isprintable():
        return text
    digest = hashlib.blake2b(text.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    return f"{clean(text[:_LONGEST_LABEL])[: _LONGEST_LABEL - 9]}~{digest}"


def _targets(status: DaemonStatus) -> Iterator[tuple[Labels, WatchedTarget]]:
    """Those that are scraped, and the workloads of pods."""
    share = max(_LEAST_SERIES, MOST_SERIES // max(1, len(status.targets)))
    for target in status.targets:
        yield (target.name,), WatchedTarget(target, share, target.name in status.stuck)


def _servers(status: DaemonStatus) -> Iterator[tuple[Labels, WatchedTarget]]:
    return (one for one in _targets(status) if not one[1].status.pods)


def _by_model(
    models: Callable[[TargetStatus], Mapping[str, Item]],
) -> Callable[[DaemonStatus], Iterator[tuple[Labels, Item]]]:
    """The items of a mapping by model, without the models that are too many."""

    def items(status: DaemonStatus) -> Iterator[tuple[Labels, Item]]:
        for labels, target in _targets(status):
            for model, item in islice(models(target.status).items(), target.share):
                yield (*labels, label(model)), item

    return items


def _series(status: DaemonStatus) -> Iterator[tuple[Labels, RecentSeries]]:
    for (name,), target in _targets(status):
        windows = target.status.recent
        seconds = {
            window.series.model_name: window.observed_seconds + window.down_seconds
            for window in reversed(windows)  # that of all requests comes first
        }
        for window in windows[: target.share]:
            model = window.series.model_name
            labels = (name, label(model), *_of_segment(window.series.segment))
            yield labels, RecentSeries(window, seconds[model])


def _of_segment(segment: Segment) -> Labels:
    return label(segment.dimension), label(segment.value)


def _loads(status: DaemonStatus) -> Iterator[tuple[Labels, RecentSeries]]:
    for labels, series in _series(status):
        if series.window.series.segment == ALL:
            yield labels[:2], series


_decisions = _by_model(lambda target: target.decision.models)


def _speedups(status: DaemonStatus) -> Iterator[tuple[Labels, Interval]]:
    for labels, model in _decisions(status):
        assessment = model.assessment
        if assessment.speedup is not None:
            yield (*labels, *_of_segment(ALL)), assessment.speedup
        for segment, one in islice(assessment.segments.items(), _MOST_SEGMENTS):
            yield (*labels, *_of_segment(segment)), one.speedup


def _break_evens(status: DaemonStatus) -> Iterator[tuple[Labels, BinBreakEven]]:
    for labels, model in _decisions(status):
        for load in model.assessment.bins:
            yield (*labels, load_bin_label(load.load_bin)), load


def _findings(status: DaemonStatus) -> Iterator[tuple[Labels, Finding]]:
    for labels, target in _targets(status):
        # Breaches first: they are shown if there are too many verdicts.
        ordered = sorted(
            target.status.decision.findings,
            key=lambda finding: finding.verdict is not Verdict.BREACH,
        )
        for finding in ordered[: max(target.share, _LEAST_FINDINGS)]:
            where = (label(finding.model_name), *_of_segment(finding.segment))
            yield (finding.rule.name, *labels, *where), finding


def _causes(status: DaemonStatus) -> Iterator[tuple[Labels, ChangeCause]]:
    causes = {target.name: target.decision.causes for target in status.targets}
    for labels, finding in _findings(status):
        scope = (finding.rule.name, finding.model_name, finding.segment)
        likely = causes[labels[1]].get(scope)
        if finding.in_breach and likely is not None:
            yield labels, likely


def _comparisons(status: DaemonStatus) -> Iterator[tuple[Labels, tuple[float | None, float]]]:
    for labels, finding in _findings(status):
        best = leading(finding)
        if best is not None and best[1].value is not None:
            condition, reading = best
            yield (*labels, condition.metric), (reading.value, condition.threshold)


def _slos(status: DaemonStatus) -> Iterator[tuple[Labels, SloStatus]]:
    for labels, target in _targets(status):
        for slo in target.status.decision.slos[: target.share]:
            yield (slo.slo.name, *labels, label(slo.model_name)), slo


def _arms(status: DaemonStatus) -> Iterator[tuple[Labels, Interval]]:
    for labels, experiment in EXPERIMENT.items(status):
        for arm, speedup in experiment.speedups.items():
            if speedup is not None:
                yield (*labels, arm), speedup


def _arms_of_groups(status: DaemonStatus) -> Iterator[tuple[Labels, Interval]]:
    for labels, experiment in EXPERIMENT.items(status):
        for by, values in experiment.groups.items():
            for value, group in islice(values.items(), _MOST_GROUPS):
                for arm, speedup in group.speedups.items():
                    if speedup is not None:
                        yield (*labels, arm, label(by.group(value))), speedup


_TARGET = ("target",)
_MODEL = (*_TARGET, "model_name")
_SERIES = (*_MODEL, "dimension", "value")
_RULE = ("rule", *_SERIES)

DAEMON = Subject((), lambda status: [((), status)])
TARGET = Subject(_TARGET, _servers)
WORKLOAD = Subject(
    _TARGET,
    lambda status: (((one.name,), len(one.pods)) for one in status.targets if one.pods),
)
MODEL = Subject(_MODEL, _by_model(lambda target: target.models))
SERIES = Subject(_SERIES, _series)
LOAD = Subject(_MODEL, _loads)
COVERAGE = Subject(_MODEL, _by_model(lambda target: target.tap.models))
DECISION = Subject(_MODEL, _decisions)
SPEEDUP = Subject(_SERIES, _speedups)
BREAK_EVEN = Subject((*_MODEL, "load_bin"), _break_evens)
BASELINE_AGE = Subject(
    _MODEL,
    lambda status: (
        (labels, model.baseline.age(status.now)) for labels, model in _decisions(status)
    ),
)
FINDING = Subject(_RULE, _findings)
BREACH_CAUSE = Subject(_RULE, _causes)
COMPARISON = Subject((*_RULE, "metric"), _comparisons)
SLO = Subject(("slo", *_MODEL), _slos)
GOODPUT = Subject(_MODEL, _by_model(lambda target: target.decision.goodput))
EXPERIMENT = Subject(
    _TARGET,
    lambda status: (
        ((target.name,), target.experiment)
        for target in status.targets
        if target.experiment is not None
    ),
)
ARM = Subject((*_TARGET, "arm"), _arms)
ARM_OF_GROUP = Subject((*_TARGET, "arm", "group"), _arms_of_groups)
GUARD = Subject(
    _TARGET,
    lambda status: (
        ((target.name,), target.guard)
        for target in status.targets
        if target.guard is not None and not target.workload
    ),
)
GUARD_STATE = Subject(
    _TARGET,
    lambda status: (
        (labels, guard.state) for labels, guard in GUARD.items(status) if guard.state is not None
    ),
)
ACTIONS_TODAY = Subject(
    _TARGET,
    lambda status: (
        (labels, len(state.acted(status.now))) for labels, state in GUARD_STATE.items(status)
    ),
)
GROUP = Subject(
    ("group", "model_name"),
    lambda status: (
        ((label(one.group), label(one.model_name)), one)
        for one in islice(status.groups, MOST_SERIES)
    ),
)
ALERTMANAGER = Subject(("url",), lambda status: (((pager.url,), pager) for pager in status.pagers))
SOURCE = Subject(
    ("source",), lambda status: (((label(one.source),), one) for one in status.discovery)
)
REPORT = Subject(
    ("channel",), lambda status: (((delivery.channel,), delivery) for delivery in status.deliveries)
)
