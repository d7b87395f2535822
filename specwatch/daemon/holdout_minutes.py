"""Minutes of the holdouts of groups, read from the store for the judges of the other members."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from specwatch.domain.baseline import MOST_POINTS, Measurement
from specwatch.domain.holdout import BEFORE, WARM_UP, Holdout, as_baseline, pace_of
from specwatch.domain.model import ALL, MINUTE, Window
from specwatch.domain.sample import Sample, samples_of
from specwatch.domain.simultaneous import Pace
from specwatch.store.repository import Store

_log = structlog.get_logger("specwatch.daemon.holdout_minutes")

_LATE = 10 * MINUTE
"""Seconds for which a minute may come after the next ones, where the database was away."""
_NOTED = 1.1
"""Factor from which on a holdout that is slower or faster than another server is logged."""

_ByModel = dict[str, list[Sample]]


class HoldoutMinutes:
    """The minutes of holdouts; a holdout may be watched by another daemon. Raises StoreUnavailable
    if the database cannot be used now. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._minutes: dict[Holdout, _ByModel] = {}
        self._paces: dict[tuple[str, Holdout, str], Pace | None] = {}

    def read(self, holdouts: Collection[Holdout], now: float) -> set[Holdout]:
        """Read the new minutes of these holdouts up to ``now`` (Unix seconds), and forget those of
        others; returns which have new ones."""
        before, self._minutes = self._minutes, {}
        for holdout in holdouts:
            known = before.get(holdout, {})
            newest = max((minutes[-1].start for minutes in known.values()), default=0)
            oldest = max(holdout.since + WARM_UP, now - MOST_POINTS * MINUTE)
            read = self._read(holdout.target, max(oldest, newest - _LATE), now)
            self._minutes[holdout] = {
                name: _joined(known.get(name, ()), read.get(name, ()), oldest)
                for name in {**known, **read}
            }
        self._paces = {key: pace for key, pace in self._paces.items() if key[1] in self._minutes}
        return {one for one, minutes in self._minutes.items() if minutes != before.get(one, {})}

    def measurements(self, target: str, holdouts: Iterable[Holdout]) -> list[Measurement]:
        """The minutes of holdouts as a baseline of another target."""
        return [
            measurement
            for holdout in holdouts
            for model, minutes in self._minutes.get(holdout, {}).items()
            if holdout.target != target and minutes
            for measurement in as_baseline(
                target, model, holdout.target, minutes, self._pace(target, holdout, model)
            )
        ]

    def _pace(self, target: str, holdout: Holdout, model: str) -> Pace | None:
        """How slow the holdout is, by the hour before it was switched off."""
        key = (target, holdout, model)
        if key not in self._paces:
            theirs, own = (
                self._read(name, holdout.began - BEFORE, holdout.began).get(model, [])
                for name in (holdout.target, target)
            )
            pace = self._paces[key] = pace_of(theirs, own)
            if pace is not None and not 1 / _NOTED < pace.ratio.value < _NOTED:
                _log.warning(
                    "holdout_differs",
                    target=target,
                    holdout=holdout.target,
                    times_as_slow=round(pace.ratio.value, 3),
                )
        return self._paces[key]

    def _read(self, target: str, since: float, until: float) -> _ByModel:
        windows: dict[str, list[Window]] = {}
        for window in self._store.windows(
            target=target, since=since, until=until, length=MINUTE, dimension=ALL.dimension
        ):
            windows.setdefault(window.series.model_name, []).append(window)
        return {name: samples_of(own) for name, own in windows.items()}


def _joined(known: Iterable[Sample], new: Iterable[Sample], oldest: float) -> list[Sample]:
    by_start = {sample.start: sample for sample in (*known, *new) if sample.start >= oldest}
    return [by_start[start] for start in sorted(by_start)]
