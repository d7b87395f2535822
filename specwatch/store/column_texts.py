"""A column in all rows as one text: how it is asked for, and how its numbers are read.

The database joins the values with commas in one pass, so that all columns have the same order. A
value of each row as an object of Python would take longer than the rest of a report. Importing this
imports numpy.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from specwatch.domain.facts import Kind
from specwatch.domain.model import FACTS
from specwatch.store.counts import LARGEST
from specwatch.store.statements import selected

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Texts = Mapping[str, str | None]
"""The text of each column, with :func:`null_of` in place of NULL; None where all are NULL."""

UNKNOWN = -1
"""The number that stands for NULL; no stored number is negative."""
_MOST = 64 * LARGEST
"""The largest number of a row: an hour of minutes."""
_BEGIN, _EMPTY, _NULL, _FIRST_KEY = -2, -3, -4, -5
"""Marks between the numbers of arrays and objects."""
_NULLS = {
    fact.column: "{}" if fact.kind is Kind.KEYS else f"[{_NULL}]"
    for fact in FACTS
    if fact.kind in (Kind.KEYS, Kind.POSITIONS, Kind.HISTOGRAM)
}


class Entries(NamedTuple):
    """Counts at places of arrays: of each its row, its place and the count; ``known`` marks the
    rows that have an array."""

    known: Mask
    rows: Ints
    places: Ints
    counts: Ints


def joined(connection: sa.Connection, table: sa.Table, column: str) -> str:
    """An expression in SQL for the text of a column."""
    null = null_of(column)
    if connection.dialect.name == "sqlite":
        text, join = f"coalesce({column}, '{null}')", "group_concat"
    else:
        value = selected(connection, table, [column])
        text, join = f"coalesce(({value})::text, '{null}')", "string_agg"
    return f"CASE WHEN count({column}) > 0 THEN {join}({text}, ',') END"


def null_of(column: str) -> str:
    """What stands for NULL in the text of a column."""
    return _NULLS.get(column, str(UNKNOWN))


def texts_of(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, str | None]:
    """The texts of some rows, as the database makes them."""
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return {
        name: ",".join(null_of(name) if value is None else str(value) for value in column)
        if any(value is not None for value in column)
        else None
        for name, column in zip(columns, map(tuple, values), strict=True)
    }


def require_whole(texts: Texts) -> None:
    """Raise ValueError unless each column of one row that has a number has a whole one: a fraction
    is read as far as its point."""
    for name, text in texts.items():
        if text is not None and name not in _NULLS and not re.fullmatch(r"-?\d+", text):
            raise ValueError(f"{name} is {text[:20]!r}: expected a whole number")


def numbers_of(text: str | None, rows: int) -> Ints:
    """Whole numbers, one for each row; ``UNKNOWN`` for NULL. Raises ValueError for others."""
    if text is None:
        return np.full(rows, UNKNOWN)
    numbers = _parsed(text)
    if len(numbers) != rows:
        raise ValueError("a number is expected in each row")
    return _checked(numbers)


def entries_of(text: str | None, rows: int) -> Entries:
    """JSON arrays, one for each row. Raises ValueError for something else."""
    known, lengths, numbers = _arrays(text, rows)
    places = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Entries(known, np.repeat(np.arange(rows), lengths), places, numbers)


def trimmed_entries_of(text: str | None, rows: int) -> Entries:
    """As :func:`entries_of`, of arrays that begin with the place of their first count."""
    known, lengths, numbers = _arrays(text, rows)
    begins = np.cumsum(lengths) - lengths
    filled = lengths > 0
    heads = begins[filled]
    row = np.repeat(np.arange(rows), lengths)
    places = np.arange(len(numbers)) - np.repeat(begins, lengths) - 1
    places += np.repeat(numbers[heads], lengths[filled])
    counted = np.ones(len(numbers), np.bool_)
    counted[heads] = False
    return Entries(known, row[counted], places[counted], numbers[counted])


def keys_of(text: str | None, rows: int) -> dict[str, tuple[Ints, Ints]]:
    """JSON objects, one for each row: by key the rows that have it, and their counts. Raises
    ValueError for something else."""
    if text is None:
        return {}
    marked = text
    keys: list[str] = []
    # Each key becomes a mark as well. There are few, and none has a quotation mark in it.
    while '"' in marked:
        key, _, _ = marked.partition('"')[2].partition('"')
        marked = marked.replace(f'"{key}":', f"{_FIRST_KEY - len(keys)},")
        keys.append(key)
        if f'"{key}"' in marked:
            raise ValueError(f"{key} has no count")
    marked = marked.replace("{}", f"{{{_EMPTY}}}").replace("{", f"{_BEGIN},").replace("}", "")
    flat, begins = _marked(marked, rows)
    row = np.cumsum(np.isin(np.arange(len(flat)), begins)) - 1
    found = {}
    for number, key in enumerate(keys):
        here = np.flatnonzero(flat == _FIRST_KEY - number)
        if (here + 1 >= len(flat)).any() or (flat[here + 1] < 0).any():
            raise ValueError(f"{key} has no count")
        found[key] = row[here], _checked(flat[here + 1])
    return found


def _checked(numbers: Ints) -> Ints:
    """The numbers. Raises ValueError for one that specwatch does not write."""
    if numbers.size and not (numbers.min() >= UNKNOWN and numbers.max() <= _MOST):
        raise ValueError("a number is negative, or larger than any server has")
    return numbers


def _arrays(text: str | None, rows: int) -> tuple[Mask, Ints, Ints]:
    """Which rows have an array, the length of each, and all their numbers."""
    if text is None:
        none = np.zeros(rows, np.int64)
        return none.astype(np.bool_), none, none[:0]
    # Each array begins with a mark; one without numbers has another one in their place.
    marked = text.replace("[]", f"[{_EMPTY}]").replace("[", f"{_BEGIN},").replace("]", "")
    flat, begins = _marked(marked, rows)
    lengths = np.diff(np.append(begins, len(flat))) - 1
    first = flat[begins + 1]
    lengths[(first == _EMPTY) | (first == _NULL)] = 0
    numbers = flat[flat >= 0]
    if len(numbers) != lengths.sum():
        raise ValueError("a number of an array is negative")
    return first != _NULL, lengths, _checked(numbers)


def _marked(text: str, rows: int) -> tuple[Ints, Ints]:
    """The numbers of a text, and the places of the marks with which each row begins."""
    flat = _parsed(text)
    begins = np.flatnonzero(flat == _BEGIN)
    if len(begins) != rows or (rows and begins[0]):
        raise ValueError("an array or an object is expected in each row")
    return flat, begins


def _parsed(text: str) -> Ints:
    """The whole numbers of a text, up to what is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what is left of the text
        return np.fromstring(text, np.int64, sep=",")
