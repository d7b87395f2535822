"""Whoever switches a unit may be killed, or fail, at any step; the same call ends the work.

The steps are counted, not picked by hand. From a kill on nothing has an effect any more, not even
what an undo would do.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

from specwatch.actuators.base import Claim
from specwatch.actuators.systemd.drop_in import UnitFiles
from specwatch.actuators.systemd.limit import SwitchLimit
from specwatch.actuators.systemd.unit import SystemdUnit
from specwatch.domain.model import Mode
from specwatch.errors import ActuatorError
from tests.actuators.fake_systemd import NAME, FakeSystemd

SERVE = """/opt/vllm serve m --speculative-config '{"method": "ngram"}'"""


class Killed(BaseException):
    """The process has been killed."""


class MortalProcess:
    """Of one process: it ends at the step of that number, before or after the step's effect.

    With an error of the step's kind it goes on.
    """

    def __init__(self, last_step: int, *, after: bool, fails: bool = False) -> None:
        self.steps = itertools.count()
        self.last_step = last_step
        self.after = after
        self.fails = fails
        self.ended = False

    def end(self, now: bool, thing: object) -> None:
        """Go on only if it has not ended, and does not now."""
        self.ended |= now
        if now and self.fails:
            raise OSError("full") if isinstance(thing, UnitFiles) else ActuatorError("no answer")
        if self.ended and not self.fails:
            raise Killed

    def of(self, thing: object) -> Any:
        return _Mortal(thing, self)


class _Mortal:
    def __init__(self, thing: object, life: MortalProcess) -> None:
        self._thing = thing
        self._life = life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not callable(found):
            return found

        def step(*arguments: Any) -> Any:
            life = self._life
            mine = next(life.steps) == life.last_step
            life.end(mine and not life.after, self._thing)
            result = found(*arguments)
            life.end(mine and life.after, self._thing)
            return result

        return step


def prepared(folder: Path, start: str) -> FakeSystemd:
    """A unit with speculation, and what happened to it before."""
    systemd = FakeSystemd(folder)
    folder.mkdir()
    (folder / "args").write_text("ARGS='--spec-method ngram --spec-tokens 3 --api-key sk'\n")
    systemd.extra = {"environment_files": ((f"{folder}/args", False),)}
    systemd.write("/opt/vllm serve m $ARGS" if "variables" in start else SERVE)
    systemd.reload()
    if not start.startswith("new"):
        hand(systemd).disable(Claim("earlier"))
    if start == "changed by its owner":
        systemd.write(SERVE + " --port 80")
        systemd.reload()
    return systemd


def hand(systemd: FakeSystemd, life: MortalProcess | None = None) -> SystemdUnit:
    files = UnitFiles(NAME, units=systemd.folder, records=systemd.folder / "records")
    limit = SwitchLimit(NAME, most=9, cooldown=0, folder=systemd.folder)
    if life is None:
        return SystemdUnit(NAME, systemd, files, timeout=60, limit=limit)
    return SystemdUnit(NAME, life.of(systemd), life.of(files), timeout=60, limit=life.of(limit))


def counted(systemd: FakeSystemd) -> int:
    """Restarts that the limit knows of."""
    record = systemd.folder / f"{NAME}.json"
    return len(json.loads(record.read_text())) if record.exists() else 0


STARTS = [
    "new",
    "changed by its owner",
    "on its way back",
    "new, with variables",
    "on its way back, with variables",
]


def kill_at_each_step(folder: Path, start: str) -> None:
    """A killed change is ended by the same call, with one restart."""
    for number in itertools.count():
        systemd = prepared(folder / str(number), start)
        before = systemd.restarts
        do = "enable" if start.startswith("on its way back") else "disable"
        life = MortalProcess(number // 2, after=number % 2 == 1)
        with contextlib.suppress(Killed):
            getattr(hand(systemd, life), do)(Claim("now"))
        again = hand(systemd)
        getattr(again, do)(Claim("now"))
        assert systemd.restarts == before + 1, number
        assert counted(systemd) == systemd.restarts, number
        assert again.status().mode is (Mode.ON if do == "enable" else Mode.OFF)
        assert again.status().detail == ""
        variables = list(systemd.folder.rglob("90-specwatch.env"))
        assert bool(variables) == (start == "new, with variables"), number
        if not life.ended:
            break
    assert number > 10, "the kills were not where the work is"


def fail_at_each_step(folder: Path, start: str) -> None:
    """A step that fails leaves all as it was, or says so; then the same call ends well."""
    for number in itertools.count():
        systemd = prepared(folder / str(number), start)
        before = state(systemd)
        do = "enable" if start.startswith("on its way back") else "disable"
        life = MortalProcess(number // 2, after=number % 2 == 1, fails=True)
        try:
            getattr(hand(systemd, life), do)(Claim("now"))
        except ActuatorError as error:
            changed = error.changed
        else:
            changed = True
        assert changed or state(systemd) == before, number
        again = hand(systemd)
        getattr(again, do)(Claim("now"))
        assert again.status().mode is (Mode.ON if do == "enable" else Mode.OFF)
        assert again.status().detail == ""
        if not life.ended:
            break
    assert number > 10, "the failures were not where the work is"


def state(systemd: FakeSystemd) -> object:
    """What must be as it was."""
    files = sorted([*systemd.folder.rglob("*.conf"), *systemd.folder.rglob("*.env")])
    texts = [(path, path.read_text()) for path in files]
    return texts, systemd.load(NAME), systemd.restarts
