"""The process that holds a program is killed itself: nothing of the program is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from specwatch.actuators import process_holder
from tests.actuators.process_families import alive, born, family, python
from tests.hostile import wait_for

pytestmark = pytest.mark.usefixtures("only_ours")

SLEEP = python("import time; time.sleep(600)")
OWNER = """\
import sys, time
from specwatch.actuators.held_process import HeldProcess
life = HeldProcess(sys.argv[2:], environ={}, grace=float(sys.argv[1]))
for event in life.events(1.0):
    print(event.number, file=sys.stderr, flush=True)
"""


@contextmanager
def owner(words: Sequence[str], grace: float) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a program, and whose standard output nobody reads."""
    command = [sys.executable, "-c", OWNER, str(grace), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def holder_of(program: int) -> int:
    found = process_holder.process(program)
    return found.parent


def test_a_stubborn_family_is_ended(tmp_path: Path) -> None:
    with owner(family(tmp_path), grace=0.2) as process:
        pids = born(tmp_path)
        above = holder_of(pids[-1])
        process.kill()
        wait_for(lambda: not alive([*pids, above]))


def test_a_flood_that_nobody_reads_is_ended() -> None:
    with owner(["yes"], grace=600.0) as process:
        program = int(process.stderr.readline())
        above = holder_of(program)
        process.kill()
        wait_for(lambda: not alive([program, above]))


def test_when_the_holder_is_killed_too_the_program_is_told() -> None:
    with owner(SLEEP, grace=600.0) as process:
        program = int(process.stderr.readline())
        above = holder_of(program)
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(above, signal.SIGKILL)
        process.kill()
        wait_for(lambda: not alive([program, above]))
