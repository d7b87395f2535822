"""The daemon, other programs of specwatch and further servers as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Self

from specwatch.domain.baseline import Measurement
from specwatch.domain.experiments import Experiment
from specwatch.domain.model import Window
from specwatch.store.readers import Reader
from tests.e2e.api import DaemonApi
from tests.e2e.waiting import eventually
from tests.lab.http_get import is_ok, page
from tests.lab.vllm_server import free_port

CHECKOUT = Path(__file__).parents[2]
STARTS_WITHIN = 180.0
STOPS_WITHIN = 60.0
"""Seconds from SIGTERM to its end; the daemon promises five, but not of a machine that stops."""
ALL_TIME = {"since": 0.0, "until": 4e9}


def windows_of(database: str, **selection: Any) -> list[Window]:
    """All minutes in a database."""
    with closing(Reader.of(database)) as reader:
        return list(reader.windows(**{**ALL_TIME, **selection}))


def experiments_of(database: str) -> list[Experiment]:
    """All results of probe, bench and compare in a database."""
    with closing(Reader.of(database)) as reader:
        return [row.experiment for row in reader.experiments(0.0, 4e9)]


def measurements_of(database: str) -> list[Measurement]:
    """All baselines in a database."""
    with closing(Reader.of(database)) as reader:
        return list(reader.measurements())


def specwatch(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command of specwatch to its end."""
    return subprocess.run(
        [sys.executable, "-m", "specwatch", *arguments],
        env=_environment({}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), **more}


processes: list[Process] = []
"""Every process that tests made, so that a failure can be shown with their logs."""


class Process:
    """A program with one log for all its lives; it is killed with the ``with`` block."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        self.environment: dict[str, str] = {}
        self.around: tuple[str, ...] = ()
        """What enters the namespaces of a machine, and then becomes the program."""
        self._command = command
        self._log_from = 0
        self._process: subprocess.Popen[bytes] | None = None
        processes.append(self)

    @property
    def pid(self) -> int:
        """Process id, of the program itself, where something else entered its namespaces."""
        assert self._process is not None, "not started"
        first = self._process.pid
        if not self.around:
            return first
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return int(children[0]) if children else first

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process; does not wait for anything."""
        assert not self.running, f"process {self.pid} still runs"
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                # If the test run is killed, its processes end with it.
                ["setpriv", "--pdeathsig", "TERM", *self.around, *self._command],
                env=_environment(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)
        if self._process is not None and self.around and number is signal.SIGCONT:
            self._process.send_signal(number)  # what entered stops and goes on with the program

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            if self.running:
                os.kill(self.pid, signal.SIGKILL)
            self._process.kill()
            self._process.wait(60)

    def stop(self, timeout: float = STOPS_WITHIN) -> None:
        """SIGTERM; the process must end within ``timeout`` seconds with status 0."""
        assert self._process is not None, "not started"
        self._process.terminate()
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop within {timeout:g} s\n{self.log_text()}") from None
        assert status == 0, f"ended with status {status}\n{self.log_text()}"

    def log_text(self) -> str:
        """What this life of the process has logged."""
        if not self.log.exists():
            return ""
        with open(self.log, "rb") as log:
            log.seek(self._log_from)
            return log.read().decode(errors="replace")

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"process {self.pid} has no memory")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()


class Specwatch(Process):
    """A long-running command of specwatch."""

    def __init__(self, log: Path, *arguments: str) -> None:
        super().__init__(log, sys.executable, "-m", "specwatch", *arguments)


class DaemonProcess(Specwatch, DaemonApi):
    """``specwatch run`` with these arguments, on a free port, logging JSON."""

    def __init__(
        self, log: Path, database: str, *arguments: str, child: Sequence[str] = ()
    ) -> None:
        """``child`` is the command of a vLLM that it supervises."""
        self.database = database
        own = ["--database", database, "--listen", "127.0.0.1:0", "--log-format", "json"]
        super().__init__(log, "run", *arguments, *own, *(["--", *child] if child else []))

    @classmethod
    def configured(
        cls, folder: Path, database: str, config: Mapping[str, Any], child: Sequence[str] = ()
    ) -> Self:
        """A daemon with a configuration file in its own folder."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "specwatch.yml"
        file.write_text(json.dumps(config, indent=2))  # JSON is YAML
        return cls(folder / "log", database, "--config", str(file), child=child)

    def events(self) -> list[dict[str, Any]]:
        """The events in the log of this life."""
        return [json.loads(line) for line in self.log_text().splitlines() if line.startswith("{")]

    @property
    def url(self) -> str:
        """Where this life of the daemon serves."""
        started = eventually(
            self._started, what=f"the daemon starts: {self.log}", within=STARTS_WITHIN
        )
        return str(started[-1]["listen"])

    def _started(self) -> list[dict[str, Any]]:
        assert self.running, f"the daemon ended\n{self.log_text()}"
        return [event for event in self.events() if event["event"] == "started"]

    def windows(self, **selection: Any) -> list[Window]:
        """All minutes in its database."""
        return windows_of(self.database, **selection)


class HttpServer(Process):
    """A program that serves HTTP at ``url``, and answers ``ready_path`` once it is ready."""

    url: str
    ready_path: ClassVar[str]

    def metrics(self) -> str:
        """The text of ``GET /metrics``."""
        return page(self.url + "/metrics")

    def wait_ready(self) -> None:
        """Return once it is ready."""
        eventually(self._ready, what=f"{self.url} answers", within=STARTS_WITHIN)

    def _ready(self) -> bool:
        assert self.running, f"the server at {self.url} ended\n{self.log_text()}"
        return is_ok(self.url + self.ready_path)


class SimulatedVllm(Specwatch, HttpServer):
    """``specwatch simulate`` on its own port; it generates no traffic."""

    ready_path = "/health"

    def __init__(self, log: Path, *flags: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(
            log, "simulate", "tiny", "--host", "127.0.0.1", "--port", str(port), *flags
        )


class TapProxy(Specwatch, HttpServer):
    """``specwatch tap proxy`` on its own port, before the server at ``upstream``.

    Once it is ready, it has looked at its upstream.
    """

    ready_path = "/specwatch/healthz"

    def __init__(self, log: Path, upstream: str, *flags: str) -> None:
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        super().__init__(
            log,
            "tap",
            "proxy",
            "--upstream",
            upstream,
            "--listen",
            address,
            "--log-format",
            "json",
            *flags,
        )
