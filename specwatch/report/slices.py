"""What was recorded at one time, by how the server ran: mode, load and environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from specwatch.domain.model import ALL_TEMPERATURES, Environment, Mode, Window, load_bin
from specwatch.report.sources import Beside, Drafted, Recorded, add_drafted

_SAID = attrgetter("drafts", "generation_tokens", "ttft", "tpot")
"""Fields that tell servers apart that count them from those that leave it to a tap."""
_NONE: Drafted = (0, 0, 0)


class Place(NamedTuple):
    """Which windows are added up: ``now`` are those of the period, others of the one before.

    ``silent`` are fields that the server does not count, None where it has no window at all.
    """

    now: bool
    mode: Mode
    load_bin: int | None
    environment: Environment
    silent: tuple[bool, ...] | None


class Slice(NamedTuple):
    """The windows of one start, mode, load bin and environment.

    ``drafted`` is what the temperature buckets counted in this time; ``parts``, their windows, may
    be sums of a longer one.
    """

    place: Place
    wholes: Sequence[Window]
    parts: Sequence[Window]
    drafted: Mapping[str, Drafted]

    @property
    def start(self) -> int:
        """Unix time."""
        return (self.wholes or self.parts)[0].start


@dataclass(slots=True)
class _Group:
    wholes: list[Window] = field(default_factory=list)
    parts: list[Window] = field(default_factory=list)
    beside: list[Mapping[str, Drafted]] = field(default_factory=list)

    def drafted(self) -> Mapping[str, Drafted]:
        if len(self.beside) == 1:
            return self.beside[0]
        found: dict[str, Drafted] = {}
        each: Mapping[str, Drafted]
        for each in self.beside or map(_drafted, self.parts):
            for label, counts in each.items():
                add_drafted(found, label, counts)
        return found


def slices_of(recorded: Sequence[Recorded], *, now: bool) -> Iterator[Slice]:
    """The slices of what was recorded at one start; ``now`` says that it is of the period."""
    first = recorded[0]
    if len(recorded) == 1 and isinstance(first, Beside):  # as it mostly is, in a week of hours
        window = first.window
        place = Place(now, window.mode, _bin_of(window), window.environment, _silent(window))
        yield Slice(place, [window], [], first.drafted)
        return
    grouped: dict[tuple[Mode, int | None, Environment], _Group] = {}
    group = _Group()
    before: Window | None = None
    for each in recorded:
        window = each.window if isinstance(each, Beside) else each
        # Mostly the same objects, of which nothing need be looked up again.
        if (
            before is None
            or window.gauges is not before.gauges
            or window.environment is not before.environment
            or window.mode is not before.mode
        ):
            key = (window.mode, _bin_of(window), window.environment)
            group = grouped.setdefault(key, _Group())
        whole = window.series.temperature == ALL_TEMPERATURES
        (group.wholes if whole else group.parts).append(window)
        if isinstance(each, Beside):
            group.beside.append(each.drafted)
        before = window
    for (mode, bin_, environment), group in grouped.items():
        silent = _silent(group.wholes[0]) if group.wholes else None
        # A server that does not say that it speculates is given away by what its tap counts.
        drafted = any(each.tally.drafts for each in (*group.wholes, *group.parts))
        if drafted and mode in (Mode.OFF, Mode.UNKNOWN):
            mode = Mode.ON
        place = Place(now, mode, bin_, environment, silent)
        yield Slice(place, group.wholes, group.parts, group.drafted())


def _bin_of(window: Window) -> int | None:
    busy = window.gauges.busy_seconds
    return load_bin(window.gauges.running_seconds / busy) if busy else None


def _silent(window: Window) -> tuple[bool, ...]:
    return tuple(each is None for each in _SAID(window.tally))


def _drafted(part: Window) -> Mapping[str, Drafted]:
    counted = part.tally
    if not counted.drafts:
        return {part.series.temperature: _NONE}
    return {
        part.series.temperature: (
            counted.drafts,
            counted.draft_tokens or 0,
            counted.accepted_tokens or 0,
        )
    }
