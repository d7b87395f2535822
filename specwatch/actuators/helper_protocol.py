"""What the daemon and the root helper of one unit say to each other.

A connection carries one request and one answer, each a line of JSON. A request names no unit and
brings no contents: the helper knows its unit, and finds out by itself what is to be written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from specwatch.errors import ActuatorError
from specwatch.guard.plan import Plan, Service

SOCKET_FOLDER = "/run/specwatch-guard"
LONGEST_REQUEST = 1024
LONGEST_ANSWER = 8 << 20
_INCIDENT = re.compile(r"[A-Za-z0-9-]{1,64}")
_SECONDS = (1.0, 7200.0)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to do; ``timeout`` is the seconds that a restart may take."""

    do: Literal["plan", "status", "disable", "enable"]
    incident: str = ""
    timeout: float = 180.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An ActuatorError on its way."""

    message: str
    changed: bool
    retry: bool

    def error(self) -> ActuatorError:
        """The error that it was."""
        return ActuatorError(self.message, changed=self.changed, retry=self.retry)

    @classmethod
    def of(cls, error: ActuatorError) -> Failure:
        """What is told of an error."""
        return cls(str(error), error.changed, error.retry)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``plan`` or ``service`` as was asked for; ``failure`` when it could not be done."""

    plan: Plan | None = None
    service: Service | None = None
    failure: Failure | None = None


def parse_request(line: bytes) -> Request:
    """A request; ValueError for anything else, with what was wrong."""
    try:
        request = msgspec.json.decode(line, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no request: {error}") from None
    acts = request.do in ("disable", "enable")
    if acts != bool(request.incident) or (acts and not _INCIDENT.fullmatch(request.incident)):
        raise ValueError(
            "no request: incident must be 1 to 64 letters, digits and dashes with disable and"
            " enable, and not be there with plan and status"
        )
    if not _SECONDS[0] <= request.timeout <= _SECONDS[1]:
        raise ValueError("no request: timeout must be 1 to 7200 seconds")
    return request


def encode(message: Request | Answer) -> bytes:
    """A line."""
    return msgspec.json.encode(message) + b"\n"


def parse_answer(line: bytes) -> Answer:
    """An answer; ValueError for anything else."""
    try:
        return msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no answer of a helper: {error}") from None
