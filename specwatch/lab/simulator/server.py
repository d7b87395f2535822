"""A simulated vLLM behind HTTP, in a thread of this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Self

import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from specwatch.lab.simulator.api import application
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.runtime import SimulatedRuntime
from specwatch.lab.simulator.settings import SimulatedSettings
from specwatch.runtime.http_server import HttpServer

_log = structlog.get_logger(__name__)

_STOP_TIMEOUT = 10.0


class SimulatedServer:
    """Serves a simulated vLLM from :meth:`start` to :meth:`stop`, or as a context manager.

    Port 0 in the settings takes a free one, which ``port`` and ``url`` then show and a restart
    keeps. The engine lives on through :meth:`restart`, its counters do not.
    """

    def __init__(self, settings: SimulatedSettings, registry: CollectorRegistry = REGISTRY) -> None:
        """``registry`` is where middleware registers its metrics."""
        self.settings = settings
        self._runtime = SimulatedRuntime(settings, registry)
        self._http = self._listener(settings.port)

    @property
    def url(self) -> str:
        """Base URL for a client on this machine."""
        return self._http.url

    @property
    def port(self) -> int:
        """The port on which it listens, or will."""
        return self._http.port

    @property
    def engine(self) -> SimulatedEngine:
        """The engine; use :meth:`synced` to lock it."""
        return self._runtime.engine

    @contextlib.contextmanager
    def synced(self) -> Iterator[SimulatedEngine]:
        """The engine at this moment, locked meanwhile."""
        with self._runtime.synced() as engine:
            yield engine

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen and serve; returns when requests are answered. ConfigError if that fails."""
        if self._http.running:
            raise RuntimeError("the simulated server runs already")
        if self.settings.startup:
            time.sleep(self.settings.startup)
        self._http = self._listener(self._http.port)
        self._http.start()
        speculation = self.engine.speculation
        _log.info(
            "simulated_server_started",
            url=self.url,
            model=self.settings.served[0],
            num_speculative_tokens=speculation.k if speculation else 0,
        )

    def stop(self) -> None:
        """Abort running requests and stop listening; does nothing if it does not run."""
        if not self._http.running:
            return
        with self.synced() as engine:  # as a vLLM that shuts down does
            for core in engine.cores:
                for sequence in [*core.running, *core.waiting]:
                    engine.abort(sequence, counted=True)
        if not self._http.stop(_STOP_TIMEOUT):
            raise RuntimeError(f"the simulated server did not stop within {_STOP_TIMEOUT} s")
        _log.info("simulated_server_stopped", url=self.url)

    def restart(self, speculation: bool | None = None, downtime: float = 0.0) -> None:
        """Stop, stay away for ``downtime`` seconds, come back on the same port with new counters.

        ``speculation`` None leaves it as it is, True means as configured.
        """
        self.stop()
        time.sleep(downtime)
        self._runtime.restart(speculation)
        self.start()

    def set_acceptance_scale(self, scale: float) -> None:
        """Multiply the configured acceptance rates by ``scale`` from now on."""
        with self.synced() as engine:
            engine.set_acceptance_scale(scale)

    def _listener(self, port: int) -> HttpServer:
        app = application(self._runtime)
        return HttpServer(app, self.settings.host, port, name="simulated-vllm")
