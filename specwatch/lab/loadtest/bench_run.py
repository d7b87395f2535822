"""Running a bench: levels, warm-ups, turns, and interruption."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from specwatch.domain.experiments import Level
from specwatch.domain.model import Mode
from specwatch.domain.units import format_duration
from specwatch.errors import ConfigError, NoAnswer, ScrapeError, SpecwatchError
from specwatch.lab.loadtest import bench, dataset
from specwatch.lab.loadtest.bench import Load, Stretch
from specwatch.lab.loadtest.calibration import Block, Stage
from specwatch.lab.loadtest.load_generator import MOST_IN_FLIGHT, poisson
from specwatch.lab.loadtest.prompts import endless
from specwatch.lab.loadtest.requests import Answer, Ask, Prompt
from specwatch.lab.loadtest.result_parts import Note, Step
from specwatch.lab.loadtest.server import Server
from specwatch.wording import figures

SLICES = 12
"""Slices of a level: reads of the server's counters, and turns of each server at most."""
_LEAST_TURNS = 6
"""Turns of each server at least: with fewer there is no interval."""
_RAMP = 1.5
"""Mean latencies after which an open loop is taken to be steady."""
_LEAST_SLICE = 0.1
_RANDOM_PROMPTS = 200
_FEW_WORDS = 8
INTERRUPTED = "interrupted: what follows was not measured"


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """What to send: ``duration`` and ``warm_up`` are seconds for each load and server."""

    loads: tuple[Load, ...]
    prompts: tuple[Prompt, ...]
    temperatures: tuple[float, ...]
    duration: float
    warm_up: float
    max_tokens: int
    seed: int
    random_tokens: int | None = None
    """Length of prompts of random words, used in place of ``prompts``."""
    most: int = MOST_IN_FLIGHT
    """Requests that an open loop may have in flight."""

    def __post_init__(self) -> None:
        if self.duration < round(_LEAST_SLICE * SLICES, 3):
            raise ConfigError(
                f"--duration: {format_duration(self.duration)} is too short for {SLICES} slices;"
                f" make it at least {format_duration(_LEAST_SLICE * SLICES)}"
            )


@dataclass(slots=True)
class Measured:
    """The levels of one server, and the stages that they are made from."""

    server: Server
    levels: list[Level] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)


@dataclass(slots=True)
class _LevelTurn:
    """One level of one server while it is measured."""

    server: Server
    stage: Stage
    asks: Iterator[Ask]
    stretches: list[Stretch] = field(default_factory=list)
    latency: float = 0.0
    """Mean of a request, in seconds, during the warm-up."""
    planned: tuple[float, float] | None = None
    """The time that counts of an open loop that runs, in seconds from its first look."""


class BenchRun:
    """The levels of a plan on one server, or on two that take turns."""

    def __init__(self, plan: BenchPlan, servers: Sequence[Server], note: Note, step: Step) -> None:
        """``note`` is called for each level that ends, ``step`` for each slice."""
        self._plan = plan
        self._note = note
        self._step = step
        self.measured = [Measured(server) for server in servers]
        self.prompts = plan.prompts
        self.broken_off: str | None = None
        """Why it ended early, as words; None if it did not."""
        self._load: Load | None = None
        self._turns: list[_LevelTurn] = []
        self._active: _LevelTurn | None = None
        """The turn that runs now, without its warm-up."""

    @property
    def slices(self) -> int:
        """Number of slices of all levels."""
        return SLICES * len(self.measured) * len(self._plan.loads)

    async def run(self) -> None:
        """Measure all levels; cancelling, or a server that fails, ends it early.

        Raises ScrapeError, NoAnswer or ConfigError if nothing was measured; ConfigError if both
        servers speculate, or neither does.
        """
        finished = False
        try:
            async with AsyncExitStack() as stack:
                for measured in self.measured:
                    await stack.enter_async_context(measured.server)
                    answer = await measured.server.try_out(Ask("Say hello.", self._plan.max_tokens))
                    _see_mode(measured.server, [answer])
                _require_unlike([measured.server for measured in self.measured])
                if self._plan.random_tokens is not None:
                    self.prompts = await self._random(self._plan.random_tokens)
                for load in self._plan.loads:
                    await self._level(load)
                finished = True
        except asyncio.CancelledError:
            if not finished:  # else only the connections were still to be closed
                self._break_off(INTERRUPTED, time.perf_counter())
        except (ScrapeError, NoAnswer, ConfigError) as failed:
            self._break_off(f"broken off: {failed}", None)
            if not any(measured.levels for measured in self.measured):
                raise

    async def _random(self, tokens: int) -> tuple[Prompt, ...]:
        """Prompts of about ``tokens`` tokens by the server's count, chat template included."""
        counts = []
        for words in (_FEW_WORDS, max(tokens, 2 * _FEW_WORDS)):
            (prompt,) = dataset.random_words(words, 1, seed=self._plan.seed)
            answer = await self.measured[0].server.try_out(Ask(prompt.text, self._plan.max_tokens))
            counts.append((words, answer.prompt_tokens or words))
        words = dataset.words_for(tokens, *counts)
        return dataset.random_words(words, _RANDOM_PROMPTS, seed=self._plan.seed)

    async def _level(self, load: Load) -> None:
        plan = self._plan
        self._load = load
        self._turns = [
            _LevelTurn(
                measured.server,
                Stage(measured.server.engine, load.concurrency or 0),
                self._asks(load),
            )
            for measured in self.measured
        ]
        self._step(f"{load}, warming up", 0)
        for turn in self._turns:
            block = await self._run(turn, load, 1, plan.warm_up, f"{plan.seed}/warm-up")
            good = [answer.latency for answer in block.answers if answer.ok]
            turn.latency = sum(good) / len(good) if good else 0.0
        if len(self._turns) == 1:
            await self._stretch(self._turns[0], load, SLICES, plan.duration, 0)
        else:
            await self._take_turns(load)
        self._close(complete=True)

    async def _take_turns(self, load: Load) -> None:
        """Measure the servers alternately, so that a change in between affects both."""
        latency = max(turn.latency for turn in self._turns)
        least = max(bench.LEAST_TURN * latency, _LEAST_SLICE)
        count = min(max(int(self._plan.duration / least), _LEAST_TURNS), SLICES)
        for number in range(count):
            for turn in self._turns if number % 2 == 0 else reversed(self._turns):
                await self._stretch(turn, load, 1, self._plan.duration / count, number)
                done = (number + 1) * SLICES // count - number * SLICES // count
                self._step(str(load), done)

    async def _stretch(
        self, turn: _LevelTurn, load: Load, slices: int, seconds: float, number: int
    ) -> None:
        """A time of constant load; ``seconds`` is the sum of its slices."""

        def slice_ended() -> None:
            if slices > 1:
                self._step(str(load), 1)

        self._step(str(load), 0)
        ramp = min(_RAMP * turn.latency, seconds)
        turn.planned = None if load.rate is None else (ramp, ramp + seconds)
        self._active = turn
        seed = f"{self._plan.seed}/{load.rate}/{number}"
        block = await self._run(turn, load, slices, seconds, seed, ramp, slice_ended)
        turn.stage.add(block, turn.server.meter)
        _see_mode(turn.server, block.answers)
        self._active = None
        stretch = Stretch.of(block, self._plan.max_tokens, planned=turn.planned)
        if stretch is not None:
            turn.stretches.append(stretch)

    async def _run(
        self,
        turn: _LevelTurn,
        load: Load,
        slices: int,
        seconds: float,
        seed: str,
        ramp: float = 0.0,
        slice_ended: Callable[[], None] | None = None,
    ) -> Block:
        """Put a load on a server; ``slice_ended`` is None for the warm-up."""
        if load.concurrency is not None:
            return await turn.server.load.closed(
                turn.asks,
                concurrency=load.concurrency,
                slices=slices,
                seconds=seconds / slices,
                slice_ended=slice_ended or (lambda: None),
                level_to_the_end=slice_ended is not None,
            )
        return await turn.server.load.open(
            turn.asks,
            arrivals=poisson(load.rate or 1.0, ramp + seconds, seed),
            ramp=ramp,
            slices=slices,
            seconds=seconds / slices,
            most=self._plan.most,
            slice_ended=slice_ended or (lambda: None),
        )

    def _break_off(self, why: str, now: float | None) -> None:
        """Keep the part of the level that ran; it was good until ``now`` on the client's clock, or
        until the server failed if ``now`` is None."""
        self.broken_off = why
        if (turn := self._active) is not None:
            block = turn.server.load.block
            if block.looks:
                with contextlib.suppress(SpecwatchError):
                    turn.stage.add(block, turn.server.meter)
            stretch = Stretch.of(
                block,
                self._plan.max_tokens,
                planned=turn.planned,
                broken_off=bench.answered_well(block) if now is None else now,
            )
            if stretch is not None and stretch.counted:
                turn.stretches.append(stretch)
        if self._load is not None:
            self._close(complete=False)

    def _close(self, *, complete: bool) -> None:
        """Add the levels of this load to the results."""
        load, self._load = self._load, None
        for measured, turn in zip(self.measured, self._turns, strict=True):
            if load is None or not turn.stretches:
                continue
            level = bench.level(
                load, turn.stage, turn.stretches, turns=len(self._turns) > 1, complete=complete
            )
            measured.levels.append(level)
            measured.stages.append(turn.stage)
            self._note(_ended(load, turn.stage, level))
        self._turns = []

    def _asks(self, load: Load) -> Iterator[Ask]:
        plan = self._plan
        salt = load.concurrency or round(1000 * (load.rate or 0))
        prompts = endless(self.prompts, plan.seed + salt)
        for prompt, temperature in zip(prompts, itertools.cycle(plan.temperatures), strict=False):
            yield Ask(prompt.text, plan.max_tokens, temperature, prompt.messages)


def _see_mode(server: Server, answers: Sequence[Answer]) -> None:
    """Set the mode to ON if answers carry drafts, for servers whose page does not show it."""
    if any(answer.acceptance is not None and answer.acceptance.draft_tokens for answer in answers):
        server.engine = replace(server.engine, mode=Mode.ON)


def _require_unlike(servers: Sequence[Server]) -> None:
    """Raise ConfigError if both servers speculate, or neither does."""
    speculate = [server.engine.mode is Mode.ON for server in servers]
    if len(servers) == 2 and speculate[0] == speculate[1]:
        raise ConfigError(
            f"{servers[1].where}: {servers[1].url}"
            f" {'speculates' if speculate[1] else 'does not speculate'}, as {servers[0].url}; give"
            " the same server with and without speculation"
        )


def _ended(load: Load, stage: Stage, level: Level) -> str:
    what = "with speculation" if stage.engine.mode is Mode.ON else "without speculation"
    ttft, tpot = (None if values is None else values.p50 for values in (level.ttft, level.tpot))
    return (
        f"{load} {what}: {level.requests} requests, {sum(level.errors.values())} failed,"
        f" {figures.compact(level.throughput)} tokens/s,"
        f" TTFT {figures.seconds(ttft)}, TPOT {figures.seconds(tpot)}"
    )
