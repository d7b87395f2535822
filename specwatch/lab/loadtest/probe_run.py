"""Running a probe: the same prompts at each temperature, acceptance by records or counters."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from specwatch.domain.model import Mode
from specwatch.errors import ConfigError, ScrapeError, SpecwatchError, TooLittle
from specwatch.lab.loadtest.acceptance import DraftCounts
from specwatch.lab.loadtest.calibration import Block, Stage
from specwatch.lab.loadtest.other_traffic import other_traffic, settled
from specwatch.lab.loadtest.probe import RECORDS_FLAG, Source, Sweep
from specwatch.lab.loadtest.prompts import endless
from specwatch.lab.loadtest.requests import Answer, Ask
from specwatch.lab.loadtest.result_parts import Note, Step
from specwatch.lab.loadtest.server import Server
from specwatch.scrape import tally
from specwatch.wording import figures

LOOKS = 13
"""Reads of the page during a sweep by records; its slices are between them."""
MOST_REPEATS = 3
"""Blocks that are sent again because others used the server meanwhile."""
_WARM_UP_TOKENS = 16
_IDLES = 5.0
"""Seconds to wait, before a block, for requests of others to end."""
_LAST_LOOK = 5.0
_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """What to send: ``requests`` for each temperature."""

    temperatures: tuple[float, ...]
    requests: int
    prompts: tuple[str, ...]
    max_tokens: int
    concurrency: int
    seed: int

    @property
    def total(self) -> int:
        """Requests of all temperatures."""
        return self.requests * len(self.temperatures)

    def rounds(self, size: int) -> Iterator[tuple[float, list[Ask]]]:
        """``size`` requests of each temperature in turn, with the same prompts.

        The first temperature changes from round to round, so that drift affects all equally.
        """
        for number, prompts in enumerate(self._blocks(size)):
            first = number % len(self.temperatures)
            for temperature in (*self.temperatures[first:], *self.temperatures[:first]):
                yield temperature, [Ask(prompt, self.max_tokens, temperature) for prompt in prompts]

    def _blocks(self, size: int) -> Iterator[Sequence[str]]:
        """The prompts of a temperature in groups; a repeated prompt is in the same group again."""
        count = max(len(self.prompts), size)
        order = list(itertools.islice(endless(self.prompts, self.seed), count))
        left = self.requests
        for begin in itertools.cycle(range(0, len(order), size)):
            yield (block := order[begin : begin + min(size, left)])
            left -= len(block)
            if not left:
                return


class ProbeRun:
    """A sweep over temperatures on one server; ``sweep`` has the results so far."""

    def __init__(self, server: Server, plan: ProbePlan, note: Note, step: Step) -> None:
        """``note`` is called for each quarter that ends, ``step`` for each request."""
        self._server = server
        self._plan = plan
        self._note = note
        self._step = step
        self._load = server.load
        self._ended = self._failed = 0
        self.sweep = Sweep(
            Stage(server.engine, plan.concurrency),
            "records",
            {temperature: [] for temperature in plan.temperatures},
            {temperature: [] for temperature in plan.temperatures},
        )

    async def run(self) -> Sweep:
        """Measure everything; if cancelled, or when the server fails, return what was measured.

        Raises ScrapeError, NoAnswer, ConfigError if nothing can be measured, ConfigError for a
        server without speculation, TooLittle if the acceptance cannot be known.
        """
        begun = False
        try:
            async with self._server:
                self.sweep.source = await self._source()
                begun = True
                await self._measure()
        except asyncio.CancelledError:
            # While connections are closed nothing is lost.
            if not begun:
                raise
        return self.sweep

    async def _measure(self) -> None:
        by_records = self.sweep.source == "records"
        try:
            await (self._by_records() if by_records else self._by_counters())
            self.sweep.complete = True
        except (asyncio.CancelledError, SpecwatchError) as error:
            why = "interrupted: what was measured until then is kept"
            if isinstance(error, SpecwatchError):
                why = f"{self._server.url}: {error}"
            self.sweep.problems.append(why)
            if by_records:
                await self._keep_rest()

    async def _source(self) -> Source:
        """Warm the server up, and find the source of the acceptance. Raises TooLittle for none."""
        plan, server = self._plan, self._server
        self._step("warming up", 0)
        prompt, tokens = plan.prompts[0], min(plan.max_tokens, _WARM_UP_TOKENS)
        answers = [await server.try_out(Ask(prompt, tokens, t)) for t in plan.temperatures]
        if any(answer.acceptance is not None for answer in answers):
            return "records"
        if server.engine.mode is Mode.OFF:
            raise ConfigError(
                f"{server.where}: {server.url} does not speculate for {server.engine.model_name},"
                f" and its answers carry no record; start it with"
                f" {server.engine.engine.speculation}"
            )
        counted = tally.tally_of(server.engine.series(await server.read()), [])
        remedy = f"start vLLM 0.29 or later with {RECORDS_FLAG}"
        if DraftCounts.of_counters(counted) is None:
            raise TooLittle(
                f"{server.url} does not report its acceptance: its answers carry no record, and its"
                f" page has no counters of drafts and accepted tokens; {remedy}"
            )
        if counted.generation_tokens is None:
            raise TooLittle(
                f"{server.url}: its answers carry no record, and its page does not count generated"
                f" tokens, so drafts of other clients could not be noticed; {remedy}"
            )
        return "counters"

    async def _by_records(self) -> None:
        plan, sweep = self._plan, self.sweep
        asks = [ask for _, (ask,) in plan.rounds(1)]
        self._step("asking", 0)
        await self._load.fixed(
            asks,
            concurrency=plan.concurrency,
            settled=partial(settled, self._server.engine),
            looks=min(LOOKS, len(asks) - 1),
            ended=self._count,
        )
        self._keep(self._load.block, aborted=0)
        answers = itertools.chain(*sweep.answers.values())
        missing = sum(answer.ok and answer.acceptance is None for answer in answers)
        if missing:
            sweep.notes.append(f"{figures.counted(missing, 'answer')} carried no record")

    def _keep(self, block: Block, *, aborted: int) -> None:
        """Add what was measured by records to the results."""
        sweep = self.sweep
        for answer in block.answers:
            temperature = answer.ask.temperature or 0.0
            sweep.answers[temperature].append(answer)
            if answer.ok and answer.acceptance is not None:
                sweep.parts[temperature].append(
                    DraftCounts.of_record(answer.acceptance, [answer.ask.prompt])
                )
        if len(block.looks) < 2:
            return
        first, last = block.looks[0].samples, block.looks[-1].samples
        try:
            others = other_traffic(self._server.engine, first, last, block.answers, aborted=aborted)
            sweep.stage.add(block, self._server.meter)
        except ScrapeError as error:
            sweep.notes.append(f"its counters cannot be used: {error}")
            return
        sweep.alone = others.alone
        if sweep.alone is False:
            sweep.notes.append(
                f"others used the server meanwhile ({others.reason}): the acceptance is that of the"
                " probe's requests, but they affected latencies and load"
            )

    async def _by_counters(self) -> None:
        """Measure blocks of one temperature; repeat those during which others used the server."""
        plan, sweep = self._plan, self.sweep
        repeats, sweep.alone = 0, True
        for temperature, asks in plan.rounds(plan.concurrency):
            while (why := await self._block(temperature, asks)) is not None:
                repeats += 1
                if repeats > MOST_REPEATS:
                    sweep.alone = False
                    raise TooLittle(
                        f"its counters include other requests ({why}), and its answers carry no"
                        " record; stop the traffic of others, or start vLLM 0.29 or later with"
                        f" {RECORDS_FLAG}"
                    )
                self._note(f"repeating a block at temperature {temperature:g}: {why}")

    async def _block(self, temperature: float, asks: Sequence[Ask]) -> str | None:
        """Send one; returns why it does not count, as words, or None."""
        engine, sweep = self._server.engine, self.sweep
        if not await self._idle():
            return "requests of others run or wait"
        block = await self._load.fixed(
            asks,
            concurrency=self._plan.concurrency,
            settled=partial(settled, engine),
        )
        before, after = block.looks
        others = other_traffic(engine, before.samples, after.samples, block.answers)
        failed = any(not answer.ok for answer in block.answers)
        if others.alone is not True and not failed:
            return others.reason
        sweep.answers[temperature] += block.answers
        for answer in block.answers:
            self._count(answer)
        # If requests of a block failed, its times count, but not its drafts.
        if others.alone is False and sweep.alone is not False:
            sweep.notes.append(
                "others used the server while requests failed, first at temperature"
                f" {temperature:g} ({others.reason}), which affects latencies"
            )
        if others.alone is False or sweep.alone:
            sweep.alone = others.alone
        part = DraftCounts.of_counters(others.counted, [ask.prompt for ask in asks])
        if not failed and part is not None:
            sweep.parts[temperature].append(part)
            sweep.stage.add(
                Block((before, before, after, after), block.answers), self._server.meter
            )
        return None

    async def _idle(self) -> bool:
        """Wait until nobody uses the server; returns whether this happened."""
        clock = asyncio.get_running_loop().time
        until = clock() + _IDLES
        while self._server.engine.busy_on(await self._server.read()):
            if clock() >= until:
                return False
            await asyncio.sleep(0.1)
        return True

    async def _keep_rest(self) -> None:
        """Keep the answers of a sweep by records that was interrupted."""
        aborted = min(self._plan.concurrency, self._plan.total - len(self._load.block.answers))
        if self._load.block.looks:
            # The server may be gone; the records do not need its page.
            with contextlib.suppress(SpecwatchError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(_LAST_LOOK):
                    await self._load.settle(lambda *_: True)
        self._keep(self._load.block, aborted=aborted)

    def _count(self, answer: Answer) -> None:
        """Report the progress."""
        before, total = self._ended, self._plan.total
        self._ended += 1
        self._failed += not answer.ok
        self._step(f"temperature {answer.ask.temperature:g}", 1)
        if _QUARTERS * self._ended // total > _QUARTERS * before // total:
            self._note(f"{self._ended} of {total} requests answered, {self._failed} failed")
