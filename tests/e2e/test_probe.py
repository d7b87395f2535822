"""``specwatch probe`` on real servers: with records, and without by the server's counters.

What it says is held against the page of the server, read by other means just before and after its
requests, and against a property of sampling: the higher the temperature, the fewer are accepted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from specwatch.cli import group
from specwatch.domain.experiments import Probe, ProbeTemperature, read
from specwatch.loadtest.probe_run import ProbeRun
from tests.e2e.conftest import StartVllm
from tests.e2e.processes import experiments_of
from tests.e2e.witness import Counts, counted, difference
from tests.lab.traffic import requests_at, send
from tests.lab.vllm_server import VllmServer

K = 4
SWEEP = (0.0, 0.4, 0.8, 1.2)
SHORT = ("--requests", "6", "--max-tokens", "24")
COUNTED = ("drafts", "draft_tokens", "accepted_tokens", "generation_tokens")


@pytest.fixture(scope="module")
def bare_server(start_vllm: StartVllm, tiny_models: Path) -> Iterator[VllmServer]:
    """Speculates with the good draft, and its answers carry no record."""
    speculation = {
        "num_speculative_tokens": K, "method": "draft_model",
        "model": str(tiny_models / "draft-good"),
    }  # fmt: skip
    with start_vllm("--speculative-config", json.dumps(speculation)) as server:
        yield server


class Probed:
    """A probe in this process, and what the server counted from the warm-up to its end."""

    def __init__(self, server: VllmServer, *arguments: str) -> None:
        self._counts: list[Counts] = []
        warmed_up = ProbeRun._source

        async def then_look(probing: ProbeRun) -> str:
            found = await warmed_up(probing)
            self._counts.append(counted(server.metrics()))
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProbeRun, "_source", then_look)
            done = CliRunner().invoke(
                group, ["probe", "--target", server.url, "--json", "--dry-run", *arguments]
            )
        assert done.exit_code == 0, done.stderr
        self._counts.append(counted(server.metrics()))
        found = read(done.stdout, "standard output")
        assert isinstance(found, Probe)
        self.probe = found

    @property
    def server(self) -> Counts:
        """What was counted meanwhile."""
        change = difference(*self._counts)
        finished = sum(count for name, count in change.items() if name.startswith("requests "))
        return {name: change.get(name, 0) for name in COUNTED} | {"requests": finished}

    def __iter__(self) -> Iterator[ProbeTemperature]:
        return iter(self.probe.temperatures)


def added_up(probed: Probed) -> Counts:
    """The counts of all temperatures of a probe."""
    found = dict.fromkeys((*COUNTED, "requests"), 0)
    for one in probed:
        assert one.acceptance is not None
        found["drafts"] += one.acceptance.drafts or 0
        found["draft_tokens"] += one.acceptance.draft_tokens
        found["accepted_tokens"] += one.acceptance.accepted_tokens
        found["generation_tokens"] += one.tokens
        found["requests"] += one.requests
    return found


@pytest.fixture(scope="module")
def recorded(good_server: VllmServer) -> Probed:
    temperatures = ",".join(f"{each:g}" for each in SWEEP)
    many = ("--requests", "16", "--concurrency", "8", "--max-tokens", "24")
    return Probed(good_server, "--temperatures", temperatures, *many)


@pytest.fixture(scope="module")
def by_counters(bare_server: VllmServer) -> Probed:
    return Probed(bare_server, "--temperatures", "0,1.2", *SHORT)


def test_by_records_it_tells_what_the_server_counted(recorded: Probed) -> None:
    assert recorded.probe.complete
    assert recorded.probe.alone is True
    assert {one.source for one in recorded} == {"records"}
    assert added_up(recorded) == recorded.server


def test_by_counters_it_tells_what_the_server_counted(by_counters: Probed) -> None:
    assert by_counters.probe.complete
    assert by_counters.probe.alone is True
    assert {one.source for one in by_counters} == {"counters"}
    assert added_up(by_counters) == by_counters.server


def test_one_temperature_is_what_the_server_counted_of_it(good_server: VllmServer) -> None:
    """The counts of a temperature are not mixed with those of others."""
    hot = Probed(good_server, "--temperatures", "1.2", *SHORT, "--concurrency", "2")
    assert added_up(hot) == hot.server


def test_the_lower_the_temperature_the_more_is_accepted(recorded: Probed) -> None:
    rates = [
        one.acceptance.rate.value
        for one in recorded
        if one.acceptance is not None and one.acceptance.rate is not None
    ]
    assert len(rates) == len(SWEEP)
    cold, cool, warm, hot = rates
    assert min(cold, cool) > warm > hot
    assert cold > cool - 0.1, "the two are close, and the requests few"


def test_figures_of_a_temperature_agree_with_one_another(recorded: Probed) -> None:
    assert recorded.probe.subject.k == K
    for one in recorded:
        found = one.acceptance
        assert found is not None
        assert found.histogram is not None
        assert found.per_position is not None
        assert sum(found.histogram) == found.drafts
        assert sum(at * count for at, count in enumerate(found.histogram)) == found.accepted_tokens
        assert list(found.per_position) == sorted(found.per_position, reverse=True)
        for latency in (one.ttft, one.tpot):
            assert latency is not None
            # What so few requests cannot tell is None.
            known = [each for each in (latency.p50, latency.p95, latency.p99) if each is not None]
            assert known == sorted(known)
            assert known[0] > 0


def test_without_speculation_there_is_nothing_to_probe(plain_server: VllmServer) -> None:
    done = CliRunner().invoke(group, ["probe", "--target", plain_server.url, "--dry-run"])
    assert done.exit_code == 2
    assert "does not speculate" in done.stderr


def test_with_traffic_of_others_counters_are_refused(bare_server: VllmServer) -> None:
    stopping = threading.Event()

    def ask() -> None:
        (request,) = requests_at([0.0], 1, max_tokens=64)
        while not stopping.is_set():
            send(bare_server.url, request)

    others = [threading.Thread(target=ask) for _ in range(2)]
    for other in others:
        other.start()
    try:
        done = CliRunner().invoke(
            group, ["probe", "--target", bare_server.url, "--dry-run", *SHORT]
        )
    finally:
        stopping.set()
        for other in others:
            other.join()
    assert done.exit_code == 1, done.output
    assert "its counters include other requests" in done.stderr
    assert done.stdout == ""


def probing(server: VllmServer, database: str) -> subprocess.Popen[str]:
    """A long probe in its own process, of which a quarter is done."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "specwatch", "probe", "--target", server.url, "--json",
            "--temperatures", "0,0.8", "--requests", "20", "--max-tokens", "16",
            "--database", database,
        ],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith("10 of 40 requests answered")
    return process


def kept(process: subprocess.Popen[str], database: str) -> Probe:
    """What is left of a probe that did not end well: printed and stored alike."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    found = read(out, "standard output")
    assert isinstance(found, Probe)
    assert not found.complete
    assert 10 <= sum(one.requests for one in found.temperatures) < 40
    assert all(one.acceptance is not None for one in found.temperatures)
    assert experiments_of(database) == [found]
    return found


def test_interrupted_it_keeps_what_was_measured(good_server: VllmServer, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/specwatch.db"
    process = probing(good_server, database)
    process.send_signal(signal.SIGINT)
    assert any("interrupted" in note for note in kept(process, database).notes)


def test_a_server_that_dies_leaves_what_was_measured(
    bare_server: VllmServer, tmp_path: Path
) -> None:
    """The last test here: it takes the server away."""
    database = f"sqlite:///{tmp_path}/specwatch.db"
    process = probing(bare_server, database)
    bare_server.kill()
    assert any(bare_server.url in note for note in kept(process, database).notes)
