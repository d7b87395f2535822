"""What is to be changed in a row of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Edit:
    """Words that go, by their place, and words that come before the word at a place.

    ``removed`` are the words of speculation, ``notes`` are sentences for a person.
    """

    dropped: frozenset[int] = frozenset()
    inserted: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def shifted(self, by: int) -> Edit:
        """The same for words of which these are the last, after ``by`` others."""
        return Edit(
            frozenset(place + by for place in self.dropped),
            {place + by: words for place, words in self.inserted.items()},
            self.removed,
            self.notes,
        )

    def applied(self, words: Sequence[str]) -> tuple[str, ...]:
        """The words afterwards."""
        result: list[str] = []
        for place in range(len(words) + 1):
            result += self.inserted.get(place, ())
            if place < len(words) and place not in self.dropped:
                result.append(words[place])
        return tuple(result)


def replaced(place: int, word: str, removed: tuple[str, ...], notes: tuple[str, ...]) -> Edit:
    """Another word at a place, if speculation was removed from the old one."""
    if not removed:
        return Edit(notes=notes)
    return Edit(frozenset({place}), {place: (word,)}, removed, notes)
