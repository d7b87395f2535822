"""Work that is shared out among processes comes back in order, whole, or with what went wrong."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from specwatch.runtime import workers
from specwatch.runtime.workers import spread


def run(script: str, processors: int = 2) -> subprocess.CompletedProcess[str]:
    """Run what a program of one thread does, as the one of these tests has several."""
    begun = f"""
import os, signal, sys, time
from specwatch.runtime import workers
from specwatch.runtime.workers import spread
from specwatch.errors import StoreUnavailable
workers._processors = lambda: {processors}
prepared = []
def prepare():
    prepared.append(os.getpid())
"""
    return subprocess.run(
        [sys.executable, "-c", begun + textwrap.dedent(script)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_many_things_are_made_by_several_processes_in_their_order() -> None:
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
def test_few_things_or_one_processor_need_no_other_process(things: int, processors: int) -> None:
    done = run(
        f"""
        with spread(lambda n: os.getpid(), range({things}), prepare) as found:
            assert set(found) == {{os.getpid()}}
        assert not prepared
        """,
        processors,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_of_several_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_processors", lambda: 4)
    monkeypatch.setattr(workers.threading, "active_count", lambda: 2)
    seen: list[int] = []
    with spread(lambda n: seen.append(n), range(20), lambda: None) as results:
        list(results)
    assert seen == list(range(20))


def test_where_no_process_is_to_be_had_the_work_is_done_all_the_same() -> None:
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


def test_what_a_process_raises_is_raised_where_it_is_asked_for() -> None:
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


def test_a_process_that_is_killed_is_named_and_the_others_end() -> None:
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


def test_a_fault_of_ours_shows_its_traceback() -> None:
    done = run("""
        with spread(lambda n: 1 / (n - 3), range(12), prepare) as found:
            list(found)
    """)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert "WorkerLostError" in done.stderr


def test_whoever_stops_asking_leaves_nobody_behind() -> None:
    done = run("""
        with spread(lambda n: bytes(1 << 20), range(40), prepare) as found:
            next(found)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("nobody is left")
    """)
    assert (done.stdout, done.stderr) == ("nobody is left\n", "")


def test_processes_end_with_the_one_that_asked() -> None:
    done = run("""
        read, write = os.pipe()
        asking = os.fork()
        if not asking:
            with spread(lambda n: time.sleep(60 * bool(n)), range(400), prepare) as found:
                next(found)
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(write)
        assert os.read(read, 1) == b""  # at its end once none of them holds the other side
        print("all ended")
    """)
    assert (done.stdout, done.stderr) == ("all ended\n", "")
