"""Servers and workload of a calibration, and the target of its baseline."""

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
from specwatch.errors import ConfigError, StoreError
from specwatch.lab.loadtest.prompts import OUTPUT_TOKENS
from specwatch_tap.temperature import DEFAULT_EDGES

if TYPE_CHECKING:
    from specwatch.lab.loadtest.calibration_shape import Shape
    from specwatch.lab.loadtest.server import Server

_DATES = ("%Y%m%d-%H%M%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class CalibrationSources:
    """The servers, and the target and database of the baseline."""

    target: str
    servers: Mapping[str, Target]
    """By the option that names them, the one without speculation first."""
    database: str
    edges: Sequence[float] = DEFAULT_EDGES


def of(given: Mapping[str, Any]) -> CalibrationSources:
    """The servers that the options select. Raises ConfigError.

    A target of the configuration with the name ``--target`` or the URL of ``--on`` or ``--off``
    provides the name, and the credentials of both servers.
    """
    config = options.loaded(given["file"])
    token: Path | None = given["bearer_token_file"]
    servers = {
        where: server_at(given[name], where, token)
        for name, where in (("off", "--off"), ("on", "--on"))
        if given[name] is not None
    }
    urls = [server.url for server in reversed(servers.values())]
    configured = known_target(config, given["target"], urls)
    named = configured or next(reversed(servers.values()), None)
    if given["target"] is None and named is None:
        raise ConfigError("--import needs the target of the baseline: give --target NAME")
    if configured is not None and token is None:
        servers = {
            where: configured.model_copy(update={"url": server.url, "proxy": None})
            for where, server in servers.items()
        }
    name = given["target"] or (named.name if named is not None else "")
    if configured is not None and configured.workload is not None:
        name = configured.workload.name  # by whose measurements its pods are judged
    return CalibrationSources(
        name,
        servers,
        options.database_url(given["database"], given["file"]),
        config.temperature_buckets if config is not None else DEFAULT_EDGES,
    )


def ended(date: str | None, written: float, now: float) -> float:
    """Unix time of a benchmark's end: its own local date, else when its file was written.

    Never later than ``now``.
    """
    for pattern in _DATES:
        try:
            return min(datetime.strptime(date or "", pattern).timestamp(), now)
        except ValueError:
            continue
    return min(written, now)


class ShapeSource(enum.StrEnum):
    """Origin of the lengths and loads that are sent, best first."""

    OPTIONS = "options"
    """All are given."""
    WINDOWS = "windows"
    """The stored traffic of the target."""
    PAGE = "page"
    """The counters of the server of ``--on`` since its start."""
    BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class SentWorkload:
    """Mean lengths in tokens, and requests at a time.

    ``prompt_tokens`` is None for prompts of a file and built-in ones, which are sent unchanged.
    ``given`` has the parts from options; ``left_out`` are the seconds of stored traffic in which
    the target was measured on purpose.
    """

    source: ShapeSource
    prompt_tokens: int | None
    output_tokens: int
    loads: tuple[int, ...]
    left_out: int = 0
    given: tuple[str, ...] = ()


def workload(
    sources: CalibrationSources,
    given: Mapping[str, Any],
    servers: Sequence[Server],
    now: float,
) -> tuple[SentWorkload, str | None]:
    """The workload of the options, else like the traffic of the last days, else like that of the
    server with speculation, else the built-in one; and for the built-in one the reason why stored
    traffic could not be used. ``now`` is Unix time."""
    from specwatch.lab.loadtest.calibration_shape import LOADS, Shape, shape_of_page

    prompt, output, loads = given["prompt_tokens"], given["max_tokens"], given["concurrency"]
    own_prompts = given["prompts"] is not None
    parts = {"prompt_tokens": prompt, "output_tokens": output, "loads": loads}
    chosen = tuple(name for name, value in parts.items() if value is not None)
    if output is not None and loads is not None and (prompt is not None or own_prompts):
        return SentWorkload(ShapeSource.OPTIONS, prompt, output, loads, given=chosen), None
    source = ShapeSource.WINDOWS
    shape, lacking, left_out = _stored_shape(sources, servers[0].engine.model_name, now)
    if shape is None:
        source, left_out = ShapeSource.PAGE, 0
        shape = shape_of_page(servers[1].counted) if len(servers) > 1 else None
    if shape is None:
        source, shape = ShapeSource.BUILT_IN, Shape(None, OUTPUT_TOKENS, LOADS)
    workload = SentWorkload(
        source,
        prompt or (None if own_prompts else shape.prompt_tokens),
        output or shape.output_tokens,
        loads or shape.loads,
        left_out,
        chosen,
    )
    return workload, lacking if source is ShapeSource.BUILT_IN else None


def _stored_shape(
    sources: CalibrationSources, model: str, now: float
) -> tuple[Shape | None, str | None, int]:
    """The shape of the target's stored traffic, or the reason for its lack; and the seconds of it
    that are left out because of calibrations, benches and probes."""
    from specwatch.domain.sample import samples_of
    from specwatch.lab.loadtest.calibration_shape import TRAFFIC_DAYS, shape_of
    from specwatch.store.readers import Reader

    def windows(since: float, until: float, length: int) -> list[Window]:
        return list(
            reader.windows(
                since=since, until=until, length=length, target=sources.target, model_name=model
            )
        )

    def measured(window: Window) -> bool:
        # A minute more: a request is counted when the page is scraped next.
        start, end = window.start, window.start + window.length
        return any(start < span.ended + MINUTE and span.began < end for span in spans)

    since = now - TRAFFIC_DAYS * 24 * HOUR
    reader = Reader.of(sources.database)
    try:
        spans = reader.experiment_spans(since, sources.target)
        hours = windows(since, now, HOUR)
        # Minutes after the last hour: an hour is rolled up when it is over.
        last = max((window.start + HOUR for window in hours), default=since)
        minutes = windows(last, now, MINUTE)
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
        return None, f"hardly any traffic of {sources.target} with {model} is stored", left_out
    return shape, None, left_out
