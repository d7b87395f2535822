"""A throwaway Postgres for tests: a real server in a temporary directory, on a socket in there."""

from __future__ import annotations

import contextlib
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

from tests.plugins.no_skips import in_ci

STARTS_WITHIN = 30.0
NOT_INSTALLED = "no Postgres server is installed (Debian: apt install postgresql)"
IN_MEMORY, ENOUGH = Path("/dev/shm"), 2 * 2**30
"""A folder in memory, and the bytes that must be free there: it makes tables in half the time."""
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "1h",
    "jit": "off",
    "max_connections": "40",
    "shared_buffers": "16MB",
    "autovacuum": "off",
}
AS_INSTALLED = {"listen_addresses": ""}
"""Settings for benchmarks: it syncs, and vacuums by itself."""


class PostgresServer:
    """One cluster; its superuser is ``specwatch``, trusted on the socket."""

    def __init__(
        self, programs: Path, directory: Path, settings: Mapping[str, str] = SETTINGS
    ) -> None:
        self._programs = programs
        self._settings = settings
        self._data = directory / "data"
        self._socket = directory
        self._log = directory / "log"
        self._names = itertools.count()
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix = _as_somebody_else(directory)
        initdb = ["initdb", "--pgdata", str(self._data), "--username", "specwatch"]
        self._run(*initdb, "--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [each for item in self._settings.items() for each in ("-c", "=".join(item))]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *command, "-k", str(self._socket)],
                stdout=log,
                stderr=log,
                cwd=self._socket,
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
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def execute(self, statement: str) -> None:
        """Run one statement outside of any transaction."""
        where = f"host={self._socket} user=specwatch dbname=postgres connect_timeout=3"
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(statement)

    def new_url(self) -> str:
        """The URL of a new, empty schema, which is deleted with the server."""
        name = f"test{next(self._names)}"
        self.execute(f"CREATE SCHEMA {name}")
        options = quote(f"-csearch_path={name}")
        return f"postgresql://specwatch@/postgres?host={self._socket}&options={options}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._prefix, str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self._socket)
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


def _fast() -> Path | None:
    """Where a server's files are best kept; None for where temporary files go."""
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
    place = _fast() if settings is SETTINGS else None
    directory = Path(tempfile.mkdtemp(prefix="specwatch-pg-", dir=place))
    server = PostgresServer(programs, directory, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)  # nobody needs its last checkpoint
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A running server, shared by the whole session; a test that stops it starts it again."""
    if find_programs() is None:
        (pytest.fail if in_ci() else pytest.skip)(NOT_INSTALLED)
    with running_postgres() as server:
        yield server
