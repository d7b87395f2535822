"""``specwatch probe`` against simulated servers with known acceptance."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from specwatch.domain.experiments import Probe, read
from specwatch.domain.model import Mode, Series
from specwatch.loadtest import load_generator
from specwatch.loadtest.client import LoadClient
from specwatch.loadtest.probe_run import ProbePlan
from specwatch.loadtest.requests import Answer
from specwatch.loadtest.server import Server
from specwatch.simulator.costs import SimulatedCosts
from specwatch.simulator.engine import SimulatedEngine
from specwatch.simulator.server import SimulatedServer
from tests import simulated_load
from tests.cli.conftest import Run, experiments
from tests.simulated_load import K, busy_server, in_virtual_time, interrupted, settings

COSTS = SimulatedCosts().scaled(0.05)
TEMPERATURES = (0.0, 0.7, 1.3)
SWEEP = ("--temperatures", "0,0.7,1.3", "--max-tokens", "40")


def server(*, speculates: bool = True, **more: Any) -> SimulatedServer:
    return simulated_load.server(speculates=speculates, **{"costs": COSTS, **more})


@pytest.fixture(scope="module")
def recording() -> Iterator[SimulatedServer]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def counting() -> Iterator[SimulatedServer]:
    """Its answers have no acceptance record."""
    with server(record="none") as running:
        yield running


@pytest.fixture(scope="module")
def off() -> Iterator[SimulatedServer]:
    with server(speculates=False) as running:
        yield running


def probed(run: Run, *arguments: object, code: int = 0) -> tuple[Probe, str]:
    """The result and the text of standard error."""
    done = run("probe", "--json", *arguments)
    assert done.exit_code == code, done.stderr
    # A server that stops meanwhile logs to the standard output of this process.
    probe = read(done.stdout[done.stdout.index("{\n") :], "standard output")
    return probe, done.stderr


def truth(running: SimulatedServer, since: int, temperature: float) -> dict[str, Any]:
    """The engine's own counts of a sweep, without the warm-up."""
    log = [
        entry
        for entry in running.engine.log[since + len(TEMPERATURES) :]
        if entry.request.temperature == temperature
    ]
    lengths = [sum(entry.accepted_histogram[number] for entry in log) for number in range(K + 1)]
    return {
        "drafts": sum(entry.drafts for entry in log),
        "draft_tokens": sum(entry.draft_tokens for entry in log),
        "accepted_tokens": sum(entry.accepted_tokens for entry in log),
        "histogram": tuple(lengths),
    }


@pytest.mark.parametrize(("kind", "concurrency"), [("records", 1), ("counters", 1), ("records", 3)])
def test_the_acceptance_of_each_temperature_is_what_the_engine_counted(
    run: Run,
    recording: SimulatedServer,
    counting: SimulatedServer,
    database: str,
    kind: str,
    concurrency: int,
) -> None:
    running = recording if kind == "records" else counting
    before = len(running.engine.log)
    probe, _ = probed(
        run, "--target", running.url, *SWEEP, "--requests", 12, "--concurrency", concurrency,
        "--database", database,
    )  # fmt: skip
    assert probe.complete
    assert probe.alone is True
    assert [temperature.temperature for temperature in probe.temperatures] == list(TEMPERATURES)
    rates = []
    for one in probe.temperatures:
        acceptance = one.acceptance
        assert (one.source, one.requests, one.tokens, one.errors) == (kind, 12, 12 * 40, {})
        counted = {
            name: getattr(acceptance, name)
            for name in ("drafts", "draft_tokens", "accepted_tokens", "histogram")
        }
        assert counted == truth(running, before, one.temperature)
        assert acceptance.rate.value == acceptance.accepted_tokens / acceptance.draft_tokens
        true = running.engine.true_acceptance_rate(one.temperature)
        assert acceptance.rate.lower - 0.05 < true < acceptance.rate.upper + 0.05
        assert one.ttft.count == one.tpot.count == 12
        rates.append(acceptance.rate.value)
    assert rates == sorted(rates, reverse=True)


def test_blocks_of_a_plan_are_the_same_each_time_round() -> None:
    """So blocks do not share prompts, and more requests never remove an interval."""
    plan = ProbePlan((0.0, 1.0), 17, tuple("abcdefg"), 8, 2, seed=3)
    blocks = [[ask.prompt for ask in asks] for number, asks in plan.rounds(2) if number == 1.0]
    assert sum(map(len, blocks)) == 17
    assert blocks[4:8] == blocks[:4]
    assert blocks[8:] == [blocks[0], blocks[1][:1]]
    assert sorted(itertools.chain(*blocks[:4])) == list("abcdefg")
    few = ProbePlan((0.0,), 9, tuple("ab"), 8, 4, seed=3)
    assert [len(asks) for _, asks in few.rounds(4)] == [4, 4, 1], "as many at once as asked for"
    single = [(number, ask.prompt) for number, (ask,) in plan.rounds(1)]
    for temperature in (0.0, 1.0):
        sent = [prompt for number, prompt in single if number == temperature]
        assert sent == list(itertools.chain(*blocks))
    assert [number for number, _ in single[:6]] == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0], (
        "none is always first"
    )


@contextmanager
def config(tmp_path: Path, url: str) -> Iterator[Path]:
    file = tmp_path / "specwatch.yml"
    targets = [{"name": "chat", "url": url}]
    file.write_text(json.dumps({"database": f"sqlite:///{tmp_path}/a.db", "targets": targets}))
    yield file


def test_with_a_baseline_at_this_load_the_line_is_measured(run: Run, tmp_path: Path) -> None:
    engine = SimulatedEngine(settings(speculates=True))
    with (
        in_virtual_time([SimulatedEngine(settings()), engine]) as (without, url),
        config(tmp_path, url) as file,
    ):
        calibrated = run(
            "calibrate", "--off", without, "--target", "chat", "--config", file,
            "--concurrency", 2, "--duration", "6s", "--warm-up", "100ms",
        )  # fmt: skip
        assert calibrated.exit_code == 0, calibrated.stderr
        sweep = ("--temperatures", "0,1.3,2", "--max-tokens", 80, "--config", file)
        probe, _ = probed(run, "--target", "chat", *sweep, "--requests", 20, "--concurrency", 2)
        elsewhere, _ = probed(
            run, "--target", url, *sweep, "--requests", 16, "--dry-run", "--concurrency", 8
        )
    cost = engine.true_step_cost(2)
    speedups = [engine.true_speedup(entry, 2) for entry in (0.0, 1.3, 2.0)]
    assert (probe.line.basis, probe.line.load) == ("measured", "2")
    assert probe.line.acceptance.value == pytest.approx((cost - 1) / K, abs=0.01)
    for one, speedup in zip(probe.temperatures, speedups, strict=True):
        assert one.speedup.lower * 0.95 < speedup < one.speedup.upper * 1.05
    assert [temperature.zone for temperature in probe.temperatures][::2] == ["wins", "loses"]
    assert elsewhere.line.basis == "assumed"
    assert any("the baseline is for load 2, and this was" in note for note in elsewhere.notes)


def test_it_is_printed_stored_and_written_the_same_and_its_line_is_assumed(
    run: Run, recording: SimulatedServer, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "probe.json"
    probe, stderr = probed(
        run, "--target", recording.url, *SWEEP, "--requests", 8, "-o", file, "--database", database
    )
    assert experiments(database) == [probe]
    assert read(file.read_text(), str(file)) == probe
    assert "stored as result 1 in" in stderr
    assert probe.workload.digest
    assert (probe.subject.k, probe.subject.mode, probe.subject.model_name) == (K, "on", "tiny")
    assert (probe.line.basis, probe.line.acceptance.value) == ("assumed", 0.1)
    assert all(temperature.speedup is None for temperature in probe.temperatures)
    assert [temperature.zone for temperature in probe.temperatures][::2] == ["wins", "wins"]
    (note,) = [entry for entry in probe.notes if "assumed" in entry]
    assert "specwatch calibrate --off URL" in note


def test_the_text_has_a_chart_and_tables(
    run: Run, recording: SimulatedServer, tmp_path: Path
) -> None:
    done = run("probe", "--target", recording.url, *SWEEP, "--requests", 5, "--dry-run")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "█" in done.stdout
    assert "break-even: about 10%, by the assumed draft cost" in " ".join(done.stdout.split())
    assert lines[-1] == "nothing stored"
    assert list(tmp_path.glob("**/*.db")) == []
    assert done.stderr.splitlines()[-1] == "15 of 15 requests answered, 0 failed"


def test_a_server_without_speculation_is_refused(run: Run, off: SimulatedServer) -> None:
    done = run("probe", "--target", off.url, "--dry-run")
    assert done.exit_code == 2
    assert "does not speculate" in done.stderr
    assert "--speculative-config" in done.stderr


def test_a_first_answer_without_drafts_does_not_mean_no_speculation(
    run: Run, recording: SimulatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp reports drafts only if there were any, and its page has none."""
    ask, prepare = LoadClient.send, Server.__init__
    sent = 0

    async def send(self: LoadClient, *arguments: Any) -> Answer:
        nonlocal sent
        sent += 1
        probe = await ask(self, *arguments)
        return replace(probe, acceptance=None) if sent == 1 else probe

    def unspoken(self: Server, *arguments: Any, **more: Any) -> None:
        prepare(self, *arguments, **more)
        self.engine = replace(self.engine, mode=Mode.OFF)

    monkeypatch.setattr(LoadClient, "send", send)
    monkeypatch.setattr(Server, "__init__", unspoken)
    probe, _ = probed(run, "--target", recording.url, *SWEEP, "--requests", 2, "--dry-run")
    assert {temperature.source for temperature in probe.temperatures} == {"records"}


def test_without_drafts_on_the_page_and_records_the_acceptance_is_unknown(
    run: Run, counting: SimulatedServer, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    page = Server.read

    async def without(self: Server) -> dict[Series, float]:
        return {s: v for s, v in (await page(self)).items() if s.quantity != "accepted_tokens"}

    monkeypatch.setattr(Server, "read", without)
    done = run("probe", "--target", counting.url, *SWEEP, "--database", database)
    assert done.exit_code == 1
    assert "does not report its acceptance" in done.stderr
    assert "--per-request-spec-decode-metrics" in done.stderr
    assert done.stdout == ""
    assert experiments(database) == []


def test_with_other_traffic_counters_are_refused(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.loadtest.probe_run._IDLES", 0.2)
    with busy_server(speculates=True, record="none", costs=COSTS) as busy:
        done = run("probe", "--target", busy.url, *SWEEP, "--database", database)
    assert done.exit_code == 1, done.stderr
    assert "requests of others run or wait" in done.stderr
    assert "stop the traffic of others" in done.stderr
    assert done.stdout == ""
    assert experiments(database) == []


def others(url: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a foreign request during each of the first ``count`` requests after the warm-up."""
    sent = 0
    send = LoadClient.send

    async def with_others(self: LoadClient, ask: Any, *more: Any) -> Answer:
        nonlocal sent
        sent += 1
        if len(TEMPERATURES) < sent <= len(TEMPERATURES) + count:
            await send(self, ask, *more)
        return await send(self, ask, *more)

    monkeypatch.setattr(LoadClient, "send", with_others)


def test_a_block_with_foreign_requests_is_repeated(
    run: Run, counting: SimulatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(counting.url, 2, monkeypatch)
    probe, stderr = probed(run, "--target", counting.url, *SWEEP, "--requests", 5, "--dry-run")
    assert probe.complete
    assert [temperature.requests for temperature in probe.temperatures] == [5, 5, 5]
    assert stderr.count("repeating a block at temperature") == 2
    assert "1 request more ended than were sent" in stderr


def test_continuous_foreign_traffic_ends_a_probe_by_counters(
    run: Run, counting: SimulatedServer, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    others(counting.url, 100, monkeypatch)
    done = run("probe", "--target", counting.url, *SWEEP, "--requests", 5, "--database", database)
    assert done.exit_code == 1
    assert "its counters include other requests" in done.stderr
    assert "nothing was measured, and nothing stored" in done.stderr
    assert experiments(database) == []


def test_records_are_used_despite_foreign_requests(
    run: Run, recording: SimulatedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(recording.engine.log)
    others(recording.url, 2, monkeypatch)
    probe, _ = probed(run, "--target", recording.url, *SWEEP, "--requests", 5, "--dry-run")
    assert probe.alone is False
    drafts = sum(
        temperature.acceptance.drafts or 0
        for temperature in probe.temperatures
        if temperature.acceptance
    )
    engine = sum(entry.drafts for entry in recording.engine.log[before + len(TEMPERATURES) :])
    assert 0 < drafts < engine
    assert any("others used the server meanwhile" in note for note in probe.notes)


def breaking(after: int, stop: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call ``stop`` when a number of answers of a sweep have arrived."""
    numbers = itertools.count(1 - len(TEMPERATURES))
    send = LoadClient.send

    async def counted(self: LoadClient, ask: Any, *more: Any) -> Answer:
        answer = await send(self, ask, *more)
        if next(numbers) == after:
            thread = threading.Thread(target=stop)
            thread.start()
            thread.join()
        return answer

    monkeypatch.setattr(LoadClient, "send", counted)


@pytest.mark.parametrize("record", ["summary", "none"])
def test_a_server_that_dies_gives_what_was_measured_until_then(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    with server(record=record) as dying:
        breaking(18, dying.stop, monkeypatch)
        monkeypatch.setattr(load_generator, "_PAUSE", 0.001)
        probe, stderr = probed(
            run, "--target", dying.url, *SWEEP, "--requests", 10, "--database", database, code=1
        )
    assert not probe.complete
    assert experiments(database) == [probe]
    assert 15 <= sum(temperature.requests for temperature in probe.temperatures) <= 18
    assert all(temperature.acceptance.rate for temperature in probe.temperatures)
    assert probe.subject.url in stderr


def test_a_key_file_that_disappears_ends_the_probe(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    with server(api_keys=("secret",)) as guarded:
        breaking(12, key.unlink, monkeypatch)
        probe, stderr = probed(
            run, "--target", guarded.url, *SWEEP, "--requests", 10, "--database", database,
            "--bearer-token-file", key, code=1,
        )  # fmt: skip
    assert not probe.complete
    assert sum(temperature.requests for temperature in probe.temperatures) == 12
    assert str(key) in stderr
    assert experiments(database) == [probe]


def test_interrupted_it_keeps_what_was_measured(database: str) -> None:
    with server() as running:

        def wait(stderr: IO[str]) -> None:
            assert stderr.readline().startswith("75 of 300 requests answered")

        out, stderr = interrupted(
            running, "probe", "--target", running.url, *SWEEP, "--requests", "100",
            "--database", database, "--json", wait=wait, number=signal.SIGTERM,
        )  # fmt: skip
    probe = read(out, "standard output")
    assert not probe.complete
    assert sum(temperature.requests for temperature in probe.temperatures) >= 75
    assert "interrupted: what was measured until then is kept" in stderr
    assert experiments(database) == [probe]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--target'"),
        (("--target", "http://h:x"), "--target"),
        (("--target", "URL", "--temperatures", "warm"), "write numbers like 0,0.7,1"),
        (("--target", "URL", "--temperatures", "-1"), "expected numbers from 0"),
        (("--target", "URL", "--requests", "0"), "0 is not in the range"),
        (("--target", "URL", "--model", "huge"), "does not serve huge; it serves tiny"),
        (("--target", "URL", "-o", "/nowhere/a.json"), "there is no directory /nowhere"),
    ],
)
def test_wrong_options_are_refused(
    run: Run, recording: SimulatedServer, arguments: Sequence[str], message: str
) -> None:
    before = len(recording.engine.log)
    done = run("probe", *(recording.url if word == "URL" else word for word in arguments))
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert len(recording.engine.log) == before
