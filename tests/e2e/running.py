"""A real server that tests start, stop and ask whether it is ready."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.e2e.api import get
from tests.e2e.waiting import eventually

STARTS_WITHIN = STOPS_WITHIN = 120.0


class RunningServer:
    """One at a URL, with ``/-/ready``, in a folder of its own; can be stopped and started again."""

    def __init__(self, folder: Path, url: str, command: Sequence[str]) -> None:
        self.url = url
        self._folder = folder
        self._command = ["setpriv", "--pdeathsig", "TERM", *command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        eventually(self._ready, what=f"{self.url} answers", within=STARTS_WITHIN)

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(STOPS_WITHIN)
            self._process = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def log(self) -> str:
        """What it said."""
        return (self._folder / "log").read_text()

    def _ready(self) -> bool:
        assert self._process is not None, "not started"
        assert self._process.poll() is None, f"{self._command[3]} ended\n{self.log()}"
        try:
            return get(f"{self.url}/-/ready")[0] == 200
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
