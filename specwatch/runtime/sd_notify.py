"""Sends the daemon's state to systemd by the sd_notify protocol.

See sd_notify(3). Without NOTIFY_SOCKET nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import structlog

from specwatch.errors import ConfigError

_log = structlog.get_logger("specwatch.service")
_SEND_SECONDS = 1.0
_LONGEST_SENTENCE = 500


class ServiceManager:
    """Sends notifications to the service manager that started us, if one did.

    A failure is logged, and the next notification is tried again.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Raises ConfigError for a WATCHDOG_USEC that is not a number."""
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._failing = False
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        interval = environ.get("WATCHDOG_USEC", "0") or "0"
        if not (interval.isascii() and interval.isdigit()):
            raise ConfigError(
                f"WATCHDOG_USEC: {interval!r} is not a number of microseconds; unset it, or leave"
                " it to systemd"
            )
        self.watchdog_seconds: float | None = int(interval) / 1e6 or None if ours else None
        """How often a sign of life is due, in seconds; None without a watchdog."""

    def ready(self, status: str) -> None:
        """Start-up, or a reload, is over."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """The configuration is being read again; ``ready`` must follow."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The process is about to end."""
        self._send("STOPPING=1", _status("Stopping"))

    def status(self, sentence: str) -> None:
        """A sentence for ``systemctl status``."""
        self._send(_status(sentence))

    def alive(self) -> None:
        """A sign of life for the watchdog, if there is one."""
        if self.watchdog_seconds is not None:
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(_SEND_SECONDS)  # a service manager that hangs must not delay us
                sock.connect(self._address)
                sock.sendall("\n".join(lines).encode("utf-8", "replace"))
        except (OSError, ValueError) as error:  # ValueError: not a valid address of a socket
            known, self._failing = self._failing, True  # first: another thread sends, too
            if not known:
                _log.warning("notify_failed", detail=str(error))
            return
        self._failing = False


def _status(sentence: str) -> str:
    line = " ".join(sentence.split())
    if len(line) > _LONGEST_SENTENCE:
        line = line[: _LONGEST_SENTENCE - 3] + "..."
    return f"STATUS={line}"
