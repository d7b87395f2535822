"""Limits how often the root helper restarts a unit, by its own durable count."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from specwatch.actuators.systemd.drop_in import write_whole
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError

STATE_FOLDER = "/var/lib/specwatch-guard"
_DAY = 86400.0


class Switch(msgspec.Struct, frozen=True):
    """One restart, about to be done: when (Unix seconds), for what, and of which invocation."""

    at: float
    do: str
    incident: str
    instance: str


class SwitchLimit:
    """Refuses restarts of one unit beyond ``most`` in 24 hours, or within ``cooldown`` seconds.

    The last of a day is kept for switching speculation back on. A restart is counted before it is
    done, once: asked for again after a kill, with the same process still there, it is the same.
    """

    def __init__(
        self,
        unit: str,
        *,
        most: int,
        cooldown: float,
        folder: Path = Path(STATE_FOLDER),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._unit = unit
        self._most = most
        self._cooldown = cooldown
        self._record = folder / f"{unit}.json"
        self._now = now

    def check(self, do: str, incident: str = "") -> None:
        """Raise ActuatorError if a restart would be refused, before anything is changed.

        Without an incident, the cooldown is left out: it is over soon.
        """
        done = self._done()
        if not (done and (done[-1].do, done[-1].incident) == (do, incident)):
            self._refuse_beyond(done, do, cooling=bool(incident))

    def count(self, do: str, incident: str, instance: str) -> None:
        """Count a restart that is about to be done; ActuatorError where it must not be.

        ``instance`` is the invocation of the unit that it ends. Raises OSError.
        """
        done = self._done()
        if done and (done[-1].do, done[-1].incident, done[-1].instance) == (do, incident, instance):
            return
        self._refuse_beyond(done, do, cooling=True)
        done.append(Switch(self._now(), do, incident, instance))
        write_whole(self._record, msgspec.json.encode(done).decode())

    def _done(self) -> list[Switch]:
        """Restarts of the last 24 hours, also if the clock was set back."""
        if not self._record.parent.is_dir():
            raise ActuatorError(
                f"the helper has no folder {self._record.parent} to count restarts in: install its"
                " units of this version, `specwatch generate systemd`"
            )
        try:
            done = msgspec.json.decode(self._record.read_bytes(), type=list[Switch])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            raise ActuatorError(
                f"{self._record}, where the helper counts restarts, cannot be read: {error}; if it"
                " is damaged, remove it"
            ) from error
        return [switch for switch in done if abs(self._now() - switch.at) < _DAY]

    def _refuse_beyond(self, done: list[Switch], do: str, *, cooling: bool) -> None:
        remedy = f"systemctl edit specwatch-guard@{self._unit.removesuffix('.service')}.service"
        most = self._most - (do == "disable")
        if len(done) >= most:
            kept = ", the last one to switch back on" if do == "disable" else ""
            again = datetime.fromtimestamp(done[-most].at + _DAY, UTC)
            raise ActuatorError(
                f"the helper restarts {self._unit} at most {self._most} times in 24 hours{kept}:"
                f" {len(done)} were done, the next may be from {again:%Y-%m-%d %H:%M} UTC on; root"
                f" can set SPECWATCH_GUARD_MAX_SWITCHES with `{remedy}`"
            )
        passed = self._now() - done[-1].at if done else -1.0
        if cooling and 0 <= passed < self._cooldown:
            raise ActuatorError(
                f"the helper restarted {self._unit} {format_duration(round(passed))} ago, and waits"
                f" {format_duration(self._cooldown)} between restarts; root can set"
                f" SPECWATCH_GUARD_COOLDOWN with `{remedy}`",
                retry=True,
            )
