"""Simulated servers to put under load: over HTTP, and in virtual time.

In virtual time nothing is waited for and nothing else runs meanwhile: what a load measures of a
server follows from the server, the plan and the seeds alone, however busy this machine is.
"""

from __future__ import annotations

import asyncio
import math
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Self

import pytest
import requests
from prometheus_client import CollectorRegistry

from specwatch.domain.model import Series
from specwatch.engines.acceptance import Acceptance, Record
from specwatch.loadtest import server as load_server
from specwatch.loadtest.calibration import Meter
from specwatch.loadtest.engine import MeasuredModel, counted_of, engine_of
from specwatch.loadtest.load_generator import LoadGenerator
from specwatch.loadtest.requests import Answer, Ask
from specwatch.scrape.exposition import PageReader
from specwatch.simulator.costs import SimulatedCosts
from specwatch.simulator.engine import SimulatedEngine
from specwatch.simulator.page import SimulatedPage
from specwatch.simulator.sequence import SimulatedSequence
from specwatch.simulator.server import SimulatedServer
from specwatch.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.simulator.workload import SimulatedRequest, SimulatedTraffic
from tests.hostile import wait_for

K = 4
COSTS = SimulatedCosts().scaled(0.2)
_CHARACTERS = 4
"""Of a prompt, for each of its tokens."""
_ROUNDING = 1e-6
"""Seconds by which the engine's time and the loop's may differ."""


def settings(
    *, speculates: bool = False, record: str = "summary", **more: Any
) -> SimulatedSettings:
    """Of a server with the model ``tiny``, and steps of about four milliseconds."""
    if speculates:
        more = {"speculation": SimulatedSpeculation(K), "record": record, **more}
    return SimulatedSettings(
        **{"model": "tiny", "port": 0, "costs": COSTS, "keep_log": True, **more}
    )


def server(*, speculates: bool = False, record: str = "summary", **more: Any) -> SimulatedServer:
    """One that is asked over HTTP, as :func:`settings` has it."""
    return SimulatedServer(
        settings(speculates=speculates, record=record, **more), CollectorRegistry()
    )


@contextmanager
def busy_server(**more: Any) -> Iterator[SimulatedServer]:
    """One that always has requests of others, once its page shows them.

    The page is of the last step that ended, as that of vLLM is: at first of none.
    """

    def running(url: str) -> float:
        page = requests.get(f"{url}/metrics", timeout=20).text
        return sum(map(float, re.findall(r"^vllm:num_requests_running{.*} (.*)$", page, re.M)))

    with server(traffic=SimulatedTraffic(concurrency=4), **more) as busy:
        wait_for(lambda: running(busy.url) > 0)
        yield busy


def interrupted(
    running: SimulatedServer,
    *arguments: object,
    wait: Callable[[IO[str]], object],
    number: signal.Signals = signal.SIGINT,
) -> tuple[str, str]:
    """Standard output and standard error of ``specwatch ARGUMENTS`` as a process, which gets a
    signal when ``wait``, called with its standard error, returns.

    Its exit code is 1, and none of its requests is left.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "specwatch", *map(str, arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        wait(process.stderr)
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 1
    finally:
        process.kill()
    with running.synced() as engine:
        assert engine.running + engine.waiting == 0
    return out, error


class VirtualTime:
    """Seconds that pass at once while everybody waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self._began = time.time()

    def clock(self) -> float:
        """Seconds since its beginning."""
        return self.now

    def wall(self) -> float:
        """Unix time."""
        return self._began + self.now

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """``asyncio.run`` in this time."""
        with asyncio.Runner(loop_factory=partial(_Loop, self)) as runner:
            return runner.run(work)


class _Selector(selectors.DefaultSelector):
    """Lets the time pass that nobody has anything to do in."""

    def __init__(self, virtual: VirtualTime) -> None:
        super().__init__()
        self._virtual = virtual

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self._virtual.now += max(timeout, 0.0)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, virtual: VirtualTime) -> None:
        self._virtual = virtual
        super().__init__(_Selector(virtual))

    def time(self) -> float:
        return self._virtual.now


class VirtualClient:
    """Asks an engine without a network, as ``LoadClient`` does over one."""

    def __init__(self, engine: SimulatedEngine, virtual: VirtualTime) -> None:
        self._engine = engine
        self._virtual = virtual
        self._next: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._next is not None:
            self._next.cancel()

    async def send(self, ask: Ask, first: Callable[[], None] = lambda: None) -> Answer:
        """Send one request, and wait for the end of its answer."""
        self.advance()
        sent, ended = self._virtual.now, asyncio.get_running_loop().create_future()
        times: list[float] = []

        def listen(_: SimulatedSequence, new: int, reason: str | None) -> None:
            if new:
                times.append(self._virtual.now)
                if len(times) == 1:
                    first()
            if reason is not None and not ended.done():
                ended.set_result(None)

        prompt = max(len(ask.prompt) // _CHARACTERS, 1)
        request = SimulatedRequest(prompt, ask.max_tokens, ask.temperature or 0.0)
        sequence = self._engine.submit(request, listen)
        self._step()
        try:
            await ended
        finally:
            self._engine.abort(sequence)
        return Answer(
            ask, sent, self._virtual.now, 200, times[0], times[-1], len(times), prompt,
            sequence.generation_tokens, sequence.finished_reason, self._record(sequence),
        )  # fmt: skip

    async def count_tokens(self, prompt: str) -> int | None:
        """As the engine counts them."""
        return max(len(prompt) // _CHARACTERS, 1)

    def advance(self) -> None:
        """Let the engine have all that happened up to now."""
        now, event = self._virtual.now, self._engine.next_event
        self._engine.advance(event if now < event <= now + _ROUNDING else now)

    def _wait(self) -> None:
        """For the next step to end, or to begin."""
        if self._next is not None:
            self._next.cancel()
        if self._engine.running + self._engine.waiting:
            at = self._engine.next_event
            at = at if math.isfinite(at) else self._virtual.now + _ROUNDING
            self._next = asyncio.get_running_loop().call_at(at, self._step)

    def _step(self) -> None:
        self.advance()
        self._wait()

    def _record(self, found: SimulatedSequence) -> Acceptance | None:
        if self._engine.speculation is None or self._engine.settings.record == "none":
            return None
        record = Record(found.draft_tokens, acceptance_histogram=list(found.accepted_histogram))
        return record.acceptance()


class VirtualServer(load_server.Server):
    """A server that is put under load in virtual time."""

    def __init__(
        self, engine: SimulatedEngine, virtual: VirtualTime, *, url: str, model: str | None,
        where: str,
    ) -> None:  # fmt: skip
        self.where = where
        self.url = url
        self._rendered = SimulatedPage(engine)
        self._samples = PageReader()
        self._virtual_client = VirtualClient(engine, virtual)
        self.client = self._virtual_client  # type: ignore[assignment]
        self.engine: MeasuredModel = engine_of(
            self._look(), engine.settings.engine_version, engine.settings.served, model=model,
            where=where,
        )  # fmt: skip
        self.longest = engine.settings.max_model_len
        self.counted = counted_of(self._look(), self.engine)
        self.meter = Meter(self.engine)
        self.load = LoadGenerator(self.client, self.read, wall=virtual.wall, clock=virtual.clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._virtual_client.__aexit__()

    async def read(self) -> Mapping[Series, float]:
        """The samples of its page now."""
        self._virtual_client.advance()
        return self._look()

    def _look(self) -> Mapping[Series, float]:
        return self._samples.read(self._rendered.render())


@contextmanager
def in_virtual_time(engines: Sequence[SimulatedEngine]) -> Iterator[list[str]]:
    """Have commands that put a load on servers ask these engines; yields their URLs."""
    virtual = VirtualTime()
    known = {f"http://simulated-{at}:8000": engine for at, engine in enumerate(engines)}

    def found(target: Any, *, model: str | None, endpoint: str, where: str) -> VirtualServer:
        del endpoint
        return VirtualServer(
            known[target.url.rstrip("/")], virtual, url=target.url, model=model, where=where
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", virtual.run)
        patch.setattr(load_server, "Server", found)
        yield list(known)
