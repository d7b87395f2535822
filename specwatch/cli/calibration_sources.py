"""What a calibration is told to measure, and where it belongs."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from specwatch.cli import options
from specwatch.config import Config, from_targets
from specwatch.core.prompts import PROMPTS
from specwatch.errors import ConfigError
from specwatch.scalars import quoted
from specwatch.sections import cannot_read
from specwatch.target import Target
from specwatch.temperature import DEFAULT_EDGES

_LARGEST_FILE = 1 << 28
_DATES = ("%Y%m%d-%H%M%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class Sources:
    """Servers, whose baseline it is, and where it goes."""

    target: str
    off: Target | None
    on: Target | None
    database: str
    edges: Sequence[float] = DEFAULT_EDGES


def of(given: Mapping[str, Any]) -> Sources:
    """What the options say. Raises ConfigError.

    A server of the configuration with the URL of ``--on``, of ``--off`` or of the name
    ``--target`` gives its name, and its headers to both servers.
    """
    loaded = options.loaded(given["file"])
    token: Path | None = given["bearer_token_file"]
    off, on = (_server(given[name], f"--{name}", token) for name in ("off", "on"))
    known = _known(loaded, given["target"], [each.url for each in (on, off) if each is not None])
    named = known or on or off
    if given["target"] is None and named is None:
        raise ConfigError("--import: say whose baseline it is: give --target NAME")
    if known is not None and token is None:
        off, on = (_like(known, each) for each in (off, on))
    return Sources(
        given["target"] or (named.name if named is not None else ""),
        off,
        on,
        options.database_url(given["database"], given["file"]),
        loaded.temperature_buckets if loaded is not None else DEFAULT_EDGES,
    )


def _server(url: str | None, where: str, token: Path | None) -> Target | None:
    if url is None:
        return None
    more = {} if token is None else {"bearer_token_file": str(token)}
    try:
        found = from_targets(
            (),
            environ=os.environ,
            hostname=socket.gethostname(),
            settings={"targets": [{"url": url, **more}]},
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return found.targets[0]


def _like(known: Target, server: Target | None) -> Target | None:
    """A server with the credentials of a target."""
    return None if server is None else known.model_copy(update={"url": server.url, "proxy": None})


def _known(loaded: Config | None, name: str | None, urls: Sequence[str]) -> Target | None:
    """The target of the configuration that is meant; ConfigError for a name that it lacks."""
    targets = loaded.targets if loaded is not None else ()
    if name is not None:
        found = next((each for each in targets if each.name == name), None)
        if found is None and targets:
            names = ", ".join(each.name for each in targets)
            raise ConfigError(f"--target: the configuration has no {quoted(name)}; it has {names}")
        return found
    by_url = {each.url: each for each in reversed(targets)}
    return next((by_url[url] for url in urls if url in by_url), None)


def prompts(file: Path | None) -> tuple[str, ...]:
    """The prompts of a file, one a line, or our own. Raises ConfigError."""
    if file is None:
        return PROMPTS
    text, _ = text_of(file)
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if not line.startswith('"'):
            found.append(line)
            continue
        try:
            found.append(str(json.loads(line)))
        except ValueError as error:
            raise ConfigError(
                f"--prompts: {file}:{number}: begins with a quote and is no JSON string ({error});"
                " end the quote, or leave it out"
            ) from None
    if not found:
        raise ConfigError(f"--prompts: {file} is empty; write one prompt a line")
    return tuple(found)


def text_of(file: Path) -> tuple[str, float]:
    """What stands in a file, and the Unix time of its last change. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST_FILE + 1)
            written = os.fstat(opened.fileno()).st_mtime
    except OSError as error:
        raise ConfigError(cannot_read(file, error)) from None
    if len(data) > _LARGEST_FILE:
        raise ConfigError(f"{file} is larger than {_LARGEST_FILE >> 20} MiB: this is another file")
    try:
        return data.decode("utf-8-sig"), written
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None


def ended(said: str | None, written: float, now: float) -> float:
    """Unix time of a benchmark's end: as it says, in local time, else when its file was written.

    Never later than ``now``.
    """
    for pattern in _DATES:
        try:
            return min(datetime.strptime(said or "", pattern).timestamp(), now)
        except ValueError:
            continue
    return min(written, now)
