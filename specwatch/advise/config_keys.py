"""The keys of a ``config.json``, read with bounds: whatever a file says, nothing else comes out."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from specwatch.errors import ConfigError

_TOO_MANY = 1 << 40


class Keys:
    """The keys of a configuration; ``where`` is its place, for messages.

    What it cannot be raises ConfigError, which says where and what.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def count(self, *names: str) -> int:
        """A whole number above 0 under the first of ``names`` that is there."""
        found = self.optional(*names)
        if found is None:
            close = difflib.get_close_matches(names[0], map(str, self.config), n=1)
            hint = f" (there is {close[0]})" if close else ""
            raise ConfigError(
                f"{self.where}: {names[0]} is missing{hint}: expected the config.json of a "
                "language model, as its publisher wrote it"
            )
        return found

    def optional(self, *names: str, least: int = 1, most: int = _TOO_MANY) -> int | None:
        """As :meth:`count`, and None where none of ``names`` is there."""
        name = next((each for each in names if self.config.get(each) is not None), None)
        if name is None:
            return None
        value = self.config[name]
        # Published files write 4096.0 now and then.
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not least <= value <= most or value != int(value):
            raise ConfigError(
                f"{self.where}: {name} is {value!r:.80}: expected a whole number of at least "
                f"{least} and at most {most}, as there are in a model"
            )
        return int(value)

    def names(self, name: str, length: int) -> tuple[str, ...] | None:
        """A list of ``length`` words, or None where there is none."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < length:
            raise ConfigError(
                f"{self.where}: {name} is {value!r:.80}: expected one word for each of the "
                f"{length} layers"
            )
        return tuple(map(str, value))[:length]

    def members(self, name: str) -> Sequence[Any]:
        """A list of anything; empty where there is none."""
        value = self.config.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{self.where}: {name} is {value!r:.80}: expected a list")
        return value
