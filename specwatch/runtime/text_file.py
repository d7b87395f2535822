"""Reads text files that commands and units name, up to a limit."""

from __future__ import annotations

import errno
import os
import stat

_LARGEST = 1 << 20


def read_text(path: str) -> str:
    """The text of a file that a command or a unit names; UTF-8, at most 1 MiB. Raises OSError."""
    # Without O_NONBLOCK opening a named pipe would block.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise OSError(errno.EFBIG, "is larger than 1 MiB", path)
    try:
        return text.decode()
    except ValueError:
        raise OSError(errno.EINVAL, "is not UTF-8 text", path) from None
