"""Writing the files of options such as ``--output``, and printing command lines."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import msgspec

from specwatch.errors import ConfigError
from specwatch.wording.text import clean_lines

OUTPUT = "--output"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


def require_writable(output: Path, option: str = OUTPUT) -> None:
    """Raise ConfigError, before the work, for a file that could not be written after it."""
    if output.is_dir():
        raise _unwritable(output, "it is a directory; give a file in it", option)
    if not output.parent.is_dir():
        raise _unwritable(output, f"there is no directory {output.parent}; create it", option)
    if output.exists() and not output.is_file():
        remedy = "leave -o out to print it" if option == OUTPUT else "give another name"
        raise _unwritable(output, f"it is not a regular file; {remedy}", option)
    if not os.access(output.parent, os.W_OK):
        raise _unwritable(output, f"nothing can be written in {output.parent}", option)


def write(path: Path, content: str | bytes, option: str = OUTPUT) -> None:
    """Replace a file atomically. Raises ConfigError if it cannot be written."""
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name[:50]}.", delete=False
        ) as temporary:
            try:
                temporary.write(content.encode() if isinstance(content, str) else content)
                temporary.flush()
                os.fchmod(temporary.fileno(), _mode_of(path))
                os.replace(temporary.name, path)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise _unwritable(path, str(error.strerror), option) from error


def json_text(value: object) -> str:
    """A value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _mode_of(path: Path) -> int:
    """The permissions of the replaced file, else those of any new one."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def for_a_shell(words: Sequence[str]) -> str:
    """The words, quoted for a shell; assignments before the program are kept as such."""
    assignments = list(takewhile(_ASSIGNMENT.match, words))
    parts = (word.partition("=") for word in assignments)
    quoted = (f"{name}={shlex.quote(value)}" for name, _, value in parts)
    return " ".join([*quoted, shlex.join(words[len(assignments) :])])


def for_json(word: str) -> str:
    """A text that JSON can hold, from an argument of any bytes."""
    return os.fsencode(word).decode("utf-8", "replace")


def _unwritable(path: Path, why: str, option: str) -> ConfigError:
    return ConfigError(f"{option} {clean_lines(str(path))}: {why}")
