"""Fields of JSON that another program wrote, read and validated one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specwatch.domain.units import quoted
from specwatch.errors import ConfigError

MOST = 1e15
"""Larger than any number of a benchmark, and small enough for exact arithmetic."""


class Fields:
    """A JSON object.

    A field is named by its keys joined with points, an entry of a list by its number:
    ``models.items.0.name``. None means missing or null. Every method raises ConfigError with the
    place, the value, what was expected and what to do.
    """

    def __init__(self, document: Mapping[str, Any], where: str, *, remedy: str) -> None:
        """``where`` is the file it comes from; ``remedy`` ends the message of a refusal."""
        self.where = where
        self._document = document
        self._remedy = remedy

    def names(self) -> list[str]:
        """The keys of the object."""
        return list(self._document)

    def text(self, name: str) -> str | None:
        """Printable text; None if empty."""
        value = self._value(name)
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise self._refused(name, value, "text")
        return value or None

    def count(self, name: str) -> float | None:
        """A non-negative number."""
        value = self._value(name)
        return None if value is None else self._number(name, value)

    def measured(self, name: str) -> float | None:
        """A number above 0."""
        value = self._value(name)
        return None if value is None else self._number(name, value, above=True)

    def needed(self, name: str) -> float:
        """A number above 0; an error if missing."""
        return self._number(name, self._value(name), above=True)

    def counts(self, name: str) -> list[float]:
        """A list of non-negative numbers; empty if missing."""
        return self._numbers(name, self._value(name))

    def lists(self, name: str) -> list[list[float]]:
        """A list of such lists."""
        rows = self._list(name, self._value(name))
        return [self._numbers(f"{name}.{index}", row) for index, row in enumerate(rows)]

    def _value(self, name: str) -> object:
        value: Any = self._document
        path: list[str] = []
        for key in name.split("."):
            if value is None:
                return None
            if key.isdigit():
                entries = self._list(".".join(path), value)
                value = entries[int(key)] if int(key) < len(entries) else None
            elif isinstance(value, dict):
                value = value.get(key)
            else:
                raise self._refused(".".join(path), value, "an object")
            path.append(key)
        return value

    def _list(self, name: str, value: object) -> list[Any]:
        if value is not None and not isinstance(value, list):
            raise self._refused(name, value, "a list")
        return value or []

    def _numbers(self, name: str, value: object) -> list[float]:
        return [
            self._number(name, item, index) for index, item in enumerate(self._list(name, value))
        ]

    def _number(
        self, name: str, value: object, index: int | None = None, *, above: bool = False
    ) -> float:
        # Neither NaN nor an integer too large for a float passes the comparisons.
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and 0 <= value < MOST
            and (value or not above)
        ):
            return float(value)
        least = "above 0" if above else "of at least 0"
        place = name if index is None else f"{name}.{index}"
        raise self._refused(place, value, f"a finite number {least}")

    def _refused(self, name: str, value: object, expected: str) -> ConfigError:
        if isinstance(value, list | dict):
            kind = "a list" if isinstance(value, list) else "an object"
        else:
            kind = "missing" if value is None else quoted(value)
        return ConfigError(f"{self.where}: {name} is {kind}: expected {expected}; {self._remedy}")
