"""Adding tallies and windows: exact, in any order and grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import zip_longest
from operator import attrgetter
from typing import Any

from specwatch.domain import histogram
from specwatch.domain.facts import Kind
from specwatch.domain.model import FACTS, Gauges, Mode, Tally, Window


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
    return _sum_gauges((first, second))


def _sum_gauges(gauges: Sequence[Gauges]) -> Gauges:
    totals = [total for each in gauges if (total := each.gpu_memory_total) is not None]
    return Gauges(**_sums(gauges, "gauges"), gpu_memory_total=max(totals, default=None))


def _sums(parts: Sequence[object], of: str) -> dict[str, Any]:
    """The sum of each fact of these parts of windows: what only some know is the sum of those."""
    return {
        name: add([value for part in parts if (value := getattr(part, name)) is not None])
        for name, add in _ADDERS_OF[of].items()
    }


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
        gauges=_sum_gauges([window.gauges for window in ordered]),
        environment=last.environment,
        source=last.source,
        **_sums(ordered, ""),
    )


def _total(counts: Sequence[Any]) -> Any:
    return sum(counts) if counts else None


def _add_by_key(mappings: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    filled = [mapping for mapping in mappings if mapping]
    if len(filled) < 2:
        return filled[0] if filled else {}
    keys = sorted(set().union(*filled))
    return {key: sum([mapping.get(key, 0) for mapping in filled]) for key in keys}


def _add_positions(positions: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    return tuple(map(sum, zip_longest(*positions, fillvalue=0))) if positions else None


def _largest(values: Sequence[Any]) -> Any:
    return max(values, default=None)


_SUMS: Mapping[Kind, Callable[[Sequence[Any]], Any]] = {
    Kind.COUNT: _total,
    Kind.INTEGRAL: _total,
    Kind.LARGEST: _largest,
    Kind.POSITIONS: _add_positions,
    Kind.KEYS: _add_by_key,
    Kind.HISTOGRAM: histogram.merge_all,
}
"""What adds the known values of a fact."""
_ADDERS_OF: Mapping[str, Mapping[str, Callable[[Sequence[Any]], Any]]] = {
    of: {fact.name: _SUMS[fact.kind] for fact in FACTS if fact.of == of}
    for of in ("tally", "gauges", "")
}
"""The same by field of tallies, gauges, and windows."""
_ADDERS = _ADDERS_OF["tally"]
