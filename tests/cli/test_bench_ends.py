"""A bench keeps what was measured, however it ends, and reports what is missing."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specwatch.cli import load, output
from specwatch.domain.experiments import Bench, Comparison, read
from specwatch.domain.model import Mode
from specwatch.errors import ConfigError
from specwatch.lab.loadtest.compare import compare
from specwatch.lab.loadtest.engine import MeasuredModel, engine_of
from specwatch.lab.simulator.engine import SimulatedEngine
from tests import simulated_load
from tests.cli.conftest import Run, experiments, measurements
from tests.cli.test_bench import QUICK
from tests.loadtest.benches import batches, bench, level, noise
from tests.simulated_load import at_answer, in_virtual_time, settings

EVEN = batches(0.02, noise(8, 0.02))
TWICE = batches(0.01, noise(8, 0.02, 1))


OFF, ON = bench("off", [level(4, EVEN)]), bench("on", [level(4, TWICE)])


def files(folder: Path, *benches: Bench) -> list[Path]:
    paths = [folder / f"{bench.subject.mode}.json" for bench in benches]
    for path, written in zip(paths, benches, strict=True):
        path.write_bytes(msgspec.json.encode(written))
    return paths


def test_a_result_that_cannot_be_written_is_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *_: object) -> None:
        raise ConfigError(f"{path}: No space left on device")

    both = files(tmp_path, OFF, ON)
    monkeypatch.setattr(output, "write", full)
    done = run("bench", "compare", *both, "-o", tmp_path / "a.json", "--plot", tmp_path / "a.svg")
    assert done.exit_code == 1
    assert done.stdout.startswith("Speculation pays")
    assert f"measured, but not written: {tmp_path}/a.json: No space left" in done.stderr
    assert f"measured, but not drawn: {tmp_path}/a.svg: No space left" in done.stderr


def test_nothing_to_draw_exits_with_0(run: Run, tmp_path: Path) -> None:
    both = files(tmp_path, OFF, bench("on", [level(4, ())]))
    done = run("bench", "compare", *both, "--plot", tmp_path / "a.svg", "--json")
    assert done.exit_code == 0, done.stderr
    assert isinstance(read(done.stdout, "here"), Comparison)
    assert "note: nothing to draw in" in done.stderr
    assert not (tmp_path / "a.svg").exists()


def test_a_comparison_in_a_file_has_both_benches_and_can_be_repeated(
    run: Run, tmp_path: Path
) -> None:
    first, again = tmp_path / "a.json", tmp_path / "b.json"
    done = run("bench", "compare", *files(tmp_path, ON, OFF), "-o", first)
    assert done.exit_code == 0, done.stderr
    result = read(first.read_bytes(), "first")
    assert result.benches == (OFF, ON)
    done = run("bench", "compare", first, "-o", again)
    assert done.exit_code == 0, done.stderr
    assert read(again.read_bytes(), "again") == result
    # Beside another bench it stands for its run of the other mode.
    slower = tmp_path / "slower.json"
    slower.write_bytes(msgspec.json.encode(bench("on", [level(4, batches(0.03, noise(8, 0.02)))])))
    done = run("bench", "compare", slower, first, "--json")
    assert done.exit_code == 1
    other = read(done.stdout, "here")
    assert other.verdict == "do_not"
    assert other.benches[0] == OFF


def test_an_old_comparison_without_its_benches_is_shown(run: Run, tmp_path: Path) -> None:
    result = compare(OFF, ON, version="0.9")
    plain = msgspec.to_builtins(result)
    del plain["benches"]
    old = tmp_path / "old.json"
    old.write_bytes(msgspec.json.encode(plain))
    done = run("bench", "compare", old, "--json")
    assert done.exit_code == 0, done.stderr
    assert read(done.stdout, "here") == msgspec.structs.replace(result, benches=())
    done = run("bench", "compare", old, *files(tmp_path, ON))
    assert done.exit_code == 2
    assert "old.json is a comparison without its benches" in done.stderr
    assert "measure again with --baseline" in done.stderr


def test_two_comparisons_are_refused_with_the_remedy(run: Run, tmp_path: Path) -> None:
    both = tmp_path / "a.json"
    both.write_bytes(msgspec.json.encode(compare(OFF, ON, version="1")))
    done = run("bench", "compare", both, both)
    assert done.exit_code == 2
    assert "a.json has a bench without speculation and one with it" in done.stderr
    assert "give it alone, or with a file of one bench" in done.stderr


def test_of_two_servers_that_cannot_be_compared_the_file_has_both(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench is stopped in the first load; its file can be shown."""
    output = tmp_path / "a.json"
    at_answer(60, lambda: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
    engines = [SimulatedEngine(settings(speculates=True)), SimulatedEngine(settings())]
    with in_virtual_time(engines) as (on, off):
        done = run(
            "bench",
            "--target",
            on,
            "--baseline",
            off,
            "--concurrency",
            "4",
            "--dry-run",
            *QUICK,
            "-o",
            output,
        )
    assert done.exit_code == 1
    assert "not compared: " in done.stderr
    result = read(output.read_bytes(), "file")
    assert [bench.subject.mode for bench in result.benches] == ["off", "on"]
    assert (result.verdict, result.complete, result.levels) == ("unknown", False, ())
    assert any(bench.levels for bench in result.benches)
    for more in ((), ("--json",)):
        again = tmp_path / "again.json"
        done = run("bench", "compare", output, *more, "-o", again, "--plot", tmp_path / "a.svg")
        assert done.exit_code == 1
        assert "verdict: Not compared: no load was measured on both to its end." in done.stderr
        assert "nothing to draw" in done.stderr
        assert read(again.read_bytes(), "again") == result
    assert read(done.stdout, "standard output") == result


def test_a_load_with_failed_requests_exits_with_1(run: Run, tmp_path: Path) -> None:
    failing = level(16, TWICE, errors={"failed": 30})
    both = files(
        tmp_path,
        bench("off", [level(4, EVEN), level(16, EVEN)]),
        bench("on", [level(4, TWICE), failing]),
    )
    done = run("bench", "compare", *both)
    assert done.exit_code == 1
    assert "verdict: Speculation pays up to 4 requests at once" in done.stderr


def test_speculation_may_show_only_in_the_answers(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of llama.cpp does not show it; the server would become the baseline."""

    def silent(*arguments: Any, **more: Any) -> MeasuredModel:
        return replace(engine_of(*arguments, **more), mode=Mode.OFF)

    monkeypatch.setattr(simulated_load, "engine_of", silent)
    with in_virtual_time([SimulatedEngine(settings(speculates=True))]) as (url,):
        done = run("bench", "--target", url, "--concurrency", 1, "--database", database, *QUICK)
    assert done.exit_code == 0, done.stderr
    (kept,) = experiments(database)
    assert kept.subject.mode == "on"
    assert measurements(database) == []


def test_more_requests_than_open_files_are_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    done = run("bench", "--target", "http://h:1", "--concurrency", "8,64", "--dry-run", *QUICK)
    assert done.exit_code == 2
    assert "this process may have 100; raise that limit" in done.stderr
    assert "--concurrency 64: each request is an open file" in done.stderr


CONFIGURATION = """
targets:
  - {name: chat, url: "http://h:1", bearer_token_file: FOLDER/one}
  - {name: plain, url: "http://h:2", bearer_token_file: FOLDER/two}
"""


@pytest.mark.parametrize(("url", "key"), [("http://h:2", "two"), ("http://h:3", "one")])
def test_the_baseline_has_its_own_key_from_the_configuration(
    tmp_path: Path, url: str, key: str
) -> None:
    """Else it has the target's key."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)
    file = tmp_path / "specwatch.yml"
    file.write_text(CONFIGURATION.replace("FOLDER", str(tmp_path)))
    given = {
        "file": file,
        "target": "chat",
        "bearer_token_file": None,
        "database": None,
    }
    result = load.second_target(load.measured_target(given), "--baseline", url, given)
    assert result.url == url
    assert str(result.bearer_token_file) == str(tmp_path / key)
