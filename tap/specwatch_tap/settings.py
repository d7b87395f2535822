"""Settings of the tap, from environment variables: vLLM passes no arguments to middleware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specwatch_tap.orders import DIRECTORY_VARIABLE
from specwatch_tap.segment_kinds import checked_kinds
from specwatch_tap.temperature import DEFAULT_EDGES, checked_edges

BUCKETS = "SPECWATCH_TAP_TEMPERATURE_BUCKETS"
SEGMENTS = "SPECWATCH_TAP_SEGMENTS"
REMOVE_METRICS = "SPECWATCH_TAP_REMOVE_METRICS"
SWITCH_DIRECTORY = DIRECTORY_VARIABLE
SWITCH_TOKEN_FILE = "SPECWATCH_SWITCH_TOKEN_FILE"  # noqa: S105 - a name

_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """``edges`` are the upper ends of the temperature buckets; ``remove_metrics``
    removes the acceptance record from what the client gets. ``switch_directory`` has the orders
    of the switch, ``switch_token`` authorizes them over HTTP; None without. ``segments`` are the
    kinds of segments that are counted."""

    edges: tuple[float, ...] = DEFAULT_EDGES
    remove_metrics: bool = False
    switch_directory: Path | None = None
    switch_token: str | None = None
    segments: tuple[str, ...] = ()


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings from ``SPECWATCH_TAP_*`` and ``SPECWATCH_SWITCH_*``.

    Raises ValueError that names the variable.
    """
    edges: tuple[float, ...] = DEFAULT_EDGES
    if text := environment.get(BUCKETS, "").strip():
        try:
            edges = checked_edges(tuple(float(edge) for edge in text.split(",")))
        except ValueError as error:
            raise ValueError(
                f"{BUCKETS}={text!r}: {error}; write ascending numbers like 0,0.3,0.7,1.0"
            ) from None
    kinds = environment.get(SEGMENTS, "").replace(" ", "")
    try:
        segments = checked_kinds(kinds.split(",")) if kinds else ()
    except ValueError as error:
        raise ValueError(f"{SEGMENTS}={kinds!r}: {error}") from None
    remove = environment.get(REMOVE_METRICS, "").strip().lower()
    if remove not in _SWITCH:
        raise ValueError(f"{REMOVE_METRICS}={remove!r}: write 1 or 0")
    directory = environment.get(SWITCH_DIRECTORY, "").strip()
    if directory and not directory.startswith("/"):
        raise ValueError(f"{SWITCH_DIRECTORY}={directory!r}: write the full path")
    token_file = environment.get(SWITCH_TOKEN_FILE, "").strip()
    if token_file and not directory:
        raise ValueError(f"{SWITCH_TOKEN_FILE} has no effect without {SWITCH_DIRECTORY}: set both")
    return Settings(
        edges,
        _SWITCH[remove],
        Path(directory) if directory else None,
        _token(token_file) if token_file else None,
        segments,
    )


def _token(path: str) -> str:
    """The token in a file. Raises ValueError without one, or with a short one."""
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{SWITCH_TOKEN_FILE}={path!r}: {error}") from None
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ValueError(
            f"{SWITCH_TOKEN_FILE}={path!r}: write one line of at least 16 characters, such as from"
            " `openssl rand -hex 32`"
        )
    return token
