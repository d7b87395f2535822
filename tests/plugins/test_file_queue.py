"""Every test of every file runs once, whichever process takes the file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import __main__ as program
from tests.plugins.file_queue import longest_first, take_number

CONFTEST = """
import pytest

@pytest.fixture(autouse=True, scope="session")
def marks(request):
    yield
    print("session ends")

@pytest.fixture
def from_conftest():
    return 1
"""
FILES = {
    "conftest.py": CONFTEST,
    "test_a.py": "def test_one(from_conftest): pass\ndef test_two(): assert False\n",
    "test_b.py": "import pytest\n@pytest.mark.skip(reason='no server')\ndef test_three(): pass\n",
    "deep/test_c.py": "def test_four(from_conftest): pass\n",
    "test_d.py": "import no_such_module\n",
}


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """A folder with tests, one of which fails, one is skipped, and one file has an error."""
    folder = tmp_path / "some"
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def take(folder: Path, queue: Path, *options: str) -> tuple[list[dict[str, Any]], int, str]:
    """What one process of a queue reports, its status, and what it prints."""
    queue.mkdir(exist_ok=True)
    reading, writing = os.pipe()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.plugins.file_queue",
        "--file-queue",
        str(queue),
        "--file-results",
        str(writing),
        "--rootdir",
        str(folder),
        *options,
    ]
    ran = subprocess.run(
        command, cwd=program.ROOT, pass_fds=[writing], capture_output=True, text=True
    )
    os.close(writing)
    with os.fdopen(reading) as results:
        lines = [json.loads(line) for line in results]
    return [line for line in lines if "file" in line], ran.returncode, ran.stdout


def test_a_process_reports_each_file_and_tears_the_session_down_once(
    tests: Path, tmp_path: Path
) -> None:
    results, status, output = take(tests, tmp_path / "queue", str(tests), "-s")
    assert {Path(each["file"]).name: each["outcomes"] for each in results} == {
        "test_a.py": {"passed": 1, "failed": 1},
        "test_b.py": {"skipped": 1},
        "test_c.py": {"passed": 1},
        "test_d.py": {"error": 1},
    }
    assert [each["skipped"][0].endswith("no server") for each in results if each["skipped"]] == [
        True
    ]
    assert sorted(Path(name).name for each in results for name in each["failed"]) == [
        "test_a.py::test_two",
        "test_d.py",
    ]
    assert status == 1
    assert output.count("session ends") == 1


def test_what_another_process_took_is_left_out_and_options_choose_among_tests(
    tests: Path, tmp_path: Path
) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    (queue / "taken").write_text("..")
    results, _, _ = take(tests, queue, str(tests), "-k", "one or three or four")
    ran = [name for each in results for name in each["tests"]]
    assert len(results) == 2
    assert not any("test_two" in name for name in ran)
    chosen, status, _ = take(tests, tmp_path / "other", f"{tests}/test_a.py::test_one")
    assert [[*each["tests"]] for each in chosen] == [["test_a.py::test_one"]]
    assert status == 0


def test_no_number_is_taken_twice_or_left_out(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        numbers = threads.map(lambda _: take_number(tmp_path / "taken"), range(2000))
    assert sorted(numbers) == [*range(2000)]


def test_a_file_that_nobody_ran_or_that_ran_twice_is_named() -> None:
    progress = program.Progress()
    progress.add({"found": ["a.py", "b.py", "c.py"]})
    result = {"outcomes": {"passed": 1}, "failed": [], "skipped": []}
    for file in ("a.py", "c.py", "c.py"):
        progress.add({"file": file, **result})
    assert progress.not_once == {"b.py": 0, "c.py": 2}


def test_files_that_took_longest_are_taken_first(tmp_path: Path) -> None:
    recorded = tmp_path / "seconds.json"
    recorded.write_text('{"short": 0.1, "long": 5}')
    assert longest_first(["short", "new", "long"], recorded) == ["long", "new", "short"]


@pytest.mark.parametrize(
    ("statuses", "whole"), [([0, 0], 0), ([0, 5], 0), ([5, 5], 5), ([1, 0], 1), ([0, -9], 1)]
)
def test_a_run_is_as_good_as_the_worst_process(statuses: list[int], whole: int) -> None:
    assert program.status_of(statuses) == whole


def test_only_a_few_single_tests_get_a_second_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    progress = program.Progress()
    for failed in (["a::b"], ["a::b", "c::d", "e::f", "g::h"], ["a.py"], []):
        progress.files = {"a": {"failed": failed}}
        program.second_look(progress, 1)
    assert [command[-1] for command in ran] == ["a::b"]
    assert "a::b" in capsys.readouterr().out
