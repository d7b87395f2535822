"""``specwatch calibrate`` against simulated servers, whose true speedup is known."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from specwatch.cli import group
from specwatch.cli.progress import ProgressBar
from specwatch.domain.baseline import Origin
from specwatch.lab.loadtest.calibration import Stage
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.engine import SimulatedEngine
from tests.cli.conftest import Run, measurements
from tests.simulated_load import COSTS, K, at_answer, busy_engine, in_virtual_time, settings

DATA = Path(__file__).parents[1] / "data" / "bench"
QUICK = ("--duration", "1200ms", "--warm-up", "100ms", "--max-tokens", "12", "--unsteady")
"""--unsteady, because this machine may be busy."""


class Both(NamedTuple):
    """A calibration of both servers, and its results."""

    database: str
    on: SimulatedEngine
    stderr: str
    report: dict[str, Any]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    database = f"sqlite:///{tmp_path_factory.mktemp('both')}/specwatch.db"
    engine = SimulatedEngine(settings(speculates=True))
    with in_virtual_time([SimulatedEngine(settings()), engine]) as (off, on):
        done = CliRunner().invoke(
            group,
            [
                "calibrate",
                "--off",
                off,
                "--on",
                on,
                "--concurrency",
                "2,4",
                "--temperature",
                "0,1.2",
                "--database",
                database,
                "--target",
                "chat",
                "--json",
                "--warm-up",
                "100ms",
                "--max-tokens",
                "80",
                "--duration",
                "12s",
            ],
        )
    assert done.exit_code == 0, done.stderr
    return Both(database, engine, done.stderr, json.loads(done.stdout))


def inside(interval: dict[str, Any], truth: float, slack: float = 0.05) -> bool:
    """Whether the true value is in the interval, up to the excess tokens of last steps."""
    low, high = interval["lower"] * (1 - slack), interval["upper"] * (1 + slack)
    return bool(low <= truth <= high)


def test_the_speedup_of_each_temperature_and_load_is_the_true_one(both: Both) -> None:
    result = both.report["comparison"]
    assert [one["concurrency"] for one in result["concurrencies"]] == [2, 4]
    for one in result["concurrencies"]:
        batch = one["concurrency"]
        (line,) = one["bins"]
        assert inside(line["step_cost"], both.on.true_step_cost(batch))
        speedups = {one["temperature"]: one["speedup"] for one in one["buckets"]}
        assert set(speedups) == {"0", ">1"}
        assert inside(speedups["0"], both.on.true_speedup(0.0, batch))
        assert inside(speedups[">1"], both.on.true_speedup(1.2, batch))
        assert speedups["0"]["lower"] > speedups[">1"]["upper"]
    assert result["verdict"] == "pays"
    assert result["best_k"]["k"] == K


def test_the_baseline_is_stored_by_load_for_the_target(both: Both) -> None:
    measured = measurements(both.database)
    assert [one.load_bin for one in measured] == [1, 2]
    for one in measured:
        assert (one.key.target, one.key.model_name) == ("chat", "tiny")
        assert (one.key.engine_version, one.origin) == ("0.32.0", Origin.CALIBRATION)
        assert one.key.configuration == both.report["configuration"]
        assert len(one.points) == 12
        assert one.enough
        pace = sum(p.seconds for p in one.points) / sum(p.tokens for p in one.points)
        assert pace == pytest.approx(COSTS.plain(3), rel=0.1)
        assert one.ttft.count == one.tpot.count > 12
    assert both.report["stored"].startswith("SQLite database")


def test_the_servers_took_turns_with_the_same_work(both: Both) -> None:
    stages = both.report["stages"]
    assert [(stage["concurrency"], stage["mode"]) for stage in stages] == [
        (2, "off"),
        (2, "on"),
        (4, "off"),
        (4, "on"),
    ]
    for stage in stages:
        assert stage["slices"] == 12
        assert stage["errors"] == {}
        assert stage["shared"] is False
        assert stage["running_mean"] == pytest.approx(stage["concurrency"], rel=0.1)
        assert [one["temperature"] for one in stage["clients"]] == [0.0, 1.2]
        for clients in stage["clients"]:
            assert len(clients["tpot"]) == len(clients["ttft"]) > 0


def test_progress_in_a_pipe_is_a_line_for_each_stage(both: Both) -> None:
    workload, announced, *lines = both.stderr.splitlines()
    assert workload == (
        "built-in workload (outputs and loads given): unchanged prompts, outputs of 80,"
        " loads 2 to 4"
    )
    assert announced.startswith("2 loads on 2 servers, 12s each: about 1m")
    assert len(lines) == 4
    assert lines[0].startswith("concurrency 2 without speculation: ")
    assert lines[3].startswith("concurrency 4 with speculation: ")


def test_lines_in_a_pipe_have_the_time_left() -> None:
    piped, now = io.StringIO(), [5.0]
    progress = ProgressBar(console=Console(file=piped, width=80), monotonic=lambda: now[0])
    progress.note("before it begins")
    with progress.over(4):
        progress.step("concurrency 2, warming up", 0)
        progress.note("nothing is known yet")
        now[0] += 30
        progress.step("concurrency 2", 1)
        progress.note("one of four")
        progress.step("concurrency 2", completed=4)
        progress.note("all")
    assert piped.getvalue().splitlines() == [
        "before it begins",
        "nothing is known yet",
        "one of four, about 90 s left",
        "all",
    ]


def test_progress_on_a_terminal_is_a_bar_that_goes_away() -> None:
    screen = io.StringIO()
    progress = ProgressBar(
        console=Console(file=screen, force_terminal=True, width=80, highlight=False)
    )
    with progress.over(4):
        progress.step("concurrency 2, warming up", 0)
        for _ in range(2):
            progress.step("concurrency 2", 1)
        progress.note("concurrency 2 with speculation: 9 requests, 0 failed")
    shown = screen.getvalue()
    assert "concurrency 2" in shown
    assert " 50%" in shown
    assert re.search(r":\d\d(\x1b\[0m)? left", shown)
    assert "9 requests, 0 failed" in shown
    assert shown.endswith("\x1b[1A\x1b[2K"), "the bar's line is erased"


def test_the_text_fits_eighty_columns(run: Run, database: str) -> None:
    engines = [SimulatedEngine(settings()), SimulatedEngine(settings(speculates=True))]
    with in_virtual_time(engines) as (off, on):
        done = run(
            "calibrate",
            "--off",
            off,
            "--on",
            on,
            "--concurrency",
            "4",
            "--temperature",
            "0,1.2",
            "--database",
            database,
            "--target",
            "chat",
            "--duration",
            "2s",
            "--max-tokens",
            40,
            "--unsteady",
        )
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("note: the lengths of production traffic are") for line in lines)
    assert max(map(len, lines[:-1])) <= 80
    assert done.stdout.startswith("Speculation pays on this workload: ")
    assert "best k: 4, as now" in done.stdout
    assert "baseline of chat at load 3-4 stored in SQLite database" in lines[-1]


def test_the_configuration_gives_name_key_and_database(run: Run, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    file = tmp_path / "specwatch.yml"
    with in_virtual_time([SimulatedEngine(settings(api_keys=("secret",)))]) as (url,):
        config = {
            "database": f"sqlite:///{tmp_path}/here.db",
            "targets": [{"name": "guarded", "url": url, "bearer_token_file": f"{tmp_path}/key"}],
        }
        file.write_text(json.dumps(config))
        done = run("calibrate", "--off", url, "--config", file, "--concurrency", 2, *QUICK)
    assert done.exit_code == 0, done.stderr
    assert "baseline of guarded at load 2 stored" in done.stdout
    (measured,) = measurements(f"sqlite:///{tmp_path}/here.db")
    assert measured.key.target == "guarded"


def test_a_database_that_cannot_be_written_is_refused_before_any_request(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    engine = SimulatedEngine(settings())
    with in_virtual_time([engine]) as (off,):
        done = run("calibrate", "--off", off, "--database", f"sqlite:///{tmp_path}/file/a.db")
    assert done.exit_code == 2
    assert "file/a.db" in done.stderr
    assert "with --dry-run nothing is stored" in done.stderr
    assert engine.log == []


def test_a_server_in_use_is_refused_without_shared(run: Run, database: str) -> None:
    with in_virtual_time([busy_engine()]) as (busy,):
        arguments = ("calibrate", "--off", busy, "--concurrency", 2, "--database", database)
        refused = run(*arguments, *QUICK)
        assert refused.exit_code == 2
        assert "requests of others; take its traffic away" in refused.stderr
        done = run(*arguments, *QUICK, "--shared", "--json")
    assert done.exit_code == 0, done.stderr
    (stage,) = json.loads(done.stdout)["stages"]
    assert stage["shared"] is True
    assert len(measurements(database)) == 1


def test_what_others_did_meanwhile_is_not_stored(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage, "foreign_requests", property(lambda _: 3))
    with in_virtual_time([SimulatedEngine(settings())]) as (off,):
        done = run("calibrate", "--off", off, "--concurrency", 2, "--database", database, *QUICK)
    assert done.exit_code == 1
    assert "3 requests of others ended meanwhile, so nothing is stored" in done.stderr
    assert "nothing stored" in done.stdout
    assert measurements(database) == []


@dataclass(frozen=True, kw_only=True)
class Throttled(SimulatedCosts):
    """A step takes four times as long if ``slow`` is true for its number."""

    slow: Callable[[int], bool]
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def step(self, sequences: int, verified: int, prefilled: int = 0) -> float:
        factor = 4.0 if self.slow(next(self.numbers)) else 1.0
        return factor * super().step(sequences, verified, prefilled)


def throttled(database: str, slow: Callable[[int], bool], *more: str) -> Result:
    with in_virtual_time(
        [SimulatedEngine(settings(costs=Throttled(**asdict(COSTS), slow=slow)))]
    ) as (off,):
        return CliRunner().invoke(
            group,
            [
                "calibrate",
                "--off",
                off,
                "--concurrency",
                "2",
                "--database",
                database,
                "--target",
                "chat",
                "--duration",
                "12s",
                *more,
            ],
        )


def test_a_load_at_which_the_server_was_slowed_is_measured_again(database: str) -> None:
    """The slow steps would raise the baseline."""
    done = throttled(database, lambda step: 2000 <= step < 3000)
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count("concurrency 2 without speculation: ") == 2
    assert (
        "concurrency 2: a step took up to 4.0 times as long in one round as in another with the"
        " same prompts; measuring it again" in done.stderr
    )
    (measured,) = measurements(database)
    pace = sum(p.seconds for p in measured.points) / sum(p.tokens for p in measured.points)
    assert pace == pytest.approx(COSTS.plain(2), rel=0.1)


def test_a_load_at_which_the_server_stays_unsteady_is_left_out(database: str) -> None:
    def by_turns(step: int) -> bool:
        return step // 500 % 2 == 1

    done = throttled(database, by_turns)
    assert done.exit_code == 1, done.stderr
    assert done.stderr.count("measuring it again") == 2
    assert (
        "concurrency 2, speculation off is not usable: a step took up to 4.0 times" in done.stderr
    )
    assert measurements(database) == []
    meant = throttled(database, by_turns, "--unsteady")
    assert meant.exit_code == 0, meant.stderr
    assert "measuring it again" not in meant.stderr
    assert "something slowed the server for a while" in " ".join(meant.stdout.split())
    assert len(measurements(database)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --off URL to measure, or --import FILE"),
        (("--off", "http://h:1", "--import", "x"), "give --off URL to measure, or --import FILE"),
        (("--off", "h"), "--off"),
        (("--off", "URL", "--concurrency", "0,2"), "expected numbers from 1 to 99999"),
        (("--off", "URL", "--concurrency", "two"), "write numbers like 1,2,4"),
        (("--off", "URL", "--model", "huge"), "does not serve huge; it serves tiny"),
        (("--off", "URL", "--duration", "1s", "--dry-run"), "make it at least 1s200ms"),
        (("--off", "URL", "--prompts", "/nowhere"), "/nowhere"),
        (("--import", "/nowhere", "--target", "chat"), "/nowhere"),
        (("--import", "/nowhere"), "needs the target of the baseline: give --target NAME"),
    ],
)
def test_wrong_options_are_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    with in_virtual_time([SimulatedEngine(settings())]) as (off,):
        done = run("calibrate", *(off if word == "URL" else word for word in arguments))
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_interrupted_it_stops_its_requests_and_stores_nothing(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SimulatedEngine(settings())
    at_answer(60, lambda: os.kill(os.getpid(), signal.SIGINT), monkeypatch)
    with in_virtual_time([engine]) as (off,):
        done = run(
            "calibrate", "--off", off, "--concurrency", "1,4", "--database", database, *QUICK
        )
    assert done.exit_code == 1
    assert "concurrency 1 without speculation" in done.stderr
    assert done.stderr.endswith("interrupted: nothing was stored\n")
    assert engine.running + engine.waiting == 0
    assert measurements(database) == []


def test_a_detailed_result_is_imported(run: Run, database: str) -> None:
    file = DATA / "vllm-0.32-detailed.json"
    done = run("calibrate", "--import", file, "--target", "chat", "--database", database)
    assert done.exit_code == 0, done.stderr
    assert "baseline of chat at load 3-4 stored" in done.stdout
    (measured,) = measurements(database)
    assert measured.origin is Origin.IMPORTED
    assert (measured.key.target, measured.key.model_name) == ("chat", "tiny")
    assert measured.key.engine_version is None
    assert len(measured.points) == 10


def test_several_results_are_enough_and_their_load_can_be_given(run: Run, database: str) -> None:
    several = [word for _ in range(5) for word in ("--import", DATA / "vllm-0.32-means.json")]
    done = run(
        "calibrate",
        *several,
        "--target",
        "chat",
        "--concurrency",
        9,
        "--database",
        database,
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    assert [load["load_bin"] for load in json.loads(done.stdout)["measurements"]] == ["9-16"]
