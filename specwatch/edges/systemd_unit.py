"""One unit of systemd, switched by a drop-in and a restart: the work itself, with no privilege.

A file is written, systemd reads it, and what systemd then says is compared with what was meant,
before anything is restarted. Until then every failure puts back what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from specwatch.codegen.drop_in import DropIn
from specwatch.codegen.unit_command import Rewritten, UnitCommand, rewritten, words_of
from specwatch.edges.systemd_bus import LoadedUnit, Manager
from specwatch.edges.systemd_environment import config_file, environment_of
from specwatch.edges.systemd_files import LastRestart, UnitFiles, digests
from specwatch.errors import ActuatorError, CannotStrip
from specwatch.guard.plan import FileChange, Life, Plan, Service
from specwatch.model import Mode
from specwatch.scalars import format_duration
from specwatch.stripping import Stripped, strip

_WRONG_STATE = {
    "masked": "is masked; `systemctl unmask` it",
    "not-found": "does not exist",
    "bad-setting": "has a setting that systemd refuses",
    "error": "cannot be loaded",
}
_READ_AGAIN = "let systemd read its units again"
_ALIVE = {"active", "activating", "reloading"}


@dataclass(frozen=True, slots=True)
class _Found:
    """The unit, its command without our drop-in, and what our drop-in says."""

    unit: LoadedUnit
    ours: DropIn | None
    text: str | None
    """The drop-in as it lies there, whoever wrote it."""

    @property
    def in_force(self) -> bool:
        """Whether systemd starts the unit with the command of our drop-in."""
        return (
            self.ours is not None
            and not self.unit.needs_reload
            and self.unit.commands == (self.ours.command,)
        )


class SystemdUnit:
    """An actuator that may do what it does: it runs as root, or the unit is its user's own."""

    def __init__(
        self, name: str, manager: Manager, files: UnitFiles, *, timeout: float, user: bool = False
    ) -> None:
        """``timeout``: seconds that a restart may take, stopping included."""
        self._name = name
        self._manager = manager
        self._files = files
        self._timeout = timeout
        self._user = user
        self._restarting = False

    def plan(self) -> Plan:
        """What :meth:`disable` would do."""
        found = self._found()
        path = str(self._files.drop_in)
        if found.ours and found.in_force and not self._stale(found):
            ours = found.ours
            return Plan(
                ours.original.words, ours.command.words, (), (f"restart {self._name}",),
                (f"speculation is off already, by {path} for incident {ours.incident}",),
            )  # fmt: skip
        if path in found.unit.drop_ins:
            return self._plan_anew(found)
        original = _only_command(found.unit)
        result = self._without_speculation(found.unit, original)
        new = self._drop_in("INCIDENT", found, result, original).text()
        steps = (f"write {path}", _READ_AGAIN, f"restart {self._name}")
        change = FileChange(path, found.text, new)
        return Plan(original.words, result.command.words, (change,), steps, result.notes)

    def _plan_anew(self, found: _Found) -> Plan:
        path = str(self._files.drop_in)
        return Plan(
            _only_command(found.unit).words,
            (),
            (FileChange(path, found.text, None),),
            (
                f"remove {path}", _READ_AGAIN, f"write {path} anew, without speculation",
                _READ_AGAIN, f"restart {self._name}",
            ),
            (f"{path} is in force, and was edited or does not fit the unit's other files any more;"
             " the command is known once it is removed",),
        )  # fmt: skip

    def status(self) -> Service:
        """The unit now, as systemd knows it."""
        found = self._found(must_be_loaded=False)
        unit = found.unit
        mode: Mode | None = None
        detail = []
        if unit.load_state == "loaded":
            try:
                removed = self._rewritten(unit, _only_command(unit)).removed
                mode = Mode.ON if removed else Mode.OFF
            except ActuatorError as error:
                detail.append(str(error))
        else:
            detail.append(_why_not_loaded(unit))
        if unit.active_state == "failed" or unit.result not in ("", "success"):
            detail.append(f"its result is {unit.result}")
        if unit.status_text:
            detail.append(unit.status_text)
        if unit.needs_reload:
            detail.append("its files changed since systemd read them")
        if found.ours and self._stale(found):
            detail.append("its own files changed since speculation was switched off")
        stale = found.ours is not None and self._stale(found)
        return Service(_life(unit), mode, unit.instance or None, "; ".join(detail), stale)

    def disable(self, incident: str) -> None:
        """Write the drop-in, reload, compare, restart."""
        found = self._found()
        with self._telling_changes(found):
            if not (found.in_force and not self._stale(found)):
                found = self._switch_off(found, incident)
            self._restart("disable", incident, found.unit)

    def enable(self, incident: str) -> None:
        """Remove the drop-in, reload, restart."""
        found = self._found()
        with self._telling_changes(found):
            if found.text is not None:
                self._change(found, None)
            elif found.unit.needs_reload:
                self._manager.reload()
            self._restart("enable", incident, self._manager.load(self._name))

    def close(self) -> None:
        """Let go of the connection to systemd."""
        self._manager.close()

    def _found(self, *, must_be_loaded: bool = True) -> _Found:
        unit = self._manager.load(self._name)
        if must_be_loaded and unit.load_state != "loaded":
            raise ActuatorError(_why_not_loaded(unit))
        text = self._text()
        return _Found(unit, DropIn.parse(text) if text is not None else None, text)

    def _text(self) -> str | None:
        try:
            return self._files.read()
        except (OSError, ValueError) as error:
            raise ActuatorError(f"{self._files.drop_in} cannot be read: {error}") from error

    @contextmanager
    def _telling_changes(self, found: _Found) -> Iterator[None]:
        """An error says that something was changed unless all is as it was found."""
        self._restarting = False
        try:
            yield
        except ActuatorError as error:
            if error.changed or (not self._restarting and self._text() == found.text):
                raise
            raise ActuatorError(str(error), changed=True, retry=error.retry) from error

    def _stale(self, found: _Found) -> bool:
        return found.ours is not None and found.ours.files != digests(self._others(found.unit))

    def _others(self, unit: LoadedUnit) -> list[str]:
        paths = [unit.fragment, *unit.drop_ins]
        return [path for path in paths if path and path != str(self._files.drop_in)]

    def _switch_off(self, found: _Found, incident: str) -> _Found:
        """The drop-in in force; on an error, all is as it was."""
        if found.unit.needs_reload:
            self._manager.reload()
            found = self._found()
        before = found.text
        if str(self._files.drop_in) in found.unit.drop_ins:
            self._change(found, None)
            found = self._found()
        try:
            original = _only_command(found.unit)
            result = self._without_speculation(found.unit, original)
            drop_in = self._drop_in(incident, found, result, original)
            self._change(found, drop_in.text())
        except BaseException:
            if before is not None and self._text() is None:
                self._put_back(before)
            raise
        try:
            after = self._found()
            if after.in_force:
                return after
            raise ActuatorError(self._why_not_in_force(after))
        except ActuatorError:
            self._put_back(before)
            raise

    def _without_speculation(self, unit: LoadedUnit, command: UnitCommand) -> Rewritten:
        result = self._rewritten(unit, command)
        if not result.removed:
            raise CannotStrip(f"{self._name} has no speculation on its command line")
        return result

    def _rewritten(self, unit: LoadedUnit, command: UnitCommand) -> Rewritten:
        environment = environment_of(unit, self._manager.environment(), passes_on=self._user)
        unknown = {name for item in words_of(command, environment) for name in item.unknown}
        if passed := sorted(unknown.intersection(unit.pass_environment)):
            raise CannotStrip(
                f"{self._name}: ${passed[0]} comes by PassEnvironment= from systemd's own"
                " environment, which cannot be read; set it with Environment="
            )
        try:
            return rewritten(command, environment, self._stripper(unit))
        except CannotStrip as error:
            raise CannotStrip(f"{self._name}: {error}") from error

    def _stripper(self, unit: LoadedUnit) -> Callable[[Sequence[str]], Stripped]:
        return lambda words: strip(words, read_file=lambda path: config_file(unit, path))

    def _drop_in(
        self, incident: str, found: _Found, result: Rewritten, original: UnitCommand
    ) -> DropIn:
        files = digests(self._others(found.unit))
        return DropIn(incident, original, result.command, files)

    def _change(self, found: _Found, text: str | None) -> None:
        """Write or remove the drop-in and let systemd read it; on an error, put it back."""
        try:
            if text is None:
                self._files.remove()
            else:
                self._files.write(text)
        except OSError as error:
            raise ActuatorError(
                f"{self._files.drop_in} cannot be {'written' if text else 'removed'}:"
                f" {error.strerror}"
            ) from error
        try:
            self._manager.reload()
        except ActuatorError:
            self._put_back(found.text)
            raise

    def _put_back(self, text: str | None) -> None:
        try:
            if text is None:
                self._files.remove()
            else:
                self._files.write(text)
            self._manager.reload()
        except (OSError, ActuatorError) as error:
            raise ActuatorError(
                f"{self._files.drop_in} could not be put back as it was: {error}", changed=True
            ) from error

    def _why_not_in_force(self, found: _Found) -> str:
        path = str(self._files.drop_in)
        if path not in found.unit.drop_ins:
            return f"{self._name}: systemd does not read {path}; another file may hide it"
        later = found.unit.drop_ins[found.unit.drop_ins.index(path) + 1 :]
        if later:
            return (
                f"{self._name}: {', '.join(later)} counts after {path} and sets ExecStart= again;"
                " give it a name that sorts before 90-"
            )
        return f"{self._name}: systemd reads another command from {path} than was written"

    def _restart(self, do: str, incident: str, unit: LoadedUnit) -> None:
        """Restart the unit, unless that was done for this incident before."""
        try:
            last = self._files.last_restart()
            if last and (last.do, last.incident) == (do, incident):
                unit = self._settled(unit)
                if unit.instance != last.instance and unit.active_state in _ALIVE:
                    return
            self._files.about_to_restart(LastRestart(do, incident, unit.instance))
        except OSError as error:
            raise ActuatorError(f"what is done cannot be recorded: {error}", retry=True) from error
        self._restarting = True
        self._judge(self._manager.restart(self._name, self._timeout))

    def _settled(self, unit: LoadedUnit) -> LoadedUnit:
        """The unit after its job, most likely the restart that was begun."""
        if unit.has_job:
            self._restarting = True
            unit = self._manager.settle(self._name, self._timeout)
        if unit.has_job:
            raise self._too_long()
        return unit

    def _judge(self, result: str) -> None:
        if result in ("done", "waiting"):
            return  # what takes long may still come: whether it does is seen by its health
        unit = self._manager.load(self._name)
        raise ActuatorError(
            f"{self._name} was not restarted: its job ended as {result}, the unit as"
            f" {unit.result or unit.active_state}; see journalctl -u {self._name}"
        )

    def _too_long(self) -> ActuatorError:
        return ActuatorError(
            f"{self._name} was not restarted within {format_duration(self._timeout)}; systemd goes"
            " on with it"
        )


def _only_command(unit: LoadedUnit) -> UnitCommand:
    if len(unit.commands) != 1:
        raise CannotStrip(f"{unit.name} has {len(unit.commands)} ExecStart= lines; expected one")
    return unit.commands[0]


def _why_not_loaded(unit: LoadedUnit) -> str:
    why = _WRONG_STATE.get(unit.load_state, f"is {unit.load_state}")
    return f"{unit.name} {why}" + (f" ({unit.load_error})" if unit.load_error else "")


def _life(unit: LoadedUnit) -> Life:
    if unit.has_job or unit.active_state == "deactivating":
        return Life.CHANGING
    if unit.active_state == "activating":  # between two attempts nothing runs
        return Life.DOWN if unit.sub_state.startswith("auto-restart") else Life.CHANGING
    if unit.active_state in ("active", "reloading"):
        return Life.UP
    return Life.STOPPED if unit.result == "success" else Life.DOWN
