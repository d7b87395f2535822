"""What a calibration is told to measure, and where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from specwatch.cli import options
from specwatch.cli.load_sources import known_target, server_at
from specwatch.errors import ConfigError
from specwatch.target import Target
from specwatch.temperature import DEFAULT_EDGES

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
    off, on = (
        server_at(given[name], f"--{name}", token) if given[name] is not None else None
        for name in ("off", "on")
    )
    urls = [each.url for each in (on, off) if each is not None]
    known = known_target(loaded, given["target"], urls)
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


def _like(known: Target, server: Target | None) -> Target | None:
    """A server with the credentials of a target."""
    return None if server is None else known.model_copy(update={"url": server.url, "proxy": None})


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
