"""What is to be changed in a row of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Edit:
    """Words that go, by their place, and words that come before the word at a place.

    ``removed`` are the words of speculation, ``notes`` are sentences for a person. ``inlined``:
    words that come are from a file.
    """

    dropped: frozenset[int] = frozenset()
    inserted: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    inlined: bool = False

    def shifted(self, by: int) -> Edit:
        """The same for words of which these are the last, after ``by`` others."""
        return replace(
            self,
            dropped=frozenset(place + by for place in self.dropped),
            inserted={place + by: words for place, words in self.inserted.items()},
        )

    def applied(self, words: Sequence[str]) -> tuple[str, ...]:
        """The words afterwards."""
        result: list[str] = []
        for place in range(len(words) + 1):
            result += self.inserted.get(place, ())
            if place < len(words) and place not in self.dropped:
                result.append(words[place])
        return tuple(result)
