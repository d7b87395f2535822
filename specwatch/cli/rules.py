"""``specwatch rules``: the rules that apply, and a replay of the stored history."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from specwatch.cli import commands, options
from specwatch.cli.progress import ProgressBar
from specwatch.cli.terminal import Columns, Lines, Terminal, paragraph, table
from specwatch.config.loading import Config
from specwatch.config.rules import Rule, Rules
from specwatch.config.sections import Baselines
from specwatch.domain.baseline import Baseline
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.domain.model import HOUR, MINUTE, Objective, load_bin_label
from specwatch.errors import SpecwatchError
from specwatch.rules.attribution import Attribution
from specwatch.rules.decision_view import finding_view
from specwatch.rules.judge import Judge
from specwatch.rules.replay import WARM_UP, Firing, Replay, RuleHistory, by_minute
from specwatch.store.readers import Reader
from specwatch.wording import figures, speculation
from specwatch.wording import rules as rule_words
from specwatch.wording.segments import segment_title, where
from specwatch.wording.text import LONGEST_SENTENCE, shown

_ACTIONS = {"alert": "alerts", "disable": "asks to switch speculation off"}
_EXPLORATIONS = (
    "the explorations of guard.explore are not replayed: their times depend on how long earlier"
    " restarts took and what earlier explorations measured, which is unknown"
)


@click.group(name="rules", cls=commands.CommandGroup)
def command() -> None:
    """The rules that judge speculation."""


@command.command("list", short_help="the rules that apply, in words")
@options.file_option
@options.json_option
def list_rules(file: Path | None, as_json: bool) -> None:
    """Show the rules that apply: when they fire and clear, for which targets, and their actions.

    Without a configuration these are the defaults.
    """
    loaded = options.loaded(file)
    rules, own = _rules_of(loaded), () if loaded is None else loaded.rules.extra
    if as_json:
        options.print_json(
            [{"default": rule not in own, **rule.model_dump(mode="json")} for rule in rules]
        )
    else:
        Terminal().blocks(_rule_lines(rule, ", yours" if rule in own else "") for rule in rules)


def _rules_of(config: Config | None) -> tuple[Rule, ...]:
    """The rules of a configuration, or the defaults."""
    return Rules().effective() if config is None else config.effective_rules()


def _rule_lines(rule: Rule, origin: str) -> Lines:
    yield rule.name, "bold"
    yield f"  {rule.severity}, {_ACTIONS[rule.action]}{origin}", ""
    for title, text in (
        ("", rule.summary or None),
        ("fires: ", rule_words.conditions(rule)),
        ("clears: ", rule_words.clearing(rule)),
        ("needs: ", rule_words.traffic(rule)),
        ("only: ", rule_words.scope(rule)),
    ):
        if text is not None:
            yield from paragraph(f"  {title}{shown(text, 10 * LONGEST_SENTENCE)}")


@command.command("test", short_help="replay the stored history: when would each rule have fired?")
@options.file_option
@options.database_option
@options.since_option
@options.until_option
@click.option("--target", metavar="NAME", help="Only this target.")
@click.option("--rule", "name", metavar="NAME", help="Only this rule.")
@options.json_option
def test_rules(
    file: Path | None,
    database: str | None,
    since: float,
    until: float | None,
    target: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Replay the stored minutes through the rules: when would each have fired?

    It uses the baselines that are stored today. A daemon that ran all the time would have found the
    same, unless it had acted on it: actions of the guard, such as explorations, are not replayed.

    Exit code 1 when a rule would have fired, 0 when none would have.
    """
    now = time.time()
    until = now if until is None else until
    if since >= until:
        raise click.UsageError("--since is not before --until; give an earlier time")
    loaded = options.loaded(file)
    rules = {rule.name: rule for rule in _rules_of(loaded)}
    if name is not None:
        rules = {name: rules[options.choose(name, rules, "there is no rule", "--rule")]}
    with closing(Reader.of(options.database_url(database, file))) as reader:
        targets = sorted({watched.target for watched in reader.targets()})
        if target is not None:
            targets = [options.choose(target, targets, "no daemon has ever watched", "--target")]
        every_replay = [
            replayed(reader, loaded, watched, tuple(rules.values()), since=since, until=until)
            for watched in targets
        ]
        replays = [replay for replay in every_replay if replay is not None]
        if not replays:
            raise SpecwatchError(_nothing(reader, since, until))
    explores = loaded is not None and loaded.guard.mode != "off" and loaded.guard.explore.budget
    notes = [_EXPLORATIONS] if explores else []
    fired = any(history.firings for replay in replays for history in replay.histories)
    if as_json:
        documents = [_as_json(replay, now) for replay in replays]
        options.print_json({"fired": fired, "targets": documents, "notes": notes})
    else:
        note_lines = (paragraph(f"note: {note}", "yellow") for note in notes)
        Terminal().blocks([*(_replay_lines(replay, now) for replay in replays), *note_lines])
    if fired:
        raise click.exceptions.Exit(1)


def _nothing(reader: Reader, since: float, until: float) -> str:
    """Why there is nothing to replay."""
    span = f"from {figures.moment(since)} to {figures.moment(until)}"
    hours = reader.windows(since=since, until=until, length=HOUR, limit=1)
    if next(hours, None) is not None:
        return f"only hours are stored {span}, and rules need minutes; give a later --since"
    return f"no minutes are stored {span}; `specwatch db current` shows what is stored"


@dataclass(frozen=True, slots=True)
class ReplayedTarget:
    """The replay of one target from its first to its last minute, in Unix seconds.

    ``only_hours_before`` is whether only hours are stored before them.
    """

    target: str
    since: int
    until: int
    only_hours_before: bool
    histories: Sequence[RuleHistory]
    baselines: Mapping[str, Baseline]


def replayed(
    reader: Reader,
    config: Config | None,
    target: str,
    rules: Sequence[Rule],
    *,
    since: float,
    until: float,
) -> ReplayedTarget | None:
    """Judge the minutes of a target from ``since`` to ``until`` (Unix seconds); None without any.

    Shows a progress bar. Raises StoreUnavailable, SchemaMismatch.
    """
    configured = config.targets if config else ()
    settings = next((one for one in configured if one.name == target), None)
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
    # Seconds that a rule needs at least before it fires.
    confirming = [
        rule.for_ + max(rule.window_of(condition) for condition in rule.conditions)
        for rule in rules
    ]
    early = since - max([float(WARM_UP), *confirming])
    run.load(reader.windows(since=early - WARM_UP, until=early, length=HOUR, target=target))
    starts: list[int] = []
    bar = ProgressBar()
    with bar.over(until - since):
        stored = reader.windows(since=early, until=until, target=target)
        for minute in by_minute(stored):
            run.take(minute)
            start = minute[0].start
            if start >= since:
                starts = [*starts[:1], start]
            bar.step(target, completed=max(0.0, start - since))
    if not starts:
        return None
    hours = reader.windows(since=since, until=starts[0] - HOUR, length=HOUR, target=target, limit=1)
    return ReplayedTarget(
        target,
        starts[0],
        starts[-1] + MINUTE,
        next(hours, None) is not None,
        run.histories(),
        judge.baselines(),
    )


def _as_json(replay: ReplayedTarget, now: float) -> dict[str, Any]:
    def seconds(firing: Firing) -> float:
        return firing.seconds(replay.since, replay.until)

    return {
        "target": replay.target,
        "since": replay.since,
        "until": replay.until,
        "only_hours_before": replay.only_hours_before,
        "baselines": {
            model: {
                "age": baseline.age(now),
                "bins": [
                    {
                        "load_bin": load_bin_label(bin_),
                        "origin": measurement.origin,
                        "measured_at": measurement.at,
                    }
                    for bin_, measurement in sorted(baseline.bins.items())
                ],
            }
            for model, baseline in sorted(replay.baselines.items())
        },
        "courses": [
            {
                "rule": history.rule.name,
                "severity": history.rule.severity,
                "action": history.rule.action,
                "model_name": history.model_name,
                "segment": history.segment,
                "judged_minutes": history.judged,
                "no_data_share": _no_data_share(history),
                "breach_seconds": sum(map(seconds, history.firings)),
                "firings": [
                    {
                        "fired": firing.fired,
                        "cleared": firing.cleared,
                        "seconds": seconds(firing),
                        "readings": finding_view(firing.finding).readings,
                        "attribution": firing.attribution,
                    }
                    for firing in history.firings
                ],
            }
            for history in replay.histories
        ],
    }


def _no_data_share(history: RuleHistory) -> float | None:
    return history.unknown / history.judged if history.judged else None


def _replay_lines(replay: ReplayedTarget, now: float) -> Lines:
    """Yield lines and their styles for one target; ``now`` is a Unix time."""
    since, until = replay.since, replay.until
    yield shown(replay.target), "bold underline"
    span = f"{figures.moment(since)} to {figures.moment(until)}, {figures.span(until - since)}"
    yield f"judged from {span}", ""
    if replay.only_hours_before:
        yield from paragraph("  before that only hours are stored, which are not judged")
    columns: Columns[RuleHistory] = {
        "rule": lambda history: shown(history.rule.name, 34),
        "segment": lambda history: segment_title(history.segment)[:32],
        "fired": lambda history: figures.number(len(history.firings)),
        "in breach": lambda history: (
            figures.span(sum(firing.seconds(since, until) for firing in history.firings))
            if history.firings
            else figures.UNKNOWN
        ),
        "no data": lambda history: figures.percent(_no_data_share(history)),
    }
    for model in sorted({history.model_name for history in replay.histories}):
        histories = [history for history in replay.histories if history.model_name == model]
        yield "", ""
        yield shown(model), "bold"
        yield from _baseline_lines(replay.baselines.get(model, Baseline()), now)
        yield from table(columns, histories, style=lambda row: "red" if row.firings else "")
        for history in histories:
            for firing in history.firings:
                yield from _firing_lines(history, firing, since, until)


def _baseline_lines(baseline: Baseline, now: float) -> Lines:
    age = baseline.age(now)
    if age is None:
        yield "no baseline: rules on the speedup have no data", ""
        return
    by_origin: dict[str, list[str]] = {}
    for bin_, measurement in sorted(baseline.bins.items()):
        by_origin.setdefault(str(measurement.origin), []).append(load_bin_label(bin_))
    origins = "; ".join(f"{origin}, load {', '.join(bins)}" for origin, bins in by_origin.items())
    yield from paragraph(
        f"  baseline from {origins}; {figures.span(age)} old, used for the whole time"
    )


def _firing_lines(history: RuleHistory, firing: Firing, since: float, until: float) -> Lines:
    yield "", ""
    rule = history.rule
    yield f"{rule.name}{where(history.segment)} ({rule.severity}, {rule.action})", "bold"
    lasted = figures.span(firing.seconds(since, until))
    began = "before" if firing.fired < since else figures.moment(firing.fired)
    if firing.cleared is None:
        yield f"  fired {began}, still in breach after {lasted}", ""
    else:
        yield f"  fired {began}, cleared {figures.moment(firing.cleared)} after {lasted}", ""
    reading = finding_view(firing.finding).leading
    if reading is not None:
        fires = speculation.threshold(reading)
        yield from paragraph(f"  {reading.metric} {speculation.value(reading)}; fires {fires}")
    yield from paragraph(f"  {_cause(firing.attribution)}")


def _cause(attribution: Attribution) -> str:
    if attribution.missing is not None:
        return f"cause unknown: {attribution.missing}"
    before, after = (figures.number(value, 2) for value in (attribution.before, attribution.now))
    change = f"{attribution.metric} {before} the day before, {after} now"
    leading = attribution.leading
    if leading is None or attribution.within_noise:
        return f"{change}: {'; '.join(attribution.notes) or 'nothing changed'}"
    return f"{change}; {leading.share:.0%} of it: {shown(leading.sentence, LONGEST_SENTENCE)}"
