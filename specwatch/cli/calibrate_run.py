"""Running a calibration: stages, slices, and where it stands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from specwatch.cli.load_server import Server
from specwatch.core.calibration import Stage
from specwatch.core.load import Ask
from specwatch.core.prompts import endless
from specwatch.errors import ConfigError
from specwatch.model import Mode
from specwatch.scalars import format_duration
from specwatch.temperature import Buckets

SLICES = 12
"""Of a stage, at least: each is a point of the baseline."""
LEAST_OF_TEMPERATURE = 6
"""Slices that each temperature gets at least, where it has slices of its own."""
LEAST_SLICE = 0.1
"""Seconds: with less a slice holds no step of a large model."""

Note = Callable[[str], None]
Step = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send: ``duration`` and ``warm_up`` are seconds for each concurrency and server."""

    concurrencies: tuple[int, ...]
    temperatures: tuple[float, ...]
    prompts: tuple[str, ...]
    duration: float
    warm_up: float
    max_tokens: int
    seed: int
    endpoint: str

    def rounds(self, *, mixed: bool) -> int:
        """How often each temperature (all at once where ``mixed``) gets a slice."""
        kinds = 1 if mixed else len(self.temperatures)
        return SLICES if kinds == 1 else max(LEAST_OF_TEMPERATURE, math.ceil(SLICES / kinds))

    def slice_seconds(self, *, mixed: bool) -> float:
        """Length of a slice. Raises ConfigError for one that is too short."""
        kinds = 1 if mixed else len(self.temperatures)
        slices = self.rounds(mixed=mixed) * kinds
        if self.duration < round(LEAST_SLICE * slices, 3):
            of = "" if kinds == 1 else f" of {kinds} temperatures"
            raise ConfigError(
                f"--duration: {format_duration(self.duration)} is too short for {slices} slices"
                f"{of}; make it at least {format_duration(LEAST_SLICE * slices)}"
            )
        return self.duration / slices


class Calibration:
    """The stages of a plan on a server without speculation, and perhaps one with it."""

    def __init__(
        self, plan: Plan, off: Server, on: Server | None, buckets: Buckets, note: Note, step: Step
    ) -> None:
        """``note`` is told of each stage that ends, ``step`` of what runs and slices that ended.

        Raises ConfigError for a plan whose slices are too short.
        """
        self._plan = plan
        self._off = off
        self._on = on
        self._buckets = buckets
        self._note = note
        self._step = step
        self.mixed = on is None or on.engine.tapped
        """Whether requests of all temperatures run at once: a tap tells them apart."""
        self._seconds = plan.slice_seconds(mixed=self.mixed)

    @property
    def slices(self) -> int:
        """How many slices there will be, over all stages."""
        kinds = 1 if self.mixed else len(self._plan.temperatures)
        servers = 1 if self._on is None else 2
        return self._plan.rounds(mixed=self.mixed) * kinds * servers * len(self._plan.concurrencies)

    async def run(self) -> list[Stage]:
        """Measure everything. Raises ScrapeError, NoAnswer, ConfigError."""
        servers = [self._off] if self._on is None else [self._off, self._on]
        stages = []
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
                await server.try_out(next(self._asks(self._plan.temperatures, 0)))
            for concurrency in self._plan.concurrencies:
                stages += await self._stages(servers, concurrency)
        return stages

    async def _stages(self, servers: Sequence[Server], concurrency: int) -> list[Stage]:
        """One concurrency, slice by slice in turn, so that what changes meanwhile meets both."""
        plan = self._plan
        stages = [Stage(server.engine, concurrency) for server in servers]
        everything = [self._asks(plan.temperatures, concurrency) for _ in servers]
        for server, asks in zip(servers, everything, strict=True):
            self._step(f"concurrency {concurrency}, warming up", 0)
            await server.loop.run(asks, concurrency=concurrency, slices=1, seconds=plan.warm_up)
        rounds = plan.rounds(mixed=self.mixed)
        if len(servers) == 1:
            await self._block(servers[0], stages[0], everything[0], None, rounds)
        else:
            kinds: Sequence[float | None] = [None] if self.mixed else plan.temperatures
            own = {
                (at, kind): self._asks(plan.temperatures if kind is None else [kind], concurrency)
                for at in range(len(servers))
                for kind in kinds
            }
            for turn, kind in itertools.product(range(rounds), kinds):
                for at in (0, 1) if turn % 2 == 0 else (1, 0):
                    await self._block(servers[at], stages[at], own[at, kind], kind, 1)
        for stage in stages:
            self._note(_ended(stage))
        return stages

    async def _block(
        self,
        server: Server,
        stage: Stage,
        asks: Iterator[Ask],
        kind: float | None,
        slices: int,
    ) -> None:
        doing = f"concurrency {stage.concurrency}"
        self._step(doing, 0)
        block = await server.loop.run(
            asks,
            concurrency=stage.concurrency,
            slices=slices,
            seconds=self._seconds,
            slice_ended=lambda: self._step(doing, 1),
        )
        stage.add(block, server.meter, None if kind is None else self._buckets.of(kind))

    def _asks(self, temperatures: Sequence[float], salt: int) -> Iterator[Ask]:
        prompts = endless(self._plan.prompts, self._plan.seed + salt)
        for prompt, temperature in zip(prompts, itertools.cycle(temperatures), strict=False):
            yield Ask(prompt, self._plan.max_tokens, temperature)


def _ended(stage: Stage) -> str:
    what = "with speculation" if stage.engine.mode is Mode.ON else "without speculation"
    return (
        f"concurrency {stage.concurrency} {what}: {len(stage.answers)} requests,"
        f" {sum(stage.errors.values())} failed"
    )
