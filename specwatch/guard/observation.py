"""What the guard is told of a target at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.guard.foresight import Trial, Verification
from specwatch.guard.plan import ProcessState, Service


@dataclass(frozen=True, slots=True)
class Breach:
    """A confirmed breach of a rule that disables.

    ``speedups`` are those that it rests on; empty for a rule about something else.
    """

    rule: str
    model_name: str
    temperature: str
    speedups: tuple[Interval, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the switch that was tried. ``error`` is empty where it was done."""

    error: str = ""
    changed: bool = True
    """Whether the server was, or may have been, touched."""
    retry: bool = False
    """Whether the same may succeed later."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A target now. Times are Unix seconds; what is not known is None.

    ``scraped_at`` is the last good look at its page; ``mode`` and ``models`` are of that look,
    ``load`` (the most requests that ran or waited) of the last two.
    """

    now: float
    scraped_at: float | None = None
    healthy: bool = False
    """Whether ``/health`` was answered well just now; asked only while an action is under way."""
    mode: Mode | None = None
    models: tuple[str, ...] = ()
    load: float | None = None
    breaches: tuple[Breach, ...] = ()
    suspects: tuple[str, ...] = ()
    """Rules that disable and are in breach, not for long enough yet."""
    passing: bool = False
    """Whether a rule that disables was judged on data now, and found nothing."""
    service: Service | None = None
    service_error: str = ""
    """Why the server could not be switched, where that is known."""
    service_retry: bool = False
    """Whether that may pass."""
    outcome: Outcome | None = None
    trial: Trial | None = None
    """The speedup of a trial so far."""
    predicted: Interval | None = None
    """The speedup that speculation would have now."""
    verification: Verification | None = None
    """What the time without speculation says of the minutes that led to it."""
    unknown: str = ""
    """Why it is not known what the present traffic takes without speculation."""
    aged: str = ""
    """How old what is known of it is, where that is too old."""
    quiet_in: float | None = None
    """Seconds until traffic is expected to rest."""

    @property
    def settled(self) -> ProcessState | None:
        """Whether the process is there, once its manager has finished with it."""
        if self.service is None or self.service.life is ProcessState.CHANGING:
            return None
        return self.service.life
