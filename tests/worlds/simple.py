"""The field's simpler policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from tests.worlds.seen import Policy, Seen

HOURS = 60
"""Minutes."""


class Always:
    """Never changes its mind."""

    def __init__(self, on: bool) -> None:
        self.name = f"always {'on' if on else 'off'}"
        self.starts_on = on

    def deployed(self) -> None:
        """Nothing to forget."""

    def decide(self, seen: Seen) -> bool:
        return self.starts_on


class Threshold:
    """Off where less than half of the draft is accepted over 10 minutes; tried anew after 6 h."""

    name = "threshold 0.5"
    starts_on = True

    def __init__(self) -> None:
        self.deployed()

    def deployed(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=10)
        self._off_for = 0

    def decide(self, seen: Seen) -> bool:
        if not seen.on:
            self._off_for += 1
            self._recent.clear()
            return self._off_for >= 6 * HOURS
        self._off_for = 0
        self._recent.append(seen.acceptance)
        accepted, drafted = (sum(column) for column in zip(*self._recent, strict=True))
        full = len(self._recent) == self._recent.maxlen
        return not (full and drafted and accepted / drafted < 0.5)


class Gate:
    """Off for good when the mean accepted length of the last requests is below a threshold.

    As the SpeculationGate of TensorRT-LLM: a rolling mean over completed requests, and no way back
    but a new process.
    """

    name = "rolling gate"
    starts_on = True
    window = 100
    threshold = 1.0

    def __init__(self) -> None:
        self.deployed()

    def deployed(self) -> None:
        self._recent: deque[tuple[float, float]] = deque()
        self._disabled = False

    def decide(self, seen: Seen) -> bool:
        ended, length = seen.lengths
        if self._disabled or not ended:
            return not self._disabled
        self._recent.append((ended, length))
        while sum(count for count, _ in self._recent) - self._recent[0][0] >= self.window:
            self._recent.popleft()
        count, total = (sum(column) for column in zip(*self._recent, strict=True))
        self._disabled = count >= self.window and total / count < self.threshold
        return not self._disabled


class Average:
    """An exponential average of the accepted length, with hysteresis, that probes again.

    As the adaptive speculation of SGLang, between drafting and not drafting: 0.2 of each batch of
    news, down at a threshold less 0.25, and a probe after each half an hour without drafts. There
    a change costs nothing, here it is a restart.
    """

    name = "exponential"
    starts_on = True
    weight = 0.2
    threshold, hysteresis = 1.0, 0.25
    warm_up, pause = 10, 30

    def __init__(self) -> None:
        self.deployed()

    def deployed(self) -> None:
        self._average = self.threshold
        self._minutes = 0

    def decide(self, seen: Seen) -> bool:
        if not seen.on:
            self._minutes += 1
            if self._minutes < self.pause:
                return False
            self.deployed()
            return True
        if not seen.drafts:
            return True
        self._minutes += 1
        accepted = seen.acceptance[0] / seen.drafts
        self._average += self.weight * (accepted - self._average)
        if self._minutes >= self.warm_up and self._average <= self.threshold - self.hysteresis:
            self._minutes = 0
            return False
        return True


SIMPLE: Mapping[str, Callable[[], Policy]] = {
    "on": lambda: Always(True),
    "off": lambda: Always(False),
    "threshold": Threshold,
    "gate": Gate,
    "exponential": Average,
}
