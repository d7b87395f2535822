"""The daemon and its peer as processes whose cost can be read."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from specwatch.engines.families import SAMPLES
from tests.benchmarks.page_server import ROOT

PROMETHEUS = shutil.which("prometheus")
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Watcher:
    """A running process; ``started_in`` is the time from its start to its being ready, seconds."""

    def __init__(self, process: subprocess.Popen[bytes], started_in: float) -> None:
        self._process = process
        self._proc = Path("/proc") / str(process.pid)
        self.pid = process.pid
        self.started_in = started_in

    def cpu_seconds(self) -> float:
        """User and system time of all of its threads so far."""
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_megabytes(self) -> float:
        """Resident memory, pages shared with others included."""
        return self._kilobytes("status", "VmRSS") / 1024

    def proportional_megabytes(self) -> float:
        """Resident memory, pages shared with others divided among them."""
        return self._kilobytes("smaps_rollup", "Pss") / 1024

    def stop(self) -> float:
        """Send SIGTERM; returns the seconds that it took to end."""
        asked = time.monotonic()
        self._process.terminate()
        self._process.wait(_STOP_SECONDS)
        return time.monotonic() - asked

    def _kilobytes(self, file: str, name: str) -> int:
        for line in (self._proc / file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise RuntimeError(f"{self._proc / file} has no {name}")


@contextlib.contextmanager
def daemon(ports: Sequence[int], interval: int, directory: Path) -> Iterator[Watcher]:
    """specwatch, watching those ports of loopback; ready as it tells the service manager."""
    directory.mkdir()
    settings = {
        "database": f"sqlite:///{directory / 'bench.db'}",
        "listen": "127.0.0.1:0",
        "log": {"level": "warning"},
        "targets": [
            {"name": f"t{port}", "url": f"http://127.0.0.1:{port}", "interval": f"{interval}s"}
            for port in ports
        ],
    }
    file = directory / "specwatch.yml"
    file.write_text(yaml.safe_dump(settings))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(directory / "notify"))
        notified.settimeout(_START_SECONDS)
        environ = {**os.environ, "NOTIFY_SOCKET": str(directory / "notify")}
        command = [sys.executable, "-m", "specwatch", "run", "--config", str(file)]
        with _running(command, directory, environ) as (process, begun):
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
    assert PROMETHEUS is not None
    directory.mkdir()
    job: dict[str, object] = {
        "job_name": "vllm",
        "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
    }
    if ours_only:
        keep = {"source_labels": ["__name__"], "regex": "|".join(SAMPLES), "action": "keep"}
        job["metric_relabel_configs"] = [keep]
    settings = {"global": {"scrape_interval": f"{interval}s"}, "scrape_configs": [job]}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    listen = f"127.0.0.1:{_free_port()}"
    command = [
        PROMETHEUS,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={listen}",
        "--log.level=warn",
    ]
    with _running(command, directory, dict(os.environ)) as (process, begun):
        while not _answers(f"http://{listen}/-/ready"):
            if process.poll() is not None or time.monotonic() - begun > _START_SECONDS:
                raise RuntimeError(f"Prometheus did not start; {_last_words(directory)}")
            time.sleep(0.05)
        yield Watcher(process, time.monotonic() - begun)


def _listen_on(notified: socket.socket) -> None:
    """Read until shut down: who notifies must not have to wait for a reader."""
    notified.settimeout(None)
    while notified.recv(4096):
        pass


@contextlib.contextmanager
def _running(
    command: Sequence[str], directory: Path, environ: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    begun = time.monotonic()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
    try:
        yield process, begun
        if process.returncode not in (None, 0):
            raise RuntimeError(f"{command[0]} ended badly; {_last_words(directory)}")
    except TimeoutError as error:
        raise RuntimeError(f"{command[0]} did not start; {_last_words(directory)}") from error
    finally:
        process.kill()
        process.wait()


def _last_words(directory: Path) -> str:
    return f"it said: {(directory / 'log').read_text()[-2000:]}"


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
