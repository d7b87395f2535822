"""``specwatch tap proxy``: the tap as a reverse proxy in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING, Literal

import click

from specwatch.cli import options
from specwatch.domain.temperature import DEFAULT_EDGES, checked_edges
from specwatch.domain.units import parse_engine_url, parse_listen, parse_size
from specwatch.errors import ConfigError
from specwatch.runtime.http_server import HttpServer
from specwatch.tap.settings import Settings

if TYPE_CHECKING:
    from specwatch.tap.proxy import ProxyApplication

_LATE = 5.0
"""Seconds that the end may take beyond the grace."""


def _buckets(_: click.Context, __: click.Parameter, text: str | None) -> tuple[float, ...]:
    if text is None:
        return DEFAULT_EDGES
    try:
        return checked_edges(tuple(float(edge) for edge in text.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{error}; write ascending numbers like 0,0.3,0.7,1.0") from None


def _size(_: click.Context, __: click.Parameter, text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not size:
        raise click.BadParameter(f"{text} leaves nothing to read")
    return size


@click.command(name="proxy")
@click.option(
    "--upstream", required=True, metavar="URL",
    help="The server whose requests to read, e.g. http://127.0.0.1:8000.",
)  # fmt: skip
@click.option(
    "--listen", default="127.0.0.1:8001", show_default=True, metavar="HOST:PORT",
    help="Where clients find the proxy.",
)  # fmt: skip
@click.option(
    "--default-temperature", type=click.FloatRange(min=0, max=100), metavar="T",
    help="What the server uses for a request that names none; llama.cpp says it itself.",
)  # fmt: skip
@click.option(
    "--temperature-buckets", callback=_buckets, metavar="T,T,...",
    help="Upper ends of the buckets.  [default: 0,0.3,0.7,1.0]",
)  # fmt: skip
@click.option(
    "--remove-metrics", is_flag=True,
    help="Take the acceptance record out of responses, so that clients do not see it.",
)  # fmt: skip
@click.option(
    "--largest-request", default="16MiB", show_default=True, callback=_size, metavar="SIZE",
    help="Larger requests pass without being held to be read; without temperature, then.",
)  # fmt: skip
@click.option(
    "--connect-timeout", default="10s", show_default=True, callback=options.duration,
    metavar="TIME", help="How long a connection to the server may take to come about.",
)  # fmt: skip
@click.option(
    "--grace", default="30s", show_default=True, callback=options.duration, metavar="TIME",
    help="How long running responses may go on after SIGTERM or SIGINT.",
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(["auto", "json", "console"]), default="auto",
    show_default=True, help="auto is console on a terminal, else JSON.",
)  # fmt: skip
def command(
    upstream: str,
    listen: str,
    default_temperature: float | None,
    temperature_buckets: tuple[float, ...],
    remove_metrics: bool,
    largest_request: int,
    connect_timeout: float,
    grace: float,
    log_format: Literal["auto", "json", "console"],
) -> None:
    """Stand between clients and a vLLM or llama.cpp server, and count by temperature.

    Everything passes as it is, streams without delay, API keys unseen. Only /metrics (of the proxy)
    and /specwatch/healthz are its own. A second signal ends it at once. Exit code 2 when the
    address to listen on cannot be had.
    """
    import structlog

    from specwatch.runtime import logs

    try:
        url, address = parse_engine_url(upstream), parse_listen(listen)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    logs.configure("info", log_format, no_color=options.no_color())
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    app = _application(
        url,
        Settings(temperature_buckets, remove_metrics),
        default_temperature=default_temperature,
        connect_timeout=connect_timeout,
        largest_request=largest_request,
    )
    log = structlog.get_logger(__name__)
    stopping = threading.Event()

    def stop(_: int, __: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server = HttpServer(
        app, address.host, address.port, name="proxy", grace=grace, transparent=True
    )
    server.start()
    log.info("proxy_started", url=server.url, upstream=url)
    stopping.wait()
    log.info("proxy_stopping", grace=grace)
    ended = server.stop(grace + _LATE)
    log.info("proxy_stopped", in_time=ended)
    logging.shutdown()
    # A thread that hangs in a socket must not hold us.
    os._exit(0)


def _application(
    url: str,
    settings: Settings,
    *,
    default_temperature: float | None,
    connect_timeout: float,
    largest_request: int,
) -> ProxyApplication:
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

    from specwatch.tap.proxy import ProxyApplication

    registry = CollectorRegistry()
    # The start of the process is how a restart shows.
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return ProxyApplication(
        url,
        registry,
        settings=settings,
        default_temperature=default_temperature,
        connect_timeout=connect_timeout,
        largest_request=largest_request,
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn says what the proxy does not say itself, or means to do."""
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    return not (
        isinstance(error, asyncio.CancelledError)
        or text.startswith(("ASGI callable returned without completing", "Unsupported upgrade"))
        or text.startswith("No supported WebSocket library")
    )
