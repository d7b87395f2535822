"""What one source counts inside a window, through restarts of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from specwatch.domain import merge
from specwatch.domain.model import Series, Tally
from specwatch.scrape import tally

Key = TypeVar("Key")
Grouping = Callable[[Mapping[Series, float], list[str]], Mapping[Key, Mapping[Series, float]]]
"""Tells the series of a page apart; what it has to leave out it says as a sentence."""


@dataclass(slots=True)
class Counted(Generic[Key]):
    """The books of a window: one for each process that the source had, open for the last.

    With ``only_moved``, a group in which nothing was counted is not in here at all.
    """

    group: Grouping[Key]
    only_moved: bool = False
    increments: dict[Series, float] = field(default_factory=dict)
    """What the present process counted."""
    ended: dict[Key, list[Tally]] = field(default_factory=dict)
    """Tallies of processes that are gone."""

    def add_ended(self, parts: Mapping[Key, Tally]) -> None:
        """Count what a process did that is gone."""
        for key, part in parts.items():
            self.ended.setdefault(key, []).append(part)

    def end(self, series: Mapping[Series, float], problems: list[str]) -> None:
        """Close the books of a process with those series: its successor may count differently."""
        self.add_ended(self._present(series, problems))
        self.increments = {}

    def __bool__(self) -> bool:
        return bool(self.increments or self.ended)

    def tallies(self, series: Mapping[Series, float], problems: list[str]) -> dict[Key, Tally]:
        """What was counted by group; ``series`` are those of the present process.

        Series that did not move count as zero, not as unknown.
        """
        parts = {key: list(ended) for key, ended in self.ended.items()}
        for key, part in self._present(series, problems).items():
            parts.setdefault(key, []).append(part)
        return {key: merge.sum_tallies(tallies) for key, tallies in parts.items()}

    def _present(self, series: Mapping[Series, float], problems: list[str]) -> dict[Key, Tally]:
        if self.only_moved and not self.increments:
            return {}
        complete = {**dict.fromkeys(series, 0.0), **self.increments}
        return {
            key: tally.tally_of(samples, problems)
            for key, samples in self.group(complete, problems).items()
            if not self.only_moved or any(one in self.increments for one in samples)
        }


def models(samples: Mapping[Series, float], _problems: list[str]) -> dict[str, dict[Series, float]]:
    """The grouping of what an engine counts: by model."""
    return tally.by_model(samples)
