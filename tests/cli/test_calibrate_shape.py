"""The workload of ``specwatch calibrate`` is like production traffic."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from click.testing import CliRunner, Result

from specwatch.cli import group
from specwatch.domain.baseline import Baseline
from specwatch.domain.experiments import Bench, Subject
from specwatch.domain.experiments import Workload as Work
from specwatch.domain.model import (
    HOUR,
    MINUTE,
    Batch,
    Environment,
    Gauges,
    Histogram,
    Mode,
    SeriesId,
    Tally,
    Window,
)
from specwatch.domain.units import parse_duration
from specwatch.errors import NoAnswer
from specwatch.lab.loadtest.load_generator import LoadGenerator
from specwatch.lab.simulator.engine import SimulatedEngine
from specwatch.store.batches import pack_batch
from specwatch.store.readers import Reader
from specwatch.store.repository import Store
from tests.cli.conftest import measurements
from tests.simulated_load import COSTS, VirtualClient, in_virtual_time, settings

QUICK = ("--warm-up", "100ms", "--temperature", "0", "--target", "chat")
CLOSE = 0.08


def requests(count: int, prompt: int, output: int) -> Tally:
    """The counts of a number of requests."""
    return Tally(
        prompt_tokens=prompt * count,
        generation_tokens=output * count,
        ttft=Histogram((1.0,), (count, 0), 0.1 * count),
        output_length=Histogram((1000.0,), (count, 0), float(output * count)),
    )


def window(
    start: float,
    *,
    load: float,
    prompt: int = 200,
    output: int = 40,
    target: str = "chat",
    length: int = MINUTE,
    mode: Mode = Mode.ON,
) -> Window:
    return Window(
        series=SeriesId("daemon", target, "tiny"),
        start=int(start) // length * length,
        length=length,
        mode=mode,
        tally=requests(10 * length // MINUTE, prompt, output),
        gauges=Gauges(float(length), float(length), load * length, 0.0, round(load)),
        environment=Environment("0.32.0", "abc-4"),
        observed_seconds=float(length),
        scrapes_ok=12,
    )


def remember(database: str, windows: Sequence[Window]) -> Store:
    store = Store(database, daemon="daemon")
    store.open(0.0)
    store.write([pack_batch(Batch(tuple(windows), None))], 0.0)
    return store


def calibrate(database: str, *arguments: object, seconds: float = 1.2, **more: Any) -> Result:
    """A calibration, by default one that is too short to measure more than what it was given, of a
    slow server."""
    if seconds < 12:
        more = {"costs": COSTS.scaled(3), **more}
    with in_virtual_time([SimulatedEngine(settings(**more))]) as (off,):
        words = ["calibrate", "--off", off, "--database", database, *QUICK, "--unsteady"]
        words += ["--duration", f"{1000 * seconds:g}ms", *map(str, arguments)]
        return CliRunner().invoke(group, words)


def report_of(done: Result) -> dict[str, Any]:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Result]:
    """An hour of traffic with two requests at a time, then a calibration."""
    database = f"sqlite:///{tmp_path_factory.mktemp('production')}/specwatch.db"
    now = time.time()
    minutes = [window(now - MINUTE * number, load=2.0) for number in range(1, 61)]
    older = [
        window(now - 8 * 86400 - MINUTE * number, load=50.0, prompt=9000) for number in range(60)
    ]
    others = [window(now - MINUTE * number, load=60.0, target="other") for number in range(1, 61)]
    remember(database, [*minutes, *older, *others]).close(now)
    return database, calibrate(database, "--json", seconds=12.0)


def test_lengths_and_loads_are_those_of_the_stored_traffic(
    production: tuple[str, Result],
) -> None:
    report = report_of(production[1])
    assert report["shape"] == {
        "source": "windows",
        "prompt_tokens": 200,
        "output_tokens": 40,
        "loads": [1, 2, 4],
        "left_out": 0,
        "given": [],
        "sent_prompt_tokens": [100, 200, 400],
        "sent_output_tokens": 40,
    }
    assert report["max_tokens"] == 40
    assert [one["concurrency"] for one in report["stages"]] == [1, 2, 4]
    lines = production[1].stderr.splitlines()
    assert lines[0] == (
        "workload like the traffic of the last 7 days: prompts of 200 tokens, outputs of 40, loads"
        " 1 to 4"
    )
    assert lines[1].startswith("3 loads on 1 server, 12s each: about ")
    assert report["doubts"] == []


def test_every_point_has_its_conditions(production: tuple[str, Result]) -> None:
    """Without them the fit would add the cost of prompts to that of tokens."""
    report_of(production[1])
    result = measurements(production[0])
    assert [one.load_bin for one in result] == [0, 1, 2]
    for one in result:
        assert len(one.points) == 12
        prompts = [point.prompt for point in one.points if point.prompt is not None]
        assert len(prompts) == 12
        for wanted in (100, 200, 400):
            alike = [prompt for prompt in prompts if abs(prompt - wanted) <= CLOSE * wanted]
            assert len(alike) == 4, (wanted, prompts)
        for point in one.points:
            assert point.firsts
            assert point.prompt_tokens == pytest.approx(point.firsts * (point.prompt or 0.0))
            assert point.output == pytest.approx(40, rel=0.1)
            assert point.arrival_load == pytest.approx(point.concurrency, rel=0.2)


def test_each_round_has_every_length_and_its_order_changes(
    production: tuple[str, Result],
) -> None:
    """Else a slow time of the machine would look like the cost of one length."""
    report_of(production[1])
    orders = []
    for one in measurements(production[0]):
        lengths = [
            min((100, 200, 400), key=lambda wanted: abs((point.prompt or 0.0) - wanted))
            for point in sorted(one.points, key=lambda point: point.at)
        ]
        rounds = [lengths[number : number + 3] for number in range(0, 12, 3)]
        assert [sorted(one) for one in rounds] == [[100, 200, 400]] * 4
        assert rounds[1] == rounds[0][::-1], "what drifts meets every length alike"
        assert rounds[3] == rounds[2][::-1]
        orders += rounds
    assert len({tuple(order) for order in orders}) > 2


def test_the_announced_time_is_right(
    production: tuple[str, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announced time includes waiting for running requests at each change of length."""
    database, _ = production
    ended: list[float] = []
    advance = VirtualClient.advance

    def noted(self: VirtualClient) -> None:
        advance(self)
        ended.append(asyncio.get_running_loop().time())

    monkeypatch.setattr(VirtualClient, "advance", noted)
    done = calibrate(database, "--dry-run", "--json", "--concurrency", 2, seconds=12.0)
    report_of(done)
    (announced,) = re.findall(r"1 load on 1 server, 12s each: about (\S+) in all", done.stderr)
    assert max(ended) == pytest.approx(parse_duration(announced), rel=0.1)


def test_hours_are_read_if_minutes_were_pruned(database: str) -> None:
    now = time.time()
    store = remember(
        database,
        [
            window(now - HOUR * hours - MINUTE * minutes, load=3.0 if hours == 40 else 1.0)
            for hours in range(36, 44)
            for minutes in range(0, 60, 10)
        ],
    )
    store.roll_up(now)
    store.prune(now, 10 * HOUR, 1000 * HOUR)
    assert not list(store.windows(since=0, until=now))
    store.close(now)
    shape = report_of(calibrate(database, "--output-tokens", 12, "--dry-run", "--json"))["shape"]
    assert (shape["source"], shape["prompt_tokens"]) == ("windows", 200)
    assert (shape["loads"], shape["given"]) == ([1, 2, 4, 8], ["output_tokens"])


def test_options_override_each_part(database: str) -> None:
    remember(
        database, [window(time.time() - MINUTE * number, load=1.0) for number in range(1, 61)]
    ).close(0.0)
    report = report_of(
        calibrate(database, "--json", "--dry-run", "--prompt-tokens", 60, "--concurrency", "3")
    )
    shape = report["shape"]
    assert (shape["source"], shape["given"]) == ("windows", ["prompt_tokens", "loads"])
    assert (shape["prompt_tokens"], shape["output_tokens"], shape["loads"]) == (60, 40, [3])
    assert shape["sent_prompt_tokens"] == [30, 60, 120]
    done = calibrate(
        database, "--dry-run", "--prompt-tokens", 60, "--output-tokens", 20, "--concurrency", 2
    )
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    assert "workload as given: prompts of 60 tokens, outputs of 20, load 2" in shown


def test_own_prompts_are_sent_unchanged(database: str, tmp_path: Path) -> None:
    remember(
        database, [window(time.time() - MINUTE * number, load=1.0) for number in range(1, 61)]
    ).close(0.0)
    (tmp_path / "prompts").write_text("one of forty characters, as near as it is\n")
    arguments = ("--json", "--dry-run", "--prompts", tmp_path / "prompts")
    report = report_of(calibrate(database, *arguments))
    assert report["shape"]["prompt_tokens"] is None
    assert report["shape"]["sent_prompt_tokens"] == []
    assert report["shape"]["loads"] == [1, 2]
    assert report["shape"]["output_tokens"] == 40
    assert {stage["prompt_tokens"] for stage in report["stages"]} == {10.0}
    both = calibrate(database, *arguments, "--prompt-tokens", 9)
    assert both.exit_code == 2
    assert "give --prompts FILE or --prompt-tokens N, not both" in both.stderr


def test_without_stored_traffic_the_page_of_the_server_with_speculation_is_used(
    database: str,
) -> None:
    """Its earlier requests are those of another calibration."""
    engines = [SimulatedEngine(settings()), SimulatedEngine(settings(speculates=True))]
    with in_virtual_time(engines) as (off, on):
        words = ["calibrate", "--off", off, "--on", on, "--database", database, *QUICK, "--dry-run"]
        words += ["--json", "--concurrency", "2", "--duration", "2s", "--unsteady"]
        before = CliRunner().invoke(
            group, [*words, "--prompt-tokens", "300", "--output-tokens", "20"]
        )
        done = CliRunner().invoke(group, words)
    served = report_of(before)["stages"][1]["prompt_tokens"]
    report = report_of(done)
    shape = report["shape"]
    assert shape["source"] == "page"
    assert shape["prompt_tokens"] == pytest.approx(served, rel=0.1)
    assert shape["output_tokens"] == pytest.approx(20, abs=1)
    assert "workload like the traffic of --on since its start (loads given): " in done.stderr
    assert [stage["mode"] for stage in report["stages"]] == ["off", "on"]


def test_measurements_do_not_count_as_traffic(database: str) -> None:
    """Else each calibration would repeat the workload of the one before."""
    now = time.time()
    remember(database, [window(now - MINUTE * number, load=2.0) for number in range(5, 65)]).close(
        0.0
    )
    first = calibrate(database, "--concurrency", 2, "--prompt-tokens", 9000, "--output-tokens", 9)
    assert first.exit_code == 0, first.output
    remember(database, [window(time.time(), load=50.0, prompt=9000)]).close(0.0)
    done = calibrate(database, "--dry-run", "--json")
    shape = report_of(done)["shape"]
    assert (shape["prompt_tokens"], shape["loads"]) == (200, [1, 2, 4])
    assert shape["left_out"] == MINUTE
    assert done.stderr.startswith(
        "workload like the traffic of the last 7 days without 60 s of measuring: prompts of 200 "
    )


def test_of_an_hour_with_a_bench_only_its_minutes_are_left_out(database: str) -> None:
    """Even after the minutes were rolled up to an hour."""
    began = int(time.time() - 30 * HOUR) // HOUR * HOUR
    bench = range(20, 30)
    store = remember(
        database,
        [
            window(began + MINUTE * number, load=50.0 if number in bench else 2.0, prompt=prompt)
            for number in range(60)
            for prompt in [9000 if number in bench else 200]
        ],
    )
    store.roll_up(time.time())
    store.add_experiment(
        Bench(
            version="1",
            began=began + 20 * MINUTE + 7,
            ended=began + 29 * MINUTE + 7,
            complete=False,
            levels=(),
            subject=Subject(target="chat", url="http://h:1", model_name="tiny", mode="on"),
            workload=Work(
                endpoint="chat",
                source="built-in",
                prompts=2,
                digest="d",
                max_tokens=64,
                temperatures=(0.0,),
                seed=0,
            ),
        ),
        0.0,
    )
    store.close(0.0)
    shape = report_of(calibrate(database, "--dry-run", "--json"))["shape"]
    assert (shape["prompt_tokens"], shape["loads"]) == (200, [1, 2, 4])
    assert shape["left_out"] == 11 * MINUTE, "and a minute for what is counted late"


def test_a_calibration_that_fails_has_put_a_load_on_the_server_too(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise NoAnswer("all requests fail")

    monkeypatch.setattr(LoadGenerator, "closed", refuse)
    before = time.time()
    done = calibrate(database, "--concurrency", 2, "--output-tokens", 9)
    assert (done.exit_code, done.stdout) == (1, "")
    reader = Reader.of(database)
    (span,) = reader.experiment_spans(before, "chat")
    assert before <= span.began <= span.ended <= time.time()
    assert reader.experiment_spans(before, "other") == []
    assert reader.experiments(0, 4e9) == [], "there is nothing to tell of it"
    reader.close()


def test_a_few_requests_do_not_count_as_traffic(database: str) -> None:
    remember(database, [window(time.time() - MINUTE, load=1.0)]).close(0.0)
    done = calibrate(database, "--json", "--dry-run", "--concurrency", 2, "--max-tokens", 12)
    report = report_of(done)
    assert report["shape"]["source"] == "built-in"
    assert report["shape"]["prompt_tokens"] is None
    (doubt,) = report["doubts"]
    assert "hardly any traffic of chat with tiny is stored" in doubt
    assert "--prompt-tokens" in doubt


def test_prompts_that_are_too_long_are_cut_with_a_note(database: str) -> None:
    report = report_of(
        calibrate(
            database,
            "--json",
            "--dry-run",
            "--concurrency",
            2,
            "--prompt-tokens",
            600,
            "--output-tokens",
            40,
            max_model_len=1024,
        )
    )
    first, second, cut = report["shape"]["sent_prompt_tokens"]
    assert (first, second) == (300, 600)
    assert cut < 1024 - 40
    assert report["doubts"] == [
        f"prompts of 1200 tokens are cut to {cut}: the model has room for 1024 tokens, prompt and"
        " output together"
    ]
    assert report["stages"][0]["errors"] == {}


def test_no_two_prompts_begin_alike(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a prefix cache would spare the server the work to be measured."""
    sent: list[str] = []
    send = VirtualClient.send

    async def noted(self: VirtualClient, ask: Any, *rest: Any) -> Any:
        sent.append(ask.prompt)
        return await send(self, ask, *rest)

    monkeypatch.setattr(VirtualClient, "send", noted)
    options = ("--dry-run", "--concurrency", "1,4")
    for lengths in (("--prompt-tokens", 200), ()):
        sent.clear()
        report_of(calibrate(database, "--json", *options, "--max-tokens", 12, *lengths, seconds=4))
        assert len(sent) > 100
        assert len({prompt[:14] for prompt in sent}) == len(sent)


def test_without_a_tokenizer_lengths_follow_from_what_requests_had(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(self: VirtualClient, prompt: str) -> None:
        return None

    monkeypatch.setattr(VirtualClient, "count_tokens", unknown)
    calibrated = calibrate(
        database,
        "--json",
        "--concurrency",
        2,
        "--prompt-tokens",
        400,
        "--max-tokens",
        12,
        seconds=12.0,
    )
    report_of(calibrated)
    (result,) = measurements(database)
    prompts = sorted(point.prompt or 0.0 for point in result.points)
    for wanted, alike in zip(
        (200, 400, 800), (prompts[:4], prompts[4:8], prompts[8:]), strict=True
    ):
        assert mean(alike) == pytest.approx(wanted, rel=0.08)


def test_the_cost_of_a_prompt_token_is_measured(
    production: tuple[str, Result],
) -> None:
    result = Baseline({one.load_bin: one for one in measurements(production[0])})
    slope = result.by_token.slopes.prefill
    assert slope == pytest.approx(COSTS.prefill_per_token, rel=0.35)
