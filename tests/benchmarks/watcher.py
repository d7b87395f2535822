"""The daemon and its peer as processes whose cost can be read."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from specwatch.engines.sample_names import SAMPLES
from tests.e2e.monitoring import RunningPrometheus
from tests.e2e.processes import DaemonProcess, Process

PROMETHEUS = shutil.which("prometheus")
_START_SECONDS = _STOP_SECONDS = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Watcher:
    """A running process; ``started_in`` is the time from its start to its being ready, seconds."""

    def __init__(self, process: Process, started_in: float) -> None:
        self._process = process
        self.started_in = started_in

    def cpu_seconds(self) -> float:
        """User and system time of all of its threads so far."""
        return sum(_cpu_seconds(self._process.pid)[:2])

    def resident_megabytes(self) -> float:
        """Resident memory, pages shared with others included."""
        return self._process.resident_bytes() / 2**20

    def proportional_megabytes(self) -> float:
        """Resident memory, pages shared with others divided among them."""
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        return int(rollup.partition("\nPss:")[2].split()[0]) / 1024

    def stop(self) -> float:
        """Send SIGTERM; returns the seconds that it took to end."""
        begun = time.monotonic()
        self._process.stop(_STOP_SECONDS)
        return time.monotonic() - begun


def cpu_seconds_with_children(pid: int) -> float:
    """User and system time of a process and of its children, those that have ended included."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(_cpu_seconds(pid)) + sum(sum(_cpu_seconds(int(child))) for child in children)


def _cpu_seconds(pid: int) -> list[float]:
    """User and system time of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(ticks) / _TICKS for ticks in fields[11:15]]


@contextlib.contextmanager
def daemon(
    ports: Sequence[int], interval: int, directory: Path, database: str | None = None
) -> Iterator[Watcher]:
    """specwatch, watching those ports of loopback; ready when it tells the service manager so.

    ``database`` is a URL, by default that of a file in the directory.
    """
    settings = {
        "log": {"level": "warning"},
        "targets": [
            {"name": f"t{port}", "url": f"http://127.0.0.1:{port}", "interval": f"{interval}s"}
            for port in ports
        ],
    }
    database = database or f"sqlite:///{directory / 'bench.db'}"
    process = DaemonProcess.configured(directory, database, settings)
    process.environment = {"NOTIFY_SOCKET": str(directory / "notify")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(directory / "notify"))
        notified.settimeout(_START_SECONDS)
        begun = time.monotonic()
        with process:
            while b"READY=1" not in notified.recv(4096):
                pass
            started_in = time.monotonic() - begun
            threading.Thread(target=_listen_on, args=(notified,), daemon=True).start()
            try:
                yield Watcher(process, started_in)
            finally:
                notified.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def prometheus(
    ports: Sequence[int], interval: int, directory: Path, *, ours_only: bool
) -> Iterator[Watcher]:
    """Prometheus, scraping those ports; ``ours_only`` drops what specwatch does not read."""
    jobs = {"vllm": [f"http://127.0.0.1:{port}" for port in ports]}
    kept = SAMPLES if ours_only else ()
    begun = time.monotonic()
    with RunningPrometheus(directory, jobs, interval=interval, kept=kept) as process:
        yield Watcher(process, time.monotonic() - begun)


def _listen_on(notified: socket.socket) -> None:
    """Read until shut down, so that the daemon does not wait for a reader."""
    notified.settimeout(None)
    while notified.recv(4096):
        pass
