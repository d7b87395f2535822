"""The protocol between the daemon and the root helper of one unit.

A connection carries one request and one answer, each a line of JSON. A request names no unit and
carries no file contents: the helper has its unit, and determines by itself what to write.
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


class HelperRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What to do; ``timeout`` is the seconds that a restart may take."""

    do: Literal["plan", "status", "disable", "enable"]
    incident: str = ""
    timeout: float = 180.0


@dataclass(frozen=True, slots=True)
class HelperFailure:
    """An ActuatorError in an answer."""

    message: str
    changed: bool
    retry: bool

    def error(self) -> ActuatorError:
        """The error again."""
        return ActuatorError(self.message, changed=self.changed, retry=self.retry)

    @classmethod
    def of(cls, error: ActuatorError) -> HelperFailure:
        """An error, to be sent."""
        return cls(str(error), error.changed, error.retry)


class HelperAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``plan`` or ``service``, whichever was requested; ``failure`` if that failed."""

    plan: Plan | None = None
    service: Service | None = None
    failure: HelperFailure | None = None


def parse_request(line: bytes) -> HelperRequest:
    """A request; ValueError for anything else, with what was wrong."""
    try:
        request = msgspec.json.decode(line, type=HelperRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no request: {error}") from None
    acts = request.do in ("disable", "enable")
    if acts != bool(request.incident) or (acts and not _INCIDENT.fullmatch(request.incident)):
        raise ValueError(
            "no request: incident must be 1 to 64 letters, digits and dashes with disable and"
            " enable, and be left out with plan and status"
        )
    if not _SECONDS[0] <= request.timeout <= _SECONDS[1]:
        raise ValueError("no request: timeout must be 1 to 7200 seconds")
    return request


def encode(message: HelperRequest | HelperAnswer) -> bytes:
    """A line."""
    return msgspec.json.encode(message) + b"\n"


def parse_answer(line: bytes) -> HelperAnswer:
    """An answer; ValueError for anything else."""
    try:
        return msgspec.json.decode(line, type=HelperAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"no answer of a helper: {error}") from None
