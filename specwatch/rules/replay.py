"""Replay of stored minutes: when each rule would have fired."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from specwatch.config.rules import Rule
from specwatch.domain.model import HOUR, MINUTE, Segment, Window
from specwatch.domain.sample import Sample
from specwatch.rules.attribution import Attribution, explain
from specwatch.rules.history import REFERENCE_SECONDS
from specwatch.rules.judge import Judge
from specwatch.rules.verdicts import Finding, Verdict

WARM_UP = REFERENCE_SECONDS + 2 * HOUR
"""Seconds of history before the first minute that is judged."""


@dataclass(slots=True)
class Firing:
    """One breach: Unix times of its confirmation and its end (None while it lasts), the finding at
    its confirmation, and the causes."""

    fired: float
    finding: Finding
    attribution: Attribution
    cleared: float | None = None

    def seconds(self, since: float, until: float) -> float:
        """How long it lasted of the time from ``since`` to ``until`` (Unix times)."""
        return max(0.0, (until if self.cleared is None else self.cleared) - max(self.fired, since))


@dataclass(slots=True)
class RuleHistory:
    """Firings of one rule for one model and segment; ``unknown`` of the ``judged`` minutes had
    too little data."""

    rule: Rule
    model_name: str
    segment: Segment
    judged: int = 0
    unknown: int = 0
    firings: list[Firing] = field(default_factory=list)


class Replay:
    """Passes the minutes of a target to a judge, as a daemon would have done."""

    def __init__(self, judge: Judge, since: float) -> None:
        """Minutes that begin before ``since`` (Unix seconds) are judged, but not counted."""
        self._judge = judge
        self._since = since
        self._now: int | None = None
        self._samples: dict[str, deque[Sample]] = {}
        self._histories: dict[tuple[str, str, Segment], RuleHistory] = {}

    def histories(self) -> list[RuleHistory]:
        """One for each rule, model and segment that was judged, in the order of the rules."""
        order = {rule.name: position for position, rule in enumerate(self._judge.rules)}
        return sorted(
            self._histories.values(),
            key=lambda history: (history.model_name, order[history.rule.name], history.segment),
        )

    def load(self, windows: Iterable[Window]) -> None:
        """Load the history before the first minute, which is not judged: hours, then minutes."""
        self._judge.load(windows)

    def take(self, windows: Sequence[Window]) -> None:
        """Add the windows of one minute; minutes must come in the order of time.

        For minutes that were left out the judge gets no windows, as from a daemon.
        """
        (start,) = {window.start for window in windows}
        if self._now is not None:
            for end in range(self._now + MINUTE, start + 1, MINUTE):
                self._judged(self._judge.observe((), float(end)), float(end))
        end = start + MINUTE
        self._now = end
        changed = self._judge.observe(windows, float(end))
        for name in {window.series.model_name for window in windows}:
            self._remember(name, end)
        self._judged(changed, float(end))

    def _remember(self, model_name: str, now: int) -> None:
        kept = self._samples.setdefault(model_name, deque())
        recent = self._judge.recent(model_name)
        if recent and (not kept or recent[-1].start > kept[-1].start):
            kept.append(recent[-1])
        while kept and kept[0].start < now - WARM_UP:
            kept.popleft()

    def _judged(self, changed: Iterable[Finding], now: float) -> None:
        for finding in changed:
            self._changed(finding, now)
        if now - MINUTE < self._since:
            return
        for finding in self._judge.findings():
            history = self._history(finding)
            history.judged += 1
            history.unknown += finding.seen is Verdict.NO_DATA

    def _changed(self, finding: Finding, now: float) -> None:
        firings = self._history(finding).firings
        if finding.verdict is Verdict.BREACH:
            samples = self._samples.get(finding.model_name, ())
            baseline = self._judge.baselines()[finding.model_name]
            firings.append(Firing(now, finding, explain(finding.rule, samples, baseline, now=now)))
            return
        firings[-1].cleared = now
        if now <= self._since:
            firings.pop()

    def _history(self, finding: Finding) -> RuleHistory:
        rule, scope = finding.rule, (finding.model_name, finding.segment)
        return self._histories.setdefault((rule.name, *scope), RuleHistory(rule, *scope))


def by_minute(windows: Iterable[Window]) -> Iterator[list[Window]]:
    """Yield windows that come by start in groups of one start."""
    for _, group in itertools.groupby(windows, key=lambda window: window.start):
        yield list(group)
