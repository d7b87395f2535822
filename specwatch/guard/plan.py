"""What an actuator would do to a server, and what it finds of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from specwatch.domain.model import Mode


class ProcessState(enum.StrEnum):
    """Whether the server's process is there, as its manager says."""

    UP = "up"
    CHANGING = "changing"
    """Its manager starts, stops or restarts it now."""
    DOWN = "down"
    STOPPED = "stopped"
    """Ended in good order: somebody wanted that."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that is written or removed; None stands for a file that is not there."""

    path: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What switching speculation off would do; nothing of it is done.

    ``before`` and ``after`` are command lines as the words of their argument vectors, empty where
    the actuator does not know them. ``steps`` are sentences, in their order.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    files: tuple[FileChange, ...]
    steps: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """A server as its manager knows it.

    ``mode`` is how it is set to start: ON or OFF; None where nobody can say. ``instance``
    identifies the running process: another value is another start. ``stale``: its owner changed
    how it is to start, and what we wrote hides that.
    """

    life: ProcessState
    mode: Mode | None
    instance: str | None
    detail: str = ""
    """What else a person should know, such as why it is down."""
    stale: bool = False
