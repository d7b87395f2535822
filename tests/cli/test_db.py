"""``specwatch db``."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from specwatch.cli import options
from specwatch.config import sections
from specwatch.domain.model import Batch
from specwatch.store import schema
from specwatch.store.database import Database
from specwatch.store.packing import pack_batch
from specwatch.store.repository import Store
from tests.cli.conftest import Run
from tests.web.statuses import minute

COMMANDS = ("upgrade", "current", "prune", "check", "repair")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/history.db"
    found: str = request.getfixturevalue("postgres").new_url()
    return found


def filled(url: str, start: int) -> None:
    """Three minutes of one model."""
    store = Store(url, daemon="left")
    windows = tuple(minute(start + 60 * number) for number in range(3))
    store.write([pack_batch(Batch(windows, None))], float(start))
    store.close(float(start))


def test_a_new_database_is_set_up_shown_and_left_alone(run: Run, url: str) -> None:
    done = run("db", "upgrade", "--database", url)
    assert done.exit_code == 0
    assert done.stdout.endswith(f": empty -> {schema.CURRENT}\n")
    assert run("db", "upgrade", "--database", url).stdout.endswith(
        f"is at revision {schema.CURRENT} already\n"
    )
    shown = run("db", "current", "--database", url).stdout
    assert f"revision {schema.CURRENT} (current)" in shown
    assert "0 rows" in shown


def test_as_json(run: Run, url: str) -> None:
    done = json.loads(run("db", "upgrade", "--database", url, "--json").stdout)
    assert (done["before"], done["after"]) == (None, schema.CURRENT)
    filled(url, int(time.time()) // 60 * 60)
    info = json.loads(run("db", "current", "--database", url, "--json").stdout)
    assert info["revision"] == info["known_revision"] == schema.CURRENT
    assert (info["rows"]["minutes"], info["rows_exact"]["minutes"]) == (3, True)
    assert info["size_bytes"] > 0


def test_pruning_makes_hours_of_old_minutes_and_says_what_it_did(run: Run, url: str) -> None:
    filled(url, int(time.time()) // 3600 * 3600 - 15 * 86400)
    done = run("db", "prune", "--database", url)
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "deleted 3 minutes, 0 hours, 0 runs, 0 baselines, 0 verdicts, 0 guard steps,"
        " 0 experiments, 0 damaged rows from "
    )
    info = json.loads(run("db", "current", "--database", url, "--json").stdout)
    assert (info["rows"]["minutes"], info["rows"]["hours"]) == (0, 1)
    again = json.loads(run("db", "prune", "--database", url, "--json").stdout)
    assert again["minutes"] == again["hours"] == 0


def test_how_long_to_keep_can_be_given_or_configured(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    filled(url, int(time.time()) // 3600 * 3600 - 2 * 86400)
    file = tmp_path / "specwatch.yml"
    file.write_text(
        f"database: {url}\nretention: {{minutes: 3d, hours: 5d}}\n"
        "targets: [{url: 'http://127.0.0.1:8000'}]\n"
    )
    assert run("db", "prune", "--config", file).stdout.startswith("deleted 0 minutes")
    assert run("db", "prune", "--config", file, "--minutes", "1d").stdout.startswith(
        "deleted 3 minutes"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "14"], "has no unit"),
        (["--minutes", "1h"], "make it at least 2h"),
        (["--hours", "1d"], "make it at least 14d"),
        (["--hours", "x"], "not a duration"),
    ],
)
def test_a_retention_that_cannot_be_is_refused(
    run: Run, tmp_path: Path, words: list[str], said: str
) -> None:
    done = run("db", "prune", "--database", f"sqlite:///{tmp_path}/history.db", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("command", ["current", "prune"])
def test_a_missing_database_exits_with_1_and_is_not_created(
    run: Run, tmp_path: Path, command: str
) -> None:
    done = run("db", command, "--database", f"sqlite:///{tmp_path}/new/history.db")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "history.db" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("history.db", "is not a database URL; write sqlite:////"),
        ("sqlite://", "names no database file; write sqlite:////"),
        ("mysql://u:hunter2@h/d", '"mysql" is not a database that specwatch knows; write sqlite'),
        ("postgresql://u:hun/ter2@h/d", "percent-encode"),
    ],
)
def test_a_bad_url_is_refused_with_the_remedy_and_without_its_password(
    run: Run, command: str, url: str, said: str
) -> None:
    done = run("db", command, "--database", url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("--database: ")
    assert said in done.stderr
    assert "hunter2" not in done.stderr
    assert "ter2" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unreachable_database_exits_with_1_without_its_password(run: Run, command: str) -> None:
    done = run("db", command, "--database", "postgresql://specwatch:hunter2@127.0.0.1:1/fleet")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "Postgres database fleet on 127.0.0.1:1" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_of_a_newer_specwatch_is_left_alone(
    run: Run, tmp_path: Path, command: str
) -> None:
    with sqlite3.connect(tmp_path / "newer.db") as newer:
        newer.execute("CREATE TABLE alembic_version (version_num TEXT)")
        newer.execute("INSERT INTO alembic_version VALUES ('9999')")
    newer.close()
    done = run("db", command, "--database", f"sqlite:///{tmp_path}/newer.db")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "9999" in done.stderr
    assert "Upgrade this specwatch" in done.stderr


def test_a_given_database_needs_no_configuration(run: Run, tmp_path: Path) -> None:
    """Users who may not read the daemon's configuration can read a copy of its database."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/specwatch.yml").write_text("broken")
    url = f"sqlite:///{tmp_path}/copy.db"
    assert run("db", "upgrade", "--database", url).exit_code == 0
    assert run("db", "current", "--database", url).exit_code == 0
    assert run("db", "current").exit_code == 2


def test_without_any_it_is_the_one_that_run_uses(run: Run, tmp_path: Path) -> None:
    assert run("db", "upgrade").exit_code == 0
    assert (tmp_path / "state/specwatch/specwatch.db").exists()


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


def damaged(url: str) -> None:
    """A database in which one minute of three cannot be decoded."""
    start = int(time.time()) // 60 * 60 - 600
    filled(url, start)
    database = Database(url)
    with database.writing() as connection:
        statement = sa.text(f"UPDATE minutes SET data = :data WHERE start = {start}")
        connection.execute(statement, {"data": b"\xc1"})
    database.dispose()


def test_damage_is_listed_set_aside_and_gone(run: Run, url: str) -> None:
    damaged(url)
    found = run("db", "check", "--database", url)
    assert found.exit_code == 1
    assert "1 row damaged: `specwatch db repair` sets them aside\n  minutes (start=" in found.stdout
    done = run("db", "repair", "--database", url)
    assert done.exit_code == 0
    assert "1 row set aside, in the table damaged_rows\n  minutes (start=" in done.stdout
    after = run("db", "check", "--database", url)
    assert after.exit_code == 0
    assert "nothing is damaged\nset aside before, in the table damaged_rows: 1\n" in after.stdout
    assert "nothing is damaged" in run("db", "repair", "--database", url).stdout


def test_damage_as_json(run: Run, url: str) -> None:
    damaged(url)
    done = run("db", "check", "--database", url, "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert (found["problems"], found["set_aside"]) == ([], [])
    (row,) = found["damaged"]
    assert row["table"] == "minutes"
    assert row["row"].startswith("minutes (start=")
    done = run("db", "repair", "--database", url, "--json")
    assert done.exit_code == 0
    repaired = json.loads(done.stdout)
    assert (repaired["rebuilt"], repaired["set_aside"], repaired["left"]) == (None, [row], [])
    (aside,) = json.loads(run("db", "check", "--database", url, "--json").stdout)["set_aside"]
    assert (aside["target"], aside["table"]) == ("chat", "minutes")


def test_a_malformed_file_is_named_with_its_remedy_and_rebuilt(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    url = f"sqlite:///{path}"
    filled(url, 1_700_000_040)
    content = path.read_bytes()
    path.write_bytes(b"x" * 100 + content[100:])
    found = run("db", "check", "--database", url)
    assert found.exit_code == 1
    assert "the file is malformed" in found.stdout
    assert "`specwatch db repair` copies the readable rows" in found.stdout
    done = run("db", "repair", "--database", url, "--json")
    assert done.exit_code == 0
    rebuilt = json.loads(done.stdout)["rebuilt"]
    assert Path(rebuilt["kept"]).read_bytes()[100:] == content[100:]
    assert rebuilt["rows"]["minutes"] == 0
    assert run("db", "check", "--database", url).exit_code == 0
