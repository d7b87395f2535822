"""The limit of connections, and signals during a load."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from specwatch.cli.load import StopSignals
from specwatch.errors import TooLittle

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    with StopSignals(keeps=False) as ending:
        return ending.run(work)


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

    assert run(limit()) == (hard, hard)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_process_lets_the_work_keep_what_it_has(number: signal.Signals) -> None:
    async def work() -> str:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "kept"
        return "not cancelled"

    assert run(work()) == "kept"
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_keeps_nothing_is_interrupted(number: signal.Signals) -> None:
    async def work() -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    with pytest.raises(TooLittle, match="interrupted"):
        run(work())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_one_hurries_and_loses_nothing(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work() -> list[str]:
        kept = []
        for name in ("measuring", "last look"):
            try:
                os.kill(os.getpid(), number)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                kept.append(name)
        return kept

    with StopSignals() as ending:
        assert ending.run(work()) == ["measuring", "last look"]
    said = capfd.readouterr().err
    assert said.strip().splitlines() == [
        "ending: what was measured is kept; Ctrl-C again ends at once, without it"
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("times", [1, 2])
def test_one_before_the_work_is_not_lost(number: signal.Signals, times: int) -> None:
    """For example while modules are imported."""

    async def work() -> None:
        begun.append(True)

    begun: list[bool] = []
    with StopSignals() as ending:
        for _ in range(times):
            os.kill(os.getpid(), number)
        with pytest.raises(TooLittle, match="interrupted"):
            ending.run(work())
    assert not begun


def test_of_work_that_keeps_nothing_no_signal_says_that_it_is_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)

    with pytest.raises(TooLittle, match="interrupted"):
        run(work())
    assert capfd.readouterr().err.strip().splitlines() == [
        "ending: nothing is stored; Ctrl-C again ends at once"
    ]


def test_while_it_is_being_kept_two_are_put_off_and_the_third_ends_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def work() -> str:
        return "found"

    def keep() -> None:
        with StopSignals() as ending:
            kept.append(ending.run(work()))
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
                kept.append("stored")

    kept: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        keep()
    assert kept == ["found", "stored", "stored"]
    first, second = capfd.readouterr().err.split("\nending: ")[1:]
    assert first == "what was measured is kept\n"
    assert second == "what was measured is kept; Ctrl-C again ends at once, without it\n"


def test_the_third_ends_work_that_does_not_end(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        while True:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    with pytest.raises(TooLittle, match="interrupted"):
        run(work())
    assert capfd.readouterr().err.count("Ctrl-C again") == 1


def test_a_job_in_the_background_does_not_hear_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
