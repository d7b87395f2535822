"""Stored minutes as windows, by the hour that each is added up in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from specwatch.domain.model import HOUR, MINUTE, SeriesId, Window
from specwatch.store import damage, schema
from specwatch.store.packing import assemble
from specwatch.store.readers import ROW_NAMES, place

SeriesById = Mapping[int, tuple[SeriesId, Collection[str]]]
"""Series by id, and the histograms of each that are not wanted."""


class HourRow(NamedTuple):
    """The key of a row of hours; ``load_bin`` is -1 while idle."""

    start: int
    series_id: int
    context: int
    mode: int
    load_bin: int


def windows_by_hour(
    rows: Iterable[Sequence[Any]],
    series: SeriesById,
    contents: Mapping[int, str],
    known: damage.Damage,
) -> dict[HourRow, list[Window]]:
    """The windows of rows by the hour that they are added up in.

    A row is :data:`ROW_NAMES`. Damaged ones are noted and left out.
    """

    def decode(row: Sequence[Any]) -> tuple[HourRow, Window]:
        damage.require_types(schema.minutes, ROW_NAMES, row)
        start, id_, context, *columns = row
        own, unwanted = series[id_]
        content = contents.get(context)
        window = assemble(own, start, MINUTE, content, tuple(columns), without=unwanted)
        load_bin = -1 if window.load_bin is None else window.load_bin
        return HourRow(start - start % HOUR, id_, context, columns[0], load_bin), window

    hours: dict[HourRow, list[Window]] = {}
    for hour, window in damage.sound(known, schema.minutes, rows, decode, place):
        hours.setdefault(hour, []).append(window)
    return hours
