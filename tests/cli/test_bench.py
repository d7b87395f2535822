"""``specwatch bench`` against simulated servers, whose true speedup is known."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from specwatch.cli import group
from specwatch.cli.bench_tables import bench_lines, comparison_lines
from specwatch.domain.baseline import Origin
from specwatch.domain.experiments import Bench, Comparison, read
from specwatch.lab.loadtest.compare import compare
from specwatch.lab.simulator.acceptance import SimulatedAcceptance
from specwatch.lab.simulator.engine import SimulatedEngine
from tests.cli.conftest import Run, experiments, measurements, texts
from tests.loadtest.benches import batches, bench, level, noise
from tests.plugins.golden import Golden
from tests.simulated_load import (
    MortalEngine,
    at_answer,
    busy_engine,
    in_virtual_time,
    settings,
)

QUICK = ("--duration", "1200ms", "--warm-up", "100ms", "--max-tokens", "12", "--temperature", "0")


class Both(NamedTuple):
    """A bench of two servers alternately, and its results."""

    database: str
    output: Path
    plot: Path
    on: SimulatedEngine
    stderr: str
    comparison: Comparison


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("both")
    database = f"sqlite:///{folder}/specwatch.db"
    output, plot = folder / "result.json", folder / "plot.svg"
    engine = SimulatedEngine(settings(speculates=True))
    with in_virtual_time([engine, SimulatedEngine(settings())]) as (on, off):
        done = CliRunner().invoke(
            group,
            [
                "bench",
                "--target",
                on,
                "--baseline",
                off,
                "--concurrency",
                "2,4",
                "--database",
                database,
                "--json",
                *QUICK,
                "--duration",
                "6s",
                "--max-tokens",
                "80",
                "-o",
                str(output),
                "--plot",
                str(plot),
            ],
        )
    assert done.exit_code == 0, done.stderr
    return Both(database, output, plot, engine, done.stderr, read(done.stdout, "here"))


def test_the_speedup_of_decoding_is_the_true_one(both: Both) -> None:
    """Up to the tokens of the last step that exceed the answer."""
    assert both.comparison.interleaved
    assert [measured.concurrency for measured in both.comparison.levels] == [2, 4]
    for measured in both.comparison.levels:
        decode, truth = measured.decode, both.on.true_speedup(0.0, measured.concurrency)
        assert decode.lower < decode.value < decode.upper < 1.1 * decode.lower
        assert decode.value == pytest.approx(truth, rel=0.05)
        assert measured.throughput_on > measured.throughput_off
        assert measured.speedup is not None
        assert measured.acceptance_rate is not None


def test_both_benches_and_the_comparison_are_stored_and_written(both: Both) -> None:
    *benches, comparison = experiments(both.database)
    assert [result.subject.mode for result in benches] == ["on", "off"]
    assert both.comparison == read(both.output.read_text(), "there")
    assert both.comparison.benches == (benches[1], benches[0]), "without speculation first"
    assert comparison == replace(both.comparison, benches=())
    for result in benches:
        assert result.complete
        assert result.interleaved
        for measured in result.levels:
            assert (measured.errors, measured.alone) == ({}, True)
            assert measured.running == pytest.approx(measured.concurrency)
            assert measured.ttft.count == measured.requests > 0
    assert "stored as result 1, 2, 3" in both.stderr


def test_the_server_without_speculation_becomes_the_baseline_of_the_target(both: Both) -> None:
    stored = measurements(both.database)
    assert [measurement.load_bin for measurement in stored] == [1, 2]
    for measurement in stored:
        assert measurement.enough
        assert measurement.origin is Origin.CALIBRATION
        assert measurement.key.target == both.comparison.on.target


def test_the_two_stored_benches_compare_to_the_same(run: Run, both: Both) -> None:
    done = run("bench", "compare", 1, 2, "--database", both.database, "--json")
    assert done.exit_code == 0, done.stderr
    assert read(done.stdout, "here") == both.comparison


def test_a_comparison_is_shown_again_and_drawn(run: Run, both: Both, tmp_path: Path) -> None:
    done = run("bench", "compare", both.output, "--plot", tmp_path / "again.png")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("Speculation pays: ")
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG\r\n")
    drawing = both.plot.read_text()
    assert drawing.startswith("<?xml")
    assert 'fill="#ffffff"' in drawing, "a background of its own"


def test_a_bench_of_one_server_is_read_in_eighty_columns(run: Run, database: str) -> None:
    with in_virtual_time([SimulatedEngine(settings(speculates=True))]) as (on,):
        done = run("bench", "--target", on, "--concurrency", "1,2", "--database", database, *QUICK)
    assert done.exit_code == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("stored")]
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Up to ")
    assert lines[1].startswith("  ") or lines[1].endswith("with speculation, k = 4")
    assert "stored as result 1 in SQLite database" in done.stdout
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "concurrency 1 with speculation",
        "concurrency 2 with speculation",
    ]
    (kept,) = experiments(database)
    assert all(len(measured.batches) >= 5 and measured.acceptance for measured in kept.levels)
    assert measurements(database) == [], "with speculation on it is no baseline"


def bench_off(run: Run, *arguments: object) -> Bench:
    """The result of a bench of a server without speculation, in virtual time."""
    with in_virtual_time([SimulatedEngine(settings())]) as (off,):
        done = run("bench", "--target", off, "--dry-run", "--json", *QUICK, *arguments)
    assert done.exit_code == 0, done.stderr
    return read(done.stdout, "here")


def test_the_same_seed_is_the_same_work(run: Run) -> None:
    digests = []
    for seed in (1, 1, 2):
        options = ("--concurrency", 1, "--seed", seed, "--dataset", "random:30,12")
        result = bench_off(run, *options)
        digests.append(result.workload.digest)
        (measured,) = result.levels
        assert measured.prompt_tokens / measured.requests == pytest.approx(30, rel=0.25)
    assert digests[0] == digests[1] != digests[2]


def test_requests_of_an_open_loop_are_timed_from_when_they_were_due(run: Run) -> None:
    result = bench_off(run, "--rate", "20,40", "--duration", "8s")
    for measured, rate in zip(result.levels, (20.0, 40.0), strict=True):
        assert (measured.rate, measured.concurrency) == (rate, None)
        assert measured.requests / measured.seconds == pytest.approx(rate, rel=0.15)
        assert measured.lateness.count == measured.requests
        assert 0 <= measured.lateness.p50 < 0.01


def test_a_slower_server_exits_with_1(run: Run) -> None:
    """Nothing is accepted: every step pays for a useless draft."""
    bad = SimulatedEngine(settings(speculates=True, acceptance=SimulatedAcceptance(scale=0.0)))
    with in_virtual_time([bad, SimulatedEngine(settings())]) as (on, off):
        done = run(
            "bench",
            "--target",
            on,
            "--baseline",
            off,
            "--concurrency",
            2,
            "--dry-run",
            *QUICK,
            "--duration",
            "4s",
            "--max-tokens",
            24,
        )
    assert done.exit_code == 1, done.stdout
    assert done.stdout.startswith("Speculation loses: ")
    assert "verdict: Speculation loses: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --target URL"),
        (("--target", "URL", "--baseline", "URL", "--dry-run"), "does not speculate, as"),
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
def test_wrong_options_are_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    with in_virtual_time([SimulatedEngine(settings())]) as (off,):
        done = run("bench", *(off if word == "URL" else word for word in arguments))
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
    with in_virtual_time([busy_engine()]) as (busy,):
        arguments = ("bench", "--target", busy, "--concurrency", 1, "--database", database)
        refused = run(*arguments, *QUICK)
        assert refused.exit_code == 2
        assert "requests of others; take its traffic away" in refused.stderr
        done = run(*arguments, *QUICK, "--shared")
    assert done.exit_code == 0, done.stderr
    assert "others used the server meanwhile" in done.stdout
    assert "no baseline stored: others used the server meanwhile" in done.stdout
    assert measurements(database) == []


def test_interrupted_in_the_second_load_it_keeps_the_first(
    run: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "a.json"
    at_answer(120, lambda: os.kill(os.getpid(), signal.SIGINT), monkeypatch)
    with in_virtual_time([SimulatedEngine(settings())]) as (url,):
        done = run(
            "bench",
            "--target",
            url,
            "--concurrency",
            "1,2,4",
            "--database",
            database,
            *QUICK,
            "--duration",
            "3s",
            "-o",
            output,
        )
    assert done.exit_code == 1
    assert done.stderr.strip().endswith("interrupted: what follows was not measured")
    assert "stored as result 1" in done.stdout
    assert "note: 2 requests at once: broken off: " in done.stdout
    assert "what follows was not measured" not in done.stdout, "it is in the error message"
    assert "no baseline stored: not everything was measured" in done.stdout
    kept = read(output.read_text(), "file")
    assert experiments(database) == [kept]
    assert not kept.complete
    whole, part = kept.levels
    assert (whole.concurrency, whole.complete) == (1, True)
    assert (part.concurrency, part.complete) == (2, False)
    assert part.seconds < 3.0
    assert part.requests > 0
    assert measurements(database) == [], "half a measurement is no baseline"


def test_a_server_that_dies_leaves_a_partial_result(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = MortalEngine(settings())
    at_answer(60, dying.die, monkeypatch)
    with in_virtual_time([dying]) as (url,):
        done = run(
            "bench",
            "--target",
            url,
            "--concurrency",
            "1,2",
            "--database",
            database,
            *QUICK,
            "--duration",
            "20s",
        )
    assert done.exit_code == 1
    assert "broken off: " in done.stderr
    (kept,) = experiments(database)
    assert not kept.complete
    (measured,) = kept.levels
    assert (measured.concurrency, measured.alone) == (1, None)
    assert 0 < measured.requests < 70


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
    for result in made():
        names.append(tmp_path / f"{result.subject.mode}.json")
        names[-1].write_bytes(msgspec.json.encode(result))
    done = run("bench", "compare", *names)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert "the speedup falls to 1 at about" in done.stdout
    assert any(line.endswith("do not") for line in lines)
    other = run("bench", "compare", *reversed(names))
    assert other.stdout == done.stdout


@pytest.mark.golden
def test_a_bench_and_a_comparison_are_tables_and_a_chart(golden: Golden) -> None:
    for fancy in (True, False):
        comparison = texts(comparison_lines(compare(*made(), version="1"), 80, fancy=fancy))
        golden(f"cli/bench-comparison{'' if fancy else '-ascii'}.txt", page(comparison))
    golden("cli/bench.txt", page(texts(bench_lines(made()[1], 80))))


def page(lines: Sequence[str]) -> str:
    return "".join(f"{line.rstrip()}\n" for line in lines)


def test_the_chart_marks_values_between_the_lines_at_1_and_at_1_3() -> None:
    lines = texts(comparison_lines(compare(*made(), version="1"), 80, fancy=False))
    (head,) = [line for line in lines if line.startswith("   load  ") and "1.3" in line]
    one, worth = head.index("1"), head.index("1.3")
    number = lines.index(head) + 1
    drawn = {line.split()[0]: line for line in lines[number : number + 3]}
    assert set(drawn) == {"1", "8", "32"}
    assert drawn["1"].index("o") > worth
    assert one < drawn["8"].index("o") < worth
    assert drawn["32"].index("o") < one
    assert max(map(len, lines)) <= 80
    for width in (5, 20, 40, 60):
        narrow = texts(comparison_lines(compare(*made(), version="1"), width, fancy=False))
        drawn = [line for line in narrow if "o" in line and "|" in line]
        assert len(drawn) == (3 if width >= 40 else 0), "a chart that fits, or none"
        assert not drawn or max(map(len, drawn)) <= width


def test_hostile_names_cannot_control_a_terminal() -> None:
    evil = bench("on", [level(1, batches(0.01, [1.0] * 6))], model="\x1b[2J" + "x" * 99)
    lines = texts(bench_lines(evil, 80))
    assert "\x1b" not in "".join(lines)
    assert max(map(len, lines)) < 200
