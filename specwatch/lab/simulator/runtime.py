"""Ties the simulated engine to real time: the only part of the simulation that reads a clock."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric, generate_latest

from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.http_stats import SimulatedHttpStats
from specwatch.lab.simulator.page import SimulatedPage
from specwatch.lab.simulator.sequence import SimulatedSequence
from specwatch.lab.simulator.settings import NEWEST, SimulatedSettings
from specwatch.lab.simulator.workload import SimulatedRequest
from specwatch_tap.orders import Schedule
from specwatch_tap.scheduler import launch_state
from specwatch_tap.switch import Switch, lookup_of

_SHORTEST_WAIT = 0.0005
_LONGEST_WAIT = 0.05
_UNATTENDED_WAIT = 0.25


@dataclass(frozen=True, slots=True)
class SimulatedTokens:
    """New tokens of one sequence, and why it ended if it did."""

    index: int
    new: int
    finished_reason: str | None


class SimulatedRuntime:
    """An engine that advances with the clock, shared by the server's loop and other threads."""

    def __init__(self, settings: SimulatedSettings, registry: CollectorRegistry) -> None:
        """``registry`` has metrics of middleware that outlive a restart; the page shows them."""
        self.settings = settings
        idle = dataclasses.replace(settings.traffic, rate=0.0, concurrency=0)
        engine = dataclasses.replace(settings, traffic=idle) if settings.middleware else settings
        # Traffic that starts in the engine would bypass middleware.
        self.engine = SimulatedEngine(engine, process_start=time.time())
        self.http = SimulatedHttpStats()
        self._page = SimulatedPage(self.engine, self.http)
        self._registry = registry
        self.registry = CollectorRegistry()
        """For middleware that takes a ``registry``; new with each restart."""
        self._lock = threading.RLock()
        self._origin = time.monotonic()
        self._listeners = 0
        self._wake: asyncio.Event | None = None

    @property
    def now(self) -> float:
        """Virtual time, in seconds."""
        return (time.monotonic() - self._origin) * self.settings.time_scale

    @contextlib.contextmanager
    def synced(self) -> Iterator[SimulatedEngine]:
        """The engine, advanced to this moment and locked meanwhile."""
        with self._lock:
            self.engine.advance(self.now)
            yield self.engine

    def metrics(self) -> bytes:
        """The page at this moment, with what middleware registered."""
        with self.synced():
            page = self._page.render()
        if self.settings.middleware:
            for registry in (self._registry, self.registry):
                page += generate_latest(_Foreign(registry))
        return page

    def restart(self, speculation: bool | None) -> None:
        """A new process from this moment on; what would have arrived meanwhile is lost."""
        with self._lock:
            downtime = max(0.0, self.now - self.engine.now)
            self.engine.restart(speculation, downtime, process_start=time.time())
            self.http = SimulatedHttpStats()
            self.registry = CollectorRegistry()
            self._page = SimulatedPage(self.engine, self.http)

    @contextlib.contextmanager
    def following_orders(self) -> Iterator[None]:
        """Run the switch of this process, if it was launched with one."""
        directory = self.settings.switch_directory
        if directory is None:
            yield
            return
        cores = self.engine.cores
        launch = launch_state(
            None if self.engine.speculation is None else self.engine.speculation.k,
            cores[0].launch_lookup,
            has_lookup=self.settings.engine_version == NEWEST,
            data_parallel_size=self.settings.engines,
        )

        def use(ordered: int | Schedule | None) -> None:
            chosen: int | list[int] | None = (
                lookup_of(ordered, self.settings.max_num_seqs + 1)
                if isinstance(ordered, tuple)
                else ordered
            )
            with self.synced():
                for core in cores:
                    core.ordered = chosen

        switch = Switch(directory, launch, use)
        switch.start()
        try:
            yield
        finally:
            switch.stop()
            use(None)

    async def pump(self) -> None:
        """Advance until cancelled: in short steps while a client waits for tokens."""
        self._wake = wake = asyncio.Event()
        while True:
            with self.synced() as engine:
                if not self._listeners:
                    wait = _UNATTENDED_WAIT
                elif math.isinf(engine.next_event) or engine.next_event <= engine.now:
                    wait = _SHORTEST_WAIT
                else:
                    wait = (engine.next_event - engine.now) / self.settings.time_scale
                    wait = min(max(wait, _SHORTEST_WAIT), _LONGEST_WAIT)
            wake.clear()
            # wait_for of Python 3.11 may lose a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await wake.wait()

    async def generate(
        self, requests: list[SimulatedRequest], n: int, sequences: list[SimulatedSequence]
    ) -> AsyncGenerator[SimulatedTokens, None]:
        """Run ``requests``, ``n`` sequences each, and yield their tokens until all have ended.

        ``sequences`` receives the sequences in order. Leaving early aborts what is unfinished.
        """
        loop = asyncio.get_running_loop()
        updates: asyncio.Queue[tuple[SimulatedSequence, int, str | None]] = asyncio.Queue()

        def listener(sequence: SimulatedSequence, new: int, reason: str | None) -> None:
            loop.call_soon_threadsafe(updates.put_nowait, (sequence, new, reason))

        with self.synced() as engine:
            for request in requests:
                sequences.extend(engine.submit_parallel(request, n, listener))
            self._listeners += 1
        if self._wake is not None:
            self._wake.set()
        positions = {id(sequence): index for index, sequence in enumerate(sequences)}
        unfinished = len(sequences)
        try:
            while unfinished:
                sequence, new, reason = await updates.get()
                unfinished -= reason is not None
                yield SimulatedTokens(positions[id(sequence)], new, reason)
        finally:
            with self._lock:
                self._listeners -= 1
                for sequence in sequences:
                    sequence.listener = None
                    self.engine.abort(sequence)


class _Foreign:
    """The families of a registry, without those that the page has already."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            if not family.name.startswith(("python_", "process_", "vllm:")):
                yield family
