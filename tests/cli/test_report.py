"""``specwatch report``: formats, files and refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from specwatch.report.model import Report, schema
from tests.cli import history
from tests.cli.conftest import Run

UNTIL = history.T0 + 2 * 3600
PERIOD = ("--since", str(history.T0), "--until", str(UNTIL))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two hours of two targets, the second without a baseline."""
    url = f"sqlite:///{tmp_path_factory.mktemp('history')}/specwatch.db"
    minutes = (
        history.minute(n, target=name) for n in range(0, 120, 4) for name in ("chat", "code")
    )
    history.fill(url, chain.from_iterable(minutes))
    return url


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
def test_json_is_the_report_of_all_or_selected_targets(
    run: Run, url: str, arguments: tuple[str, ...]
) -> None:
    done = run("report", "--database", url, *PERIOD, *arguments)
    report = msgspec.json.decode(done.stdout, type=Report)
    assert [target.target for target in report.targets] == ["chat", "code"]
    assert (report.since, report.until) == (history.T0, UNTIL)
    done = run("report", "--database", url, *PERIOD, *arguments, "--target", "code")
    report = msgspec.json.decode(done.stdout, type=Report)
    assert [target.target for target in report.targets] == ["code"]


def test_the_schema_is_printed_or_written(run: Run, tmp_path: Path) -> None:
    published = json.loads(msgspec.json.encode(schema()))
    assert json.loads(run("report", "--schema").stdout) == published
    file = tmp_path / "schema.json"
    done = run("report", "--schema", "-o", file)
    assert (done.exit_code, done.stdout) == (0, "")
    assert json.loads(file.read_text()) == published


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.txt", "specwatch report\n"),
        ("r.md", "# "),
        ("r.html", "<!doctype html>"),
        ("r.HTM", "<!doctype html>"),
        ("r.json", "{"),
    ],
)
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


REFUSED = {
    "a format unlike the suffix": (
        "-o FOLDER/x.html --format md",
        "--format md writes md, and --output FOLDER/x.html is for",
    ),
    "JSON in a file of another suffix": ("-o FOLDER/x.html --json", "--json writes json, and --o"),
    "a schema in a file of another suffix": ("-o FOLDER/x.html --schema", "--schema writes json"),
    "a schema of a target": ("--schema --target x", "--schema and --target exclude each other"),
    "a schema of a time": ("--schema --since 1d", "--schema and --since exclude each other"),
    "a schema as Markdown": ("--schema --format md", "--schema and --format exclude each other"),
    "JSON and another format": ("--json --format html", "exclude each other"),
    "an end before the beginning": ("--since 1d --until 2d", "give an earlier since"),
    "an unknown target": ("--target chatt", '"chatt" is configured or was ever watched; did you'),
    "a directory": ("--format text -o FOLDER", "it is a directory; give a file in it"),
    "an absent directory": ("-o FOLDER/none/r.txt", "there is no directory"),
    "an unknown suffix": ("-o FOLDER/r.pdf", "give --format, or a name that ends with one of .txt"),
    "no suffix": ("-o FOLDER/r", "give --format"),
}


@pytest.mark.parametrize(("line", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_options_are_refused_before_anything_is_written(
    run: Run, url: str, tmp_path: Path, line: str, problem: str
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    words = line.replace("FOLDER", str(folder)).split()
    done = run("report", *words, *(() if "--schema" in words else ("--database", url)))
    assert done.exit_code == 2
    assert problem.replace("FOLDER", str(folder)) in " ".join(done.stderr.split())
    assert not list(folder.iterdir())


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
    report = json.loads(run("report", "--config", file, *PERIOD, "--json").stdout)
    assert report["notes"] == ["new: never watched yet"]
    assert [target["target"] for target in report["targets"]] == ["chat", "code"]
    assert [target["answer"]["gpus"] for target in report["targets"]] == [2, None]
