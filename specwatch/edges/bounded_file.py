"""Files of others, read with a bound: regular ones only, and none larger than expected."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from specwatch.errors import ConfigError

_MIB = 1024 * 1024
_MOST_TEXT = _MIB


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size in bytes; raises ConfigError where it cannot be opened.

    What it raises inside for want of reading becomes a ConfigError as well.
    """
    try:
        # Without O_NONBLOCK a named pipe would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            os.close(descriptor)
            raise ConfigError(f"{path}: is {_kind(about.st_mode)}; expected a file: remove it")
        with open(descriptor, "rb", buffering=_MIB) as file:
            yield file, about.st_size
    except (OSError, ValueError) as error:
        raise ConfigError(cannot_read(path, error)) from None


def read_file(path: Path, most: int) -> bytes | None:
    """All of a file of at most ``most`` bytes; None where there is none."""
    if not os.path.lexists(path):
        return None
    with opened(path) as (file, size):
        if size > most:
            raise ConfigError(
                f"{path}: has {size / _MIB:,.0f} MiB; expected at most {most // _MIB:,}: is it what"
                " its name says?"
            )
        data = file.read(most + 1)
    if len(data) > most:
        raise ConfigError(f"{path}: grows while it is read; expected a file at rest: try later")
    return data


def read_text(path: str) -> str:
    """The text of a file that a command or a unit names; UTF-8, at most 1 MiB. Raises OSError."""
    # Without O_NONBLOCK a named pipe would be waited for.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is no regular file", path)
        text = file.read(_MOST_TEXT + 1)
    if len(text) > _MOST_TEXT:
        raise OSError(errno.EFBIG, "is larger than 1 MiB", path)
    try:
        return text.decode()
    except ValueError:
        raise OSError(errno.EINVAL, "is no UTF-8 text", path) from None


def cannot_read(path: Path, error: Exception) -> str:
    """Say why a file or folder could not be read, and what helps."""
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return (
            f"{path}: is a link to {os.readlink(path)}, which is not there; expected a file:"
            " download it again"
        )
    reason = getattr(error, "strerror", None) or error
    remedy = "give another path"
    if isinstance(error, PermissionError):
        remedy = "let this user read it"
    elif isinstance(error, FileNotFoundError):
        remedy = "download it again"
    return f"{path}: cannot be read ({reason}); expected a file that can: {remedy}"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
