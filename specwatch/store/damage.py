"""Rows that cannot be decoded: how they are detected, skipped and remembered.

A decoder of rows first calls :func:`require_types` and may raise any of :data:`UNDECODABLE`.
:func:`sound` notes a :class:`~specwatch.errors.DamagedRow` for it and goes on with the next row.
:mod:`specwatch.store.damaged_rows` moves damaged rows out of their tables later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from specwatch.errors import ConfigError, DamagedRow
from specwatch.store import schema

_Row = TypeVar("_Row")
_Found = TypeVar("_Found")

UNDECODABLE = (
    ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError,
    msgspec.MsgspecError, ConfigError,
)  # fmt: skip
"""What decoding a damaged row raises: invalid text, JSON, msgpack or numbers."""

MOST_KEPT = 10_000
"""Damaged rows that are remembered and counted at most."""

_TIMES = frozenset({
    "start", "at", "measured_at", "started_at", "ended_at", "found_at", "first_start", "last_start",
    "rolled_until", "pruned_until", "lease_until",
})  # fmt: skip
_LAST_TIME = 10**11
"""Unix seconds in the year 5138."""


class MissingContext(ValueError):
    """A row's context is damaged or missing: the context is noted instead of the row."""


class Damage:
    """The damaged rows found in one database since this process began.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], DamagedRow] = {}
        self._waiting: dict[tuple[object, ...], DamagedRow] = {}
        self._last: DamagedRow | None = None
        self._ended = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many were found so far."""
        return self._ended + len(self._found)

    @property
    def last(self) -> str | None:
        """The last damaged row, and why it cannot be decoded."""
        last = self._last
        return None if last is None else f"{last.where}: {last.reason}"

    @property
    def rows(self) -> list[DamagedRow]:
        """Damaged rows that are still in their tables."""
        with self._lock:
            return list(self._found.values())

    @property
    def waiting(self) -> list[DamagedRow]:
        """Damaged rows that nobody has tried to set aside."""
        with self._lock:
            return list(self._waiting.values())

    def note(self, row: DamagedRow) -> None:
        """Remember a damaged row, if it is not known yet."""
        place = place_of(row)
        with self._lock:
            if place not in self._found and len(self._found) < MOST_KEPT:
                self._found[place] = self._waiting[place] = self._last = row

    def tried(self, row: DamagedRow) -> None:
        """Somebody tried to set a row aside: it waits no longer."""
        with self._lock:
            self._waiting.pop(place_of(row), None)

    def end(self, row: DamagedRow) -> None:
        """A row was moved, or is repaired."""
        with self._lock:
            gone = self._found.pop(place_of(row), None)
            self._ended += gone is not None

    def about(self, target: str, series: Collection[int]) -> int:
        """How many damaged rows in their tables may belong to a target with these series."""
        return sum(
            row.key.get("target", target) == target
            and ("series_id" not in row.key or row.key["series_id"] in series)
            for row in self.rows
        )


def of(connection: sa.Connection) -> Damage:
    """The damaged rows known in the database of a connection."""
    damage = connection.get_execution_options().get("specwatch_damage")
    return damage if isinstance(damage, Damage) else Damage()


def sound(
    damage: Damage,
    table: sa.Table,
    rows: Iterable[_Row],
    decode: Callable[[_Row], _Found],
    key: Callable[[_Row], Mapping[str, object]] | None = None,
) -> Iterator[_Found]:
    """Yield decoded rows; those that cannot be decoded are noted and skipped.

    ``key`` returns the columns that identify a row; rows with named columns do not need it.
    """
    for row in rows:
        try:
            decoded = decode(row)
        except MissingContext:
            continue
        except UNDECODABLE as error:
            columns = key_of(table, row) if key is None else key(row)
            damage.note(DamagedRow(str(table.name), columns, reason(error)))
            continue
        yield decoded


def require_types(table: sa.Table, names: Sequence[str], values: Sequence[Any]) -> None:
    """Raise ValueError for a row with a value that is not valid in its column.

    SQLite stores values of any type in any column: one damaged byte may turn a number into text.
    Columns that the table does not have are skipped.
    """
    for value, rule in zip(values, _rules(table.name, tuple(names)), strict=True):
        if rule is None:
            continue
        name, kinds, least, most = rule
        kind = type(value)
        if kind not in kinds:
            raise ValueError(f"{name} is {_KINDS.get(kind, kind.__name__)}")
        if kind is str:
            if not (value.isascii() or is_text(value)):
                raise ValueError(f"{name} is not UTF-8")
        elif (kind is int or kind is float) and not least <= value <= most:
            raise ValueError(f"{name} is {value}")


def reason(error: BaseException) -> str:
    """The message of an error on one line."""
    message = " ".join(str(error).split())
    if not isinstance(error, (ValueError, msgspec.MsgspecError, ConfigError)):
        message = f"{type(error).__name__} {message}"
    return message[:300] or type(error).__name__


_KINDS: Mapping[type, str] = {
    str: "text", bytes: "binary", int: "a whole number", float: "a fraction",
    type(None): "NULL",
}  # fmt: skip
_STORED: Mapping[type, frozenset[type]] = {
    sa.Text: frozenset({str}),
    sa.LargeBinary: frozenset({bytes, memoryview}),
    sa.Double: frozenset({float, int}),
}
_Rule = tuple[str, frozenset[type], float, float]
"""The name of a column, the types of its values, and the least and greatest number."""


@lru_cache(maxsize=256)
def _rules(table: str, names: tuple[str, ...]) -> tuple[_Rule | None, ...]:
    columns = schema.metadata.tables[table].c
    return tuple(_rule(columns[name]) if name in columns else None for name in names)


def _rule(column: sa.Column[Any]) -> _Rule:
    kinds = _STORED.get(type(column.type), frozenset({int}))
    least, most = 0.0, float(_LAST_TIME)
    if column.name not in _TIMES:
        # A server may report any start time; an id is valid if its row exists.
        anything = float in kinds or column.name.endswith("id")
        least = -inf if anything else -1.0 if column.name == "load_bin" else 0.0
        most = inf
    return column.name, kinds | ({type(None)} if column.nullable else set()), least, most


def is_text(value: object) -> bool:
    """Whether a value is text in valid UTF-8."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_of(table: sa.Table, row: Any) -> dict[str, object]:
    """The columns of a row that are in its table's key, as far as it has them."""
    return {
        column.name: row._mapping[column.name]
        for column in table.primary_key
        if column.name in row._mapping
    }


def place_of(row: DamagedRow) -> tuple[object, ...]:
    """What identifies a damaged row."""
    return row.table, *sorted(row.key.items(), key=lambda column: column[0])
