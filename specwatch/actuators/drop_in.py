"""The drop-in with which a unit starts without speculation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from specwatch.actuators.unit_command import UnitCommand

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


@dataclass(frozen=True, slots=True)
class DropIn:
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
        record = {
            "incident": self.incident,
            "original": _written(self.original),
            "command": _written(self.command),
            "files": dict(self.files),
        }
        if self.variables:
            record["variables"] = self.variables
        path = self.variables.replace("%", "%%")
        return _TEXT.format(
            incident=self.incident,
            record=_RECORD + json.dumps(record),
            variables=f"EnvironmentFile={path}\n" if path else "",
            line=self.command.line(),
        )

    @classmethod
    def parse(cls, text: str) -> DropIn | None:
        """What :meth:`text` wrote; None for a file that it did not write, or that was edited."""
        match = re.search(f"^{_RECORD}(.*)$", text, re.MULTILINE)
        try:
            record = json.loads(match[1]) if match else {}
            drop_in = cls(
                record["incident"],
                _read(record["original"]),
                _read(record["command"]),
                record["files"],
                record.get("variables", ""),
            )
        except (ValueError, KeyError, TypeError):
            return None
        return drop_in if drop_in.text() == text else None


def _written(command: UnitCommand) -> list[object]:
    return [command.path, command.words, command.flags]


def _read(value: list[list[str]]) -> UnitCommand:
    path, words, flags = value
    return UnitCommand(str(path), tuple(words), tuple(flags))
