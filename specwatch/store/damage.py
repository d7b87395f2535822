"""Rows that cannot be decoded: how they are told, passed over and remembered.

A decoder of rows begins with :func:`require_types` and raises what it likes; :func:`sound` makes
a :class:`~specwatch.errors.DamagedRow` of that, notes it and goes on with the next row. They are
moved out of their tables later, by :mod:`specwatch.store.damaged_rows`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, TypeVar

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
"""What decoding a damaged row raises: texts, JSON, msgpack and numbers that are none."""

MOST_KEPT = 10_000
"""Damaged rows that are remembered; counting ends there, too."""

_TIMES = frozenset({
    "start", "at", "measured_at", "started_at", "ended_at", "found_at", "first_start", "last_start",
    "rolled_until", "pruned_until", "lease_until",
})  # fmt: skip
_LAST_TIME = 10**11
"""Unix seconds in the year 5138."""


class MissingContext(ValueError):
    """A row's context is damaged or not there: that is what is noted, and not the row."""


class Damage:
    """The damaged rows that were found in one database since this process began.

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
        """How many were found, ever."""
        return self._ended + len(self._found)

    @property
    def last(self) -> str | None:
        """The one that was found last, and why it cannot be decoded, for a person."""
        last = self._last
        return None if last is None else f"{last.where}: {last.reason}"

    @property
    def rows(self) -> list[DamagedRow]:
        """Those that still lie in their tables."""
        with self._lock:
            return list(self._found.values())

    def note(self, row: DamagedRow) -> None:
        """Remember one; one that is known already stays as it is."""
        place = _place(row)
        with self._lock:
            if place not in self._found and len(self._found) < MOST_KEPT:
                self._found[place] = self._waiting[place] = self._last = row

    def take(self) -> list[DamagedRow]:
        """Those that nobody has taken to set them aside yet."""
        with self._lock:
            taken, self._waiting = list(self._waiting.values()), {}
        return taken

    def give_back(self, rows: Iterable[DamagedRow]) -> None:
        """What was taken and could not be dealt with now is taken again."""
        with self._lock:
            self._waiting |= {_place(row): row for row in rows}

    def end(self, table: str, key: Mapping[str, object]) -> None:
        """A row was moved, or is whole again."""
        with self._lock:
            gone = self._found.pop(_place(DamagedRow(table, key, "")), None)
            self._ended += gone is not None

    def about(self, target: str, series: Collection[int]) -> int:
        """How many still lie in their tables that may be about a target with those series."""
        return sum(
            row.key.get("target", target) == target
            and ("series_id" not in row.key or row.key["series_id"] in series)
            for row in self.rows
        )


def of(connection: sa.Connection) -> Damage:
    """What is known to be damaged in the database of a connection."""
    damage = connection.get_execution_options().get("specwatch_damage")
    return damage if isinstance(damage, Damage) else Damage()


def sound(
    damage: Damage,
    table: sa.Table,
    rows: Iterable[_Row],
    decode: Callable[[_Row], _Found],
    key: Callable[[_Row], Mapping[str, object]] | None = None,
) -> Iterator[_Found]:
    """Yield what rows hold; those that cannot be decoded are noted and passed over.

    ``key`` gives the columns that find a row; of rows with named columns they are known.
    """
    for row in rows:
        try:
            decoded = decode(row)
        except MissingContext:
            continue
        except UNDECODABLE as error:
            columns = _key(table, row) if key is None else key(row)
            damage.note(DamagedRow(str(table.name), columns, reason(error)))
            continue
        yield decoded


def require_types(table: sa.Table, names: Sequence[str], values: Sequence[Any]) -> None:
    """Raise ValueError for a row of which a column has a value that was never written there.

    SQLite stores anything anywhere, so that a damaged byte makes text of a number. Columns that
    the table does not have are passed over.
    """
    for value, rule in zip(values, _rules(table.name, tuple(names)), strict=True):
        if rule is None:
            continue
        kind = type(value)
        if kind not in rule.kinds:
            raise ValueError(f"{rule.name} is {_KINDS.get(kind, kind.__name__)}")
        if kind is str:
            if not value.isascii():
                _require_text(rule.name, value)
        elif (kind is int or kind is float) and not rule.least <= value <= rule.most:
            raise ValueError(f"{rule.name} is {value}")


def reason(error: BaseException) -> str:
    """What an error says of a row, in a line."""
    message = " ".join(str(error).split())
    if not isinstance(error, (ValueError, msgspec.MsgspecError, ConfigError)):
        message = f"{type(error).__name__} {message}"
    return message[:300] or type(error).__name__


class _Rule(NamedTuple):
    name: str
    kinds: frozenset[type]
    least: float
    most: float


_KINDS: Mapping[type, str] = {
    str: "text", bytes: "binary", int: "a whole number", float: "a fraction",
    type(None): "NULL",
}  # fmt: skip


_STORED: Mapping[type, frozenset[type]] = {
    sa.Text: frozenset({str}),
    sa.LargeBinary: frozenset({bytes, memoryview}),
    sa.Double: frozenset({float, int}),
}


@lru_cache(maxsize=256)
def _rules(table: str, names: tuple[str, ...]) -> tuple[_Rule | None, ...]:
    columns = schema.metadata.tables[table].c
    return tuple(_rule(columns[name]) if name in columns else None for name in names)


def _rule(column: sa.Column[Any]) -> _Rule:
    kinds = _STORED.get(type(column.type), frozenset({int}))
    least, most = 0.0, float(_LAST_TIME)
    if column.name not in _TIMES:
        # A server says when it began, whatever it says; an id is right if there is what it names.
        anything = float in kinds or column.name.endswith("id")
        least = -inf if anything else -1.0 if column.name == "load_bin" else 0.0
        most = inf
    return _Rule(column.name, kinds | ({type(None)} if column.nullable else set()), least, most)


def _require_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is not UTF-8") from None


def _key(table: sa.Table, row: Any) -> dict[str, object]:
    return {
        column.name: row._mapping[column.name]
        for column in table.primary_key
        if column.name in row._mapping
    }


def _place(row: DamagedRow) -> tuple[object, ...]:
    return row.table, *sorted(row.key.items(), key=lambda column: column[0])
