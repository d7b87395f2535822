"""The stored history of targets, replayed through the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specwatch.config.rules import Rule
from specwatch.domain.baseline import Baseline
from specwatch.domain.model import HOUR, MINUTE, Objective, load_bin_label
from specwatch.rules import decisions
from specwatch.rules.judge import Judge
from specwatch.rules.replay import WARM_UP, Course, Replay, by_minute
from specwatch.store.readers import Reader

Json = dict[str, Any]
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One target; times are Unix seconds, ``judged`` those of the first and last minute, the
    ``gap`` is what is known only by the hour before them."""

    target: str
    judged: tuple[int, int]
    gap: bool
    courses: Sequence[Course]
    baselines: Mapping[str, Baseline]

    @property
    def fired(self) -> bool:
        """Whether any rule would have."""
        return any(course.firings for course in self.courses)


def replay(
    reader: Reader,
    target: str,
    rules: Sequence[Rule],
    *,
    since: float,
    until: float,
    max_age: float,
    draft_cost_ratio: float,
    objective: Objective = Objective.E2E,
    progress: Progress,
) -> Replayed | None:
    """Judge the minutes of a target from ``since`` to ``until`` (Unix seconds); None without any.

    ``progress`` is told the time that was reached. Raises StoreUnavailable, SchemaMismatch.
    """
    judge = Judge(
        target, rules, (),
        max_age=max_age, objective=objective, draft_cost_ratio=draft_cost_ratio,
    )  # fmt: skip
    judge.measurements = reader.measurements(target)
    run = Replay(judge, since)
    early = since - max([float(WARM_UP), *map(_confirming, rules)])
    run.load(reader.windows(since=early - WARM_UP, until=early, length=HOUR, target=target))
    starts: list[int] = []
    for minute in by_minute(reader.windows(since=early, until=until, target=target)):
        run.take(minute)
        start = minute[0].start
        if start >= since:
            starts = [*starts[:1], start]
        progress(float(start))
    progress(until)
    if not starts:
        return None
    known = reader.windows(since=since, until=starts[0] - HOUR, length=HOUR, target=target, limit=1)
    return Replayed(
        target,
        (starts[0], starts[-1] + MINUTE),
        next(known, None) is not None,
        run.courses(),
        judge.baselines(),
    )


def as_json(one: Replayed, now: float) -> Json:
    """What became of a target; ``now`` is the Unix time."""
    since, until = one.judged
    return {
        "target": one.target,
        "since": since,
        "until": until,
        "only_hours_before": one.gap,
        "baselines": {name: _baseline(known, now) for name, known in sorted(one.baselines.items())},
        "courses": [_course(each, since, until) for each in one.courses],
    }


def _baseline(one: Baseline, now: float) -> Json:
    return {
        "age": one.age(now),
        "bins": [
            {"load_bin": load_bin_label(bin_), "origin": str(each.origin), "measured_at": each.at}
            for bin_, each in sorted(one.bins.items())
        ],
    }


def _course(one: Course, since: float, until: float) -> Json:
    return {
        "rule": one.rule.name,
        "severity": one.rule.severity,
        "action": one.rule.action,
        "model_name": one.model_name,
        "temperature": one.temperature,
        "judged_minutes": one.judged,
        "no_data_share": one.unknown / one.judged if one.judged else None,
        "breach_seconds": sum(each.seconds(since, until) for each in one.firings),
        "firings": [
            {
                "fired": each.fired,
                "cleared": each.cleared,
                "seconds": each.seconds(since, until),
                "readings": decisions.finding(each.finding)["readings"],
                "attribution": asdict(each.attribution),
            }
            for each in one.firings
        ],
    }


def _confirming(rule: Rule) -> float:
    """Seconds until it can have fired."""
    return rule.for_ + max(rule.window_of(condition) for condition in rule.conditions)
