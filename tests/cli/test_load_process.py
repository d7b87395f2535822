"""What a load takes of its process: as many connections as may be, and an end that is heard."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator

import pytest

from specwatch.cli import load_process


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_may_have_as_many_open_files_as_the_machine_allows(limits: tuple[int, int]) -> None:
    _, hard = limits
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))

    async def limit() -> tuple[int, int]:
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    assert load_process.run(limit()) == (hard, hard)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_process_lets_the_work_keep_what_it_has(number: signal.Signals) -> None:
    async def work() -> str:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "kept"
        return "nobody heard"

    assert load_process.run(work()) == "kept"
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_keeps_nothing_is_interrupted(number: signal.Signals) -> None:
    async def work() -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        load_process.run(work())
