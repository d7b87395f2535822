"""The daemon is killed or stopped at every point of the guard's work, or loses its database there.

Whichever daemon goes on, the server ends as ordered, after one restart; who was stopped and goes on
later does nothing more. The server is a simulated vLLM that commands of the user restart with or
without speculation; each run of them is noted. A module that Python imports when the daemon starts
notes the points at which it may end or rest: before and after every step is stored, and around and
inside the command. Here it is killed at some; at each of them in tests/nightly/daemon.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from specwatch.domain.model import Mode
from specwatch.guard import state_machine
from specwatch.guard.state import GuardState, Phase
from specwatch.store.guard_records import GuardBook, StepRecord
from specwatch.store.repository import Store
from tests.e2e.processes import CHECKOUT, DaemonProcess
from tests.e2e.waiting import eventually
from tests.e2e.witness import speculates
from tests.guard.daemons import expire
from tests.lab.http_get import is_ok
from tests.lab.vllm_server import free_port
from tests.postgres import PostgresServer

NAME = "chat"
LEASE_SECONDS = 12.0
"""Of the daemons here, who renew it every three; after a longer one all would be the same."""
_COMMAND_SECONDS = 8
"""What a command may take, for which another daemon waits before it runs one."""
_WITHIN = 300.0
_SPECULATING = '--speculative-config {"model":"draft","num_speculative_tokens":4}'
_SWITCH = """\
#!/bin/sh
# switch on|off|status: what a user's own command may look like
cd {folder}
test "$1" != status || exec cat mode
echo "begin $1" >> runs
sleep 0.5
pid=$(cat pid) && kill $pid && while kill -0 $pid 2>/dev/null; do sleep 0.02; done
echo $1 > mode
flags=
test "$1" = off || flags={speculating}
PYTHONPATH={checkout} setsid {python} -m specwatch simulate tiny --host 127.0.0.1 --port {port} \\
    $flags < /dev/null >> simulated.log 2>&1 &
echo $! > pid
echo "end $1" >> runs
"""
_POINTS = """\
import os, signal, threading, time
from specwatch.daemon import guard_service
from specwatch.store import guard_records
from specwatch.actuators.command import CommandActuator
from specwatch.store.guard_records import GuardBook

guard_records.LEASE_SECONDS, guard_service._RENEW_SECONDS = {lease}, {lease} / 4
folder, end_at, stop_at, rest_at = (
    os.environ["POINTS_" + name] for name in ("FOLDER", "END", "STOP", "REST")
)
advance, disable = GuardBook.advance, CommandActuator.disable

def point(name):
    with open(folder + "/points", "a") as points:
        points.write(name + "\\n")
    if name == end_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if name == stop_at:
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == rest_at:
        while not os.path.exists(folder + "/go"):
            time.sleep(0.02)

def stored(self, entry, step, now, **how):
    what = f"storing {{step.state.phase}}"
    point("before " + what)
    found = advance(self, entry, step, now, **how)
    point("after " + what)
    return found

def inside():
    while "begin off" not in open(folder + "/runs").read():
        time.sleep(0.02)
    point("inside the command")

def disabled(self, claim):
    point("before the command")
    threading.Thread(target=inside, daemon=True).start()
    disable(self, claim)
    point("after the command")

GuardBook.advance, CommandActuator.disable = stored, disabled
"""


class KillLab:
    """One server, its commands, one database and as many daemons as are asked for."""

    def __init__(self, folder: Path, database: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.database = database
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._store = Store(database, daemon="test")
        self._store.open(time.time())
        self._book = GuardBook(self._store)
        self._daemons: list[DaemonProcess] = []
        switch = _SWITCH.format(
            folder=shlex.quote(str(folder)),
            speculating=shlex.quote(_SPECULATING),
            checkout=CHECKOUT,
            python=sys.executable,
            port=port,
        )
        (folder / "switch").write_text(switch)
        (folder / "switch").chmod(0o755)
        (folder / "inject").mkdir()
        (folder / "inject" / "sitecustomize.py").write_text(_POINTS.format(lease=LEASE_SECONDS))
        subprocess.run([folder / "switch", "on"], check=True, stderr=subprocess.DEVNULL)
        (folder / "runs").write_text("")
        eventually(self.is_healthy, what="the server answers", within=_WITHIN)

    def daemon(
        self, name: str = "one", *, end_at: str = "", stop_at: str = "", rest_at: str = ""
    ) -> DaemonProcess:
        """Start one; it is killed at the point ``end_at``, stopped at ``stop_at``, and waits at
        ``rest_at`` for :meth:`go`."""
        switch = str(self.folder / "switch")
        service = {
            "kind": "command",
            "disable": [switch, "off"],
            "enable": [switch, "on"],
            "status": [switch, "status"],
            "timeout": f"{_COMMAND_SECONDS}s",
        }
        config = {
            "daemon": name,
            "targets": [
                {
                    "name": NAME,
                    "url": self.url,
                    "interval": "1s",
                    "service": service,
                }
            ],
            "guard": {"drain_timeout": "0s", "verify": "10s"},
        }
        folder = self.folder / f"{name}-{len(self._daemons)}"
        made = DaemonProcess.configured(folder, self.database, config)
        made.environment = {
            "PYTHONPATH": f"{self.folder / 'inject'}:{CHECKOUT}",
            "POINTS_FOLDER": str(self.folder),
            "POINTS_END": end_at,
            "POINTS_STOP": stop_at,
            "POINTS_REST": rest_at,
        }
        self._daemons.append(made)
        made.start()
        return made

    def go(self) -> None:
        """Let who waits go on."""
        (self.folder / "go").touch()

    def order(self, goal: Mode = Mode.OFF) -> None:
        """A person wants speculation off, once the guard has seen that it is on, or on again."""

        def seen() -> bool:
            ended = not any(daemon.running for daemon in self._daemons)
            return ended or (NAME in self._look() and self.state().goal not in (None, goal))

        eventually(seen, what="there is a guard", within=_WITHIN)
        self._book.change(
            NAME,
            lambda state: state_machine.order(state, goal, by="ann", now=time.time()),
            time.time(),
            by="test",
        )

    def expire(self) -> None:
        """End the lease of who was killed, for which another would wait."""
        expire(self._store)

    def wait_dead(self, daemon: DaemonProcess) -> None:
        eventually(lambda: not daemon.running, what="the daemon is killed", within=_WITHIN)

    def wait_point(self, name: str) -> None:
        eventually(lambda: name in self.points(), what=f"it comes to {name}", within=_WITHIN)

    def wait_phase(self, phase: Phase = Phase.DISABLED) -> GuardState:
        """The state once the order is done."""

        def done() -> bool:
            state = self.state()
            return state.phase is phase and state.order is None

        try:
            eventually(done, what=f"it is {phase}", within=_WITHIN)
        except AssertionError as error:
            log_text = "\n".join(daemon.log_text()[-3000:] for daemon in self._daemons)
            raise AssertionError(f"{error}\n{self.state()}\n{log_text}") from None
        return self.state()

    def state(self) -> GuardState:
        return self._look()[NAME]

    def history(self) -> list[StepRecord]:
        """Oldest first."""
        return self._book.history()[::-1]

    def points(self) -> list[str]:
        """Those that were passed, in all lives."""
        file = self.folder / "points"
        return file.read_text().splitlines() if file.exists() else []

    def runs(self) -> list[str]:
        """What the commands did."""
        return (self.folder / "runs").read_text().splitlines()

    def is_healthy(self) -> bool:
        return is_ok(f"{self.url}/health")

    def speculates(self) -> bool:
        return speculates(self.url)

    def close(self) -> None:
        """End all of it."""
        for daemon in self._daemons:
            daemon.kill()
        with suppress(ProcessLookupError):
            os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        self._store.close(time.time())

    def _look(self) -> dict[str, GuardState]:
        return {name: entry.state for name, entry in self._book.look().items()}


ONCE = ["begin off", "end off"]
INSIDE = "inside the command"
PHASES = ("draining", "restarting", "verifying", "disabled")

Lab = Callable[..., KillLab]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Makes labs: ``lab(name, database)``, with its own SQLite where none is named."""
    made: list[KillLab] = []

    def make(name: str, database: str = "") -> KillLab:
        url = database or f"sqlite:///{tmp_path}/{name}.db"
        made.append(KillLab(tmp_path / name, url))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_killed_anywhere_the_order_is_carried_out_with_one_restart(lab: Lab) -> None:
    """After each step is stored, and around the command; all at once, and one that is not."""
    points = [
        *(f"after storing {phase}" for phase in PHASES),
        "before the command",
        INSIDE,
        "after the command",
    ]
    labs = {point: lab(point.replace(" ", "-")) for point in points}
    killed = {point: each.daemon(end_at=point) for point, each in labs.items()}
    whole = lab("whole")
    whole.daemon()
    for each in (*labs.values(), whole):
        each.order()
    for point, each in labs.items():
        each.wait_dead(killed[point])
        assert each.points()[-1] == point or INSIDE in (point, each.points()[-1])
        each.expire()
        each.daemon()
    for point, each in labs.items():
        each.wait_phase()
        ended_well(each, point)
    whole.wait_phase()
    ended_well(whole, "nobody")
    assert {*points} <= {*whole.points()}, "nobody was killed at some"


def ended_well(lab: KillLab, point: str) -> None:
    """As ordered, after as few restarts as possible, with all steps in the history."""
    context = f"killed {point}: {lab.runs()}"
    state = lab.state()
    assert (state.phase, state.goal, state.order) == (Phase.DISABLED, Mode.OFF, None), context
    assert lab.is_healthy(), context
    assert not lab.speculates(), context
    # A command ends with its daemon, here before it restarts anything.
    assert lab.runs() == (["begin off", *ONCE] if point == INSIDE else ONCE), context
    history = lab.history()
    versions = [each.version for each in history]
    assert versions == sorted(set(versions)), context
    for before, after in itertools.pairwise(history):
        assert after.phase_before == before.phase, context
    phases = [each.phase for each in history if each.phase != each.phase_before]
    assert phases == list(PHASES), context


def test_the_other_daemon_goes_on_when_the_lease_ends(lab: Lab, postgres: PostgresServer) -> None:
    """On one Postgres, and by its clock: before the restart, and after it."""
    points = ("after storing restarting", "after the command")
    labs = {point: lab(point.replace(" ", "-"), postgres.new_url()) for point in points}
    killed = {point: each.daemon("one", end_at=point) for point, each in labs.items()}
    for each in labs.values():
        each.order()
    for point, each in labs.items():
        each.daemon("two")
        each.wait_dead(killed[point])
    for point, each in labs.items():
        each.wait_phase()
        ended_well(each, point)
        assert [step.daemon for step in each.history()][-1] == "two"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_who_was_stopped_does_nothing_when_it_goes_on(
    lab: Lab, postgres: PostgresServer, kind: str
) -> None:
    """Before the command, in it and after it; meanwhile another daemon has carried out the order,
    and the next one."""
    points = ("after storing restarting", "before the command", INSIDE, "after the command")
    labs = {
        point: lab(point.replace(" ", "-"), postgres.new_url() if kind == "postgres" else "")
        for point in points
    }
    stopped = {point: each.daemon("one", stop_at=point) for point, each in labs.items()}
    for each in labs.values():
        each.order()
    for point, each in labs.items():
        each.wait_point(point)
        each.daemon("two")
    for each in labs.values():
        each.wait_phase()
        assert each.runs() == ONCE
        each.order(Mode.ON)
    for each in labs.values():
        each.wait_phase(Phase.OBSERVING)
    for daemon in stopped.values():
        daemon.signal(signal.SIGCONT)
    for point, each in labs.items():
        stopped[point].wait_scraped(time.time() + 3)
        assert each.runs() == [*ONCE, "begin on", "end on"], point
        assert each.speculates()
        assert {step.daemon for step in each.history()[-3:]} == {"two"}


def test_without_its_database_a_daemon_only_finishes_what_it_has_claimed(
    lab: Lab, postgres: PostgresServer
) -> None:
    rests = {"unclaimed": "before storing restarting", "claimed": "after storing restarting"}
    labs = {name: lab(name, postgres.new_url()) for name in rests}
    for name, each in labs.items():
        each.daemon(rest_at=rests[name])
        each.order()
    for name, each in labs.items():
        each.wait_point(rests[name])
    postgres.stop(signal.SIGQUIT)
    try:
        for each in labs.values():
            each.go()
        claimed = labs["claimed"]
        eventually(
            lambda: claimed.is_healthy() and not claimed.speculates(),
            what="what was claimed is done",
            within=300,
        )
        assert claimed.runs() == ONCE
        assert labs["unclaimed"].runs() == []
        assert labs["unclaimed"].speculates()
    finally:
        postgres.start()
    for name, each in labs.items():
        each.wait_phase()
        ended_well(each, name)
