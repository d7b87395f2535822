"""A throwaway Postgres for tests: a real server in a temporary directory, on a socket in there."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from specwatch.store import database, partitions, schema
from specwatch.store.database import Database
from tests.plugins.no_skips import in_ci

STARTS_WITHIN = 30.0
NOT_INSTALLED = "no Postgres server is installed (Debian: apt install postgresql)"
IN_MEMORY, ENOUGH = Path("/dev/shm"), 2 * 2**30
"""A folder in memory, and the bytes that must be free there."""
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "1h",
    "jit": "off",
    "max_connections": "80",
    "shared_buffers": "16MB",
    "autovacuum": "off",
}
NUMBERED = ("runs", "series", "contexts", "experiments")
"""Tables whose rows Postgres numbers."""
EMPTY = """
SET search_path = {schema};
SET lock_timeout = '1s';
DO $$
DECLARE name text;
BEGIN
    FOR name IN
        SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = 'minute_counts'::regclass
            AND relname NOT IN ('minute_counts_default', {days})
    LOOP
        EXECUTE format('DROP TABLE %I', name);
    END LOOP;
    {deletions};
    PERFORM setval(sequence, 1, false) FROM unnest(ARRAY[{numbered}]) AS sequence;
    UPDATE alembic_version SET version_num = '{revision}';
END $$
"""
"""Deletes all rows and the partitions of all days but the first, and numbers rows from 1 again."""
AS_INSTALLED = {"listen_addresses": ""}
"""Settings for benchmarks: it syncs, and vacuums by itself."""


class PostgresServer:
    """A cluster in a directory; its superuser is ``specwatch``, trusted on the socket.

    Another process may have started it.
    """

    def __init__(
        self, programs: Path, directory: Path, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self.directory = directory
        self.database = "postgres"
        self._programs = programs
        self._settings = settings
        self._data = directory / "data"
        self._log = directory / "log"
        self._names = (f"test_{os.getpid()}_{number}" for number in itertools.count())
        self._emptied: list[str] = []
        """Schemas with empty tables that nobody uses."""
        self._emptying: psycopg.Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix: list[str] = []

    def create(self) -> None:
        """Make the files of the cluster."""
        self._prefix = _as_somebody_else(self.directory)
        initdb = ["initdb", "--pgdata", str(self._data), "--username", "specwatch"]
        self._run(*initdb, "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [each for item in self._settings.items() for each in ("-c", "=".join(item))]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *command, "-k", str(self.directory)],
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"Postgres did not start: {self._log.read_text()}"
                    ) from error
                time.sleep(0.05)

    @property
    def pid(self) -> int:
        """The id of its first process, whose children are all others."""
        assert self._process is not None, "not started"
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT breaks connections off properly, SIGQUIT as a crash would."""
        self.disconnect()
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def disconnect(self) -> None:
        """Close the connection that stays open for the next schema to be emptied."""
        if self._emptying is not None:
            self._emptying.close()
            self._emptying = None

    def execute(self, statements: str) -> None:
        """Run statements outside of a transaction."""
        with self._connect() as connection:
            connection.execute(statements)

    def new_url(self) -> str:
        """The URL of a new, empty schema, which is deleted with the server."""
        name = next(self._names)
        self.execute(f"CREATE SCHEMA {name}")
        return self._url(name)

    @contextlib.contextmanager
    def lent_url(self) -> Iterator[str]:
        """The URL of a schema with empty tables of the newest revision.

        They are emptied afterwards and lent again, as creating them takes a hundred times as long:
        who changes the tables themselves takes a :meth:`new_url`.
        """
        if self._emptied:
            name = self._emptied.pop()
        else:
            name = next(self._names)
            self.execute(f"CREATE SCHEMA {name}")
            url = self._url(name)
            database.create(url)
            made = Database(url)
            partitions.make(made, now=0.0)
            made.dispose()
        yield self._url(name)
        with contextlib.suppress(psycopg.errors.LockNotAvailable):
            self._empty(name)
            self._emptied.append(name)

    def _connect(self) -> psycopg.Connection:
        where = f"host={self.directory} user=specwatch dbname={self.database} connect_timeout=3"
        return psycopg.connect(where, autocommit=True)

    def _empty(self, name: str) -> None:
        self._emptying = self._emptying or self._connect()
        deletions = (f"DELETE FROM {table}" for table in reversed(schema.metadata.sorted_tables))
        self._emptying.execute(
            EMPTY.format(
                schema=name,
                deletions="; ".join(deletions),
                numbered=", ".join(f"'{table}_id_seq'" for table in NUMBERED),
                days=", ".join(f"'minute_counts_1970010{day}'" for day in (1, 2, 3)),
                revision=schema.CURRENT,
            )
        )

    def _url(self, name: str) -> str:
        options = quote(f"-csearch_path={name}")
        return f"postgresql://specwatch@/{self.database}?host={self.directory}&options={options}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._prefix, str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.directory)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}")


def find_programs() -> Path | None:
    """The directory of the newest installed server; None without any."""
    installed = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = max(installed, key=lambda found: float(found.parts[-3]), default=None)
    found = newest or shutil.which("postgres")
    return Path(found).resolve().parent if found else None


def _as_somebody_else(directory: Path) -> list[str]:
    """How to run the server's programs: it refuses to be root; and it ends when the tests do."""
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0:
        return [setpriv, "--pdeathsig", "INT"] if setpriv else []
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        user = pwd.getpwnam("nobody")
    if setpriv is None:
        raise RuntimeError("running Postgres from root's tests needs setpriv (util-linux)")
    os.chown(directory, user.pw_uid, user.pw_gid)
    identity = ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    return [setpriv, *identity, "--pdeathsig", "INT"]


def folder_in_memory() -> Path | None:
    """A folder in memory that can be written to; None without one that has room enough."""
    writable = os.access(IN_MEMORY, os.W_OK | os.X_OK)
    return IN_MEMORY if writable and shutil.disk_usage(IN_MEMORY).free >= ENOUGH else None


@contextlib.contextmanager
def running_postgres(settings: Mapping[str, str] = SETTINGS) -> Iterator[PostgresServer]:
    """A server in its own directory, on a disk unless with the settings of tests.

    RuntimeError if none is installed.
    """
    programs = find_programs()
    if programs is None:
        raise RuntimeError(NOT_INSTALLED)
    # Not pytest's directory: the path of a socket may only have 107 bytes.
    place = folder_in_memory() if settings is SETTINGS else None
    directory = Path(tempfile.mkdtemp(prefix="specwatch-pg-", dir=place))
    server = PostgresServer(programs, directory, settings)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)  # nobody needs its last checkpoint
        shutil.rmtree(directory)


@contextlib.contextmanager
def shared_postgres(folder: Path) -> Iterator[PostgresServer]:
    """The server of the processes that share a folder: the first starts it, and stops it once no
    other uses it. RuntimeError if none is installed."""
    address = folder / "postgres"
    with (folder / "postgres.users").open("w") as users, contextlib.ExitStack() as running:
        with _locked(folder / "postgres.start"):
            programs = find_programs()
            ours = programs is None or not address.exists()
            if ours:
                server = running.enter_context(running_postgres())
                address.write_text(str(server.directory))
            else:
                server = PostgresServer(programs, Path(address.read_text()))
            fcntl.flock(users, fcntl.LOCK_SH)
            own = f"process_{os.getpid()}"
            server.execute(f"CREATE DATABASE {own}")
            server.database = own  # advisory locks are of a database
        try:
            yield server
        finally:
            server.disconnect()
            if ours:
                with _locked(folder / "postgres.start"):
                    address.unlink()
                fcntl.flock(users, fcntl.LOCK_EX)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def postgres(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresServer]:
    """A running server, shared by all processes of a run.

    Those of e2e have their own: a test that stops it starts it again.
    """
    if find_programs() is None:
        (pytest.fail if in_ci() else pytest.skip)(NOT_INSTALLED)
    own = any("e2e" in item.path.parts for item in request.session.items)
    folder = tmp_path_factory.getbasetemp()
    if request.config.getoption("file_queue", None):
        folder = folder.parent
    with running_postgres() if own else shared_postgres(folder) as server:
        yield server
