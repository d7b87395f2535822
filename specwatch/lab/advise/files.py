"""Reading files of models: regular files only, with a limit on their size."""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from specwatch.errors import ConfigError
from specwatch.wording.text import shown

_MIB = 1024 * 1024


class MissingLibrary(ConfigError):
    """A library of the extra ``advise`` is not installed."""


def library(name: str, purpose: str) -> ModuleType:
    """Import a library of the extra ``advise``, when a file needs it.

    Raises MissingLibrary with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"{purpose} needs the package {error.name}; install the packages that advise needs:"
            f" {sys.executable} -m pip install gguf safetensors sentencepiece tokenizers"
        ) from None


def unreadable(path: Path | str, error: object, expected: str) -> ConfigError:
    """The error for a file that a library cannot read, with what was expected."""
    message = shown(" ".join(str(error).split()), 200)
    return ConfigError(
        f"{path}: cannot be read ({message}); expected {expected}: download it again"
    )


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size in bytes; raises ConfigError if it cannot be read."""
    try:
        # Without O_NONBLOCK opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            kind = "a device, pipe or socket"
            if stat.S_ISDIR(status.st_mode):
                kind = "a folder"
            raise ConfigError(f"{path}: is {kind}; expected a file: remove it")
        with open(descriptor, "rb", buffering=_MIB) as file:
            yield file, status.st_size
    except (OSError, ValueError) as error:
        raise ConfigError(cannot_read(path, error)) from None


def read_file(path: Path, most: int) -> bytes | None:
    """The content of a file; None if it does not exist. Raises ConfigError above ``most`` bytes."""
    if not os.path.lexists(path):
        return None
    with opened(path) as (file, size):
        data = file.read(most + 1)
    if len(data) > most:
        raise ConfigError(
            f"{path}: has {max(size, len(data)) / _MIB:,.0f} MiB; expected at most"
            f" {most // _MIB:,}: check that it is the right file"
        )
    return data


def json_object(data: bytes | None, path: Path | str) -> dict[str, Any]:
    """A JSON object, empty for None; raises ConfigError with the file."""
    if data is None:
        return {}
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise unreadable(path, error, "a JSON object") from None
    if not isinstance(value, dict):
        raise unreadable(path, f"a JSON {type(value).__name__}", "a JSON object")
    return value


def cannot_read(path: Path, error: Exception) -> str:
    """The message for a file or folder that cannot be read."""
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return (
            f"{path}: is a link to {os.readlink(path)}, which is missing; expected a file:"
            " download it again"
        )
    reason = getattr(error, "strerror", None) or error
    remedy = "give another path"
    if isinstance(error, PermissionError):
        remedy = "let this user read it"
    elif isinstance(error, FileNotFoundError):
        remedy = "download it again"
    return f"{path}: cannot be read ({reason}); expected a readable file: {remedy}"
