"""``specwatch db``."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

from specwatch.cli import options
from specwatch.config import sections
from specwatch.domain.model import Batch
from specwatch.store import schema
from specwatch.store.batches import pack_batch
from specwatch.store.repository import Store
from tests.cli.conftest import Run
from tests.web.statuses import minute

COMMANDS = ("upgrade", "current", "prune", "check")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a database that does not exist, in a folder that does not either."""
    return f"sqlite:///{tmp_path}/new/history.db"


def filled(url: str, start: int) -> None:
    """Three minutes of one model."""
    store = Store(url, daemon="left")
    windows = tuple(minute(start + 60 * number) for number in range(3))
    store.write([pack_batch(Batch(windows, None))], float(start))
    store.close(float(start))


def test_a_new_database_is_set_up_and_shown(run: Run, url: str) -> None:
    at_url = ("--database", url)
    done = run("db", "upgrade", *at_url)
    assert done.exit_code == 0
    assert done.stdout.endswith(f": empty -> {schema.CURRENT}\n")
    again = run("db", "upgrade", *at_url)
    assert again.stdout.endswith(f"is at revision {schema.CURRENT} already\n")
    upgraded = json.loads(run("db", "upgrade", *at_url, "--json").stdout)
    assert (upgraded["before"], upgraded["after"]) == (schema.CURRENT, schema.CURRENT)
    current = run("db", "current", *at_url).stdout
    assert f"revision {schema.CURRENT} (current)" in current
    assert "0 rows" in current


def test_pruning_rolls_old_minutes_up_and_reports_the_rows(run: Run, url: str) -> None:
    at_url = ("--database", url)
    filled(url, int(time.time()) // 3600 * 3600 - 15 * 86400)
    done = run("db", "prune", *at_url)
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "deleted 3 minutes, 0 hours, 0 runs, 0 baselines, 0 verdicts, 0 guard steps,"
        " 0 guards, 0 cursors, 0 experiments from "
    )
    info = json.loads(run("db", "current", *at_url, "--json").stdout)
    assert info["revision"] == info["known_revision"] == schema.CURRENT
    assert (info["rows"]["minute_counts"], info["rows"]["hour_counts"]) == (0, 1)
    assert info["rows_exact"]["minute_counts"] is True
    assert info["size_bytes"] > 0
    again = json.loads(run("db", "prune", *at_url, "--json").stdout)
    assert again["minutes"] == again["hours"] == 0


def test_the_retention_is_that_of_the_option_or_the_configuration(
    run: Run, tmp_path: Path, database: str
) -> None:
    filled(database, int(time.time()) // 3600 * 3600 - 2 * 86400)
    file = tmp_path / "specwatch.yml"
    file.write_text(
        f"database: {database}\nretention: {{minutes: 3d, hours: 5d}}\n"
        "targets: [{url: 'http://127.0.0.1:8000'}]\n"
    )
    assert run("db", "prune", "--config", file).stdout.startswith("deleted 0 minutes")
    assert run("db", "prune", "--config", file, "--minutes", "1d").stdout.startswith(
        "deleted 3 minutes"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "14"], "has no unit"),
        (["--minutes", "1h"], "make it at least 2h"),
        (["--hours", "1d"], "make it at least 14d"),
        (["--hours", "x"], "not a duration"),
    ],
)
def test_an_impossible_retention_is_refused(
    run: Run, database: str, words: list[str], message: str
) -> None:
    done = run("db", "prune", "--database", database, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


UNUSABLE = {
    "history.db": (2, "is not a database URL; write sqlite:////"),
    "sqlite://": (2, "names no database file; write sqlite:////"),
    "mysql://u:hunter2@h/d": (
        2,
        '"mysql" is not a database that specwatch knows; write sqlite',
    ),
    "postgresql://u:hun/ter2@h/d": (2, "percent-encode"),
    "postgresql://u:hunter2@127.0.0.1:1/fleet": (1, "Postgres database fleet on 127.0.0.1:1"),
    "sqlite:///newer.db": (1, "9999, and this specwatch knows"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unusable_database_is_refused_without_its_password(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("newer.db") as newer:
        newer.execute("CREATE TABLE alembic_version (version_num TEXT)")
        newer.execute("INSERT INTO alembic_version VALUES ('9999')")
    newer.close()
    unusable = dict(UNUSABLE)
    if command in ("current", "prune"):
        unusable["sqlite:///new/history.db"] = (1, "history.db")
    for url, (code, message) in unusable.items():
        done = run("db", command, "--database", url)
        assert (done.exit_code, done.stdout) == (code, ""), url
        assert done.stderr.startswith("--database: ") == (code == 2)
        assert message in done.stderr
        assert "hunter2" not in done.stderr
        assert "ter2" not in done.stderr
    assert "Upgrade this specwatch" in run("db", command, "--database", "sqlite:///newer.db").stderr
    assert not Path("new").exists()


def test_a_given_database_needs_no_configuration(run: Run, tmp_path: Path, database: str) -> None:
    """Users who may not read the daemon's configuration can read a copy of its database."""
    assert run("db", "upgrade").exit_code == 0
    assert (tmp_path / "state/specwatch/specwatch.db").exists(), "that of run --target"
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/specwatch.yml").write_text("broken")
    assert run("db", "upgrade", "--database", database).exit_code == 0
    assert run("db", "current", "--database", database).exit_code == 0
    assert run("db", "current").exit_code == 2


def test_by_hand_the_database_is_that_of_the_service(
    run: Run, tmp_path: Path, vllm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the service gets its state directory from systemd."""
    options.DEFAULT_FILE.parent.mkdir()
    options.DEFAULT_FILE.write_text(f"targets: [{{name: chat, url: '{vllm}'}}]\n")
    monkeypatch.setattr(sections, "SERVICE_FOLDER", options.DEFAULT_FILE.parent)
    monkeypatch.setattr(sections, "SERVICE_STATE", tmp_path / "service")
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "service"))
    assert run("db", "upgrade").exit_code == 0
    monkeypatch.delenv("STATE_DIRECTORY")
    place = f"{tmp_path}/service/specwatch.db"
    assert run("db", "current").stdout.startswith(f"SQLite database {place}: revision")
    assert f"database sqlite:///{place}: ok, revision" in run("check-config").stdout
    assert "nothing was recorded yet" in run("report").stdout
    assert "no daemon has guarded any target yet" in run("guard", "status").stderr
    assert "no daemon has guarded chat yet" in run("guard", "pause", "chat", "--for", "1h").stderr
    Path(place).unlink()
    for arguments in (["report"], ["guard", "status"], ["guard", "disable", "chat"]):
        assert f"{place} does not exist" in run(*arguments).stderr
    monkeypatch.setattr(options, "DEFAULT_FILE", tmp_path / "nowhere")
    assert f"{tmp_path}/state/specwatch/specwatch.db does not exist" in run("report").stderr


def test_a_damaged_file_is_told_with_what_sqlite_finds(
    run: Run, tmp_path: Path, database: str
) -> None:
    path = tmp_path / "specwatch.db"
    filled(database, 1_700_000_040)
    done = run("db", "check", "--database", database)
    assert (done.exit_code, done.stdout) == (0, f"SQLite database {path}: nothing is damaged\n")
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"x" * 4096 + content[8192:])
    path.with_name("specwatch.db.damaged-20260101T000000Z").touch()
    done = run("db", "check", "--database", database)
    assert done.exit_code == 1
    first, *problems, last = done.stdout.splitlines()
    assert first.endswith(": damaged. A daemon puts the file aside and begins a new one")
    assert problems
    assert last == "put aside before: specwatch.db.damaged-20260101T000000Z"
    checked = json.loads(run("db", "check", "--database", database, "--json").stdout)
    assert checked["problems"]
    assert checked["damaged_files"] == ["specwatch.db.damaged-20260101T000000Z"]
