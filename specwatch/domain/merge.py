"""Adding tallies and windows: exact, in any order and grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import zip_longest
from operator import attrgetter
from typing import Any, TypeVar

from specwatch.domain import histogram
from specwatch.domain.model import COUNTERS, HISTOGRAMS, MAPPINGS, Gauges, Mode, Tally, Window

_Number = TypeVar("_Number", int, float)


def merge_tallies(first: Tally, second: Tally) -> Tally:
    """Add two tallies; what only one of them knows is taken from that one."""
    return sum_tallies((first, second))


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Add any number of tallies; what only some of them know is the sum of those."""
    return Tally(**sum_fields(tallies, _ADDERS))


class TallySum:
    """A tally as :func:`sum_tallies`; each field is added up when it is read first."""

    def __init__(self, parts: Sequence[Tally]) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        if name not in _ADDERS:
            raise AttributeError(name)
        value = _ADDERS[name](
            [value for part in self._parts if (value := getattr(part, name)) is not None]
        )
        self.__dict__[name] = value
        return value


def sum_fields(tallies: Iterable[Tally], names: Iterable[str]) -> dict[str, Any]:
    """As :func:`sum_tallies`, of some fields only."""
    asked = tuple(names)
    rows = list(map(_getter(asked), tallies))
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else ((),) * len(asked)
    return {
        name: _ADDERS[name]([value for value in column if value is not None])
        for name, column in zip(asked, columns, strict=True)
    }


@lru_cache(maxsize=64)
def _getter(names: tuple[str, ...]) -> Callable[[Tally], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda tally: tuple(getattr(tally, name) for name in names)


def merge_gauges(first: Gauges, second: Gauges) -> Gauges:
    """Combine what was sampled: integrals add, maxima stay maxima."""
    return Gauges(
        sampled_seconds=first.sampled_seconds + second.sampled_seconds,
        busy_seconds=first.busy_seconds + second.busy_seconds,
        running_seconds=first.running_seconds + second.running_seconds,
        waiting_seconds=first.waiting_seconds + second.waiting_seconds,
        running_max=max(first.running_max, second.running_max),
        waiting_max=max(first.waiting_max, second.waiting_max),
        kv_cache_usage_max=_maximum(first.kv_cache_usage_max, second.kv_cache_usage_max),
        gpu_memory_used_max=_maximum(first.gpu_memory_used_max, second.gpu_memory_used_max),
        gpu_memory_total=_maximum(first.gpu_memory_total, second.gpu_memory_total),
    )


def merge_modes(first: Mode, second: Mode) -> Mode:
    """The common mode, or mixed; an unknown mode gives way to a known one."""
    if Mode.UNKNOWN in (first, second):
        return second if first is Mode.UNKNOWN else first
    return first if first is second else Mode.MIXED


def present_since(windows: Iterable[Window]) -> int:
    """Unix time from which on windows of all temperatures, in order, belong to the present process
    in its present mode: earlier windows are not added to them.

    The window of a restart or a change has counts of both sides, and belongs to neither.
    """
    since, mode = 0, None
    for window in windows:
        if window.restarts or window.mode is Mode.MIXED:
            since, mode = window.start + window.length, None
            continue
        if mode is not None and window.mode is not mode:
            since = window.start
        mode = window.mode
    return since


def merge_windows(windows: Sequence[Window], *, start: int, length: int) -> Window:
    """The exact sum of windows of one series as one window of ``length`` seconds at ``start``.

    Environment and source are those of the latest window. Raises ValueError for none, or for
    windows of different series.
    """
    if not windows:
        raise ValueError("at least one window is required")
    ordered = sorted(windows, key=lambda window: window.start)
    last = ordered[-1]
    if any(window.series != last.series for window in ordered):
        raise ValueError("windows of different series do not add up")
    return Window(
        series=last.series,
        start=start,
        length=length,
        mode=reduce(merge_modes, (window.mode for window in ordered)),
        tally=sum_tallies(window.tally for window in ordered),
        gauges=reduce(merge_gauges, (window.gauges for window in ordered)),
        environment=last.environment,
        source=last.source,
        server_drafts=_total([n for w in ordered if (n := w.server_drafts) is not None]),
        source_drafts=_total([n for w in ordered if (n := w.source_drafts) is not None]),
        observed_seconds=sum(window.observed_seconds for window in ordered),
        scrapes_ok=sum(window.scrapes_ok for window in ordered),
        scrapes_failed=sum(window.scrapes_failed for window in ordered),
        restarts=sum(window.restarts for window in ordered),
        down_seconds=sum(window.down_seconds for window in ordered),
    )


def _maximum(first: _Number | None, second: _Number | None) -> _Number | None:
    return max((value for value in (first, second) if value is not None), default=None)


def _total(counts: Sequence[int]) -> int | None:
    return sum(counts) if counts else None


def _add_by_key(mappings: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    filled = [mapping for mapping in mappings if mapping]
    if len(filled) < 2:
        return filled[0] if filled else {}
    keys = sorted(set().union(*filled))
    return {key: sum([mapping.get(key, 0) for mapping in filled]) for key in keys}


def _add_positions(positions: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    return tuple(map(sum, zip_longest(*positions, fillvalue=0))) if positions else None


_ADDERS: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys(HISTOGRAMS, histogram.merge_all),
    **dict.fromkeys(MAPPINGS, _add_by_key),
    **dict.fromkeys(COUNTERS, _total),
    "accepted_per_position": _add_positions,
}
"""What adds the known values of each field of a tally."""
