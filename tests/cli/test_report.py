"""``specwatch report``: formats, files and refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from specwatch.report.model import Report, schema
from tests.cli import history
from tests.cli.conftest import Run

UNTIL = history.T0 + 2 * 3600
PERIOD = ("--since", str(history.T0), "--until", str(UNTIL))


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Two hours of two targets, the second without a baseline."""
    found = f"sqlite:///{tmp_path}/specwatch.db"
    minutes = [
        each
        for at in range(120)
        for name in ("chat", "code")
        for each in history.minute(at, target=name)
    ]
    history.fill(found, minutes)
    return found


def test_the_answer_is_printed_as_text(run: Run, url: str) -> None:
    done = run("report", "--database", url, *PERIOD)
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "specwatch report\n2023-11-14 22:00 UTC to 2023-11-15 00:00 UTC (2 h)\n"
    )
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [("--json",), ("--format", "json")])
def test_json_is_the_report(run: Run, url: str, arguments: tuple[str, ...]) -> None:
    done = run("report", "--database", url, *PERIOD, *arguments)
    report = msgspec.json.decode(done.stdout, type=Report)
    assert [target.target for target in report.targets] == ["chat", "code"]
    assert (report.since, report.until) == (history.T0, UNTIL)


def test_only_selected_targets_are_reported(run: Run, url: str) -> None:
    done = run("report", "--database", url, *PERIOD, "--json", "--target", "code")
    assert [load["target"] for load in json.loads(done.stdout)["targets"]] == ["code"]


def test_an_unknown_target_is_refused_with_the_nearest(run: Run, url: str) -> None:
    done = run("report", "--database", url, "--target", "chatt")
    assert done.exit_code == 2
    assert '"chatt" is configured or was ever watched; did you mean "chat"?' in done.stderr


def test_the_schema_is_published(run: Run) -> None:
    printed = json.loads(run("report", "--schema").stdout)
    assert printed == json.loads(msgspec.json.encode(schema()))


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.txt", "specwatch report\n"), ("r.md", "# "), ("r.html", "<!doctype html>"),
        ("r.HTM", "<!doctype html>"), ("r.json", "{"),
    ],
)  # fmt: skip
def test_the_suffix_of_the_file_chooses_the_format(
    run: Run, url: str, tmp_path: Path, name: str, start: str
) -> None:
    file = tmp_path / name
    done = run("report", "--database", url, *PERIOD, "-o", file)
    assert (done.exit_code, done.stdout) == (0, "")
    assert file.read_text().lower().startswith(start)


@pytest.mark.parametrize("name", ["r", "r.out", "r.JSON"])
def test_an_unknown_suffix_takes_the_given_format(
    run: Run, url: str, tmp_path: Path, name: str
) -> None:
    file = tmp_path / name
    assert run("report", "--database", url, *PERIOD, "-o", file, "--json").exit_code == 0
    assert json.loads(file.read_text())["format"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--json"], "--json writes json, and --output"),
        (["--format", "md"], "--format md writes md, and --output"),
        (["--schema"], "--schema writes json, and --output"),
    ],
)
def test_a_format_and_a_suffix_that_contradict_are_refused(
    run: Run, url: str, tmp_path: Path, arguments: list[str], said: str
) -> None:
    file = tmp_path / "x.html"
    source = [] if arguments == ["--schema"] else ["--database", url]
    done = run("report", *source, "-o", file, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "x.html is for html" in done.stderr
    assert not file.exists()


def test_the_schema_goes_to_the_file_that_is_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    done = run("report", "--schema", "-o", file)
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads(file.read_text()) == json.loads(msgspec.json.encode(schema()))


@pytest.mark.parametrize("arguments", [("--target", "x"), ("--since", "1d"), ("--format", "md")])
def test_the_schema_takes_no_options_without_effect(run: Run, arguments: tuple[str, ...]) -> None:
    done = run("report", "--schema", *arguments)
    assert done.exit_code == 2
    assert f"--schema and {arguments[0]} exclude each other" in " ".join(done.stderr.split())


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(
    run: Run, url: str, tmp_path: Path
) -> None:
    file = tmp_path / "r.txt"
    file.write_text("the one before")
    file.chmod(0o640)
    with file.open() as reader:
        run("report", "--database", url, *PERIOD, "-o", file)
        assert reader.read() == "the one before"
    assert file.read_text().startswith("specwatch report")
    assert file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.glob("*r.txt*")) == ["r.txt"]


def test_a_failure_leaves_the_file_before_and_nothing_beside_it(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out" / "r.txt"
    file.parent.mkdir()
    file.write_text("the one before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = run("report", "--database", url, *PERIOD, "-o", file)
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert [path.name for path in file.parent.iterdir()] == ["r.txt"]
    assert file.read_text() == "the one before"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "it is a directory; give a file in it"),
        ("none/r.txt", "there is no directory"),
        ("r.pdf", "give --format, or a name that ends with one of .txt, .md"),
        ("r", "give --format"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(
    run: Run, tmp_path: Path, name: str, words: str
) -> None:
    file = tmp_path / name
    form = ["--format", "text"] if name == "." else []
    done = run("report", "--database", "sqlite:////nowhere/x.db", "-o", file, *form)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())


def test_json_and_another_format_exclude_each_other(run: Run) -> None:
    done = run("report", "--json", "--format", "html")
    assert done.exit_code == 2
    assert "exclude each other" in done.stderr


def test_since_must_come_before_until(run: Run, url: str) -> None:
    done = run("report", "--database", url, "--since", "1d", "--until", "2d")
    assert done.exit_code == 2
    assert "give an earlier since" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["report"], ["guard", "status"], ["db", "current"], ["db", "prune"]]
)
def test_an_unreadable_database_exits_with_1(
    run: Run, tmp_path: Path, forbid: Callable[[Path], None], arguments: list[str]
) -> None:
    forbid(tmp_path / "private")
    done = run(*arguments, "--database", f"sqlite:///{tmp_path}/private/specwatch.db")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "specwatch.db: this user may not use it; use sudo" in done.stderr


def test_an_unreadable_database_file_exits_with_1(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "specwatch.db").touch()
    monkeypatch.setattr("os.access", lambda path, *_, **__: Path(path).suffix != ".db")
    done = run("report", "--database", f"sqlite:///{tmp_path}/specwatch.db")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "this user may not use it" in done.stderr


def test_configured_targets_without_history_have_a_note(run: Run, url: str, tmp_path: Path) -> None:
    file = tmp_path / "specwatch.yml"
    file.write_text(
        f"database: {url}\ntargets:\n- {{name: new, url: 'http://new:8000'}}\n"
        "- {name: chat, url: 'http://chat:8000', gpus: [0, 1]}\n"
    )
    found = json.loads(run("report", "--config", file, *PERIOD, "--json").stdout)
    assert found["notes"] == ["new: never watched yet"]
    assert [each["target"] for each in found["targets"]] == ["chat", "code"]
    assert [each["answer"]["gpus"] for each in found["targets"]] == [2, None]
