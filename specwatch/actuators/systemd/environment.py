"""The variables of a unit, and of its command line, as systemd reads and replaces them.

Source: systemd.service(5), "Command lines"; systemd.exec(5), "Environment"; and where they are
silent, replace_env_argv(), extract_first_word() and parse_env_file_internal() of systemd 252.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from specwatch.actuators.systemd.loaded_unit import LoadedUnit
from specwatch.errors import ActuatorError
from specwatch.runtime.text_file import read_text

Environment = Mapping[str, str | None]
"""Values by name; None for a variable whose value is only known once the unit starts."""

SET_AT_START = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "INVOCATION_ID",
    "XDG_RUNTIME_DIR",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "CACHE_DIRECTORY",
    "LOGS_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "MAINPID",
    "MANAGERPID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "SYSTEMD_EXEC_PID",
    "TERM",
    "LOG_NAMESPACE",
    "JOURNAL_STREAM",
    "PIDFILE",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
}
"""What systemd sets itself, unless the unit says otherwise."""

_BLANK = " \t\n\r"
_ESCAPED_IN_QUOTES = '"\\`$'
_SINGLE, _DOUBLE = r"'([^']*)'?", r'"((?:[^"\\]|\\.)*)(?:"|\\?\Z)'
_QUOTED = re.compile(f"{_SINGLE}|{_DOUBLE}", re.DOTALL)
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_ENTRY = re.compile(
    rf"""
    [#;] (?: [^\\\n\r] | (?P<continued> \\[\n\r] ) | \\.? )*     # a comment
    | (?P<name> [^ \t\n\r] [^=\n\r]* ) =
      (?P<quoted> (?: [ \t] | {_SINGLE} | {_DOUBLE} )* )
      (?P<plain> (?: [^\\ \t\n\r] | \\.? | [ \t]+ (?! [ \t\n\r] | \Z ) )* )
    | [^ \t\n\r] [^\n\r]*                                       # no assignment
    """,
    re.DOTALL | re.VERBOSE,
)
"""An entry of an ``EnvironmentFile=``: quoted pieces, then plain text up to the end of the line."""
_REFERENCE = re.compile(r"\$\$|\$\{([^}:]*)([}:]|\Z)")
_MARKED = re.compile("\ue000([^\ue000]*)\ue000")
_NOT_IN_A_VALUE = re.compile(
    "[^\t\n -~\u0080-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Expanded:
    """A word of a unit's command line, and the words that the program gets for it."""

    spelt: str
    words: tuple[str, ...]
    names: tuple[str, ...] = ()
    """The variables in it."""
    unknown: tuple[str, ...] = ()
    """Those of them whose values are unknown before the start; ``words`` has a mark for each."""


def expanded(word: str, environment: Environment) -> Expanded:
    """What systemd makes of a word when it starts the unit."""
    if word.startswith("$") and word[1:2] not in ("{", "$"):
        name = word[1:]
        value = environment.get(name, "")
        if value is None:
            return Expanded(word, (_mark(name),), (name,), (name,))
        return Expanded(word, tuple(split(value)), (name,))
    names: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[2] != "}":
            return match[0]
        names.append(match[1])
        value = environment.get(match[1], "")
        return _mark(match[1]) if value is None else value

    text = _REFERENCE.sub(value_of, word)
    unknown = tuple(name for name in names if environment.get(name, "") is None)
    return Expanded(word, (text,), tuple(names), unknown)


def unknown_in(word: str) -> str | None:
    """The name of the first variable in an expanded word whose value is unknown."""
    marked = _MARKED.search(word)
    return marked[1] if marked else None


def _mark(name: str) -> str:
    # Of the characters for private use: no command has it, and no shell means anything by it.
    return f"\ue000{name}\ue000"


def split(value: str) -> Iterator[str]:
    """The words of the value of ``$NAME``, split at blanks, with quotes and backslashes."""
    word: str | None = None
    quote = ""
    characters = iter(value)
    for character in characters:
        if character == "\\":
            word = (word or "") + next(characters, "")
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = (word or "") + character
        elif character in "'\"":
            quote, word = character, word or ""
        elif character not in _BLANK:
            word = (word or "") + character
        elif word is not None:
            yield word
            word = None
    if word is not None:
        yield word


def assigned(assignments: Iterable[str]) -> dict[str, str]:
    """Values by name from lines ``NAME=VALUE``; the last one counts."""
    return {name: value for name, _, value in (line.partition("=") for line in assignments)}


def without(environment: Environment, removed: Iterable[str]) -> dict[str, str | None]:
    """An environment after ``UnsetEnvironment=``, whose items are NAME or NAME=VALUE."""
    gone = set(removed)
    return {
        name: value
        for name, value in environment.items()
        if name not in gone and f"{name}={value}" not in gone
    }


def parse_environment_file(text: str) -> dict[str, str]:
    """The variables of an ``EnvironmentFile=``, without those that systemd ignores.

    Raises ValueError for a text that versions of systemd read differently.
    """
    if "\0" in text:
        raise ValueError("has a zero byte")
    variables: dict[str, str] = {}
    for entry in _ENTRY.finditer(text):
        if entry["continued"]:
            raise ValueError(
                "a comment ends in a backslash, and only before systemd 254 does it go on in the"
                " next line; remove the backslash"
            )
        if entry["name"] and _NAME.fullmatch(name := entry["name"].rstrip(_BLANK)):
            pieces = [
                single + _ESCAPED.sub(_in_double_quotes, double)
                for single, double in _QUOTED.findall(entry["quoted"])
            ]
            plain = _ESCAPED.sub(lambda escaped: escaped[1].strip("\n\r"), entry["plain"])
            variables[name] = "".join(pieces) + plain
    return variables


def _in_double_quotes(escaped: re.Match[str]) -> str:
    if escaped[1] == "\n":
        return ""
    return escaped[1] if escaped[1] in _ESCAPED_IN_QUOTES else escaped[0]


def environment_file(variables: Mapping[str, str]) -> str:
    """An ``EnvironmentFile=`` that sets the variables.

    Raises ValueError for a value that systemd would leave out: env_value_is_valid() of systemd 252.
    """
    for name, value in variables.items():
        if _NOT_IN_A_VALUE.search(value):
            raise ValueError(f"{name} would have a character that no variable of a unit may have")
    escaped = {name: re.sub(r'[\\"`$]', r"\\\g<0>", value) for name, value in variables.items()}
    return "".join(f'{name}="{value}"\n' for name, value in escaped.items())


def environment_of(
    unit: LoadedUnit, inherited: tuple[str, ...], *, passes_on: bool
) -> dict[str, str | None]:
    """A unit's variables, of which later ones replace earlier ones: systemd.exec(5).

    ``inherited`` is what the manager gives to all units. ``passes_on``: what
    ``PassEnvironment=`` takes is in there too; else it is unknown. Raises ActuatorError.
    """
    known = assigned(inherited)
    environment: dict[str, str | None] = {**known, **dict.fromkeys(SET_AT_START)}
    for name in unit.pass_environment:
        if not passes_on:
            environment[name] = None
        elif name in known:
            environment[name] = known[name]
    environment |= assigned(unit.environment)
    for pattern, optional in unit.environment_files:
        environment |= _from_files(pattern, optional=optional)
    return without(environment, unit.unset_environment)


def _from_files(pattern: str, *, optional: bool) -> dict[str, str]:
    variables: dict[str, str] = {}
    paths = sorted(glob.glob(pattern, include_hidden=False)) or [pattern]
    for path in paths:
        try:
            variables |= parse_environment_file(read_text(path))
        except OSError as error:
            if not optional:
                raise ActuatorError(f"EnvironmentFile={path}: {error.strerror}") from error
        except ValueError as error:
            raise ActuatorError(f"EnvironmentFile={path}: {error}") from error
    return variables


def config_file(unit: LoadedUnit, path: str) -> str:
    """The text of a file that the unit's command names; raises OSError."""
    if unit.root:
        raise OSError(errno.EINVAL, f"the unit sees another file system: {unit.root}")
    folder = unit.working_directory.lstrip("!-") or "/"
    if not os.path.isabs(path) and not os.path.isabs(folder):
        raise OSError(errno.EINVAL, f"WorkingDirectory={folder} is not known")
    return read_text(os.path.join(folder, path))
