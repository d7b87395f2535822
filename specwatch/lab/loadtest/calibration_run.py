"""Running a calibration: stages, slices, repeats and prompt lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from specwatch.domain.units import format_duration
from specwatch.errors import ConfigError
from specwatch.lab.loadtest.calibration import Stage
from specwatch.lab.loadtest.prompts import TOKENS_PER_WORD, endless, sized
from specwatch.lab.loadtest.requests import Ask
from specwatch.lab.loadtest.result_parts import Note, Step
from specwatch.lab.loadtest.server import Server
from specwatch.wording.figures import counted
from specwatch_tap.temperature import Buckets

SLICES = 12
"""Slices of a stage at least; each is a point of the baseline."""
LEAST_OF_TEMPERATURE = 6
"""Slices of each temperature at least, if temperatures have separate slices."""
MOST_TRIES = 3
"""Attempts at a load whose step times differ too much."""
LEAST_SLICE = 0.1
"""Seconds; a shorter slice may have no step of a large model."""
_SHORT = 120.0
"""Seconds below which the expected duration is shown to the second."""
_TRIES = 4
"""Attempts to find the number of words for prompts of a length."""
_SOME = 8
"""Prompts whose tokens are counted for that; ``_FEW`` if they have more than ``_LONG`` tokens."""
_FEW = 2
_LONG = 1000
_CLOSE = 0.01
"""Share of a length by which the mean length of prompts may differ from it."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """What to send: ``duration`` and ``warm_up`` are seconds for each concurrency and server.

    ``lengths`` are those of prompts in tokens, which are then made from the texts of ``prompts``;
    if empty, these are sent unchanged. ``mark``, if not empty, begins each prompt, so that none is
    in a server's prefix cache from an earlier run. ``unsteady`` accepts stages whose step times
    differ too much.
    """

    concurrencies: tuple[int, ...]
    temperatures: tuple[float, ...]
    prompts: tuple[str, ...]
    lengths: tuple[int, ...]
    duration: float
    warm_up: float
    max_tokens: int
    seed: int
    mark: str = ""
    unsteady: bool = False


class _Turn(NamedTuple):
    """The server of a slice, the length of its prompts in tokens (None: unchanged), and its
    temperature (None: all of them)."""

    server: int
    length: int | None
    temperature: float | None


class CalibrationRun:
    """The stages of a plan on a server without speculation, and optionally one with it."""

    def __init__(
        self,
        plan: CalibrationPlan,
        servers: Sequence[Server],
        buckets: Buckets,
        note: Note,
        step: Step,
    ) -> None:
        """``servers`` begin with the one without speculation. ``note`` is called with the expected
        duration and for each stage that ends, ``step`` for each slice (with a negative number for
        slices that are measured again).

        Raises ConfigError for a plan whose slices are too short.
        """
        self._plan = plan
        self._servers = servers
        self._buckets = buckets
        self._note = note
        self._step = step
        self._serial = itertools.count()
        self._words = {length: max(1, round(length / TOKENS_PER_WORD)) for length in plan.lengths}
        """Words of prompts by their length in tokens."""
        self._lengths: Sequence[int | None] = plan.lengths or (None,)
        # A tap distinguishes temperatures that run at once.
        mixed = all(server.engine.tapped for server in servers[1:])
        self._temperatures: Sequence[float | None] = (None,) if mixed else plan.temperatures
        """Those with separate slices; None for all together."""
        kinds, lengths = len(self._temperatures), len(self._lengths)
        self._rounds = math.ceil(SLICES / (kinds * lengths))
        if kinds > 1:
            self._rounds = max(self._rounds, math.ceil(LEAST_OF_TEMPERATURE / lengths))
        slices = self._rounds * kinds * lengths
        if plan.duration < round(LEAST_SLICE * slices, 3):
            of = "" if kinds == 1 else f" of {kinds} temperatures"
            raise ConfigError(
                f"--duration: {format_duration(plan.duration)} is too short for {slices} slices"
                f"{of}; make it at least {format_duration(LEAST_SLICE * slices)}"
            )
        self._seconds = plan.duration / slices
        self.slices = slices * len(servers) * len(plan.concurrencies)
        """Number of slices of all stages."""

    async def run(self) -> list[Stage]:
        """Measure everything. Raises ScrapeError, NoAnswer, ConfigError."""
        servers = self._servers
        stages: list[Stage] = []
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            await self._size_prompts(servers[0])
            longest = self._lengths[-1]
            latencies = []
            for server in servers:
                asks = self._asks(self._plan.temperatures, longest, "first")
                await server.try_out(next(asks))  # the first of a server may take much longer
                latencies.append((await server.try_out(next(asks))).latency)
            self._note(self._announced(latencies))
            for concurrency in self._plan.concurrencies:
                stages += await self._stages(concurrency)
        return stages

    async def _size_prompts(self, server: Server) -> None:
        """Find the number of words for each length, by the server's tokenizer endpoint; if it has
        none, by the prompt tokens of a request."""
        for length in self._plan.lengths:
            self._step(f"making prompts of {length} tokens", 0)
            for _ in range(_TRIES):
                some = _SOME if length < _LONG else _FEW
                asks = itertools.islice(self._asks((0.0,), length, "size"), some)
                counts = [await server.client.count_tokens(ask.prompt) for ask in asks]
                lengths = [count for count in counts if count is not None]
                if len(lengths) < len(counts):
                    await self._size_by_request(server)
                    return
                mean = sum(lengths) / len(lengths)
                if abs(mean - length) <= _CLOSE * length:
                    break
                words = self._words[length]
                self._words[length] = max(1, round(words + (length - mean) * words / mean))

    async def _size_by_request(self, server: Server) -> None:
        shortest = self._plan.lengths[0]
        answer = await server.try_out(next(self._asks(self._plan.temperatures, shortest, "size")))
        if answer.prompt_tokens:
            ratio = self._words[shortest] / answer.prompt_tokens
            self._words = {length: max(1, round(length * ratio)) for length in self._plan.lengths}

    def _announced(self, latencies: Sequence[float]) -> str:
        """The expected duration, from the latency of a request on each server."""
        plan, servers = self._plan, len(latencies)
        seconds = 0.0
        for concurrency in plan.concurrencies:
            blocks = self._blocks(concurrency)
            seconds += servers * (plan.warm_up + plan.duration) + sum(latencies)
            seconds += sum(latencies[turn.server] for turn, _ in blocks)
        unit = 1 if seconds < _SHORT else 30
        loads = f"{counted(len(plan.concurrencies), 'load')} on {counted(servers, 'server')}"
        about = format_duration(unit * math.ceil(seconds / unit))
        return f"{loads}, {format_duration(plan.duration)} each: about {about} in all"

    def _blocks(self, concurrency: int) -> list[tuple[_Turn, int]]:
        """The turns of one concurrency in order, each with its number of consecutive slices.

        Each round has every length, temperature and server once, and every second round is the
        previous one in reverse, so that a drift of the server affects all of them equally.
        """
        generator = Random(f"{self._plan.seed}/{concurrency}/order")
        work = list(itertools.product(self._lengths, self._temperatures))
        servers = len(self._servers)
        turns: list[_Turn] = []
        for number in range(self._rounds):
            if number % 2 == 0:
                generator.shuffle(work)
                order = [_Turn(server, *kind) for kind in work for server in range(servers)]
            else:
                order.reverse()
            turns += order
        if servers > 1:  # a tap's counts of two consecutive slices could not be separated
            return [(turn, 1) for turn in turns]
        return [(turn, len(list(alike))) for turn, alike in itertools.groupby(turns)]

    async def _stages(self, concurrency: int) -> list[Stage]:
        """One concurrency, repeated if step times differ too much."""
        stages = await self._stages_once(concurrency)
        for _ in range(MOST_TRIES - 1):
            if not any(stage.disturbed for stage in stages):
                break
            longest = 1 + max(stage.apart for stage in stages)
            self._note(
                f"concurrency {concurrency}: a step took up to {longest:.1f} times as long in one"
                " round as in another with the same prompts; measuring it again"
            )
            self._step(f"concurrency {concurrency}", -sum(len(stage.slices) for stage in stages))
            stages = await self._stages_once(concurrency)
        return stages

    async def _stages_once(self, concurrency: int) -> list[Stage]:
        """Slices of the servers alternately, so that a change in between affects both."""
        plan, servers = self._plan, self._servers
        stages = [
            Stage(server.engine, concurrency, must_be_steady=not plan.unsteady)
            for server in servers
        ]
        for server in servers:
            self._step(f"concurrency {concurrency}, warming up", 0)
            await server.load.closed(
                self._of_all_lengths(f"{concurrency}/warm-up"),
                concurrency=concurrency,
                slices=1,
                seconds=plan.warm_up,
            )
        asks: dict[_Turn, Iterator[Ask]] = {}
        doing = f"concurrency {concurrency}"
        for turn, slices in self._blocks(concurrency):
            number, length, temperature = turn
            if turn not in asks:
                kinds = plan.temperatures if temperature is None else [temperature]
                asks[turn] = self._asks(kinds, length, f"{concurrency}/{length}/{temperature}")
            self._step(doing, 0)
            block = await servers[number].load.closed(
                asks[turn],
                concurrency=concurrency,
                slices=slices,
                seconds=self._seconds,
                slice_ended=lambda: self._step(doing, 1),
            )
            label = None if temperature is None else self._buckets.of(temperature)
            stages[number].add(block, servers[number].meter, label, length)
        for stage in stages:
            failed = sum(stage.errors.values())
            self._note(f"{stage.title}: {len(stage.answers)} requests, {failed} failed")
        return stages

    def _asks(self, temperatures: Sequence[float], length: int | None, salt: str) -> Iterator[Ask]:
        """Requests in an order that the seed and ``salt`` determine; ``length`` None sends prompts
        unchanged."""
        plan, seed = self._plan, f"{self._plan.seed}/{salt}"
        if length is None:
            prompts = endless(plan.prompts, seed)
        else:
            prompts = sized(plan.prompts, self._words[length], seed)
        for prompt, temperature in zip(prompts, itertools.cycle(temperatures), strict=False):
            text = f"{next(self._serial):04x}-{plan.mark} {prompt}" if plan.mark else prompt
            yield Ask(text, plan.max_tokens, temperature)

    def _of_all_lengths(self, salt: str) -> Iterator[Ask]:
        asks = [
            self._asks(self._plan.temperatures, length, f"{salt}/{length}")
            for length in self._lengths
        ]
        while True:
            for source in asks:
                yield next(source)
