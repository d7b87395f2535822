"""The stored history of a target, replayed through the rules: as JSON, and as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from specwatch.cli.terminal import Columns, Lines, table
from specwatch.config.loading import Config
from specwatch.config.rules import Rule
from specwatch.config.sections import Baselines
from specwatch.domain.baseline import Baseline
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.domain.model import ALL_TEMPERATURES, HOUR, MINUTE, Objective, load_bin_label
from specwatch.rules.attribution import Attribution
from specwatch.rules.decision_view import finding_view
from specwatch.rules.decisions import leading as leading_reading
from specwatch.rules.judge import Judge
from specwatch.rules.replay import WARM_UP, Firing, Replay, RuleHistory, by_minute
from specwatch.store.readers import Reader
from specwatch.wording import figures
from specwatch.wording import rules as rule_words
from specwatch.wording.text import LONGEST_SENTENCE, shown, wrapped

Json = dict[str, Any]
Styled = tuple[str, str]
"""Text and style."""


@dataclass(frozen=True, slots=True)
class ReplayedTarget:
    """One target. ``judged`` are the Unix times of the first and last minute; ``gap`` is whether
    only hours are stored before them."""

    target: str
    judged: tuple[int, int]
    gap: bool
    histories: Sequence[RuleHistory]
    baselines: Mapping[str, Baseline]

    @property
    def fired(self) -> bool:
        """Whether any rule would have fired."""
        return any(history.firings for history in self.histories)

    def as_json(self, now: float) -> Json:
        """As ``rules test --json`` has it; ``now`` is the Unix time."""
        since, until = self.judged
        return {
            "target": self.target,
            "since": since,
            "until": until,
            "only_hours_before": self.gap,
            "baselines": {
                name: _baseline_json(baseline, now)
                for name, baseline in sorted(self.baselines.items())
            },
            "courses": [_history_json(history, since, until) for history in self.histories],
        }


def replay(
    reader: Reader,
    config: Config | None,
    target: str,
    rules: Sequence[Rule],
    *,
    since: float,
    until: float,
    progress: Callable[[float], None],
) -> ReplayedTarget | None:
    """Judge the minutes of a target from ``since`` to ``until`` (Unix seconds); None without any.

    ``progress`` gets the Unix time that was reached. Raises StoreUnavailable, SchemaMismatch.
    """
    targets = {watched.name: watched for watched in config.targets} if config else {}
    settings = targets.get(target)
    judge = Judge(
        target,
        rules,
        (),
        max_age=(Baselines() if config is None else config.baseline).max_age,
        objective=settings.objective if settings else Objective.E2E,
        draft_cost_ratio=settings.draft_cost_ratio if settings else DRAFT_COST_RATIO,
    )
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
    hours = reader.windows(since=since, until=starts[0] - HOUR, length=HOUR, target=target, limit=1)
    return ReplayedTarget(
        target,
        (starts[0], starts[-1] + MINUTE),
        next(hours, None) is not None,
        run.histories(),
        judge.baselines(),
    )


def _baseline_json(baseline: Baseline, now: float) -> Json:
    return {
        "age": baseline.age(now),
        "bins": [
            {
                "load_bin": load_bin_label(bin_),
                "origin": str(measurement.origin),
                "measured_at": measurement.at,
            }
            for bin_, measurement in sorted(baseline.bins.items())
        ],
    }


def _history_json(history: RuleHistory, since: float, until: float) -> Json:
    return {
        "rule": history.rule.name,
        "severity": history.rule.severity,
        "action": history.rule.action,
        "model_name": history.model_name,
        "temperature": history.temperature,
        "judged_minutes": history.judged,
        "no_data_share": history.unknown / history.judged if history.judged else None,
        "breach_seconds": sum(firing.seconds(since, until) for firing in history.firings),
        "firings": [
            {
                "fired": firing.fired,
                "cleared": firing.cleared,
                "seconds": firing.seconds(since, until),
                "readings": finding_view(firing.finding).readings,
                "attribution": asdict(firing.attribution),
            }
            for firing in history.firings
        ],
    }


def _confirming(rule: Rule) -> float:
    """Seconds that a rule needs at least before it fires."""
    return rule.for_ + max(rule.window_of(condition) for condition in rule.conditions)


def lines(replay: ReplayedTarget, now: float) -> Lines:
    """Yield lines and their styles for one target; ``now`` is the Unix time."""
    since, until = replay.judged
    yield shown(replay.target), "bold underline"
    span = figures.span(until - since)
    yield f"judged from {moment(since)} to {moment(until, zone=True)}, {span}", ""
    if replay.gap:
        yield from wrapped("  before that only hours are stored, which are not judged")
    for model in sorted({history.model_name for history in replay.histories}):
        histories = [history for history in replay.histories if history.model_name == model]
        yield "", ""
        yield shown(model), "bold"
        yield from _baseline_lines(replay.baselines.get(model, Baseline()), now)
        yield from _history_table(histories, since, until)
        for history in histories:
            for firing in history.firings:
                yield from _firing_lines(history, firing, since, until)


def moment(time: float, *, zone: bool = False) -> str:
    """A Unix time in local time: ``2026-11-19 14:33``."""
    local = datetime.fromtimestamp(time, UTC).astimezone()
    return f"{local:%Y-%m-%d %H:%M %Z}" if zone else f"{local:%Y-%m-%d %H:%M}"


def _baseline_lines(baseline: Baseline, now: float) -> Iterator[Styled]:
    age = baseline.age(now)
    if age is None:
        yield "no baseline: rules on the speedup have no data", ""
        return
    by_origin: dict[str, list[str]] = {}
    for bin_, measurement in sorted(baseline.bins.items()):
        by_origin.setdefault(str(measurement.origin), []).append(load_bin_label(bin_))
    origins = "; ".join(f"{origin}, load {', '.join(bins)}" for origin, bins in by_origin.items())
    yield from wrapped(
        f"  baseline from {origins}; {figures.span(age)} old, used for the whole time"
    )


def _history_table(histories: Sequence[RuleHistory], since: float, until: float) -> Lines:
    def breach(history: RuleHistory) -> str:
        if not history.firings:
            return figures.UNKNOWN
        return figures.span(sum(firing.seconds(since, until) for firing in history.firings))

    columns: Columns[RuleHistory] = {
        "rule": lambda history: shown(history.rule.name, 34),
        "temp": lambda history: shown(history.temperature, 9),
        "fired": lambda history: figures.number(len(history.firings)),
        "in breach": breach,
        "no data": lambda history: figures.percent(
            history.unknown / history.judged if history.judged else None
        ),
    }
    yield from table(columns, histories, style=lambda history: "red" if history.firings else "")


def _firing_lines(
    history: RuleHistory, firing: Firing, since: float, until: float
) -> Iterator[Styled]:
    yield "", ""
    rule = history.rule
    who = "" if history.temperature == ALL_TEMPERATURES else f", {shown(history.temperature)}"
    yield f"{rule.name}{who} ({rule.severity}, {rule.action})", "bold"
    lasted = figures.span(firing.seconds(since, until))
    began = "before" if firing.fired < since else moment(firing.fired)
    if firing.cleared is None:
        yield f"  fired {began}, still in breach after {lasted}", ""
    else:
        yield f"  fired {began}, cleared {moment(firing.cleared)} after {lasted}", ""
    leading = leading_reading(firing.finding)
    if leading is not None:
        condition, reading = leading
        value = f"{condition.metric} {rule_words.amount(condition.metric, reading.value)}"
        bounds = reading.interval
        if bounds is not None:
            low, high = (
                rule_words.amount(condition.metric, bound) for bound in (bounds.lower, bounds.upper)
            )
            value += f" ({low} to {high})"
        yield from wrapped(f"  {value}; fires {rule_words.comparison(condition)}")
    yield from _cause_lines(firing.attribution)


def _cause_lines(attribution: Attribution) -> Iterator[Styled]:
    if attribution.missing is not None:
        yield from wrapped(f"  cause unknown: {attribution.missing}")
        return
    before, after = (figures.number(value, 2) for value in (attribution.before, attribution.now))
    change = f"{attribution.metric} {before} the day before, {after} now"
    leading = attribution.leading
    if leading is None or attribution.within_noise:
        yield from wrapped(f"  {change}: {'; '.join(attribution.notes) or 'nothing changed'}")
        return
    cause = shown(leading.sentence, LONGEST_SENTENCE)
    yield from wrapped(f"  {change}; {leading.share:.0%} of it: {cause}")
