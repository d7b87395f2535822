"""``specwatch bench`` against simulated servers, whose true speedup is known."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from specwatch.cli import group
from specwatch.cli.bench_tables import bench_lines, comparison_lines
from specwatch.domain.baseline import Origin
from specwatch.domain.experiments import Bench, Comparison, read
from specwatch.loadtest.compare import compare
from specwatch.simulator.acceptance import SimulatedAcceptance
from specwatch.simulator.engine import SimulatedEngine
from specwatch.simulator.server import SimulatedServer
from specwatch.simulator.workload import SimulatedTraffic
from tests.cli.conftest import Run, experiments, measurements, texts
from tests.loadtest.benches import batches, bench, level, noise
from tests.simulated_load import in_virtual_time, server, settings

QUICK = ("--duration", "1200ms", "--warm-up", "100ms", "--max-tokens", "12", "--temperature", "0")


class Both:
    """A bench of both servers alternately, and its results; in virtual time."""

    def __init__(self, folder: Path) -> None:
        self.database = f"sqlite:///{folder}/specwatch.db"
        self.output, self.plot = folder / "result.json", folder / "plot.svg"
        self.on = SimulatedEngine(settings(speculates=True))
        with in_virtual_time([self.on, SimulatedEngine(settings())]) as (on, off):
            self.done = CliRunner().invoke(
                group,
                [
                    "bench", "--target", on, "--baseline", off, "--concurrency", "2,4",
                    "--database", self.database, "--json", *QUICK, "--duration", "12s",
                    "--max-tokens", "80", "-o", str(self.output), "--plot", str(self.plot),
                ],
            )  # fmt: skip
        assert self.done.exit_code == 0, self.done.stderr
        found = read(self.done.stdout, "here")
        assert isinstance(found, Comparison)
        self.found = found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("both"))


def test_the_speedup_of_decoding_is_the_true_one(both: Both) -> None:
    """Up to the tokens of the last step that exceed the answer."""
    assert both.found.interleaved
    assert [level.concurrency for level in both.found.levels] == [2, 4]
    for one in both.found.levels:
        truth = both.on.true_speedup(0.0, one.concurrency or 0)
        assert one.decode is not None
        assert one.decode.lower is not None
        assert one.decode.upper is not None
        assert one.decode.lower < one.decode.value < one.decode.upper < 1.1 * one.decode.lower
        assert one.decode.value == pytest.approx(truth, rel=0.05)
        assert one.speedup is not None
        assert one.throughput_on > one.throughput_off
        assert one.acceptance_rate is not None


def test_all_of_it_is_stored_and_written(both: Both) -> None:
    kept = experiments(both.database)
    assert [type(each) for each in kept] == [Bench, Bench, Comparison]
    assert both.found == read(both.output.read_text(), "there")
    assert both.found.benches == (kept[1], kept[0]), "without speculation first"
    assert kept[2] == replace(both.found, benches=()), "they are stored beside it"
    for each in kept[:2]:
        assert isinstance(each, Bench)
        assert each.complete
        assert each.interleaved
        for one in each.levels:
            assert one.errors == {}
            assert one.alone is True
            assert one.running == pytest.approx(one.concurrency)
            assert one.ttft is not None
            assert one.ttft.count == one.requests > 0
    assert "stored as result 1, 2, 3" in both.done.stderr


def test_the_server_without_speculation_became_the_baseline(both: Both) -> None:
    found = measurements(both.database)
    assert [each.load_bin for each in found] == [1, 2]
    for each in found:
        assert each.origin is Origin.CALIBRATION
        assert each.enough
        assert each.key.target == both.found.on.target, "the target's, not the other server's"


def test_the_two_stored_benches_compare_to_the_same(run: Run, both: Both) -> None:
    done = run("bench", "compare", 1, 2, "--database", both.database, "--json")
    assert done.exit_code == 0, done.stderr
    assert read(done.stdout, "here") == both.found


def test_a_comparison_is_shown_again_and_drawn(run: Run, both: Both, tmp_path: Path) -> None:
    done = run("bench", "compare", both.output, "--plot", tmp_path / "again.png")
    assert done.exit_code == 0, done.stderr
    assert "verdict: ship it: with speculation requests are" in done.stdout
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG\r\n")
    drawn = both.plot.read_text()
    assert drawn.startswith("<?xml")
    assert 'fill="#ffffff"' in drawn, "a ground of its own"


def test_without_the_renderer_a_png_is_refused_before_the_work(
    run: Run, both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    for arguments in (("compare", both.output), ("--target", "http://h:1", "--baseline", "x")):
        done = run("bench", *arguments, "--plot", tmp_path / "a.png")
        assert done.exit_code == 2
        assert f"{sys.executable} -m pip install resvg-py, or" in done.stderr


def test_a_bench_of_one_server_is_read_in_eighty_columns(
    run: Run, on: SimulatedServer, database: str
) -> None:
    done = run("bench", "--target", on.url, "--concurrency", "1,2", "--database", database, *QUICK)
    assert done.exit_code == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("stored")]
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("engine 0.32.0, with speculation, k = 4")
    assert "stored as result 1 in SQLite database" in done.stdout
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "concurrency 1 with speculation", "concurrency 2 with speculation",
    ]  # fmt: skip
    (kept,) = experiments(database)
    assert isinstance(kept, Bench)
    assert [len(level.batches) >= 5 for level in kept.levels] == [True, True]
    assert all(level.acceptance is not None for level in kept.levels)
    assert measurements(database) == [], "with speculation on it is no baseline"


def test_the_same_seed_is_the_same_work(run: Run) -> None:
    found = []
    for seed in (1, 1, 2):
        with in_virtual_time([SimulatedEngine(settings())]) as (off,):
            done = run(
                "bench", "--target", off, "--concurrency", 1, *QUICK, "--seed", seed,
                "--dataset", "random:30,12", "--dry-run", "--json",
            )  # fmt: skip
        assert done.exit_code == 0, done.stderr
        result = read(done.stdout, "here")
        assert isinstance(result, Bench)
        found.append(result.workload.digest)
        (one,) = result.levels
        assert one.prompt_tokens / one.requests == pytest.approx(30, rel=0.25)
    assert found[0] == found[1] != found[2]


def test_requests_that_come_by_themselves_are_timed_from_when_they_were_due(run: Run) -> None:
    with in_virtual_time([SimulatedEngine(settings())]) as (off,):
        done = run(
            "bench", "--target", off, "--rate", "20,40", "--dry-run", "--json", *QUICK,
            "--duration", "20s",
        )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    result = read(done.stdout, "here")
    assert isinstance(result, Bench)
    for found, rate in zip(result.levels, (20.0, 40.0), strict=True):
        assert (found.rate, found.concurrency) == (rate, None)
        assert found.requests / found.seconds == pytest.approx(rate, rel=0.15)
        assert found.lateness is not None
        assert found.lateness.count == found.requests
        assert 0 <= found.lateness.p50 < 0.01, "nobody keeps them from being sent"


def test_a_slower_server_exits_with_1(run: Run) -> None:
    """Nothing is accepted: every step pays for a useless draft."""
    bad = SimulatedEngine(settings(speculates=True, acceptance=SimulatedAcceptance(scale=0.0)))
    with in_virtual_time([bad, SimulatedEngine(settings())]) as (on, off):
        done = run(
            "bench", "--target", on, "--baseline", off, "--concurrency", 2, "--dry-run",
            *QUICK, "--duration", "12s", "--max-tokens", 24,
        )  # fmt: skip
    assert done.exit_code == 1, done.stdout
    assert "verdict: do not" in done.stdout
    assert "verdict: Do not: speculation makes requests slower" in done.stderr


def test_two_of_a_kind_are_refused_at_once(run: Run, off: SimulatedServer) -> None:
    done = run("bench", "--target", off.url, "--baseline", off.url, "--dry-run")
    assert done.exit_code == 2
    assert "does not speculate, as" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --target URL"),
        (("--target", "URL", "--concurrency", "2", "--rate", "1"), "--concurrency or --rate"),
        (("--target", "URL", "--rate", "0"), "expected numbers from 0.001"),
        (("--target", "URL", "--rate", ""), "write numbers like 0.5,1,2"),
        (("--database", "sqlite://", "--shared", "compare", "1", "2"), "--database before compare"),
        (("--target", "URL", "--prompts", "a", "--dataset", "b"), "--prompts or --dataset"),
        (("--target", "URL", "--dataset", "/nowhere"), "/nowhere"),
        (("--target", "URL", "--dataset", "random:5"), "such as random:256,128"),
        (("--target", "URL", "--plot", "a.svg"), "give --baseline URL"),
        (("--target", "URL", "--baseline", "URL", "--plot", "a.gif"), "ends with .svg or .png"),
        (("--target", "URL", "-o", "/nowhere/a"), "there is no directory /nowhere"),
        (("--target", "URL", "--duration", "1s"), "make it at least 1s200ms"),
        (("--target", "chat"), "is not a URL"),
        (("compare",), "give two results"),
        (("compare", "1", "2", "3"), "give two results"),
        (("compare", "/nowhere", "2"), "/nowhere"),
    ],
)
def test_wrong_options_are_refused(
    run: Run, off: SimulatedServer, arguments: tuple[str, ...], message: str
) -> None:
    done = run("bench", *(off.url if word == "URL" else word for word in arguments))
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_a_number_under_which_nothing_is_stored_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    done = run("bench", "compare", "77", "2", "--database", f"sqlite:///{tmp_path}/empty.db")
    assert done.exit_code == 2
    assert "no result is stored under 77" in done.stderr
    done = run("bench", "compare", "77", "2", "--database", f"sqlite:///{tmp_path}/none.db")
    assert done.exit_code == 1
    assert "does not exist" in done.stderr


def test_a_server_in_use_is_refused_without_shared(run: Run, database: str) -> None:
    with server(traffic=SimulatedTraffic(concurrency=1)) as busy:
        arguments = ("bench", "--target", busy.url, "--concurrency", 1, "--database", database)
        refused = run(*arguments, *QUICK)
        assert refused.exit_code == 2
        assert "requests of others; take its traffic away" in refused.stderr
        done = run(*arguments, *QUICK, "--shared")
    assert done.exit_code == 0, done.stderr
    assert "others used the server meanwhile" in done.stdout
    assert "no baseline stored: others used the server meanwhile" in done.stdout
    assert measurements(database) == [], "nobody knows at which load it ran"


def test_interrupted_it_keeps_what_was_measured(specwatch: list[str], tmp_path: Path) -> None:
    """The running level counts until then; its requests are aborted."""
    database, output = f"sqlite:///{tmp_path}/a.db", tmp_path / "a.json"
    with ExitStack() as stack:
        running = stack.enter_context(server())
        process = subprocess.Popen(
            [
                *specwatch, "bench", "--target", running.url, "--concurrency", "1,2,4",
                "--database", database, *QUICK, "--duration", "3s", "-o", str(output),
            ],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        stack.callback(process.kill)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("concurrency 1 without speculation")
        before = len(running.engine.log)
        deadline = time.monotonic() + 30
        while len(running.engine.log) < before + 20 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
        assert process.returncode == 1
        with running.synced() as engine:
            assert engine.running + engine.waiting == 0
    assert said.strip().endswith("interrupted: what follows was not measured")
    assert "stored as result 1" in out
    kept = read(output.read_text(), "file")
    assert experiments(database) == [kept]
    assert isinstance(kept, Bench)
    assert not kept.complete
    assert [level.concurrency for level in kept.levels] == [1, 2]
    assert kept.levels[1].seconds < 3.0
    assert kept.levels[1].requests > 0
    assert [level.complete for level in kept.levels] == [True, False]
    assert "note: 2 requests at once: broken off: " in out
    assert "no baseline stored: not everything was measured" in out
    assert measurements(database) == [], "half a measurement is no baseline"


def test_a_server_that_dies_leaves_a_partial_result(run: Run, database: str) -> None:
    with server() as dying:
        before = threading.Event()

        def kill() -> None:
            while len(dying.engine.log) < 60:
                time.sleep(0.01)
            before.set()
            dying.stop()

        killer = threading.Thread(target=kill)
        killer.start()
        done = run(
            "bench", "--target", dying.url, "--concurrency", "1,2", "--database", database,
            *QUICK, "--duration", "20s",
        )  # fmt: skip
        killer.join()
    assert before.is_set()
    assert done.exit_code == 1
    assert "broken off: " in done.stderr
    (kept,) = experiments(database)
    assert isinstance(kept, Bench)
    assert not kept.complete
    assert [level.concurrency for level in kept.levels] == [1]
    assert 0 < kept.levels[0].requests < 70
    assert kept.levels[0].alone is None


SPEEDS = {1: 2.0, 8: 1.2, 32: 0.8}


def made() -> tuple[Bench, Bench]:
    off, on = [], []
    for load, speedup in SPEEDS.items():
        off.append(level(load, batches(0.02, noise(12, 0.03, f"off {load}"))))
        on.append(level(load, batches(0.02 / speedup, noise(12, 0.03, f"on {load}"))))
    return bench("off", off), bench("on", on)


def test_a_comparison_of_files_is_read_in_eighty_columns(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    names = []
    for each in made():
        names.append(tmp_path / f"{each.subject.mode}.json")
        names[-1].write_bytes(msgspec.json.encode(each))
    done = run("bench", "compare", *names)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert "the speedup falls to 1 at about" in done.stdout
    assert any(line.endswith("do not") for line in lines)
    other = run("bench", "compare", *reversed(names))
    assert other.stdout == done.stdout


def test_the_chart_marks_values_between_the_lines_at_1_and_at_1_3() -> None:
    found = compare(*made(), version="1")
    lines = texts(comparison_lines(found, 80, fancy=False))
    (head,) = [line for line in lines if line.startswith("   load  ") and "1.3" in line]
    one, worth = head.index("1"), head.index("1.3")
    at = lines.index(head) + 1
    drawn = {line.split()[0]: line for line in lines[at : at + 3]}
    assert set(drawn) == {"1", "8", "32"}
    assert drawn["1"].index("o") > worth
    assert one < drawn["8"].index("o") < worth
    assert drawn["32"].index("o") < one
    assert max(map(len, lines)) <= 80


def test_hostile_names_cannot_command_a_terminal() -> None:
    evil = bench("on", [level(1, batches(0.01, [1.0] * 6))], model="\x1b[2J" + "x" * 99)
    lines = texts(bench_lines(evil, 80))
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) < 200
    json.dumps(lines)
