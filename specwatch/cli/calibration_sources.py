"""What a calibration measures and sends, and whose baseline it is."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specwatch.cli import options
from specwatch.cli.load import known_target, server_at
from specwatch.config.target import Target
from specwatch.domain.model import HOUR, MINUTE, Mode, Window
from specwatch.domain.temperature import DEFAULT_EDGES
from specwatch.errors import ConfigError, StoreError
from specwatch.loadtest.prompts import OUTPUT_TOKENS

if TYPE_CHECKING:
    from specwatch.loadtest.calibration_shape import Shape
    from specwatch.loadtest.server import Server

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
    config = options.loaded(given["file"])
    token: Path | None = given["bearer_token_file"]
    off, on = (
        server_at(given[name], f"--{name}", token) if given[name] is not None else None
        for name in ("off", "on")
    )
    urls = [server.url for server in (on, off) if server is not None]
    known = known_target(config, given["target"], urls)
    named = known or on or off
    if given["target"] is None and named is None:
        raise ConfigError("--import: say whose baseline it is: give --target NAME")
    if known is not None and token is None:
        # Both servers have the credentials of the target.
        off, on = (
            server and known.model_copy(update={"url": server.url, "proxy": None})
            for server in (off, on)
        )
    return Sources(
        given["target"] or (named.name if named is not None else ""),
        off,
        on,
        options.database_url(given["database"], given["file"]),
        config.temperature_buckets if config is not None else DEFAULT_EDGES,
    )


def ended(date: str | None, written: float, now: float) -> float:
    """Unix time of a benchmark's end: as it says, in local time, else when its file was written.

    Never later than ``now``.
    """
    for pattern in _DATES:
        try:
            return min(datetime.strptime(date or "", pattern).timestamp(), now)
        except ValueError:
            continue
    return min(written, now)


class ShapeSource(enum.StrEnum):
    """What says which lengths and loads are sent, best first."""

    OPTIONS = "options"
    """All of them are given."""
    WINDOWS = "windows"
    """The stored traffic of the target."""
    PAGE = "page"
    """What the server of ``--on`` has counted since it started."""
    BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is sent: mean lengths in tokens, and requests at a time.

    ``prompt_tokens`` is None where prompts are sent as they stand in a file, or are the built-in
    ones. ``given`` names the parts that options say, and ``lacking`` is why stored traffic says
    none; ``left_out`` are the seconds of it in which the target was measured on purpose.
    """

    source: ShapeSource
    prompt_tokens: int | None
    output_tokens: int
    loads: tuple[int, ...]
    given: tuple[str, ...] = ()
    lacking: str | None = None
    left_out: int = 0


def workload(
    sources: Sources, given: Mapping[str, Any], off: Server, on: Server | None, now: float
) -> Workload:
    """What options say; else what the traffic of the last days, or the server with speculation,
    was like; else what is built in. ``now`` is Unix time."""
    from specwatch.loadtest.calibration_shape import LOADS, shape_of_page

    prompt, output, loads = given["prompt_tokens"], given["max_tokens"], given["concurrency"]
    own_prompts = given["prompts"] is not None
    parts = {"prompt_tokens": prompt, "output_tokens": output, "loads": loads}
    chosen = tuple(name for name, value in parts.items() if value is not None)
    if output is not None and loads is not None and (prompt is not None or own_prompts):
        return Workload(ShapeSource.OPTIONS, prompt, output, loads, chosen)
    shape, lacking, left_out = _stored_shape(sources, off.engine.model_name, now)
    source = ShapeSource.WINDOWS
    if shape is None and on is not None:
        shape, source = shape_of_page(on.counted), ShapeSource.PAGE
    if shape is None:
        source = ShapeSource.BUILT_IN
    elif prompt is None and not own_prompts:
        prompt = shape.prompt_tokens
    return Workload(
        source,
        prompt,
        output or (shape.output_tokens if shape else OUTPUT_TOKENS),
        loads or (shape.loads if shape else LOADS),
        chosen,
        lacking,
        left_out if source is ShapeSource.WINDOWS else 0,
    )


def _stored_shape(sources: Sources, model: str, now: float) -> tuple[Shape | None, str | None, int]:
    """The shape of the target's stored traffic; without one, why; and the seconds left out of it
    as they are of calibrations, benches and probes."""
    from specwatch.domain.sample import samples_of
    from specwatch.loadtest.calibration_shape import TRAFFIC_DAYS, shape_of
    from specwatch.store.readers import Reader

    def windows(since: float, until: float, length: int) -> list[Window]:
        return list(
            reader.windows(
                since=since, until=until, length=length, target=sources.target, model_name=model
            )
        )

    def measured(window: Window) -> bool:
        # A minute more: a request that ended is counted when its page is read.
        start, end = window.start, window.start + window.length
        return any(start < span.ended + MINUTE and span.began < end for span in spans)

    since = now - TRAFFIC_DAYS * 24 * HOUR
    reader = Reader.of(sources.database)
    try:
        spans = reader.experiment_spans(since, sources.target)
        hours = windows(since, now, HOUR)
        # Minutes from where hours end: an hour is built when it is over.
        rest = max((window.start + HOUR for window in hours), default=since)
        minutes = windows(rest, now, MINUTE)
        for start in {window.start for window in hours if measured(window)}:
            minutes += windows(start, start + HOUR, MINUTE)
    except StoreError as error:
        return None, str(error), 0
    finally:
        reader.close()
    left_out = MINUTE * len({window.start for window in minutes if measured(window)})
    samples = samples_of(window for window in (*hours, *minutes) if not measured(window))
    shape = shape_of(window for window in samples if window.mode in (Mode.ON, Mode.OFF))
    if shape is None:
        return None, f"hardly any traffic of {sources.target} is stored for {model}", left_out
    return shape, None, left_out
