"""A daemon that is killed or stopped before, in or after the call that cannot be undone.

Another daemon carries out the order, and the next one. Whoever goes on later changes nothing: the
server was changed once for each order.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from specwatch.domain.model import Mode
from specwatch.errors import StoreError
from specwatch.guard import state_machine
from specwatch.guard.state import Phase
from specwatch.store.guard_records import GuardBook
from specwatch.store.repository import Store
from tests.e2e.processes import CHECKOUT, DaemonProcess
from tests.e2e.waiting import eventually

LEASE_SECONDS = 12.0
"""Of the daemons here; what is stopped for longer has lost it."""
_WITHIN = 300.0
_POINTS = """\
import os, signal, time
from specwatch.actuators.base import Claim
from specwatch.daemon import guard_service
from specwatch.daemon.target_guard import TargetGuard
from specwatch.store import guard_records

guard_records.LEASE_SECONDS, guard_service._RENEW_SECONDS = {lease}, {lease} / 4
switch, require = TargetGuard._switch, Claim.require
inside = False

def point(name):
    with open(os.environ["POINTS_FILE"], "a") as points:
        points.write(name + "\\n")
    if name == os.environ["POINTS_AT"]:
        if os.environ["POINTS_SIGNAL"] == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        while not os.path.exists(os.environ["POINTS_GO"]):
            time.sleep(0.02)

def switched(self, goal, claim):
    global inside
    point("before")
    inside = True
    switch(self, goal, claim)
    inside = False
    point("after")

def required(self):
    require(self)
    if inside:
        point("in")

TargetGuard._switch, Claim.require = switched, required
"""
POINTS = ("before", "in", "after")
"""The action is stored; its lease has just been checked, before the effect; it has its effect."""


class Interrupted:
    """One guarded server, one database, and two daemons, of which the first is killed or stopped
    at a point; a context manager."""

    def __init__(
        self,
        folder: Path,
        database: str,
        config: Mapping[str, Any],
        *,
        guard: str,
        point: str,
        how: signal.Signals,
        effects: Callable[[], int],
        around: tuple[str, ...] = (),
        child: Sequence[str] = (),
    ) -> None:
        """``guard`` is its name; ``effects`` says how often the server was changed; the daemons run
        in the namespaces that ``around`` enters. The first one supervises a ``child``."""
        folder.mkdir()
        self.label = f"{how.name} {point} the call, {database.partition(':')[0]}"
        self.point = point
        self.how = how
        self.effects = effects
        self._guard = guard
        self._folder = folder
        self._database = database
        self._config = {**config, "guard": {"drain_timeout": "0s", "verify": "10s"}}
        self._around = around
        self._store = Store(database, daemon="test")
        self._store.open(time.time())
        self._book = GuardBook(self._store)
        (folder / "inject").mkdir()
        (folder / "inject/sitecustomize.py").write_text(_POINTS.format(lease=LEASE_SECONDS))
        self.first = self._daemon("one", point, child)
        self.second = self._daemon("two", "")

    def _daemon(self, name: str, point: str, child: Sequence[str] = ()) -> DaemonProcess:
        made = DaemonProcess.configured(
            self._folder / name, self._database, {"daemon": name, **self._config}, child
        )
        made.environment = {
            "PYTHONPATH": f"{self._folder / 'inject'}:{CHECKOUT}",
            "POINTS_AT": point,
            "POINTS_FILE": str(self._folder / "points"),
            "POINTS_SIGNAL": self.how.name,
            "POINTS_GO": str(self._folder / "go"),
        }
        made.around = self._around
        return made

    def order(self, goal: Mode) -> None:
        """A person wants speculation on or off, once the guard has seen which it is."""
        eventually(
            lambda: self._state() and self._state().goal not in (None, goal),
            what=f"{self.label}: there is a guard",
            within=_WITHIN,
        )
        self._book.change(
            self._guard,
            lambda state: state_machine.order(state, goal, by="ann", now=time.time()),
            time.time(),
            by="test",
        )

    def wait_point(self) -> None:
        """Return once the first daemon has come to its point."""
        file = self._folder / "points"
        eventually(
            lambda: file.exists() and self.point in file.read_text().splitlines(),
            what=f"{self.label}: it comes to its point",
            within=_WITHIN,
            evidence=lambda: self.first.log_text()[-4000:],
        )

    def stop(self) -> None:
        """Stop the first daemon, while it holds no lock of the database."""
        for _ in range(20):
            self.first.signal(signal.SIGSTOP)
            try:
                with self._store.writing(time.time()):
                    return
            except StoreError:
                self.first.signal(signal.SIGCONT)
        raise AssertionError(f"{self.label}: it always holds a lock of the database")

    def go_on(self) -> None:
        """Let the first daemon, which was stopped, go on from its point."""
        (self._folder / "go").touch()
        self.first.signal(signal.SIGCONT)

    def wait_phase(self, phase: Phase) -> None:
        """Return once an order is carried out."""
        eventually(
            lambda: (self._state().phase, self._state().order) == (phase, None),
            what=f"{self.label}: it is {phase}",
            within=_WITHIN,
            evidence=lambda: f"{self._state()}\n{self.second.log_text()[-4000:]}",
        )

    def last_order_by(self) -> set[str]:
        """The daemons that carried out the last order."""
        steps = itertools.takewhile(lambda step: step.daemon != "test", self._book.history())
        return {step.daemon for step in steps}

    def _state(self) -> Any:
        entry = self._book.look(self._guard).get(self._guard)
        return entry and entry.state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.first.kill()
        self.second.kill()
        self._store.close(time.time())


def require_one_effect(cases: Sequence[Interrupted]) -> None:
    """Have all of them switched off and on at once; fails unless each order was followed once."""
    for case in cases:
        case.first.start()
    for case in cases:
        case.order(Mode.OFF)
    for case in cases:
        case.wait_point()
        if case.how is signal.SIGSTOP:
            case.stop()
        case.second.start()
    for case in cases:
        case.wait_phase(Phase.DISABLED)
        assert case.effects() == 1, case.label
        case.order(Mode.ON)
    for case in cases:
        case.wait_phase(Phase.OBSERVING)
        assert case.effects() == 2, case.label
        if case.how is signal.SIGSTOP:
            case.go_on()
    for case in cases:
        if case.how is signal.SIGSTOP:
            case.first.wait_scraped(time.time() + 3)
        else:
            assert not case.first.running, case.label
        assert case.effects() == 2, case.label
        assert case.last_order_by() == {"two"}, case.label
