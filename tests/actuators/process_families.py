"""Programs that are hard to end, and looking for what is left of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specwatch.actuators import process_holder
from tests.hostile import wait_for

FAMILY = """\
import os, signal, sys, time

def member(name):
    with open(os.path.join(sys.argv[1], f"{name}.new"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, file.name.removesuffix(".new"))
    while True:
        time.sleep(60)

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    member("child")
if os.fork() == 0:
    os.setsid()
    member("elsewhere")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        member("orphan")
    os._exit(0)
os.wait()
member("head")
"""
"""None obeys SIGTERM; one left the session, one left it and lost its parents."""


def python(code: str, *arguments: object) -> list[str]:
    """The command of a small program."""
    return [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]


def family(folder: Path) -> list[str]:
    """The command of a family that writes its numbers into ``folder``."""
    return python(FAMILY, folder)


def born(folder: Path) -> list[int]:
    """The numbers of a whole family, its head's last, once all are there."""
    names = [folder / name for name in ("child", "elsewhere", "orphan", "head")]
    wait_for(lambda: all(name.exists() for name in names))
    return [int(name.read_text()) for name in names]


def alive(pids: list[int]) -> list[int]:
    """Those that still run."""
    processes = process_holder.processes()
    return [pid for pid in pids if pid in processes and not processes[pid].gone]


_others: set[int] = set()


def leave_others_out() -> None:
    """What other tests of this process have started, such as a database, is none of ours."""
    _others.clear()
    _others.update(
        descendant.pid
        for descendant in process_holder.descendants({os.getpid()}, process_holder.processes())
    )


def descendants() -> list[int]:
    """All processes below this one, but for those that other tests have started."""
    processes = process_holder.processes()
    theirs = _others | {
        descendant.pid for descendant in process_holder.descendants(_others, processes)
    }
    below = process_holder.descendants({os.getpid()}, processes)
    return [each.pid for each in below if not each.gone and each.pid not in theirs]


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
