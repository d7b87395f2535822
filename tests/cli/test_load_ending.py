"""The limit of connections, and signals during a load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from specwatch.cli.load import StopSignals
from specwatch.cli.progress import ProgressBar
from specwatch.errors import TooLittle

ENDS = "Ctrl-C again ends at once"
both_signals = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    with StopSignals(keeps=False) as ending:
        return ending.run(work, ProgressBar(), 0)


def receive(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


async def receive_and_wait(number: signal.Signals) -> None:
    receive(number)
    await asyncio.sleep(60)


def messages(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return capfd.readouterr().err.strip().splitlines()


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


@both_signals
def test_a_signal_cancels_the_work_which_may_keep_its_results(number: signal.Signals) -> None:
    async def work() -> str:
        try:
            await receive_and_wait(number)
        except asyncio.CancelledError:
            return "kept"
        return "not cancelled"

    assert run(work()) == "kept"
    assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    with pytest.raises(TooLittle, match="interrupted"):
        run(receive_and_wait(number))


@both_signals
def test_a_second_signal_cancels_again_and_loses_nothing(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work() -> list[str]:
        kept = []
        for name in ("measuring", "last look"):
            try:
                await receive_and_wait(number)
            except asyncio.CancelledError:
                kept.append(name)
        return kept

    with StopSignals() as ending:
        assert ending.run(work(), ProgressBar(), 0) == ["measuring", "last look"]
    assert messages(capfd) == [f"ending: what was measured is kept; {ENDS}, without it"]


@both_signals
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_before_the_work_cancels_it(number: signal.Signals, times: int) -> None:
    """For example while modules are imported."""

    async def work() -> None:
        begun.append(True)

    begun: list[bool] = []
    with StopSignals() as ending:
        for _ in range(times):
            receive(number)
        with pytest.raises(TooLittle, match="interrupted"):
            ending.run(work(), ProgressBar(), 0)
    assert not begun


def test_work_that_keeps_nothing_does_not_claim_that_it_does(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def work() -> None:
        try:
            await receive_and_wait(signal.SIGINT)
        finally:
            await receive_and_wait(signal.SIGINT)

    with pytest.raises(TooLittle, match="interrupted"):
        run(work())
    assert messages(capfd) == [f"ending: nothing is stored; {ENDS}"]


def test_while_results_are_stored_two_signals_wait_and_the_third_interrupts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def work() -> str:
        return "measured"

    def store() -> None:
        with StopSignals() as ending:
            done.append(ending.run(work(), ProgressBar(), 0))
            for _ in range(3):
                receive(signal.SIGINT)
                done.append("stored")

    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        store()
    assert done == ["measured", "stored", "stored"]
    assert [line for line in messages(capfd) if line] == [
        "ending: what was measured is kept",
        f"ending: what was measured is kept; {ENDS}, without it",
    ]


def test_the_third_signal_ends_work_that_does_not_end(capfd: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await receive_and_wait(signal.SIGTERM)

    with pytest.raises(TooLittle, match="interrupted"):
        run(work())
    assert capfd.readouterr().err.count("Ctrl-C again") == 1


def test_a_background_job_ignores_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
