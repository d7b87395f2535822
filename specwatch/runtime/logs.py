"""Structured logs: an event name and keys, as JSON lines or for a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import IO, Any, Literal

import structlog
from structlog.typing import EventDict, Processor

LogFormat = Literal["auto", "json", "console"]

_FIRST = ("timestamp", "level", "event")
_NOISY = ("apscheduler", "uvicorn", "alembic", "sqlalchemy", "asyncio", "httpx2")
_OF_EACH_TARGET = "specwatch.daemon.scraper"
"""The logger whose events may come of thousands of targets at once."""
_MOST_ALIKE = 50
"""Lines a minute of one event of it."""


def configure(
    level: str, style: LogFormat, stream: IO[str] | None = None, *, no_color: bool = False
) -> None:
    """Send all logs, those of libraries and warnings included, to ``stream`` (standard error).

    ``auto`` is console on a terminal and JSON elsewhere; colours only on a terminal. Lines for a
    stream that cannot be written to are lost.
    """
    out = sys.stderr if stream is None else stream
    # A process can be started with its standard error closed.
    terminal = out is not None and out.isatty()
    console = style == "console" or (style == "auto" and terminal)
    handler = logging.NullHandler() if out is None else _Handler(out)
    handler.setFormatter(_formatter(console=console, colors=terminal and not no_color))
    # Libraries may set levels on their loggers, which override that of the root logger.
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # They would log a line for each job and each request.
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            _FewAlike(time.monotonic),
            *_shared(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


class _FewAlike:
    """Drops lines of an event of targets beyond :data:`_MOST_ALIKE` a minute; the last one says so,
    and the first of a later minute how many there were."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._minute = 0
        self._counts: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    def __call__(self, logger: Any, _: str, event: EventDict) -> EventDict:
        if logger.name != _OF_EACH_TARGET:
            return event
        minute = int(self._clock() // 60)
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
        name = str(event["event"])
        self._counts[name] += 1
        if self._counts[name] > _MOST_ALIKE:
            self._left_out[name] += 1
            raise structlog.DropEvent
        left_out = self._left_out.pop(name, 0)
        if left_out:
            event["left_out_before"] = left_out
        if self._counts[name] == _MOST_ALIKE:
            event["others"] = "left out until the next minute"
        return event


class _Handler(logging.StreamHandler[IO[str]]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drop the line: its error could only go to the same broken stream."""


def _shared() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _formatter(*, console: bool, colors: bool) -> logging.Formatter:
    rendering: list[Processor] = (
        [
            _printable,
            # Not the default, which shows local variables: they may hold secrets.
            structlog.dev.ConsoleRenderer(
                colors=colors, exception_formatter=structlog.dev.plain_traceback
            ),
        ]
        if console
        else [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer()]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_shared(), structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
    )


def _in_order(_: object, __: str, event: EventDict) -> EventDict:
    """Put the keys that every line has first."""
    first = {key: event[key] for key in _FIRST if key in event}
    return {**first, **event}


def _printable(_: object, __: str, event: EventDict) -> EventDict:
    """Escape control characters: names come from servers, and could control the terminal."""
    for key, value in event.items():
        if isinstance(value, str) and key != "exception" and not value.isprintable():
            event[key] = ascii(value)
    return event
