"""A D-Bus with a systemd of one unit on it, at a Unix socket."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    MessageType,
    Parser,
    new_error,
    new_method_return,
    new_signal,
)

from specwatch.actuators.systemd.bus import SystemdBus

_JOB = "/org/freedesktop/systemd1/job/1"
_MANAGER = DBusAddress(
    "/org/freedesktop/systemd1", "org.freedesktop.systemd1", "org.freedesktop.systemd1.Manager"
)
_UNIT: dict[str, tuple[str, object]] = {
    "LoadState": ("s", "loaded"),
    "ActiveState": ("s", "active"),
    "SubState": ("s", "running"),
    "Job": ("(uo)", (0, "/")),
    "NeedDaemonReload": ("b", False),
    "FragmentPath": ("s", ""),
    "DropInPaths": ("as", []),
}


@dataclass
class FakeBus:
    """``ends``: how a job ends, None for one that lasts; ``drops``: the bus closes the connection
    during a job, as when it is restarted."""

    folder: Path
    ends: str | None = "done"
    drops: bool = False
    calls: list[str] = field(default_factory=list)
    matches: dict[int, list[str]] = field(default_factory=dict)
    """The rules of each open connection by its number."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = 0
        self._listening = socket.socket(socket.AF_UNIX)
        self.path = self.folder / "bus"
        self._listening.bind(str(self.path))
        self._listening.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def client(self) -> SystemdBus:
        """What is tested; ``DBUS_SESSION_BUS_ADDRESS`` has to be that of this bus."""
        return SystemdBus(user=True)

    def close(self) -> None:
        """Accept no more; open connections end with their clients."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        self._listening.close()

    def wait_closed(self) -> None:
        """Until the bus has seen the end of every connection that its client has closed."""
        for thread in self._threads[1:]:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._attend, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _attend(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections += 1
            number = self._connections
            self.matches[number] = []
        try:
            with connection:
                self._converse(connection, number)
        finally:
            with self._lock:
                del self.matches[number]

    def _converse(self, connection: socket.socket, number: int) -> None:
        lines = b""
        while not lines.endswith(b"\r\n"):
            lines += connection.recv(4096)
        connection.sendall(b"OK 0123456789abcdef\r\n")
        parser, data, serial = Parser(), b"", 0
        while not data.endswith(b"BEGIN\r\n"):
            data += connection.recv(1)
        while data := connection.recv(4096):
            parser.add_data(data)
            while (message := parser.get_next_message()) is not None:
                for answer in self._answers(message, number):
                    serial += 1
                    connection.sendall(answer.serialise(serial))
                if self.drops and self.calls[-1] == "RestartUnit":
                    return

    def _answers(self, call: Message, number: int) -> list[Message]:
        assert call.header.message_type is MessageType.method_call
        name = call.header.fields[HeaderFields.member]
        with self._lock:
            self.calls.append(name)
        answer: dict[str, tuple[str | None, tuple[Any, ...]]] = {
            "Hello": ("s", (f":1.{number}",)),
            "AddMatch": (None, ()),
            "Subscribe": (None, ()),
            "RestartUnit": ("o", (_JOB,)),
            "LoadUnit": ("o", ("/unit",)),
            "GetAll": ("a{sv}", (_UNIT,)),
        }
        rules = self.matches[number]
        if name == "AddMatch":
            rules.append(call.body[0])
        elif name == "Subscribe":
            if "systemd" in rules:
                return [
                    new_error(
                        call,
                        "org.freedesktop.systemd1.AlreadySubscribed",
                        "s",
                        ("Client is already subscribed",),
                    )
                ]
            rules.append("systemd")
        answers = [new_method_return(call, *answer[name])]
        if name == "RestartUnit" and self.ends is not None and not self.drops:
            body = (1, _JOB, "vllm.service", self.ends)
            answers.append(new_signal(_MANAGER, "JobRemoved", "uoss", body))
        return answers
