"""Asking a server with and one without speculation the same prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specwatch.lab.loadtest.answers import AnswerSet
from specwatch.lab.loadtest.requests import Answer, Ask
from specwatch.lab.loadtest.result_parts import Note, Step
from specwatch.lab.loadtest.server import Server

_TOGETHER = 8
"""Requests at a time, the second time without speculation, if the first ones came one by one."""


class AnswersRun:
    """Asks each prompt at temperature 0 with speculation, without, and without again; ``sets`` has
    what was answered so far, and ``problem`` why it is not complete, as words."""

    def __init__(
        self,
        on: Server,
        off: Server,
        asks: Sequence[Ask],
        concurrency: int,
        note: Note,
        step: Step,
    ) -> None:
        """``note`` is called for each part that ends, ``step`` for each request."""
        self._on, self._off = on, off
        self._asks = asks
        self._concurrency = concurrency
        self._note, self._step = note, step
        self.again_concurrency = _TOGETHER if concurrency == 1 else 1
        """Requests at a time the second time, so that batches have another size."""
        self.sets: list[AnswerSet] = []
        self.problem: str | None = None

    async def run(self) -> None:
        """Ask everything; if cancelled, keep what was answered.

        Raises ConfigError for a server that refuses, NoAnswer for one that fails at once.
        """
        size = max(self._concurrency, _TOGETHER)
        async with self._on, self._off:
            for server in (self._on, self._off):
                await server.try_out(self._asks[0])
            try:
                for begin in range(0, len(self._asks), size):
                    if not await self._block(self._asks[begin : begin + size]):
                        self.problem = "no request was answered any more"
                        return
            except asyncio.CancelledError:
                self.problem = "interrupted: what was answered until then is kept"

    async def _block(self, asks: Sequence[Ask]) -> bool:
        """Ask some prompts of both servers; returns whether anything was answered."""
        answers = [
            await self._ask("with speculation", self._on, asks, self._concurrency),
            await self._ask("without", self._off, asks, self._concurrency),
            await self._ask("without, again", self._off, asks, self.again_concurrency),
        ]
        self.sets += map(AnswerSet, *answers)
        failed = sum(not answer.ok for part in answers for answer in part)
        self._note(f"{len(self.sets)} of {len(self._asks)} prompts answered, {failed} failed")
        return failed < sum(map(len, answers))

    async def _ask(
        self, doing: str, server: Server, asks: Sequence[Ask], concurrency: int
    ) -> list[Answer]:
        free = asyncio.Semaphore(concurrency)

        async def one(ask: Ask) -> Answer:
            async with free:
                answer = await server.client.send(ask)
            self._step(doing, 1)
            return answer

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(ask)) for ask in asks]
        return [task.result() for task in tasks]
