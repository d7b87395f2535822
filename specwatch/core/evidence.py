"""What is known of one model of one target at one moment: what rules are judged on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from specwatch.core.baseline import Baseline
from specwatch.core.breakeven import (
    Assessment,
    assess,
    speedup_of,
)
from specwatch.core.history import PACED
from specwatch.core.interval import Interval
from specwatch.core.merge import sum_tallies
from specwatch.core.sample import Sample, total
from specwatch.core.speedup import Comparison, Memory
from specwatch.model import ALL_TEMPERATURES, Mode, Objective, Tally

LONGEST_SILENCE = 180.0
"""Seconds since the last sound sample after which what was seen before says nothing of now."""


class Evidence:
    """Minutes of one model and what they are compared with; everything is computed once.

    It does not change, and what it says does not depend on the order of the samples of a window.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        *,
        baseline: Baseline,
        reference: Mapping[str, Tally],
        now: float,
        paced: Sequence[Sample] | None = None,
        memory: Memory | None = None,
        objective: Objective = Objective.E2E,
    ) -> None:
        """``samples`` are minutes, oldest first, up to the longest window that is asked for.

        ``reference`` has the sums of an earlier period by temperature, ``all`` among them; ``now``
        is a Unix time in seconds, the end of the newest minute. ``paced`` are single minutes with
        speculation, where ``samples`` are longer; ``memory`` is kept as long as the baseline.
        """
        self._memory = memory
        self._paced = samples if paced is None else paced
        self.baseline = baseline
        self.reference = reference
        self.now = now
        self._samples = samples
        self.objective = objective
        self._windows: dict[float, Sequence[Sample]] = {}
        self._tallies: dict[tuple[float, str, bool], Tally] = {}
        self._assessments: dict[float, Assessment] = {}
        self._speedups: dict[float, Interval | None] = {}
        self._stretches: dict[float, tuple[Interval, ...]] = {}

    @property
    def stale(self) -> bool:
        """Whether nothing sound was seen for :data:`LONGEST_SILENCE`."""
        oldest = self.now - LONGEST_SILENCE
        return not any(
            each.sound and oldest < each.start + each.length <= self.now
            for each in reversed(self._samples)
        )

    @property
    def speculating(self) -> bool:
        """Whether speculation was on throughout the newest minute; false of none."""
        ended = (e for e in reversed(self._samples) if e.start + e.length <= self.now)
        newest = next(ended, None)
        return newest is not None and newest.mode is Mode.ON

    def window(self, seconds: float) -> Sequence[Sample]:
        """The samples that end in ``(now - seconds, now]``."""
        if seconds not in self._windows:
            since = self.now - seconds
            self._windows[seconds] = tuple(
                each for each in self._samples if since < each.start + each.length <= self.now
            )
        return self._windows[seconds]

    def speculative(self, seconds: float, *, sound: bool = False) -> list[Sample]:
        """Those of a window with speculation on; with ``sound``, only what latencies may be of.

        The drafts of a sample that is not sound are exact counts all the same.
        """
        return [
            each
            for each in self.window(seconds)
            if each.mode is Mode.ON and (each.sound or not sound)
        ]

    @cached_property
    def _compared(self) -> Comparison:
        return Comparison(self._paced, self.baseline, objective=self.objective, memory=self._memory)

    def tally(self, seconds: float, temperature: str, *, sound: bool = False) -> Tally:
        """All that :meth:`speculative` has of a temperature, added up."""
        key = (seconds, temperature, sound)
        if key not in self._tallies:
            samples = self.speculative(seconds, sound=sound)
            self._tallies[key] = tally_of(samples, temperature)
        return self._tallies[key]

    def assessment(self, seconds: float) -> Assessment:
        """What speculation did over a window, measured."""
        if seconds not in self._assessments:
            window = self.window(seconds)
            self._assessments[seconds] = assess(window, self.baseline, objective=self.objective)
        return self._assessments[seconds]

    def stretches(self, seconds: float) -> tuple[Interval, ...]:
        """The speedup over stretches of a window that end now, shortest first: see
        :meth:`specwatch.core.speedup.Comparison.stretches`."""
        if seconds not in self._stretches:
            compared = self._compared.since(self.now - seconds)
            self._stretches[seconds] = compared.stretches(self.now)
        return self._stretches[seconds]

    def speedup(self, seconds: float, temperature: str = ALL_TEMPERATURES) -> Interval | None:
        """The measured speedup over a window; None where none could be measured."""
        if temperature != ALL_TEMPERATURES:
            found = self.assessment(seconds).buckets.get(temperature)
            return None if found is None else found.speedup
        if seconds not in self._speedups:
            if seconds > PACED:
                window = self.window(seconds)
                measured = speedup_of(window, self.baseline, objective=self.objective)
            else:
                measured = self._compared.since(self.now - seconds).interval()
            self._speedups[seconds] = measured
        return self._speedups[seconds]


def tally_of(samples: Sequence[Sample], temperature: str) -> Tally:
    """A temperature of some samples, added up; see :meth:`Evidence.tally`."""
    if temperature != ALL_TEMPERATURES:
        parts = [each.buckets[temperature] for each in samples if temperature in each.buckets]
        return sum_tallies(parts)
    return total(samples)
