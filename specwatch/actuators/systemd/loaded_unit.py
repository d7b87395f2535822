"""A service as systemd has read it from its files."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from specwatch.errors import CannotStrip
from specwatch.generate.systemd import quoted
from specwatch.guard.plan import ProcessState

_PREFIXES = {
    "ignore-failure": "-",
    "no-env-expand": ":",
    "privileged": "+",
    "no-setuid": "!",
    "ambient": "!!",
    "via-shell": "|",
}
"""How ``ExecStart=`` spells what D-Bus calls flags: systemd.service(5), "Command lines"."""
EXPANDS_NOT = "no-env-expand"
"""The flag of a command in which systemd replaces no variables."""
_WRONG_STATE = {
    "masked": "is masked; `systemctl unmask` it",
    "not-found": "does not exist",
    "bad-setting": "has a setting that systemd refuses",
    "error": "cannot be loaded",
}


class UnitCommand(msgspec.Struct, frozen=True, array_like=True):
    """One ``ExecStart=`` as systemd has read it; ``words`` begins with argv[0].

    Variables are as the unit spells them; specifiers and quotes are gone.
    """

    path: str
    words: tuple[str, ...]
    flags: tuple[str, ...] = ()

    @property
    def expands(self) -> bool:
        """Whether systemd replaces variables in it."""
        return EXPANDS_NOT not in self.flags

    def line(self) -> str:
        """The value of ``ExecStart=`` that systemd reads as this command."""
        unknown = set(self.flags) - set(_PREFIXES)
        if unknown or not self.words:
            names = ", ".join(sorted(unknown)) or "no words"
            raise CannotStrip(f"its command has {names}, which this version cannot write")
        named = self.words[0] != self.path
        prefix = "".join(_PREFIXES[flag] for flag in self.flags) + ("@" if named else "")
        words = self.words if named else self.words[1:]
        return " ".join([quoted(prefix + self.path), *map(quoted, words)])


@dataclass(frozen=True, slots=True)
class LoadedUnit:
    """A service as systemd has it in memory."""

    name: str
    load_state: str
    load_error: str = ""
    active_state: str = "inactive"
    sub_state: str = "dead"
    result: str = "success"
    status_text: str = ""
    instance: str = ""
    """The invocation's id in hexadecimal; empty if it never ran."""
    has_job: bool = False
    needs_reload: bool = False
    fragment: str = ""
    drop_ins: tuple[str, ...] = ()
    """In the order in which they count: a later one overrides."""
    commands: tuple[UnitCommand, ...] = ()
    environment: tuple[str, ...] = ()
    environment_files: tuple[tuple[str, bool], ...] = ()
    """Patterns of paths; True if the file may be missing."""
    pass_environment: tuple[str, ...] = ()
    unset_environment: tuple[str, ...] = ()
    working_directory: str = ""
    root: str = ""
    """Its root folder or image, if it sees another file system than ours."""

    @property
    def life(self) -> ProcessState:
        """Whether its process is there."""
        if self.has_job or self.active_state == "deactivating":
            return ProcessState.CHANGING
        if self.active_state == "activating":  # between two attempts nothing runs
            return (
                ProcessState.DOWN
                if self.sub_state.startswith("auto-restart")
                else ProcessState.CHANGING
            )
        if self.active_state in ("active", "reloading"):
            return ProcessState.UP
        return ProcessState.STOPPED if self.result == "success" else ProcessState.DOWN

    def only_command(self) -> UnitCommand:
        """Its command. Raises CannotStrip where it has none, or several."""
        if len(self.commands) != 1:
            raise CannotStrip(
                f"{self.name} has {len(self.commands)} ExecStart= lines; expected one"
            )
        return self.commands[0]

    def why_not_loaded(self) -> str:
        """A sentence without its full stop."""
        why = _WRONG_STATE.get(self.load_state, f"is {self.load_state}")
        return f"{self.name} {why}" + (f" ({self.load_error})" if self.load_error else "")
