"""The report of one target, from one pass over its windows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from specwatch.domain.model import Environment, Mode, Segment, Tally, Window
from specwatch.domain.sample import samples_of
from specwatch.domain.standby import StandbyCost, standby_cost
from specwatch.report.answer import answer, traffic
from specwatch.report.answer_and_advice import best_change, recommendation, sentence
from specwatch.report.changes import changes
from specwatch.report.estimates import ratio_of
from specwatch.report.experiments import live_experiment, newest
from specwatch.report.grouped_data import Recorded, ReportSources, WindowSlice, model_of, slices_of
from specwatch.report.health import health
from specwatch.report.incidents import breaches, incidents, seconds_off
from specwatch.report.loads import best_k, crossing, loads, present_k, what_if
from specwatch.report.model import ModelReport
from specwatch.report.objectives import goodput, objectives
from specwatch.report.segments import segments
from specwatch.report.series import Plots
from specwatch.report.speedups import speedups
from specwatch.report.window_sums import Ledger, RunningSum

_OF_HEALTH = ("drafts", "records", "uncovered")
"""Fields of the tally of a segment that show how much a tap sees."""


class KeptWindows:
    """The windows of one model, of segments only if the server does not count all requests.

    What a tap counts is kept as sums: a month of windows would fill the memory.
    """

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._environments: set[Environment] = set()
        self._first: dict[Segment, int] = {}
        self._last: dict[Segment, Window] = {}
        self._seen: dict[Segment, RunningSum] = {}

    def take(self, slices: Iterable[WindowSlice], *, now: bool) -> None:
        """Add slices; ``now`` are those of the period."""
        for piece in slices:
            self._environments.add(piece.place.environment)
            self.windows += piece.wholes
            if piece.place.silent is not None and any(piece.place.silent):
                self.windows += piece.parts
            elif now:
                for part in piece.parts:
                    self._see(part)
                if not piece.drafted.keys() <= self._first.keys():
                    self._first = dict.fromkeys(piece.drafted, piece.start) | self._first

    def span(self, since: float) -> tuple[float, float] | None:
        """From when to when there were windows of the period that begins at ``since`` (Unix
        seconds); None if only a tap saw it."""
        first = next((window.start for window in self.windows if window.start >= since), None)
        return None if first is None else (first, self.windows[-1].start + self.windows[-1].length)

    @property
    def seen(self) -> list[Window]:
        """What a tap saw in the period: of each segment the last window, with the sum of all
        tallies, and a window without a tally at the first start."""
        return [
            window
            for label, added in self._seen.items()
            for window in (
                msgspec.structs.replace(self._last[label], start=self._first[label], tally=Tally()),
                msgspec.structs.replace(self._last[label], tally=added.total()),
            )
        ]

    @property
    def may_have_changed(self) -> bool:
        """Whether version, configuration or draft length changed, not only on and off."""
        plain = {(one.engine_version, one.configuration) for one in self._environments}
        prints = {one.fingerprint for one in self._environments if one.drafting not in ("", "0")}
        return len(plain) > 1 or len(prints) > 1

    def _see(self, part: Window) -> None:
        label = part.series.segment
        self._last[label] = part
        self._seen.setdefault(label, RunningSum(_OF_HEALTH)).add(part.tally)


class _Model(NamedTuple):
    """Sums, points, and the windows of one model that are needed again."""

    ledger: Ledger
    plots: Plots
    kept: KeptWindows


def build(sources: ReportSources, since: float, until: float) -> tuple[ModelReport, ...]:
    """The reports of the models that had windows in ``since`` to ``until`` (Unix seconds), by
    name.

    Windows before ``since`` are what the figures are compared with.
    """
    models = _read(sources, since, until)
    spans = {name: model.kept.span(since) for name, model in models.items()}
    return tuple(
        _report(sources, models[name], _own_span(name, spans, since, until), since, until)
        for name in sorted(models)
    )


def _own_span(
    name: str, spans: Mapping[str, tuple[float, float] | None], since: float, until: float
) -> tuple[float, float]:
    """The period, or the part of it in which the model ran, if others ran before or after it."""
    own = spans[name]
    others = [span for other, span in spans.items() if other != name and span is not None]
    if own is None or not others:
        return since, until
    begin, end = own
    return (
        begin if any(first < begin for first, _ in others) else since,
        min(end, until) if any(last > end for _, last in others) else until,
    )


def _read(sources: ReportSources, since: float, until: float) -> dict[str, _Model]:
    models: dict[str, _Model] = {}
    names: set[str] = set()
    for start, windows in groupby(sources.windows, key=attrgetter("start")):
        if start >= until:
            continue
        now = start >= since
        for name, own in _by_model(list(windows)):
            model = models.get(name)
            if model is None:
                model = models[name] = _Model(Ledger(name), Plots(since, until), KeptWindows())
            slices = list(slices_of(own, now=now))
            model.kept.take(slices, now=now)
            if start >= 2 * since - until:
                model.ledger.take(slices)
            if now:
                model.plots.take(slices)
                names.add(name)
    return {name: models[name] for name in names}


def _report(
    sources: ReportSources, model: _Model, span: tuple[float, float], since: float, until: float
) -> ModelReport:
    """``span`` is when the model ran."""
    name, cells, kept = model.ledger.name, model.ledger.cells(), model.kept
    measured = speedups(
        model.ledger,
        cells,
        sources.measurements,
        target=sources.target,
        now=until,
        max_age=sources.max_age,
        draft_cost_ratio=sources.draft_cost_ratio,
        objective=sources.objective,
    )
    amount = traffic(cells)

    def standby(loads: Collection[str] | None) -> StandbyCost:
        minutes = (window for window in sources.standby() if window.series.model_name == name)
        return standby_cost(samples_of(minutes), measured.baseline, loads=loads)

    cost = standby(None) if amount.seconds.get(Mode.STANDBY) else StandbyCost(None)
    by_segment = segments(cells, measured)
    by_load = loads(cells, measured)
    of_guard = incidents(sources.steps, *span)
    experiments, left_out = newest(sources.experiments.get(name, ()))
    watched = health([*kept.windows, *kept.seen], since, span[1])
    built = ModelReport(
        target=sources.target,
        model_name=name,
        engine_version=None if measured.present is None else measured.present.engine_version,
        answer=answer(cells, measured, amount, by_segment, by_load, sources.gpus),
        traffic=amount,
        segments=by_segment,
        loads=by_load,
        crossing=crossing(by_load),
        best_k=best_k(measured),
        best_k_unknown=measured.assessment.best_k_unknown,
        draft_lengths=measured.draft_lengths,
        standby_cost=ratio_of(cost.cost),
        standby_cost_missing=cost.missing,
        what_if=what_if(
            by_load,
            measured,
            present_k(cells, measured),
            sources.draft_cost_ratio,
            lambda loads: standby(loads).cost,
        ),
        objectives=objectives(sources.slos, kept.windows, since, until),
        goodput=goodput(sources.slos, kept.windows, since, until),
        incidents=of_guard,
        breaches=breaches(sources.decisions, name, since, until),
        seconds_off_by_guard=seconds_off(of_guard, ordered=False),
        seconds_off_by_order=seconds_off(of_guard, ordered=True),
        stopped_since=model.ledger.stopped_since,
        health=msgspec.structs.replace(watched, warnings=(*watched.warnings, *measured.caveats)),
        # This is as much work as the rest of the report.
        changes=changes(kept.windows, measured.baseline, since, until)
        if kept.may_have_changed
        else (),
        series=model.plots.series(model.ledger, measured),
        experiments=experiments,
        more_experiments=left_out,
        live_experiment=None if sources.switchback is None else live_experiment(sources.switchback),
    )
    best = best_change(built)
    worded = msgspec.structs.replace(
        built.answer,
        sentence=sentence(built),
        recommendation=recommendation(built),
        change="" if best is None else best.short,
        gain=None if best is None else best.gain,
    )
    return msgspec.structs.replace(built, answer=worded)


def _by_model(windows: Sequence[Recorded]) -> Iterator[tuple[str, Sequence[Recorded]]]:
    names = {model_of(window) for window in windows}
    for name in names:
        if len(names) == 1:
            yield name, windows
        else:
            yield name, [window for window in windows if model_of(window) == name]
