"""The drop-in by which a unit starts without speculation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from specwatch.codegen.unit_command import UnitCommand

NAME = "90-specwatch.conf"
_RECORD = "# specwatch: "
_TEXT = """\
# Written by specwatch, which started this unit without speculation for incident {incident}.
# `specwatch guard enable` removes this file; by hand: remove it, then `systemctl daemon-reload` and
# restart the unit. DO NOT EDIT.
{record}
[Service]
ExecStart=
ExecStart={line}
"""


@dataclass(frozen=True, slots=True)
class DropIn:
    """What the drop-in says, and from what it was made."""

    incident: str
    original: UnitCommand
    command: UnitCommand
    files: Mapping[str, str]
    """The unit's other files by path, each with the SHA-256 of its contents in hexadecimal."""

    def text(self) -> str:
        """The file; raises CannotStrip for a command that cannot be written."""
        record = json.dumps(
            {
                "incident": self.incident,
                "original": _written(self.original),
                "command": _written(self.command),
                "files": dict(self.files),
            }
        )
        return _TEXT.format(
            incident=self.incident, record=_RECORD + record, line=self.command.line()
        )

    @classmethod
    def parse(cls, text: str) -> DropIn | None:
        """What :meth:`text` wrote; None for a file that it did not write, or that was edited."""
        found = re.search(f"^{_RECORD}(.*)$", text, re.MULTILINE)
        try:
            record = json.loads(found[1]) if found else {}
            drop_in = cls(
                record["incident"],
                _read(record["original"]),
                _read(record["command"]),
                record["files"],
            )
        except (ValueError, KeyError, TypeError):
            return None
        return drop_in if drop_in.text() == text else None


def _written(command: UnitCommand) -> list[object]:
    return [command.path, command.words, command.flags]


def _read(value: list[list[str]]) -> UnitCommand:
    path, words, flags = value
    return UnitCommand(str(path), tuple(words), tuple(flags))
