"""Observes what the arms of an episode do: seconds of decoding and tokens, from page to page."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from specwatch.daemon.arm_orders import SET_BY_OTHERS, shows
from specwatch.domain.model import ALL, TEMPERATURE, Series
from specwatch.domain.switchback import (
    ALL_TRAFFIC,
    MOST_GROUPS,
    ArmBlock,
    Episode,
    Grouping,
    SubInterval,
)
from specwatch.scrape.switch import SwitchSetting
from specwatch_tap.orders import Schedule

RESTARTED = "vLLM was restarted"
_SETTLES = 3.0
"""Seconds until the page has to show an order."""
_ROUNDING = 1e-9
"""By which the sum of several processes may fall, as a share of it."""


@dataclass(slots=True)
class _Block:
    """One arm under way, begun at a Unix time; ``ordered`` is None for the launch."""

    arm: str
    ordered: int | Schedule | None
    begin: float
    parts: list[SubInterval] = field(default_factory=list)
    running: list[float] = field(default_factory=list)

    def ended(self) -> ArmBlock:
        return ArmBlock(self.arm, fmean(self.running or [0.0]), tuple(self.parts))


class EpisodeObserver:
    """The present episode of one target, if any; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block: _Block | None = None
        self._blocks: list[_Block] = []
        self._before: Mapping[str, tuple[float, float]] | None = None
        self._incident = ""

    @property
    def observes(self) -> bool:
        """Whether a block is under way."""
        return self._block is not None

    @property
    def incident(self) -> str:
        """The first incident of the present episode; empty without one."""
        return self._incident

    def see(
        self,
        samples: Mapping[Series, float],
        setting: SwitchSetting | None,
        running: float | None,
        now: float,
    ) -> None:
        """Process a page that was just read. ``running`` is the number of running requests, ``now``
        a Unix time."""
        with self._lock:
            block = self._block
            before, self._before = self._before, group_totals(samples)
            if block is None:
                return
            elapsed = now - block.begin
            if elapsed > _SETTLES and not shows(setting, block.ordered):
                self._incident = self._incident or SET_BY_OTHERS
            parts = None if before is None else _increments(before, self._before)
            if parts is None:
                self._incident = self._incident or RESTARTED
                return
            block.parts.append(SubInterval(elapsed, parts))
            if running is not None:
                block.running.append(running)

    def begin(self, arm: str, ordered: int | Schedule | None, now: float) -> None:
        """Begin the next block of the episode at a Unix time, with ``ordered`` draft tokens or a
        schedule of them, None for no order."""
        self.end_block()
        with self._lock:
            self._block = _Block(arm, ordered, now)

    def end_block(self) -> None:
        """End the block under way, if any: pages belong to none until the next one begins."""
        with self._lock:
            if self._block is not None:
                self._blocks.append(self._block)
                self._block = None

    def clear(self) -> None:
        """Forget the episode."""
        with self._lock:
            self._block, self._blocks, self._incident = None, [], ""

    def abandon(self, incident: str) -> None:
        """End the block under way, as an incident falls into the episode."""
        with self._lock:
            self._block = None
        self.note(incident)

    def note(self, incident: str) -> None:
        """Note an incident in the present episode; the first one counts."""
        with self._lock:
            self._incident = self._incident or incident

    def episode(self, usual: str) -> Episode | None:
        """What was observed of the episode; ``usual`` is the arm before it. None for fewer than two
        blocks."""
        with self._lock:
            blocks = [*self._blocks, *([self._block] if self._block else [])]
            if len(blocks) < 2:
                return None
            ended = tuple(block.ended() for block in blocks)
            return Episode(usual, ended, incident=bool(self._incident))


def group_totals(samples: Mapping[Series, float]) -> dict[str, tuple[float, float]]:
    """Seconds of decoding and tokens in them, since the process began, by group of an experiment.

    Of all traffic the engine counts them while it decodes. By temperature and by prompt length the
    tap counts them, at the end of a request whose times and tokens it knows.
    """
    seconds: dict[str, float] = {ALL_TRAFFIC: 0.0}
    tokens: dict[str, float] = {ALL_TRAFFIC: 0.0}
    for series, value in samples.items():
        if series.segment != ALL:
            if series.quantity not in ("decode_seconds", "decode_tokens"):
                continue
            if series.segment.dimension != TEMPERATURE:
                continue
            sums = seconds if series.quantity == "decode_seconds" else tokens
            for group in (
                Grouping.TEMPERATURE.group(series.segment.value),
                Grouping.PROMPT_LENGTH.group(series.key),
            ):
                if group in sums or len(sums) < MOST_GROUPS:
                    sums[group] = sums.get(group, 0.0) + value
        elif series.quantity == "inter_token" and series.part == "sum":
            seconds[ALL_TRAFFIC] += value
        elif series.quantity == "generation_tokens":
            tokens[ALL_TRAFFIC] += value
        elif series.quantity == "ttft" and series.part == "count":
            # The first token of a request is not decoded.
            tokens[ALL_TRAFFIC] -= value
    return {group: (seconds[group], tokens[group]) for group in seconds if group in tokens}


def _increments(
    before: Mapping[str, tuple[float, float]], now: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[float, float]] | None:
    """Of each group; None after a restart. A group that was not there yet has begun at 0."""
    increments = {}
    for group in {**before, **now}:
        then, present = before.get(group, (0.0, 0.0)), now.get(group, (0.0, 0.0))
        if any(a < b * (1 - _ROUNDING) for a, b in zip(present, then, strict=True)):
            return None
        increments[group] = (max(present[0] - then[0], 0.0), max(present[1] - then[1], 0.0))
    return increments
