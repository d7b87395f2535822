"""Running commands in this process, on a machine without configuration and history."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.testing import capture_logs

from specwatch.cli import group, options
from specwatch.domain.baseline import Measurement
from specwatch.domain.experiments import Experiment
from specwatch.runtime import logs
from specwatch.runtime.http_server import HttpServer
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests import pages
from tests.cli.guards import NOW, Guards
from tests.web.statuses import Surface, daemon, serving

Run = Callable[..., Result]


def texts(lines: Iterable[Any]) -> list[str]:
    """Lines for a terminal, without their styles."""
    return [
        line[0] if line and isinstance(line[0], str) else "".join(text for text, _ in line)
        for line in lines
    ]


def experiments(database: str) -> list[Experiment]:
    """The stored results."""
    with closing(Reader.of(database)) as reader:
        return [row.experiment for row in reader.experiments(0, 4e9)]


def measurements(database: str) -> list[Measurement]:
    """The stored baselines."""
    with closing(Reader.of(database)) as reader:
        return reader.measurements()


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DEFAULT_FILE", tmp_path / "etc" / "specwatch.yml")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("STATE_DIRECTORY", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a folder unreadable, also for root."""

    def forbid(folder: Path) -> None:
        def within(call: Callable[..., Any]) -> Callable[..., Any]:
            def denied(path: object, *given: object, **named: object) -> Any:
                if str(path).startswith(f"{folder}/"):
                    raise PermissionError(13, "Permission denied", str(path))
                return call(path, *given, **named)

            return denied

        monkeypatch.setattr(os, "stat", within(os.stat))
        monkeypatch.setattr(io, "open", within(io.open))

    return forbid


@pytest.fixture
def run() -> Run:
    """Runs ``specwatch ARGUMENTS``, with separate standard output and standard error."""

    def invoke(*arguments: object, charset: str = "utf-8", stdin: bytes | None = None) -> Result:
        runner = CliRunner(charset=charset)
        done = runner.invoke(group, [str(word) for word in arguments], input=stdin)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return invoke


@pytest.fixture
def daemon_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Lets ``specwatch run`` begin in this process, whose signals and logs stay as they are; what
    it logs."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(logs, "configure", lambda *_, **__: None)
    with capture_logs() as captured:
        yield captured


@pytest.fixture(scope="module")
def serving_surface() -> Iterator[Surface]:
    with serving() as surface:
        yield surface


@pytest.fixture
def surface(serving_surface: Surface) -> Surface:
    """The HTTP server of a healthy daemon."""
    serving_surface.status = daemon()
    serving_surface.token = lambda: None
    return serving_surface


@pytest.fixture
def web() -> Iterator[Callable[[str, Callable[[Request], Response]], str]]:
    """Serves one path on a free port; returns the URL."""
    servers: list[HttpServer] = []

    def serve(path: str, answer: Callable[[Request], Response]) -> str:
        app = Starlette(routes=[Route(path, answer)])
        servers.append(HttpServer(app, "127.0.0.1", 0, name="web"))
        servers[-1].start()
        return servers[-1].url

    yield serve
    for running in servers:
        assert running.stop()


@pytest.fixture
def vllm(web: Callable[..., str]) -> str:
    """The URL, with a path, of a server with a captured page."""
    return web("/a/metrics", lambda _: Response(pages.capture("draft-k4.2"))) + "/a"


@pytest.fixture
def specwatch() -> list[str]:
    """The words that start specwatch as a process."""
    return [sys.executable, "-m", "specwatch"]


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The URL of a database that does not exist yet."""
    return f"sqlite:///{tmp_path}/specwatch.db"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with empty tables."""
    path = tmp_path_factory.mktemp("template") / "empty.db"
    store = Store(f"sqlite:///{path}", daemon="left")
    store.open(0.0)
    store.close(0.0)
    return path


@pytest.fixture
def guards(tmp_path: Path, template: Path) -> Iterator[Guards]:
    made = Guards(tmp_path, template)
    yield made
    made.store.close(NOW)
