"""Fixtures that tests of several rooms share: servers, captured logs, and databases."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from specwatch.config.target import Target
from specwatch.store import rollups_and_retention
from specwatch.store.repository import Store
from tests import databases as databases
from tests.actuators.process_families import leave_others_out
from tests.hostile import Behaviour, HostileServer
from tests.postgres import folder_in_memory

CERTIFICATE = Path(__file__).parent / "data" / "tls" / "server.pem"
KEY = CERTIFICATE.with_name("server.key")

if (memory := folder_in_memory()) is not None:
    # Temporary folders: a test of a SQLite file on a disk waits for the disk most of the time.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

Serve = Callable[..., HostileServer]
OpenStore = Callable[..., Store]
Log = list[MutableMapping[str, Any]]


@pytest.fixture
def only_ours() -> None:
    """The processes of other tests are not looked for."""
    leave_others_out()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts hostile servers: ``serve(behaviour)``."""
    with contextlib.ExitStack() as running:

        def started(behaviour: Behaviour, **options: Any) -> HostileServer:
            return running.enter_context(HostileServer(behaviour, **options))

        yield started


@pytest.fixture
def log() -> Iterator[Log]:
    """Every log event of the test."""
    with structlog.testing.capture_logs() as captured:
        yield captured


@pytest.fixture(scope="session")
def server_tls() -> ssl.SSLContext:
    """TLS of a server whose certificate nobody else has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    return context


def target_of(url: str, name: str = "t", **settings: Any) -> Target:
    """A target with settings as they are inside: numbers of seconds, paths."""
    return Target(url=url, name=name).model_copy(update={"timeout": 20.0, **settings})


def events(log: Log, event: str) -> Log:
    """The log entries of one event."""
    return [entry for entry in log if entry["event"] == event]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else waits for the database while hours are built or deleted one by one."""
    monkeypatch.setattr(rollups_and_retention, "_PAUSE", 0.0)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database: SQLite, or Postgres, with its tables, where a test says so."""
    if getattr(request, "param", "sqlite") == "sqlite":
        yield f"sqlite:///{tmp_path}/state/specwatch.db"
    else:
        with request.getfixturevalue("postgres").lent_url() as lent:
            yield lent


each_database = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    """Where a SQLite database will lie."""
    return tmp_path / "state" / "specwatch.db"


@pytest.fixture
def open_store() -> Iterator[OpenStore]:
    """Open stores by URL and daemon (``left`` by default)."""
    stores: list[Store] = []

    def opened(url: str, daemon: str = "left", now: float = 0.0, **options: Any) -> Store:
        store = Store(url, daemon=daemon, **options)
        stores.append(store)
        store.open(now)
        return store

    yield opened
    for store in stores:
        store._database.dispose()


@pytest.fixture
def store(url: str, open_store: OpenStore) -> Store:
    """An open store of the daemon ``left`` on an empty database."""
    return open_store(url)
