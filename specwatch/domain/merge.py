"""Adding tallies and windows: exact, in any order and grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import zip_longest
from operator import attrgetter
from typing import Any, TypeVar

from specwatch.domain import histogram
from specwatch.domain.model import (
    COUNTERS,
    HISTOGRAMS,
    MAPPINGS,
    Gauges,
    Mode,
    Tally,
    Window,
)

_Number = TypeVar("_Number", int, float)


def merge_tallies(first: Tally, second: Tally) -> Tally:
    """Add two tallies; what only one of them knows is taken from that one."""
    return sum_tallies((first, second))


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """Add any number of tallies; what only some of them know is the sum of those."""
    rows = list(map(_FIELDS, tallies))
    if len(rows) < 2:
        return Tally(*rows[0]) if rows else Tally()
    return Tally(*(add(known) for add, known in zip(_ADD, _known(rows), strict=True)))


def sum_fields(tallies: Iterable[Tally], names: Iterable[str]) -> dict[str, Any]:
    """As :func:`sum_tallies`, of some fields only."""
    asked = tuple(names)
    rows = list(map(_getter(asked), tallies))
    columns = _known(rows) if rows else ([] for _ in asked)
    return {name: _ADDERS[name](known) for name, known in zip(asked, columns, strict=True)}


@lru_cache(maxsize=64)
def _getter(names: tuple[str, ...]) -> Callable[[Tally], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda tally: tuple(getattr(tally, name) for name in names)


def _known(rows: Sequence[tuple[Any, ...]]) -> Iterator[list[Any]]:
    for column in zip(*rows, strict=True):
        yield [value for value in column if value is not None]


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
    """The same, or mixed; the known one where one of them is not known."""
    if Mode.UNKNOWN in (first, second):
        return second if first is Mode.UNKNOWN else first
    return first if first is second else Mode.MIXED


def present_since(windows: Iterable[Window]) -> int:
    """Unix time from which on windows of all temperatures, in order, belong to the present process
    in its present mode: what was served before is not to be added to it.

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
    tally, gauges, mode = ordered[0].tally, ordered[0].gauges, ordered[0].mode
    server_drafts, source_drafts = ordered[0].server_drafts, ordered[0].source_drafts
    for window in ordered[1:]:
        tally = merge_tallies(tally, window.tally)
        gauges = merge_gauges(gauges, window.gauges)
        mode = merge_modes(mode, window.mode)
        server_drafts = _add(server_drafts, window.server_drafts)
        source_drafts = _add(source_drafts, window.source_drafts)
    return Window(
        series=last.series,
        start=start,
        length=length,
        mode=mode,
        tally=tally,
        gauges=gauges,
        environment=last.environment,
        source=last.source,
        server_drafts=server_drafts,
        source_drafts=source_drafts,
        observed_seconds=sum(window.observed_seconds for window in ordered),
        scrapes_ok=sum(window.scrapes_ok for window in ordered),
        scrapes_failed=sum(window.scrapes_failed for window in ordered),
        restarts=sum(window.restarts for window in ordered),
        down_seconds=sum(window.down_seconds for window in ordered),
    )


def _add(first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _maximum(first: _Number | None, second: _Number | None) -> _Number | None:
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)


def _total(counts: Sequence[int]) -> int | None:
    return sum(counts) if counts else None


def _add_by_key(mappings: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    filled = [mapping for mapping in mappings if mapping]
    if len(filled) < 2:
        return filled[0] if filled else {}
    keys = sorted({key for mapping in filled for key in mapping})
    return {key: sum(mapping.get(key, 0) for mapping in filled) for key in keys}


def _add_positions(positions: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    return tuple(map(sum, zip_longest(*positions, fillvalue=0))) if positions else None


def _adder(name: str) -> Callable[[Sequence[Any]], Any]:
    if name in HISTOGRAMS:
        return histogram.merge_all
    if name in MAPPINGS:
        return _add_by_key
    return _total if name in COUNTERS else _add_positions


_NAMES = tuple(field.name for field in fields(Tally))
_FIELDS: Callable[[Tally], tuple[Any, ...]] = attrgetter(*_NAMES)
_ADDERS = {name: _adder(name) for name in _NAMES}
_ADD = tuple(_ADDERS.values())
