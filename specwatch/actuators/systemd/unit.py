"""One unit of systemd, switched by a drop-in and a restart.

The drop-in is written, systemd reads it, and the command that systemd then has is compared with the
intended one before the unit is restarted. Until then every failure restores the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from specwatch.actuators.base import Actuator, Claim
from specwatch.actuators.systemd.bus import SystemdBus
from specwatch.actuators.systemd.command import Rewritten, given_words, rewritten, words_of
from specwatch.actuators.systemd.drop_in import (
    DropIn,
    LastRestart,
    Texts,
    UnitFiles,
    digest,
    digests,
    sets_command,
)
from specwatch.actuators.systemd.environment import (
    Environment,
    config_file,
    environment_file,
    environment_of,
)
from specwatch.actuators.systemd.helper import SOCKET_FOLDER, HelperClient
from specwatch.actuators.systemd.limit import SwitchLimit
from specwatch.actuators.systemd.loaded_unit import LoadedUnit
from specwatch.config import masking
from specwatch.config.service import SystemdService
from specwatch.domain.model import Mode
from specwatch.domain.units import format_duration
from specwatch.errors import ActuatorError, CannotStrip
from specwatch.guard.plan import FileChange, Plan, ProcessState, Service, left_over_totals
from specwatch.vllm_cli import strip

_READ_AGAIN = "let systemd read its units again"


def systemd_actuator(service: SystemdService) -> Actuator:
    """The actuator of one unit of the system's or the user's manager; does not connect yet."""
    name = service.unit
    if service.scope == "user":
        units = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user"
        runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
        files = UnitFiles(name, units=units, records=runtime / "specwatch-guard")
        return SystemdUnit(name, SystemdBus(user=True), files, timeout=service.timeout, user=True)
    if os.geteuid() == 0:
        return system_unit(name, timeout=service.timeout)
    return HelperClient(name, timeout=service.timeout)


def system_unit(name: str, *, timeout: float, limit: SwitchLimit | None = None) -> SystemdUnit:
    """A unit of the system's manager, for root; ``timeout``: seconds a restart may take."""
    files = UnitFiles(name, units=Path("/etc/systemd/system"), records=Path(SOCKET_FOLDER))
    return SystemdUnit(name, SystemdBus(), files, timeout=timeout, limit=limit)


@dataclass(frozen=True, slots=True)
class _UnitState:
    """The unit, its command without our drop-in, and what our drop-in says."""

    unit: LoadedUnit
    ours: DropIn | None
    texts: Texts
    """The drop-in and its variables as they are, including those that we did not write."""

    @property
    def in_force(self) -> bool:
        """Whether systemd starts the unit with the command of our drop-in."""
        return (
            self.ours is not None
            and not self.unit.needs_reload
            and self.unit.commands == (self.ours.command,)
        )


class SystemdUnit:
    """An actuator with the rights that it needs: as root, or for a unit of the user."""

    def __init__(
        self,
        name: str,
        manager: SystemdBus,
        files: UnitFiles,
        *,
        timeout: float,
        user: bool = False,
        limit: SwitchLimit | None = None,
    ) -> None:
        """``timeout``: seconds that a restart may take, stopping included."""
        self._name = name
        self._manager = manager
        self._files = files
        self._timeout = timeout
        self._user = user
        self._limit = limit
        self._restarting = False

    def plan(self) -> Plan:
        """What :meth:`disable` would do, with secrets masked."""
        state = self._read()
        self._check_limit("disable", state.unit)
        path = str(self._files.drop_in)
        if (ours := state.ours) and state.in_force and not self._stale(state):
            return Plan(
                masking.masked(ours.original.words),
                masking.masked(ours.command.words),
                (),
                (f"restart {self._name}",),
                (f"speculation is off already, by {path} for incident {ours.incident}",),
            )
        if path in state.unit.drop_ins:
            return self._plan_again(state)
        result = self._without_speculation(state.unit)
        known = masking.secrets_in(result.words, self._environment(state.unit))
        shown_words = dict(zip(result.words, masking.masked(result.words), strict=True))
        values = {
            name: masking.masked_text(shown_words[value], known)
            for name, value in result.variables.items()
        }
        drop_in = self._drop_in("INCIDENT", state.unit, result)
        before = masking.masked(drop_in.original.words)
        after = masking.masked(result.command.words)
        shown = structs.replace(
            drop_in,
            original=structs.replace(drop_in.original, words=before),
            command=structs.replace(result.command, words=after),
        )
        files = [FileChange(path, _masked(state.texts.drop_in), shown.text())]
        if values:
            old = None if state.texts.variables is None else f"{masking.MASK}\n"
            files.insert(0, FileChange(str(self._files.variables), old, environment_file(values)))
        writes = (f"write {file.path}" for file in files)
        steps = (*writes, _READ_AGAIN, f"restart {self._name}")
        notes = tuple(masking.masked_text(note, known) for note in result.notes)
        notes += left_over_totals(self._environment(state.unit))
        return Plan(before, after, tuple(files), steps, notes)

    def _plan_again(self, state: _UnitState) -> Plan:
        path = str(self._files.drop_in)
        return Plan(
            masking.masked(state.unit.only_command().words),
            (),
            (FileChange(path, _masked(state.texts.drop_in), None),),
            (
                f"remove {path}",
                _READ_AGAIN,
                f"write {path} again, without speculation",
                _READ_AGAIN,
                f"restart {self._name}",
            ),
            (
                f"{path} is in force, and was edited or does not fit the unit's other files any"
                " more; the command is known once it is removed",
            ),
        )

    def status(self) -> Service:
        """The unit now, as systemd knows it."""
        state = self._read(must_be_loaded=False)
        unit = state.unit
        mode: Mode | None = None
        detail = []
        if unit.load_state == "loaded":
            try:
                mode = Mode.ON if self._rewritten(unit).removed else Mode.OFF
            except ActuatorError as error:
                detail.append(str(error))
        else:
            detail.append(unit.why_not_loaded())
        if unit.active_state == "failed" or unit.result not in ("", "success"):
            detail.append(f"its result is {unit.result}")
        if unit.status_text:
            detail.append(unit.status_text)
        if unit.needs_reload:
            detail.append("its files changed since systemd read them")
        stale = self._stale(state)
        if stale:
            detail.append("its own files changed since speculation was switched off")
        return Service(unit.life, mode, unit.instance or None, "; ".join(detail), stale)

    handover = 0.0
    """What an outdated call has begun is seen as a job of systemd's."""

    def disable(self, claim: Claim) -> None:
        """Write the drop-in, reload, compare, restart."""
        state = self._read()
        self._check_limit("disable", state.unit, claim.incident)
        self._require_current(claim)
        with self._marking_changes(state):
            if not (state.in_force and not self._stale(state)):
                state = self._switch_off(state, claim.incident)
            self._restart("disable", claim, state.unit)

    def enable(self, claim: Claim) -> None:
        """Remove the drop-in, reload, restart."""
        state = self._read()
        self._check_limit("enable", state.unit, claim.incident)
        self._require_current(claim)
        with self._marking_changes(state):
            if state.texts != Texts():
                self._change(state, Texts())
            elif state.unit.needs_reload:
                self._manager.reload()
            self._restart("enable", claim, self._manager.load(self._name))

    def close(self) -> None:
        """Close the connection to systemd."""
        self._manager.close()

    def _limit_of(self, do: str, unit: LoadedUnit) -> SwitchLimit | None:
        """The limit; None for a server that is down and is switched back on."""
        return None if do == "enable" and unit.life is ProcessState.DOWN else self._limit

    def _check_limit(self, do: str, unit: LoadedUnit, incident: str = "") -> None:
        if (limit := self._limit_of(do, unit)) is not None:
            limit.check(do, incident)

    def _read(self, *, must_be_loaded: bool = True) -> _UnitState:
        unit = self._manager.load(self._name)
        if must_be_loaded and unit.load_state != "loaded":
            raise ActuatorError(unit.why_not_loaded())
        texts = self._texts()
        ours = DropIn.parse(texts.drop_in) if texts.drop_in is not None else None
        return _UnitState(unit, ours, texts)

    def _texts(self) -> Texts:
        try:
            return self._files.read()
        except (OSError, ValueError) as error:
            raise ActuatorError(f"{self._files.drop_in} cannot be read: {error}") from error

    @contextmanager
    def _marking_changes(self, before: _UnitState) -> Iterator[None]:
        """Mark errors as having changed something, unless all is as it was."""
        self._restarting = False
        try:
            yield
        except ActuatorError as error:
            if error.changed or (not self._restarting and self._texts() == before.texts):
                raise
            raise ActuatorError(str(error), changed=True, retry=error.retry) from error

    def _stale(self, state: _UnitState) -> bool:
        ours = state.ours
        return ours is not None and ours.files != digests(
            [*self._others(state.unit), *filter(None, [ours.variables])]
        )

    def _others(self, unit: LoadedUnit) -> list[str]:
        paths = [unit.fragment, *unit.drop_ins]
        return [path for path in paths if path and path != str(self._files.drop_in)]

    def _switch_off(self, state: _UnitState, incident: str) -> _UnitState:
        """Put the drop-in in force; on an error, restore everything."""
        if state.unit.needs_reload:
            self._manager.reload()
            state = self._read()
        before = state.texts
        if str(self._files.drop_in) in state.unit.drop_ins:
            self._change(state, Texts())
            state = self._read()
        try:
            result = self._without_speculation(state.unit)
            drop_in = self._drop_in(incident, state.unit, result)
            variables = environment_file(result.variables) or None
            self._change(state, Texts(drop_in.text(), variables))
        except BaseException:
            if before.drop_in is not None and self._texts().drop_in is None:
                self._put_back(before)
            raise
        try:
            after = self._read()
            if not (after.in_force and self._given(after.unit) == result.words):
                raise ActuatorError(self._why_not_in_force(after.unit))
            return after
        except ActuatorError:
            self._put_back(before)
            raise

    def _given(self, unit: LoadedUnit) -> tuple[str, ...]:
        return given_words(words_of(unit.only_command(), self._environment(unit)))

    def _without_speculation(self, unit: LoadedUnit) -> Rewritten:
        result = self._rewritten(unit)
        if not result.removed:
            raise CannotStrip(f"{self._name} has no speculation on its command line")
        # systemd reads drop-ins by name, whatever their folders.
        ours = self._files.drop_in.name
        if hiding := [p for p in unit.drop_ins if Path(p).name > ours and sets_command(p)]:
            raise ActuatorError(self._counts_after(hiding))
        return result

    def _rewritten(self, unit: LoadedUnit) -> Rewritten:
        command, environment = unit.only_command(), self._environment(unit)
        words = words_of(command, environment)
        unknown = {name for word in words for name in word.unknown}
        if passed := sorted(unknown.intersection(unit.pass_environment)):
            raise CannotStrip(
                f"{self._name}: ${passed[0]} comes by PassEnvironment= from systemd's own"
                " environment, which cannot be read; set it with Environment="
            )
        try:
            return rewritten(
                command,
                environment,
                lambda words: strip(words, read_file=lambda path: config_file(unit, path)),
            )
        except CannotStrip as error:
            secrets = masking.secrets_in(given_words(words), environment)
            reason = masking.masked_text(str(error), secrets)
            raise CannotStrip(f"{self._name}: {reason}") from None

    def _environment(self, unit: LoadedUnit) -> Environment:
        return environment_of(unit, self._manager.environment(), passes_on=self._user)

    def _drop_in(self, incident: str, unit: LoadedUnit, result: Rewritten) -> DropIn:
        files, path = digests(self._others(unit)), ""
        if result.variables:
            path = str(self._files.variables)
            files[path] = digest(environment_file(result.variables).encode())
        return DropIn(incident, unit.only_command(), result.command, files, path)

    def _change(self, state: _UnitState, texts: Texts) -> None:
        """Write or remove the files and let systemd read them; on an error, put them back."""
        try:
            self._files.write(texts)
        except OSError as error:
            if texts.variables is not None:
                with suppress(OSError):  # the error then says that something was changed
                    self._restore(state.texts)
            raise ActuatorError(
                f"{self._files.drop_in} cannot be {'written' if texts.drop_in else 'removed'}:"
                f" {error.strerror}"
            ) from error
        try:
            self._manager.reload()
            if texts.variables is None:
                self._files.remove_variables()
        except (OSError, ActuatorError) as error:
            self._put_back(state.texts)
            if isinstance(error, ActuatorError):
                raise
            raise ActuatorError(
                f"{self._files.variables} cannot be removed: {error.strerror}"
            ) from error

    def _restore(self, texts: Texts) -> None:
        self._files.write(texts)
        if texts.variables is None:
            self._files.remove_variables()

    def _put_back(self, texts: Texts) -> None:
        try:
            self._restore(texts)
            self._manager.reload()
        except (OSError, ActuatorError) as error:
            raise ActuatorError(
                f"{self._files.drop_in} could not be put back as it was: {error}", changed=True
            ) from error

    def _why_not_in_force(self, unit: LoadedUnit) -> str:
        path = str(self._files.drop_in)
        if path not in unit.drop_ins:
            return f"{self._name}: systemd does not read {path}; another file may hide it"
        if later := unit.drop_ins[unit.drop_ins.index(path) + 1 :]:
            return self._counts_after(later)
        return f"{self._name}: systemd reads another command from {path} than was written"

    def _counts_after(self, later: Sequence[str]) -> str:
        return (
            f"{self._name}: {', '.join(later)} counts after {self._files.drop_in} and sets"
            " ExecStart= or EnvironmentFile= again; give it a name that sorts before 90-"
        )

    def _require_current(self, claim: Claim) -> None:
        """Raise ActuatorError if the lease of the caller has ended, or a later call was made."""
        claim.require()
        try:
            last = self._files.last_restart()
        except OSError as error:
            raise ActuatorError(f"what was done cannot be read: {error}", retry=True) from error
        if last is not None and claim.version < last.version:
            raise ActuatorError(
                f"{self._name} was restarted by a later order than this one: nothing is done. If"
                f" no other daemon gave it, the clock was ahead then: remove {self._files.record}"
            )

    def _restart(self, do: str, claim: Claim, unit: LoadedUnit) -> None:
        """Restart the unit, unless that was done for this incident before."""
        incident = claim.incident
        try:
            last = self._files.last_restart()
            if last and (last.do, last.incident) == (do, incident):
                if unit.has_job:  # most likely the restart that was begun
                    self._restarting = True
                    unit = self._manager.settle(self._name, self._timeout)
                if unit.has_job:
                    raise ActuatorError(
                        f"{self._name} was not restarted within"
                        f" {format_duration(self._timeout)}; systemd goes on with it"
                    )
                alive = unit.active_state in ("active", "activating", "reloading")
                if alive and unit.instance != last.instance:
                    return
            if (limit := self._limit_of(do, unit)) is not None:
                limit.count(do, incident, unit.instance)
            claim.require()
            self._files.about_to_restart(LastRestart(do, incident, unit.instance, claim.version))
        except OSError as error:
            raise ActuatorError(f"what is done cannot be recorded: {error}", retry=True) from error
        self._restarting = True
        result = self._manager.restart(self._name, self._timeout)
        if result in ("done", "waiting"):
            return  # what takes long may still come: whether it does is seen by its health
        unit = self._manager.load(self._name)
        raise ActuatorError(
            f"{self._name} was not restarted: its job ended as {result}, the unit as"
            f" {unit.result or unit.active_state}; see journalctl -u {self._name}"
        )


def _masked(text: str | None) -> str | None:
    return None if text is None else masking.masked_text(text)
