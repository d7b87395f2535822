"""The switch of a server on its page: its setting, and whether the counters follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from specwatch.domain.model import ALL, Mode, Series

QUANTITIES = ("switch_draft_tokens", "switch_ordered", "switch_schedule")
_KNOWN = frozenset(QUANTITIES)
_MOST_DRAFT_TOKENS = 1000
_ENOUGH_TOKENS = 20
"""Generated tokens that show whether an order is followed."""


@dataclass(frozen=True, slots=True)
class SwitchSetting:
    """The draft tokens that a server's switch allows, and whether they are ordered.

    ``followed``: whether the counters follow the order; None if that is not known.
    ``schedule`` identifies an ordered schedule, of which
    ``draft_tokens`` is the largest number; 0 without one.
    """

    draft_tokens: int
    ordered: bool
    followed: bool | None = None
    schedule: int = 0

    @property
    def mode(self) -> Mode:
        """The mode of a server that speculates, with this setting."""
        if self.draft_tokens or not self.ordered:
            return Mode.ON
        return Mode.STANDBY


def setting_of(
    samples: Mapping[Series, float], before: SwitchSetting | None = None
) -> SwitchSetting | None:
    """The setting of the switch on a page; None without a switch that follows orders.

    ``before`` is that of the page before, which holds where the server cannot read its own.
    """
    values = {s.quantity: value for s, value in samples.items() if s.quantity in _KNOWN}
    draft_tokens, ordered, schedule = (values.get(one, math.nan) for one in QUANTITIES)
    if not 0 <= draft_tokens < _MOST_DRAFT_TOKENS or math.isnan(ordered):
        return before if values else None
    # A server of an earlier version knows no schedules.
    number = int(schedule) if 0 < schedule < math.inf else 0
    return SwitchSetting(int(draft_tokens), ordered > 0, schedule=number)


def changed(before: SwitchSetting | None, now: SwitchSetting | None) -> bool:
    """Whether counts between two pages may be of several settings; ``before`` is None on the first
    page of a process of ours: orders may have come and gone since the last one."""
    return now != before


class DraftCounts(NamedTuple):
    """Counters of a page that show whether a server follows orders, over all models."""

    drafts: float
    draft_tokens: float
    generation_tokens: float

    @classmethod
    def of(cls, samples: Mapping[Series, float]) -> DraftCounts:
        """The counts of an engine's page."""
        sums = dict.fromkeys(cls._fields, 0.0)
        for series, value in samples.items():
            if series.quantity in sums and series.segment == ALL:
                sums[series.quantity] += value
        return cls(**sums)

    def follow(self, draft_tokens: int, before: DraftCounts) -> bool | None:
        """Whether no draft since ``before`` was longer than ``draft_tokens``; None if too little
        was generated to tell, or nothing was drafted where it may be (n-grams without a match)."""
        drafts, drafted, generated = (now - then for now, then in zip(self, before, strict=True))
        if generated < _ENOUGH_TOKENS:
            return None
        if not draft_tokens:
            return not drafts
        return drafted <= draft_tokens * drafts if drafts else None


class FollowedSwitch:
    """Whether a server follows the orders of its switch, from page to page."""

    def __init__(self) -> None:
        self._setting: SwitchSetting | None = None
        self._before: DraftCounts | None = None
        """Of a page since when only the present setting counts."""
        self.followed: bool | None = None
        """Of the present order; None without one, or if too little was generated since."""

    def see(self, samples: Mapping[Series, float], setting: SwitchSetting | None) -> None:
        """Process a page. Counts up to its first page with a setting are of others, too."""
        if setting != self._setting:
            self._setting, self._before, self.followed = setting, None, None
            return
        if setting is None or not setting.ordered:
            return
        counts = DraftCounts.of(samples)
        before = self._before
        if before is None or any(now < then for now, then in zip(counts, before, strict=True)):
            self._before = counts
            return
        followed = counts.follow(setting.draft_tokens, before)
        if followed is not None:
            self.followed, self._before = followed, counts
