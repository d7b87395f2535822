"""``specwatch tap``: what to add to ``vllm serve`` for the tap, and the tap as a reverse proxy."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import signal
import threading
from contextlib import closing
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click

import specwatch_tap
from specwatch.cli import commands, options
from specwatch.cli.output import for_a_shell, for_json
from specwatch.cli.terminal import Terminal
from specwatch.domain.units import ListenAddress, parse_engine_url, parse_listen, parse_size
from specwatch.engines.sample_names import METRICS_PATHS
from specwatch.errors import CannotStrip, ConfigError, SpecwatchError
from specwatch.generate import tap as tap_flags
from specwatch.generate.tap import TapAdvice, Version
from specwatch.runtime.text_file import read_text
from specwatch.scrape import engine_info
from specwatch.scrape.page_client import BlockingPageClient
from specwatch.vllm_cli import read_command
from specwatch.wording.text import clean_lines, shown
from specwatch_tap import settings
from specwatch_tap.segment_kinds import checked_kinds
from specwatch_tap.temperature import DEFAULT_EDGES, checked_edges

if TYPE_CHECKING:
    from specwatch_tap.proxy import ProxyApplication  # its package is not always installed

_TIMEOUT = 5.0
_SWITCH_DIRECTORY = "/run/vllm-switch"
_LARGEST_ANSWER = 1 << 20
_WHY = {
    settings.BUCKETS: "Upper ends of the temperature buckets. Give the daemon the same, as"
    " temperature_buckets.",
    settings.SEGMENTS: "What the tap counts by beside the temperature.",
    settings.SWITCH_DIRECTORY: "Where orders of the switch come. Give the daemon the same, as"
    " targets[].switch.directory. For orders over HTTP set SPECWATCH_SWITCH_TOKEN_FILE too.",
    settings.REMOVE_METRICS: "Clients do not see the acceptance record that vLLM adds to"
    " responses of chat and completions.",
}
_EXTRA_SECONDS = 5.0
"""Time that the end of the proxy may take after its grace period."""


_segments_option = click.option(
    "--segments",
    metavar="KIND,KIND",
    default="",
    callback=options.parsed(lambda text: checked_kinds(text.split(",")) if text else ()),
    help="Count by one or two more: prompt_length, stream, output, adapter, header:NAME.",
)


@click.group(name="tap", cls=commands.CommandGroup)
def command() -> None:
    """Acceptance and latency by sampling temperature, read from the traffic itself."""


# --- flags


@command.command(short_help="what to add to `vllm serve` so that it loads the tap itself")
@click.option("--vllm-version", metavar="V", help="Version of vLLM, such as 0.29.0.")
@click.option("--target", metavar="URL", help="A running vLLM, to get its version from.")
@click.option(
    "--temperature-buckets",
    "buckets",
    metavar="0,0.3,..",
    help="Upper ends of the temperature buckets, when not the default 0,0.3,0.7,1.",
)
@_segments_option
@click.option(
    "--remove-metrics",
    is_flag=True,
    help="Have the tap take the acceptance record out of chat and completions.",
)
@click.option(
    "--per-request-metrics",
    "timings",
    is_flag=True,
    help="TTFT and TPOT of responses that are not streamed, too (vLLM 0.25).",
)
@click.option(
    "--switch",
    is_flag=True,
    help="What `specwatch switch` needs, to change the draft tokens while vLLM runs.",
)
@options.path("--switch-directory", text="The directory of the switch.", default=_SWITCH_DIRECTORY)
@click.option("--systemd", is_flag=True, help="Print a drop-in for vLLM's unit; needs COMMAND.")
@options.json_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def flags(
    vllm_version: str | None,
    target: str | None,
    buckets: str | None,
    segments: tuple[str, ...],
    remove_metrics: bool,
    timings: bool,
    switch: bool,
    switch_directory: Path,
    systemd: bool,
    as_json: bool,
    words: tuple[str, ...],
) -> None:
    """Print what to add to `vllm serve` so that it loads the tap, and why.

    COMMAND is the command line that starts vLLM now. It is printed with the flags that it lacks,
    in the right place.

    Exit code 2, with the reason, when COMMAND cannot be changed safely.
    """
    if systemd and not words:
        raise click.UsageError("--systemd needs the command that starts vLLM: -- vllm serve ...")
    version = _version(vllm_version, target)
    environment = _environment(buckets, segments, remove_metrics)
    try:
        given = read_command(words) if words else None
        arguments, problem = None if given is None else given.arguments, None
        if given is not None:
            try:
                arguments = given.with_file(read_text)
            except CannotStrip as error:  # its --config file cannot be read
                problem = str(error)
        advice = tap_flags.advise(
            version,
            environment=environment,
            timings=timings,
            removes_metrics=remove_metrics,
            switch=str(switch_directory) if switch else None,
            command=given,
            arguments=arguments,
            unread=problem,
        )
        drop_in = tap_flags.drop_in(advice, _install()) if systemd else None
    except (CannotStrip, ValueError) as error:
        raise ConfigError(f"COMMAND: {error}") from None
    if as_json:
        changed = advice.command
        variables = (advice if changed is None else changed).environment
        options.print_json(
            {
                "flags": [flag._asdict() for flag in advice.flags],
                "environment": {name: for_json(value) for name, value in variables.items()},
                "install": _install(),
                "command": None if changed is None else list(map(for_json, changed.words)),
                "drop_in": None if drop_in is None else for_json(drop_in),
                "notes": advice.notes,
            }
        )
    elif drop_in is not None:
        click.echo(drop_in, nl=False)
    else:
        _show(advice)


def _show(advice: TapAdvice) -> None:
    click.echo("Install the tap into vLLM's environment (Python 3.11 or later):\n")
    click.echo(f"  {_install()}\n  {tap_flags.INSTALL_CHECK}   # silent when it works\n")
    if advice.flags:
        click.echo("Add to `vllm serve`:\n")
        for flag in advice.flags:
            _paragraph(flag.why, f"  {' '.join(filter(None, flag[:2]))}")
    elif advice.command is not None:
        click.echo("The command has all flags that the tap needs.\n")
    if advice.environment:
        click.echo("Set in its environment:\n")
        for name, value in advice.environment.items():
            _paragraph(_WHY[name], f"  {name}={shlex.quote(value)}")
    for note in advice.notes:
        _paragraph(note)
    if advice.command is not None:
        words = [*advice.command.assignments, *advice.command.words]
        click.echo(f"The whole command:\n\n  {clean_lines(for_a_shell(words))}")


def _paragraph(text: str, title: str = "") -> None:
    """Print a text, indented below its title, and an empty line."""
    indent = "      " if title else ""
    click.echo(
        f"{title}\n" * bool(title) + click.wrap_text(text, Terminal().width, indent, indent) + "\n"
    )


def _install() -> str:
    """The command that installs this tap into another environment, from the same source."""
    checkout = Path(specwatch_tap.__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install {shlex.quote(str(checkout))}"
    try:
        # pip writes it for packages that are not from an index (PEP 610).
        origin = json.loads(distribution("specwatch-tap").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    if "vcs_info" in origin:
        control = origin["vcs_info"]
        source = f"{control['vcs']}+{origin['url']}@{control['commit_id']}"
        if folder := origin.get("subdirectory"):
            source += f"#subdirectory={folder}"
        return f"pip install {shlex.quote(source)}"
    place = url2pathname(urlsplit(origin.get("url", "")).path)
    if place and Path(place).exists():
        return f"pip install {shlex.quote(place)}"
    return f"pip install specwatch-tap=={specwatch_tap.__version__}"


def _version(version: str | None, target: str | None) -> Version | None:
    """The given version, or that of a running server; None if neither is known."""
    if version is not None:
        if target is not None:
            raise click.UsageError("give either --vllm-version or --target, not both")
        try:
            return tap_flags.version_of(version)
        except ValueError as error:
            raise ConfigError(f"--vllm-version: {error}") from None
    if target is None:
        return None
    try:
        url = parse_engine_url(target)
    except ValueError as error:
        raise ConfigError(f"--target: {error}") from None
    with closing(BlockingPageClient(url, timeout=_TIMEOUT, max_size=_LARGEST_ANSWER)) as client:
        version = engine_info.ask(client.fetch).version
    try:
        return None if version is None else tap_flags.version_of(version)
    except ValueError:
        raise SpecwatchError(
            f"{target} is not vLLM (its version is {shown(str(version))!r}), so it cannot load the"
            f" tap; run `specwatch tap proxy --upstream {target}` in front of it"
        ) from None


def _environment(
    buckets: str | None, segments: tuple[str, ...], remove_metrics: bool
) -> dict[str, str]:
    environment = {}
    if buckets is not None:
        environment[settings.BUCKETS] = buckets.replace(" ", "")
        try:
            edges = settings.from_environment(environment).edges
        except ValueError as error:
            raise ConfigError(f"--temperature-buckets: {error}") from None
        if edges == DEFAULT_EDGES:
            environment.clear()
    if segments:
        environment[settings.SEGMENTS] = ",".join(segments)
    if remove_metrics:
        environment[settings.REMOVE_METRICS] = "1"
    return environment


# --- proxy


def _buckets(text: str) -> tuple[float, ...]:
    try:
        return checked_edges(tuple(float(edge) for edge in text.split(",")))
    except ValueError as error:
        raise ValueError(f"{error}; write ascending numbers like 0,0.3,0.7,1.0") from None


def _size(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text}: expected more than 0 bytes")
    return size


@command.command(short_help="the tap as a reverse proxy, for servers that cannot load it")
@click.option(
    "--upstream",
    required=True,
    metavar="URL",
    help="The server behind the proxy, e.g. http://127.0.0.1:8000.",
)
@click.option(
    "--listen",
    default="127.0.0.1:8001",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for the clients.",
)
@click.option(
    "--default-temperature",
    type=click.FloatRange(min=0, max=100),
    metavar="T",
    help="Temperature of requests without one; llama.cpp reports it itself.",
)
@click.option(
    "--temperature-buckets",
    callback=options.parsed(_buckets),
    metavar="T,T,...",
    default="0,0.3,0.7,1.0",
    show_default=True,
    help="Upper ends of the buckets.",
)
@_segments_option
@click.option(
    "--remove-metrics",
    is_flag=True,
    help="Take the acceptance record out of responses, so that clients do not see it.",
)
@click.option(
    "--largest-request",
    default="16MiB",
    show_default=True,
    metavar="SIZE",
    callback=options.parsed(_size),
    help="Larger requests pass without being read, and so without a temperature.",
)
@options.time_option("--connect-timeout", "10s", "Time limit for connecting to the server.")
@options.time_option(
    "--grace", "30s", "Time that running responses may still take after SIGTERM or SIGINT."
)
@click.option(
    "--log-format",
    type=click.Choice(["auto", "json", "console"]),
    default="auto",
    show_default=True,
    help="auto is console on a terminal, else JSON.",
)
def proxy(
    upstream: str,
    listen: str,
    default_temperature: float | None,
    temperature_buckets: tuple[float, ...],
    segments: tuple[str, ...],
    remove_metrics: bool,
    largest_request: int,
    connect_timeout: float,
    grace: float,
    log_format: Literal["auto", "json", "console"],
) -> None:
    """Run a reverse proxy that counts by temperature, for a server that cannot load the tap.

    Everything passes unchanged: streams without delay, API keys unread. Only /metrics (of the
    proxy) and /specwatch/healthz are its own. A second signal ends it at once. Exit code 2 when
    the address to listen on is not available.
    """
    from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

    from specwatch.runtime import logs
    from specwatch_tap.proxy import ProxyApplication

    try:
        url, address = parse_engine_url(upstream), parse_listen(listen)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    logs.configure("info", log_format, no_color=options.no_color())
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    registry = CollectorRegistry()
    # The start time of the process is how a restart shows.
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    app = ProxyApplication(
        url,
        registry,
        settings=settings.Settings(temperature_buckets, remove_metrics, segments=segments),
        metrics_paths=METRICS_PATHS,
        default_temperature=default_temperature,
        connect_timeout=connect_timeout,
        largest_request=largest_request,
    )
    _serve(app, address, url, grace)


def _serve(app: ProxyApplication, address: ListenAddress, upstream: str, grace: float) -> NoReturn:
    """Serve until a signal, and for ``grace`` seconds after it at most."""
    import structlog

    from specwatch.runtime.http_server import HttpServer

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
    log.info("proxy_started", url=server.url, upstream=upstream)
    stopping.wait()
    log.info("proxy_stopping", grace=grace)
    ended = server.stop(grace + _EXTRA_SECONDS)
    log.info("proxy_stopped", in_time=ended)
    logging.shutdown()
    # A thread that hangs in a socket must not delay the end.
    os._exit(0)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether uvicorn logs something that the proxy neither logs itself nor intends."""
    error = record.exc_info[1] if record.exc_info else None
    text = record.getMessage()
    return not (
        isinstance(error, asyncio.CancelledError)
        or text.startswith(("ASGI callable returned without completing", "Unsupported upgrade"))
        or text.startswith("No supported WebSocket library")
    )
