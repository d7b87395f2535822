"""The systemd units of specwatch; quoting of words and command lines for unit files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specwatch.generate.environment import render

DEFAULT_EXECUTABLE = "/opt/specwatch/bin/specwatch"
DEFAULT_CONFIG = "/etc/specwatch/specwatch.yml"

_FILES = (
    "specwatch.service",
    "specwatch-report.service",
    "specwatch-report.timer",
    "specwatch-guard@.service",
    "specwatch-guard@.socket",
    "specwatch.sysusers",
)

_SPELT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@+=:,./-")


def units(
    *,
    executable: str = DEFAULT_EXECUTABLE,
    config: str = DEFAULT_CONFIG,
    gpu: bool = False,
) -> Mapping[str, str]:
    """The text of each file by its name.

    ``executable`` and ``config`` are absolute paths; ``gpu`` gives access to NVIDIA's devices.
    Raises ValueError for a path that is not absolute or that systemd would split or expand.
    """
    for path in (executable, config):
        if not is_plain_path(path):
            raise ValueError(f"{path!r} is not an absolute path without spaces, quotes, % or $")
    return {name: render(name, executable=executable, config=config, gpu=gpu) for name in _FILES}


def quoted(word: str) -> str:
    """A word quoted for a setting of a unit file.

    Source: systemd.syntax(7), "Quoting", and systemd.unit(5), "Specifiers".
    """
    if word and _PLAIN.issuperset(word):
        return word
    return '"' + "".join(map(_spelt, word.replace("%", "%%"))) + '"'


def exec_start(command: Sequence[str]) -> str:
    """The value of ``ExecStart=`` that runs ``command`` without expanding variables.

    Raises ValueError for a program whose name systemd would split or expand. Source:
    systemd.service(5), "Command lines".
    """
    program, *arguments = command
    if not is_plain_path(program):
        raise ValueError(
            f"{program!r} cannot start a line of systemd: give the program's full path, without"
            " spaces, quotes, % or $"
        )
    return " ".join([program, *(quoted(word.replace("$", "$$")) for word in arguments)])


def is_plain_path(path: str) -> bool:
    """Whether ``path`` is absolute and systemd uses it unchanged."""
    return path.startswith("/") and not any(c.isspace() or c in "\"'\\%$;" for c in path)


def _spelt(character: str) -> str:
    if character in _SPELT or character.isprintable():
        return _SPELT.get(character, character)
    # A byte that is not UTF-8 arrives as half of a surrogate pair.
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
