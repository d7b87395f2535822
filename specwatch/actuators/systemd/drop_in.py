"""The drop-in with which a unit starts without speculation, and the record of the last restart.

Files are written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specwatch.actuators.systemd.loaded_unit import UnitCommand

NAME = "90-specwatch.conf"
VARIABLES_NAME = "90-specwatch.env"
"""The file of variables beside it, for words that must stay secret. It is not a ``.conf``, so that
systemd does not read it as a drop-in."""
_RECORD = "# specwatch: "
_TEXT = """\
# Written by specwatch, which started this unit without speculation for incident {incident}.
# `specwatch guard enable` removes this file; by hand: remove it, then `systemctl daemon-reload` and
# restart the unit. DO NOT EDIT.
{record}
[Service]
{variables}ExecStart=
ExecStart={line}
"""


class DropIn(msgspec.Struct, frozen=True, omit_defaults=True):
    """The command of the drop-in, and what it was made from."""

    incident: str
    original: UnitCommand
    command: UnitCommand
    files: Mapping[str, str]
    """The unit's other files by path, each with the SHA-256 of its contents in hexadecimal."""
    variables: str = ""
    """The path of the file of variables; empty where the command needs none. ``files`` has it,
    too."""

    def text(self) -> str:
        """The file; raises CannotStrip for a command that cannot be written."""
        path = self.variables.replace("%", "%%")
        return _TEXT.format(
            incident=self.incident,
            record=_RECORD + json.dumps(msgspec.to_builtins(self)),
            variables=f"EnvironmentFile={path}\n" if path else "",
            line=self.command.line(),
        )

    @classmethod
    def parse(cls, text: str) -> DropIn | None:
        """What :meth:`text` wrote; None for a file that it did not write, or that was edited."""
        match = re.search(f"^{_RECORD}(.*)$", text, re.MULTILINE)
        try:
            drop_in = msgspec.json.decode(match[1] if match else "", type=cls)
        except ValueError:
            return None
        return drop_in if drop_in.text() == text else None


@dataclass(frozen=True, slots=True)
class LastRestart:
    """The last restart: its action, its incident, the invocation of the unit before it, and the
    version of the guard that ordered it."""

    do: str
    incident: str
    instance: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Texts:
    """Contents of the drop-in and of its file of variables; None for a file that is missing."""

    drop_in: str | None = None
    variables: str | None = None


class UnitFiles:
    """Files of one unit; methods raise OSError.

    The record is in a folder that a reboot empties; a reboot restarts everything anyway.
    """

    def __init__(self, unit: str, *, units: Path, records: Path) -> None:
        self.drop_in = units / f"{unit}.d" / NAME
        self.variables = self.drop_in.with_name(VARIABLES_NAME)
        self.record = records / f"{unit}.json"

    def read(self) -> Texts:
        """The files as they are now."""
        return Texts(_text(self.drop_in), _text(self.variables))

    def write(self, texts: Texts) -> None:
        """Write the drop-in, and its folder if need be; or remove it.

        The file of variables is written first, and kept if ``texts`` has none: a unit may need it
        until systemd reads its units again.
        """
        if texts.variables is not None:
            write_whole(self.variables, texts.variables)
        if texts.drop_in is not None:
            write_whole(self.drop_in, texts.drop_in)
        else:
            self._remove(self.drop_in)

    def remove_variables(self) -> None:
        """Remove the file of variables."""
        self._remove(self.variables)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it, or it is not ours to remove
            path.parent.rmdir()

    def last_restart(self) -> LastRestart | None:
        """The record; None if it is missing or damaged."""
        try:
            return msgspec.json.decode(self.record.read_bytes(), type=LastRestart)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def about_to_restart(self, record: LastRestart) -> None:
        """Write the record."""
        write_whole(self.record, msgspec.json.encode(record).decode())


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def digests(paths: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each file, in hexadecimal; empty for one that cannot be read."""
    sums = dict.fromkeys(paths, "")
    for path in sums:
        with suppress(OSError):
            sums[path] = digest(Path(path).read_bytes())
    return sums


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file, mode 0600, and its folder if need be: all of it or nothing. Raises OSError."""
    made = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    if made:
        path.parent.chmod(0o755)
    # systemd ignores names with another ending.
    fresh = path.with_name(f".{path.name}.new")
    try:
        _write_new(fresh, text)
        fresh.replace(path)
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
            if made:
                path.parent.rmdir()
        raise


def _write_new(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    # A command line may hold an API key that came from a file of variables.
    with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sets_command(path: str) -> bool:
    """Whether a drop-in has an ``ExecStart=``; False too where it cannot be read."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return False
    return re.search(r"^\s*ExecStart\s*=", text, re.MULTILINE) is not None
