"""The documents of the switch as files in a directory that vLLM and specwatch share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path

from specwatch_tap.orders import LARGEST


def check_directory(directory: Path) -> None:
    """Raise OSError unless it is a directory in which only its owner and group can write."""
    status = directory.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{directory} is not a directory")
    if status.st_mode & stat.S_IWOTH:
        raise PermissionError(f"everybody can write in {directory}: chmod o-w {directory}")


def read(file: Path) -> bytes:
    """The content of a document's file, cut one byte above :data:`LARGEST`. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{file} is not a regular file")
        if status.st_mode & stat.S_IWOTH:
            raise PermissionError(f"everybody can write to {file}")
        return opened.read(LARGEST + 1)


def write(file: Path, data: bytes) -> None:
    """Replace a document's file at once, readable for the group. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(data)
            os.fchmod(descriptor, 0o640)
            # The reader is another user, of the directory's group.
            with contextlib.suppress(OSError):
                os.fchown(descriptor, -1, file.parent.stat().st_gid)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


def is_locked(file: Path) -> bool:
    """Whether a process holds the lock of a directory. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
