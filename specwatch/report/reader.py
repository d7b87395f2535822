"""Reads the data of a report from the store, target by target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from specwatch import __version__
from specwatch.config.loading import Config
from specwatch.config.sections import Baselines, nearest
from specwatch.config.target import Target
from specwatch.domain.breakeven import DRAFT_COST_RATIO
from specwatch.domain.experiments import Experiment
from specwatch.domain.model import ALL, HOUR, MINUTE, Mode, Objective
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError
from specwatch.report.bucket_sums import BucketSums
from specwatch.report.build import build
from specwatch.report.changes import SIDE
from specwatch.report.experiments import newest
from specwatch.report.experiments import notes as experiment_notes
from specwatch.report.fleet import fleet
from specwatch.report.grouped_data import Recorded, ReportSources
from specwatch.report.hours import Member, hours_of, members_by_target
from specwatch.report.model import ModelReport, Report
from specwatch.runtime.workers import spread
from specwatch.store import (
    experiment_rows,
    guard_records,
    measurement_rows,
    verdict_rows,
)
from specwatch.store.counts import Context
from specwatch.store.experiment_rows import subject_of
from specwatch.store.readers import Reader
from specwatch.store.texts import storable
from specwatch.wording.figures import moment
from specwatch.wording.text import shown

SHORT = 6 * HOUR
"""Seconds up to which a report is made from minutes."""
_BREACHES_BEFORE = 30 * 86400.0
"""Seconds before the period in which a breach that still lasts may have begun."""
_UNUSED = ("output_length",)
"""Histograms that no report shows."""
_NOTHING_YET = "nothing was recorded yet: no daemon has written to this database"

Progress = Callable[[int, int, str], None]
"""Called with the number of finished targets, the number of all, and the next target."""


def read_report(
    reader: Reader,
    *,
    since: float,
    until: float,
    now: float,
    targets: Sequence[str] | None = None,
    config: Config | None = None,
    progress: Progress = lambda done, of, name: None,
) -> Report:
    """The report of a period, of some targets or of all that were watched or are configured.

    Times are Unix seconds; the period is widened to whole hours, a short one to whole minutes, and
    ends by ``now``. Several processes share many targets. Raises ConfigError for an unknown target,
    StoreError if the database cannot be read, WorkerLostError if a process is killed. The report of
    a database without data says so.
    """
    configured = {target.name: target for target in config.targets} if config else {}
    set_up = reader.is_set_up()
    series = members_by_target(reader) if set_up else {}
    starts = (member.first_start for members in series.values() for member in members.values())
    # Without a history the period ends with the last minute, so that new experiments are in it.
    since, until = period(since, until, now, first=min(starts, default=now))
    measured = _measured(reader, since, until) if set_up else {}
    notes = [] if series or measured else [_NOTHING_YET]
    names = _chosen(targets, configured, {*series, *measured})
    if targets is None:
        names = [name for name in names if not _is_summed(name, series)]
    reading = _SourceReader(reader, since, until, config)

    def made_of(name: str) -> tuple[ModelReport, ...]:
        if name not in series:
            return ()
        target, experiments = configured.get(name), measured.get(name, {})
        return build(reading.sources(name, series[name], target, experiments), since, until)

    models: list[ModelReport] = []
    with spread(made_of, names, reader.close) as parts:
        for done, name in enumerate(names):
            progress(done, len(names), name)
            made = next(parts)
            models += made
            members = series.get(name, {})
            expected = name in configured or targets is not None
            watched = any(
                member.last_start >= since and member.first_start < until
                for member in members.values()
            )
            if not made and series and (expected or watched):
                notes.append(_missing(name, members, since))
            notes += _unwatched(name, measured.get(name, {}), made)
    progress(len(names), len(names), "")
    return Report(
        version=__version__,
        generated=now,
        since=since,
        until=until,
        targets=tuple(models),
        fleet=fleet(models),
        notes=tuple(notes),
    )


def period(
    since: float, until: float, now: float, first: float | None = None
) -> tuple[float, float]:
    """A period in whole hours, a short one in whole minutes, that ends by ``now``.

    A period in hours ends with the last whole hour, so that the period before it is as long. It
    ends with the last minute if the history, which begins at ``first``, is short. Raises
    ConfigError if the period is empty.
    """
    until = min(until, now)
    if since >= until:
        raise ConfigError(
            f"since {moment(since)} is not before until {moment(until)}; give an earlier since"
        )
    unit = MINUTE if until - since <= SHORT else HOUR
    begin = since // unit * unit
    last = now // unit * unit
    if first is not None and last - first < SHORT:
        last = now // MINUTE * MINUTE
    end = min(-(-until // unit) * unit, last)
    return begin, max(end, begin + MINUTE)


class _SourceReader:
    """Reads the data of one target after another."""

    def __init__(self, reader: Reader, since: float, until: float, config: Config | None) -> None:
        self._reader = reader
        self._since, self._until = since, until
        self._contexts: dict[int, Context] = {}
        self._slos = () if config is None else config.slos
        self._max_age = (Baselines() if config is None else config.baseline).max_age

    def sources(
        self,
        name: str,
        members: Mapping[int, Member],
        target: Target | None,
        experiments: Mapping[str, Sequence[Experiment]],
    ) -> ReportSources:
        """The data of a target; its windows are read when they are used."""
        with self._reader.reading() as connection:
            measurements = measurement_rows.read(connection, name)
            decisions = verdict_rows.read(
                connection, since=self._since - _BREACHES_BEFORE, until=self._until, target=name
            )
            steps = guard_records.read_steps(connection, target=name)
            of_live_traffic = experiment_rows.switchbacks(connection, name)
        return ReportSources(
            target=name,
            windows=self._windows(name, members),
            measurements=measurements,
            decisions=decisions,
            steps=[step for step in reversed(steps) if step.at < self._until],
            slos=self._slos,
            # None where the configuration leaves them to the driver.
            gpus=len(target.gpus) if target and isinstance(target.gpus, tuple) else None,
            draft_cost_ratio=DRAFT_COST_RATIO if target is None else target.draft_cost_ratio,
            objective=Objective.E2E if target is None else target.objective,
            max_age=self._max_age,
            experiments=experiments,
            switchback=next(
                (
                    one
                    for one in of_live_traffic
                    if one.state.began < self._until and one.state.counted >= self._since
                ),
                None,
            ),
            standby=lambda: list(
                self._reader.windows(
                    since=self._until - self._max_age,
                    until=self._until,
                    target=name,
                    dimension=ALL.dimension,
                    mode=Mode.STANDBY,
                )
            ),
        )

    def _windows(self, name: str, members: Mapping[int, Member]) -> Iterator[Recorded]:
        before = 2 * self._since - self._until
        # The budget of an objective is over its window, which may be longer.
        longest = max((slo.window for slo in self._slos), default=0.0)
        wholes = {id_: member for id_, member in members.items() if member.series.segment == ALL}
        if self._by_minutes(members, before):
            hour = before // HOUR * HOUR
            yield from self._hours(wholes, self._until - longest, hour)
            yield from self._reader.windows(since=hour, until=self._until, target=name)
            return
        yield from self._hours(wholes, self._until - longest, before)
        yield from self._hours(members, before, self._until)

    def _hours(
        self, members: Mapping[int, Member], since: float, until: float
    ) -> Iterator[Recorded]:
        # Each hour counts for changes, and for the budgets of objectives.
        earliest = min([self._since - SIDE, *(self._until - slo.window for slo in self._slos)])
        summed = BucketSums(self._since, earliest)
        return hours_of(
            self._reader,
            members,
            since,
            until,
            contexts=self._contexts,
            without=_UNUSED,
            summed=summed,
        )

    def _by_minutes(self, members: Mapping[int, Member], before: float) -> bool:
        """Whether the period or the history is short, and its minutes are still stored."""
        series = members.values()
        first = max(before, min(one.first_start for one in series))
        last = min(self._until, max(one.last_start for one in series) + MINUTE)
        short = self._until - self._since <= SHORT or last - first <= SHORT
        return short and all(one.pruned_until <= first for one in series)


def _chosen(
    targets: Sequence[str] | None, configured: Iterable[str], known: Iterable[str]
) -> list[str]:
    """The targets to report on: those configured first, in their order."""
    names = list(configured)
    names += sorted(set(known) - set(names))
    for name in targets or ():
        if name not in names:
            hint = nearest(name, names) if names else "none is known yet"
            raise ConfigError(f"no target {quoted(name)} is configured or was ever watched; {hint}")
    return names if targets is None else [name for name in names if name in targets]


def _is_summed(name: str, series: Mapping[str, Mapping[int, Member]]) -> bool:
    """Whether a target is a pod all of whose minutes are in those of its workload.

    Kubernetes names the pods of a Deployment NAME-HASH-RANDOM, those of a StatefulSet NAME-NUMBER.
    """
    namespace, _, pod = name.partition("/")
    deployment = re.fullmatch(r"(.+)-[a-z0-9]{1,10}-[a-z0-9]{5}", pod)
    stateful = re.fullmatch(r"(.+)-\d+", pod)
    workloads = [f"{namespace}/deployment/{deployment[1]}"] if deployment else []
    for kind in ("statefulset", "leaderworkerset") if stateful else ():
        workloads.append(f"{namespace}/{kind}/{stateful and stateful[1]}")
    began = min((one.first_start for one in series.get(name, {}).values()), default=0)
    return any(
        series[workload] and began >= min(one.first_start for one in series[workload].values())
        for workload in workloads
        if workload in series
    )


def _measured(reader: Reader, since: float, until: float) -> dict[str, dict[str, list[Experiment]]]:
    """Experiments by target and model as they are stored, oldest first."""
    measured: dict[str, dict[str, list[Experiment]]] = {}
    for experiment in reader.experiments(since, until):
        subject = subject_of(experiment.experiment)
        models = measured.setdefault(storable(subject.target), {})
        models.setdefault(storable(subject.model_name), []).append(experiment.experiment)
    return measured


def _unwatched(
    name: str, experiments: Mapping[str, Sequence[Experiment]], made: Iterable[ModelReport]
) -> Iterator[str]:
    """Notes on experiments with models that have no report."""
    reported = {model.model_name for model in made}
    for model_name in sorted(set(experiments) - reported):
        yield from experiment_notes(name, model_name, *newest(experiments[model_name]))


def _missing(name: str, members: Mapping[int, Member], since: float) -> str:
    """Why a target has no report."""
    named = shown(name)
    if not members:
        return f"{named}: never watched yet"
    last = max(member.last_start for member in members.values()) + MINUTE
    if last <= since:
        return f"{named}: not watched in this period; last seen {moment(last)}"
    return f"{named}: not watched in this period"
