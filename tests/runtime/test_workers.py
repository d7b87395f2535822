"""Work that is shared out among processes comes back in order, whole, or with what went wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specwatch.runtime import workers
from specwatch.runtime.workers import spread

PROGRAM = """
import json, os, select, signal, sys, time
from specwatch.runtime import workers
from specwatch.runtime.workers import spread
from specwatch.errors import StoreUnavailable
prepared = []
def prepare():
    prepared.append(os.getpid())
for line in sys.stdin:
    script, out, err = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for number, name in ((1, out), (2, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    workers._processors = lambda: 2
    exec(script)
    sys.exit()
"""
Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    """Copies itself for each script that it is given: a script starts at once."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        yield running


@pytest.fixture
def run(program: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Runs what a program of one thread does, as the one of these tests has several."""

    def ran(script: str) -> subprocess.CompletedProcess[str]:
        out, err = tmp_path / "out", tmp_path / "err"
        program.stdin.write(json.dumps([textwrap.dedent(script), str(out), str(err)]) + "\n")
        program.stdin.flush()
        status = int(program.stdout.readline())
        return subprocess.CompletedProcess([], status, out.read_text(), err.read_text())

    return ran


def test_many_things_are_made_by_several_processes_in_their_order(run: Run) -> None:
    done = run("""
        with spread(lambda n: (n * n, os.getpid(), list(prepared)), range(11), prepare) as found:
            made = list(found)
        assert [square for square, _, _ in made] == [n * n for n in range(11)]
        makers = {pid for _, pid, _ in made}
        assert len(makers) == 2 and os.getpid() not in makers
        assert all(own == [os.getpid()] for _, _, own in made)
    """)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("things", "processors"), [(7, 8), (100, 1)])
def test_few_things_or_one_processor_need_no_other_process(
    monkeypatch: pytest.MonkeyPatch, things: int, processors: int
) -> None:
    monkeypatch.setattr(workers, "_processors", lambda: processors)
    monkeypatch.setattr(workers.threading, "active_count", lambda: 1)
    prepared: list[int] = []
    with spread(lambda n: os.getpid(), range(things), lambda: prepared.append(1)) as found:
        assert set(found) == {os.getpid()}
    assert not prepared


def test_a_program_of_several_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_processors", lambda: 4)
    monkeypatch.setattr(workers.threading, "active_count", lambda: 2)
    seen: list[int] = []
    with spread(lambda n: seen.append(n), range(20), lambda: None) as results:
        list(results)
    assert seen == list(range(20))


def test_where_no_process_is_to_be_had_the_work_is_done_all_the_same(run: Run) -> None:
    done = run("""
        start, count = workers._start, 0
        def refused(*arguments):
            global count
            count += 1
            if count == 2:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            start(*arguments)
        workers._start = refused
        with spread(lambda n: (n, os.getpid()), range(9), prepare) as found:
            assert list(found) == [(n, os.getpid()) for n in range(9)]
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("nobody is left")
    """)
    assert (done.stdout, done.stderr) == ("nobody is left\n", "")


def test_what_a_process_raises_is_raised_where_it_is_asked_for(run: Run) -> None:
    done = run("""
        def make(n):
            if n == 5:
                raise StoreUnavailable("the database is away")
            return n
        made = []
        try:
            with spread(make, range(12), prepare) as found:
                for each in found:
                    made.append(each)
        except StoreUnavailable as error:
            print(made, error)
    """)
    assert (done.stdout, done.stderr) == ("[0, 1, 2, 3, 4] the database is away\n", "")


def test_a_process_that_is_killed_is_named_and_the_others_end(run: Run) -> None:
    done = run("""
        def make(n):
            if n == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return n
        try:
            with spread(make, range(12), prepare) as found:
                list(found)
        except workers.WorkerLostError as error:
            print(error)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("nobody is left")
    """)
    message, left = done.stdout.splitlines()
    assert "was killed or failed" in message
    assert (left, done.stderr) == ("nobody is left", "")


def test_a_fault_of_ours_shows_its_traceback(run: Run) -> None:
    done = run("""
        with spread(lambda n: 1 / (n - 3), range(12), prepare) as found:
            list(found)
    """)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "WorkerLostError" in done.stderr


def test_whoever_stops_asking_leaves_nobody_behind(run: Run) -> None:
    done = run("""
        with spread(lambda n: bytes(1 << 20), range(40), prepare) as found:
            next(found)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("nobody is left")
    """)
    assert (done.stdout, done.stderr) == ("nobody is left\n", "")


def test_processes_end_with_the_one_that_asked(run: Run) -> None:
    done = run("""
        read, write = os.pipe()
        asking = os.fork()
        if not asking:
            with spread(lambda n: time.sleep(60 * bool(n)), range(400), prepare) as found:
                next(found)
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(write)
        # At its end once none of them holds the other side.
        assert select.select([read], [], [], 20)[0] and os.read(read, 1) == b""
        print("all ended")
    """)
    assert (done.stdout, done.stderr) == ("all ended\n", "")
