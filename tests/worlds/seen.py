"""What a policy sees of a minute, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specwatch.model import MINUTE, Gauges, Mode, Tally, Window
from tests.worlds.trace import START, Trace


@dataclass(frozen=True, slots=True)
class Seen:
    """One minute that has passed. ``trace`` is that of the mode it ran in; ``down`` says that the
    server was being restarted instead and served nothing."""

    minute: int
    trace: Trace
    down: bool = False

    @property
    def on(self) -> bool:
        """Whether speculation was."""
        return self.trace.mode is Mode.ON

    @property
    def end(self) -> float:
        """Unix time at which it ended."""
        return float(START + (self.minute + 1) * MINUTE)

    @property
    def drafts(self) -> float:
        """Drafts in it."""
        return 0.0 if self.down else float(self.trace.engine[self.minute, 0])

    @property
    def acceptance(self) -> tuple[float, float]:
        """Accepted tokens, and draft tokens."""
        row = self.trace.engine[self.minute]
        return (0.0, 0.0) if self.down else (float(row[2]), float(row[1]))

    @property
    def lengths(self) -> tuple[float, float]:
        """Requests that ended, and the sum of their mean accepted lengths."""
        row = self.trace.lengths[self.minute]
        return (0.0, 0.0) if self.down else (float(row[0]), float(row[1]))

    def windows(self) -> Sequence[Window]:
        """As the daemon would have closed them; those of a restart belong to no mode."""
        found = self.trace.windows(self.minute)
        if not self.down:
            return found
        return [replace(found[0], mode=Mode.MIXED, tally=Tally(), gauges=Gauges(), restarts=1)]


class Policy(Protocol):
    """Decides each minute whether speculation is to be on in the next."""

    name: str
    starts_on: bool
    """Whether a new process speculates."""

    def deployed(self) -> None:
        """A new process with a new draft speculates: what it knew of the old one is void."""

    def decide(self, seen: Seen) -> bool:
        """Whether speculation is wanted from now on."""
