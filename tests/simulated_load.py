"""Simulated servers to put under load: over HTTP, and in virtual time.

In virtual time nothing is waited for and nothing else runs meanwhile: what a load measures of a
server follows from the server, the plan and the seeds alone, however busy this machine is.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry

from specwatch.config.target import Target
from specwatch.domain.model import Series
from specwatch.errors import ScrapeError, ScrapeReason
from specwatch.lab.loadtest import server as load_server
from specwatch.lab.loadtest.calibration import Meter
from specwatch.lab.loadtest.engine import MeasuredModel, counted_of, engine_of
from specwatch.lab.loadtest.load_generator import LoadGenerator
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.lab.simulator.page import SimulatedPage
from specwatch.lab.simulator.sequence import SimulatedSequence
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.lab.simulator.workload import SimulatedRequest, SimulatedTraffic
from specwatch.scrape.exposition import PageReader
from specwatch_tap.acceptance import Acceptance, Record

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


def busy_engine(**more: Any) -> SimulatedEngine:
    """One that always has requests of others."""
    engine = SimulatedEngine(settings(traffic=SimulatedTraffic(concurrency=4), **more))
    engine.advance(1.0)
    return engine


class MortalEngine(SimulatedEngine):
    """One whose process can end, to be asked in virtual time."""

    alive = True

    def die(self) -> None:
        """Break off all streams, and answer no more."""
        self.alive = False
        self.restart()


def alive(engine: SimulatedEngine) -> bool:
    """Whether the process of an engine has not ended."""
    return not isinstance(engine, MortalEngine) or engine.alive


class VirtualTime:
    """Seconds that pass at once while everybody waits."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._began = time.time() - now

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
        assert timeout is not None, "everybody waits, and nothing will ever happen"
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

    # It never blocks, so nothing need wake it up, and it opens no sockets.
    def _make_self_pipe(self) -> None:
        self._csock = None

    def _close_self_pipe(self) -> None:
        pass


class VirtualClient:
    """Asks an engine without a network, as ``LoadClient`` does over one."""

    def __init__(
        self,
        engine: SimulatedEngine,
        virtual: VirtualTime,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._engine = engine
        self._virtual = virtual
        self._headers = headers
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
        if refusal := self._refusal():
            return Answer(ask, sent, sent, error=refusal, detail="refused")
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
        if not alive(self._engine):
            return Answer(ask, sent, self._virtual.now, 200, error=ErrorKind.BROKE_OFF)
        return Answer(
            ask,
            sent,
            self._virtual.now,
            200,
            times[0],
            times[-1],
            len(times),
            prompt,
            sequence.generation_tokens,
            sequence.finished_reason,
            self._record(sequence),
            f"An answer to {ask.prompt}." if ask.read_text else "",
        )

    async def count_tokens(self, prompt: str) -> int | None:
        """As the engine counts them."""
        return max(len(prompt) // _CHARACTERS, 1)

    def _refusal(self) -> ErrorKind | None:
        """Why the server answers no request, if it does not."""
        if not alive(self._engine):
            return ErrorKind.CONNECT
        keys = [f"Bearer {key}" for key in self._engine.settings.api_keys]
        given = {name.lower(): value for name, value in self._headers().items()}
        return ErrorKind.REFUSED if keys and given.get("authorization") not in keys else None

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


def at_answer(number: int, act: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Call ``act`` when so many answers of all engines have come in virtual time."""
    send, numbers = VirtualClient.send, itertools.count(1)

    async def counted(self: VirtualClient, ask: Ask, *more: Any) -> Answer:
        answer = await send(self, ask, *more)
        if next(numbers) == number:
            act()
        return answer

    patch.setattr(VirtualClient, "send", counted)


class VirtualServer(load_server.Server):
    """A server that is put under load in virtual time."""

    def __init__(
        self,
        engine: SimulatedEngine,
        virtual: VirtualTime,
        target: Target,
        *,
        model: str | None,
        where: str,
    ) -> None:
        self.where = where
        self.url = target.url
        self._asked = engine
        self._rendered = SimulatedPage(engine)
        self._samples = PageReader()
        self._virtual_client = VirtualClient(engine, virtual, target.request_headers)
        self.client = self._virtual_client  # type: ignore[assignment]
        self.engine: MeasuredModel = engine_of(
            self._look(),
            engine.settings.engine_version,
            engine.settings.served,
            model=model,
            where=where,
        )
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
        if not alive(self._asked):
            raise ScrapeError(ScrapeReason.REFUSED, f"nothing listens at {self.url}")
        self._virtual_client.advance()
        return self._look()

    def _look(self) -> Mapping[Series, float]:
        return self._samples.read(self._rendered.render())


@contextmanager
def in_virtual_time(engines: Sequence[SimulatedEngine]) -> Iterator[list[str]]:
    """Have commands that put a load on servers ask these engines; yields their URLs."""
    virtual = VirtualTime(max((engine.now for engine in engines), default=0.0))
    known = {f"http://simulated-{at}:8000": engine for at, engine in enumerate(engines)}

    def found(target: Target, *, model: str | None, endpoint: str, where: str) -> VirtualServer:
        del endpoint
        return VirtualServer(
            known[target.url.rstrip("/")], virtual, target, model=model, where=where
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", virtual.run)
        patch.setattr(load_server, "Server", found)
        yield list(known)
