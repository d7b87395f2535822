"""``specwatch probe`` against simulated servers with known acceptance."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specwatch.domain.experiments import Probe, read
from specwatch.domain.model import Mode, Series
from specwatch.lab.loadtest.probe_run import ProbePlan
from specwatch.lab.loadtest.requests import Answer
from specwatch.lab.simulator.engine import SimulatedEngine
from tests.cli.conftest import Run, experiments
from tests.simulated_load import (
    K,
    MortalEngine,
    VirtualClient,
    VirtualServer,
    at_answer,
    busy_engine,
    in_virtual_time,
    settings,
)

TEMPERATURES = (0.0, 0.7, 1.3)
SWEEP = ("--temperatures", "0,0.7,1.3", "--max-tokens", "40")


@pytest.fixture
def recording() -> SimulatedEngine:
    return SimulatedEngine(settings(speculates=True))


@pytest.fixture
def counting() -> SimulatedEngine:
    """Its answers have no acceptance record."""
    return SimulatedEngine(settings(speculates=True, record="none"))


def probed(
    run: Run, engine: SimulatedEngine, *arguments: object, code: int = 0
) -> tuple[Probe, str]:
    """The result of a sweep over temperatures, and the text of standard error."""
    with in_virtual_time([engine]) as (url,):
        done = run("probe", "--target", url, "--json", *SWEEP, *arguments)
    assert done.exit_code == code, done.stderr
    return read(done.stdout, "standard output"), done.stderr


def truth(engine: SimulatedEngine, temperature: float) -> dict[str, Any]:
    """The engine's own counts of a sweep, without the warm-up."""
    log = [
        entry
        for entry in engine.log[len(TEMPERATURES) :]
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
    recording: SimulatedEngine,
    counting: SimulatedEngine,
    database: str,
    kind: str,
    concurrency: int,
) -> None:
    engine = recording if kind == "records" else counting
    probe, _ = probed(
        run, engine, "--requests", 12, "--concurrency", concurrency, "--database", database
    )
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
        assert counted == truth(engine, one.temperature)
        assert acceptance.rate.value == acceptance.accepted_tokens / acceptance.draft_tokens
        true = engine.true_acceptance_rate(one.temperature)
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
            "calibrate",
            "--off",
            without,
            "--target",
            "chat",
            "--config",
            file,
            "--concurrency",
            2,
            "--duration",
            "6s",
            "--warm-up",
            "100ms",
        )
        assert calibrated.exit_code == 0, calibrated.stderr
        sweep = (
            "probe",
            "--json",
            "--temperatures",
            "0,1.3,2",
            "--max-tokens",
            80,
            "--config",
            file,
        )
        probe, elsewhere = (
            read(run(*sweep, *words).stdout, "standard output")
            for words in (
                ("--target", "chat", "--requests", 20, "--concurrency", 2),
                ("--target", url, "--requests", 16, "--dry-run", "--concurrency", 8),
            )
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
    run: Run, recording: SimulatedEngine, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "probe.json"
    probe, stderr = probed(run, recording, "--requests", 8, "-o", file, "--database", database)
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
    run: Run, recording: SimulatedEngine, tmp_path: Path
) -> None:
    with in_virtual_time([recording]) as (url,):
        done = run("probe", "--target", url, *SWEEP, "--requests", 5, "--dry-run")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "█" in done.stdout
    assert "break-even: about 10%, by the assumed draft cost" in " ".join(done.stdout.split())
    assert lines[-1] == "nothing stored"
    assert list(tmp_path.glob("**/*.db")) == []
    assert done.stderr.splitlines()[-1] == "15 of 15 requests answered, 0 failed"


def test_a_server_without_speculation_is_refused(run: Run) -> None:
    with in_virtual_time([SimulatedEngine(settings())]) as (off,):
        done = run("probe", "--target", off, "--dry-run")
    assert done.exit_code == 2
    assert "does not speculate" in done.stderr
    assert "--speculative-config" in done.stderr


def test_a_first_answer_without_drafts_does_not_mean_no_speculation(
    run: Run, recording: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp reports drafts only if there were any, and its page has none."""
    ask, prepare = VirtualClient.send, VirtualServer.__init__
    sent = 0

    async def send(self: VirtualClient, *arguments: Any) -> Answer:
        nonlocal sent
        sent += 1
        probe = await ask(self, *arguments)
        return replace(probe, acceptance=None) if sent == 1 else probe

    def unspoken(self: VirtualServer, *arguments: Any, **more: Any) -> None:
        prepare(self, *arguments, **more)
        self.engine = replace(self.engine, mode=Mode.OFF)

    monkeypatch.setattr(VirtualClient, "send", send)
    monkeypatch.setattr(VirtualServer, "__init__", unspoken)
    probe, _ = probed(run, recording, "--requests", 2, "--dry-run")
    assert {temperature.source for temperature in probe.temperatures} == {"records"}


def test_without_drafts_on_the_page_and_records_the_acceptance_is_unknown(
    run: Run, counting: SimulatedEngine, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    page = VirtualServer.read

    async def without(self: VirtualServer) -> dict[Series, float]:
        return {s: v for s, v in (await page(self)).items() if s.quantity != "accepted_tokens"}

    monkeypatch.setattr(VirtualServer, "read", without)
    with in_virtual_time([counting]) as (url,):
        done = run("probe", "--target", url, *SWEEP, "--database", database)
    assert done.exit_code == 1
    assert "does not report its acceptance" in done.stderr
    assert "--per-request-spec-decode-metrics" in done.stderr
    assert done.stdout == ""
    assert experiments(database) == []


def test_with_other_traffic_counters_are_refused(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.lab.loadtest.probe_run._IDLES", 0.5)
    with in_virtual_time([busy_engine(speculates=True, record="none")]) as (busy,):
        done = run("probe", "--target", busy, *SWEEP, "--database", database)
    assert done.exit_code == 1, done.stderr
    assert "requests of others run or wait" in done.stderr
    assert "stop the traffic of others" in done.stderr
    assert done.stdout == ""
    assert experiments(database) == []


def others(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a foreign request during each of the first ``count`` requests after the warm-up."""
    sent = 0
    send = VirtualClient.send

    async def with_others(self: VirtualClient, ask: Any, *more: Any) -> Answer:
        nonlocal sent
        sent += 1
        if len(TEMPERATURES) < sent <= len(TEMPERATURES) + count:
            await send(self, ask, *more)
        return await send(self, ask, *more)

    monkeypatch.setattr(VirtualClient, "send", with_others)


def test_a_block_with_foreign_requests_is_repeated(
    run: Run, counting: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(2, monkeypatch)
    probe, stderr = probed(run, counting, "--requests", 5, "--dry-run")
    assert probe.complete
    assert [temperature.requests for temperature in probe.temperatures] == [5, 5, 5]
    assert stderr.count("repeating a block at temperature") == 2
    assert "1 request more ended than were sent" in stderr


def test_continuous_foreign_traffic_ends_a_probe_by_counters(
    run: Run, counting: SimulatedEngine, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    others(100, monkeypatch)
    with in_virtual_time([counting]) as (url,):
        done = run("probe", "--target", url, *SWEEP, "--requests", 5, "--database", database)
    assert done.exit_code == 1
    assert "its counters include other requests" in done.stderr
    assert "nothing was measured, and nothing stored" in done.stderr
    assert experiments(database) == []


def test_records_are_used_despite_foreign_requests(
    run: Run, recording: SimulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(2, monkeypatch)
    probe, _ = probed(run, recording, "--requests", 5, "--dry-run")
    assert probe.alone is False
    drafts = sum(
        temperature.acceptance.drafts or 0
        for temperature in probe.temperatures
        if temperature.acceptance
    )
    engine = sum(entry.drafts for entry in recording.log[len(TEMPERATURES) :])
    assert 0 < drafts < engine
    assert any("others used the server meanwhile" in note for note in probe.notes)


@pytest.mark.parametrize("record", ["summary", "none"])
def test_a_server_that_dies_gives_what_was_measured_until_then(
    run: Run, database: str, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    dying = MortalEngine(settings(speculates=True, record=record))
    at_answer(18 + len(TEMPERATURES), dying.die, monkeypatch)
    probe, stderr = probed(run, dying, "--requests", 10, "--database", database, code=1)
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
    guarded = SimulatedEngine(settings(speculates=True, api_keys=("secret",)))
    at_answer(12 + len(TEMPERATURES), key.unlink, monkeypatch)
    probe, stderr = probed(
        run, guarded, "--requests", 10, "--database", database, "--bearer-token-file", key, code=1
    )
    assert not probe.complete
    assert sum(temperature.requests for temperature in probe.temperatures) == 12
    assert str(key) in stderr
    assert experiments(database) == [probe]


def test_interrupted_it_keeps_what_was_measured(
    run: Run, recording: SimulatedEngine, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_answer(20 + len(TEMPERATURES), lambda: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
    probe, stderr = probed(run, recording, "--requests", 10, "--database", database, code=1)
    assert not probe.complete
    assert 20 <= sum(temperature.requests for temperature in probe.temperatures) <= 21
    assert "interrupted: what was measured until then is kept" in stderr
    assert experiments(database) == [probe]
    assert recording.running + recording.waiting == 0


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
    run: Run, recording: SimulatedEngine, arguments: Sequence[str], message: str
) -> None:
    with in_virtual_time([recording]) as (url,):
        done = run("probe", *(url if word == "URL" else word for word in arguments))
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert recording.log == []
