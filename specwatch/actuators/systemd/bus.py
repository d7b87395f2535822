"""systemd's manager over D-Bus.

Source: org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from jeepney import DBusAddress, HeaderFields, Message, MessageType, Properties, new_method_call
from jeepney.auth import AuthenticationError
from jeepney.bus import get_bus
from jeepney.bus_messages import MatchRule, message_bus
from jeepney.io.blocking import DBusConnection, prep_socket

from specwatch.actuators.systemd.loaded_unit import LoadedUnit, UnitCommand
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError

_SYSTEM_BUS = "/run/dbus/system_bus_socket"
_MANAGER = DBusAddress(
    "/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
)
_JOB_REMOVED = MatchRule(
    type="signal",
    interface=_MANAGER.interface,
    member="JobRemoved",
    path=_MANAGER.object_path,
)
_ANSWER_SECONDS = 30.0
_RELOAD_SECONDS = 90.0
_POLL_SECONDS = 0.2


class SystemdBus:
    """A manager over its bus; connects when it is first used, and again after an error.

    Every method raises ActuatorError when there is no answer in time.
    """

    def __init__(self, *, user: bool = False) -> None:
        self._user = user
        self._connection: _Connection | None = None

    def load(self, name: str) -> LoadedUnit:
        """A unit, read from its files if it is not in memory."""
        (path,) = self._call(_MANAGER, "LoadUnit", "s", (name,))
        unit = self._properties(path, "org.freedesktop.systemd1.Unit")
        service = self._properties(path, "org.freedesktop.systemd1.Service")
        return _loaded(name, unit, service)

    def environment(self) -> tuple[str, ...]:
        """``NAME=VALUE`` of what units inherit from the manager."""
        (value,) = self._ask(Properties(_MANAGER).get("Environment"))
        return tuple(value[1])

    def reload(self) -> None:
        """Read all files of units again."""
        self._call(_MANAGER, "Reload", timeout=_RELOAD_SECONDS)

    def restart(self, name: str, timeout: float) -> str:
        """Restart, or start, a unit; the result of the job, ``done`` if it succeeded.

        The result is ``waiting`` if the job takes longer than ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        try:
            return self._restart(name, deadline)
        finally:
            self.close()  # else the bus would queue the signals of all jobs, which nobody reads

    def settle(self, name: str, timeout: float) -> LoadedUnit:
        """The unit once it has no job, or after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while (unit := self.load(name)).has_job and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return unit

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _restart(self, name: str, deadline: float) -> str:
        self._ask(message_bus.AddMatch(_JOB_REMOVED))
        self._call(_MANAGER, "Subscribe")
        with self._connected().filter(_JOB_REMOVED, bufsize=1000) as removed_jobs:
            (job,) = self._call(_MANAGER, "RestartUnit", "ss", (name, "replace"))
            try:
                while True:
                    left = max(deadline - time.monotonic(), 0.0)
                    signal = self._connected().recv_until_filtered(removed_jobs, timeout=left)
                    if len(signal.body) == 4 and signal.body[1] == job:
                        return str(signal.body[3])
            except TimeoutError:
                return "waiting"
            except OSError:  # the bus is restarted; systemd goes on with the job
                self.close()
                unit = self.settle(name, deadline - time.monotonic())
                if unit.has_job:
                    return "waiting"
                return "done" if unit.active_state == "active" else unit.result

    def _properties(self, path: str, interface: str) -> dict[str, Any]:
        address = DBusAddress(path, _MANAGER.bus_name, interface)
        (values,) = self._ask(Properties(address).get_all())
        return {name: value[1] for name, value in values.items()}

    def _call(
        self,
        address: DBusAddress,
        method: str,
        signature: str = "",
        body: tuple[Any, ...] = (),
        *,
        timeout: float = _ANSWER_SECONDS,
    ) -> tuple[Any, ...]:
        return self._ask(new_method_call(address, method, signature, body), timeout)

    def _ask(self, message: Message, timeout: float = _ANSWER_SECONDS) -> tuple[Any, ...]:
        try:
            reply = self._connected().send_and_get_reply(message, timeout=timeout)
        except TimeoutError as error:
            self.close()
            raise ActuatorError(
                f"systemd did not answer within {format_duration(timeout)}", retry=True
            ) from error
        except (OSError, AuthenticationError) as error:
            self.close()
            raise ActuatorError(
                f"systemd cannot be reached by D-Bus at {self._address()}: {error}", retry=True
            ) from error
        if reply.header.message_type is MessageType.error:
            raise _refusal(reply)
        return tuple(reply.body)

    def _connected(self) -> _Connection:
        if self._connection is None:
            self._connection = _Connection(self._address())
        return self._connection

    def _address(self) -> str:
        if not self._user:
            return _SYSTEM_BUS
        if address := os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
            try:
                return str(get_bus(address))
            except (ValueError, RuntimeError) as error:
                raise ActuatorError(f"DBUS_SESSION_BUS_ADDRESS is {address!r}: {error}") from error
        if folder := os.environ.get("XDG_RUNTIME_DIR"):
            return f"{folder}/bus"
        return f"/run/user/{os.getuid()}/bus"


class _Connection(DBusConnection):  # type: ignore[misc]
    """A connection to a bus on which no call waits without a limit, not even for the greeting."""

    def __init__(self, address: str) -> None:
        sock = prep_socket(address, timeout=_ANSWER_SECONDS)
        sock.settimeout(_ANSWER_SECONDS)
        try:
            super().__init__(sock)
        except BaseException:
            sock.close()
            raise

    def receive(self, *, timeout: float | None = None) -> Message:
        return super().receive(timeout=_ANSWER_SECONDS if timeout is None else timeout)


def _refusal(reply: Message) -> ActuatorError:
    name = str(reply.header.fields.get(HeaderFields.error_name, "an error without a name"))
    reason = str(reply.body[0]) if reply.body else name
    return ActuatorError(f"systemd refuses: {reason}")


def _loaded(name: str, unit: Mapping[str, Any], service: Mapping[str, Any]) -> LoadedUnit:
    invocation = unit.get("InvocationID", b"")
    return LoadedUnit(
        name=name,
        load_state=unit["LoadState"],
        load_error=": ".join(filter(None, unit.get("LoadError", ()))),
        active_state=unit["ActiveState"],
        sub_state=unit["SubState"],
        result=service.get("Result", ""),
        status_text=service.get("StatusText", ""),
        instance=bytes(invocation).hex(),
        has_job=unit["Job"][0] != 0,
        needs_reload=unit["NeedDaemonReload"],
        fragment=unit["FragmentPath"],
        drop_ins=tuple(unit["DropInPaths"]),
        commands=tuple(
            UnitCommand(path, tuple(words), tuple(flags))
            for path, words, flags, *_ in service.get("ExecStartEx", ())
        ),
        environment=tuple(service.get("Environment", ())),
        environment_files=tuple(map(tuple, service.get("EnvironmentFiles", ()))),
        pass_environment=tuple(service.get("PassEnvironment", ())),
        unset_environment=tuple(service.get("UnsetEnvironment", ())),
        working_directory=service.get("WorkingDirectory", ""),
        root=service.get("RootDirectory") or service.get("RootImage") or "",
    )
