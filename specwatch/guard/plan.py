"""What an actuator would do to a server, and the state of the server's process."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from specwatch.domain.model import Mode

_MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class ProcessState(enum.StrEnum):
    """Whether the server's process runs, according to its manager."""

    UP = "up"
    CHANGING = "changing"
    """Its manager is starting, stopping or restarting it."""
    DOWN = "down"
    STOPPED = "stopped"
    """Ended without an error: somebody stopped it."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that is written or removed; None means that there is no such file."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What switching speculation off would do; nothing has been done.

    ``before`` and ``after`` are command lines as the words of their argument vectors, empty where
    the actuator does not have them. ``steps`` are sentences, in their order.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    files: tuple[FileChange, ...]
    steps: tuple[str, ...]
    notes: tuple[str, ...] = ()


def left_over_totals(variables: Iterable[str]) -> tuple[str, ...]:
    """A note where a server with these variables may show the counters of earlier processes."""
    if _MULTIPROCESS not in variables:
        return ()
    return (
        f"{_MULTIPROCESS} is set: remove what is in that folder at each start of vLLM"
        " (ExecStartPre=, an emptyDir), or totals of speculation stay on its page without it",
    )


@dataclass(frozen=True, slots=True)
class Service:
    """The state of a server according to its manager.

    ``mode`` is how it is configured to start: ON or OFF; None if that is unknown. ``instance``
    identifies the running process: another value is another start. ``stale``: its owner changed
    how it is to start, and what we wrote hides that.
    """

    life: ProcessState
    mode: Mode | None
    instance: str | None
    detail: str = ""
    """Details for the operator, such as why it is down."""
    stale: bool = False
    interruption: float = 1.0
    """Share of its capacity that is away during a restart, 0 to 1."""
