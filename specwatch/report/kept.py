"""The windows that are looked at again once all are added up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from specwatch.domain.merge import sum_fields
from specwatch.domain.model import Environment, Tally, Window
from specwatch.report.ledger import MOST_AT_ONCE
from specwatch.report.slices import Slice

_OF_HEALTH = ("drafts", "records", "uncovered")
"""Fields of the tally of a temperature that tell how much a tap sees."""


class Kept:
    """Of one model: the windows of all temperatures, and of each where they say what the server
    does not. What a tap sees is kept in sums: a month of it would fill the memory."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._environments: set[Environment] = set()
        self._first: dict[str, int] = {}
        self._last: dict[str, Window] = {}
        self._seen: dict[str, list[Tally]] = {}

    def take(self, slices: Iterable[Slice], *, now: bool) -> None:
        """Add slices; ``now`` are those of the period."""
        for each in slices:
            self._environments.add(each.place.environment)
            self.windows += each.wholes
            if each.place.silent is not None and any(each.place.silent):
                self.windows += each.parts
            elif now:
                for part in each.parts:
                    self._see(part)
                if not each.drafted.keys() <= self._first.keys():
                    self._first = dict.fromkeys(each.drafted, each.start) | self._first

    def span(self, since: float) -> tuple[float, float] | None:
        """From when to when there were windows of the period that begins at ``since`` (Unix
        seconds); None where all that is known is what a tap saw."""
        first = next((each.start for each in self.windows if each.start >= since), None)
        return None if first is None else (first, self.windows[-1].start + self.windows[-1].length)

    @property
    def seen(self) -> list[Window]:
        """What a tap saw in the period beside the windows: of each temperature the last window,
        with the tally of all, and one without a tally where the first was."""
        return [
            window
            for label, tallies in self._seen.items()
            for window in (
                replace(self._last[label], start=self._first[label], tally=Tally()),
                replace(self._last[label], tally=_summed(tallies)),
            )
        ]

    @property
    def may_have_changed(self) -> bool:
        """Whether there was another server at times, and not only one that did not speculate."""
        plain = {(each.engine_version, each.configuration) for each in self._environments}
        drafting = {each.fingerprint for each in self._environments if _drafts(each)}
        return len(plain) > 1 or len(drafting) > 1

    def _see(self, part: Window) -> None:
        label = part.series.temperature
        self._last[label] = part
        seen = self._seen.get(label)
        if seen is None:
            self._seen[label] = [part.tally]
        elif len(seen) < MOST_AT_ONCE:
            seen.append(part.tally)
        else:
            self._seen[label] = [_summed(seen), part.tally]


def _summed(tallies: Iterable[Tally]) -> Tally:
    return Tally(**sum_fields(tallies, _OF_HEALTH))


def _drafts(environment: Environment) -> bool:
    return (environment.fingerprint or "").partition("-")[2] not in ("", "0")
