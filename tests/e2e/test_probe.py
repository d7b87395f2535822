"""``specwatch probe`` on real servers: with records, and without by the server's counters.

What it says is held against the page of the server, read by other means just before and after its
requests, and against a property of sampling: the higher the temperature, the fewer are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from specwatch.cli import group
from specwatch.domain.experiments import Probe, ProbeTemperature, read
from specwatch.lab.loadtest.probe_run import ProbeRun
from tests.e2e.conftest import StartVllm
from tests.e2e.witness import Counts, counted, difference
from tests.lab.vllm_server import VllmServer

K = 4
SWEEP = (0.0, 0.4, 0.8, 1.2)
SHORT = ("--requests", "6", "--max-tokens", "24")
COUNTED = ("drafts", "draft_tokens", "accepted_tokens", "generation_tokens")


@pytest.fixture(scope="module")
def bare_server(start_vllm: StartVllm, tiny_models: Path) -> Iterator[VllmServer]:
    """Speculates with the good draft, and its answers carry no record."""
    speculation = {
        "num_speculative_tokens": K,
        "method": "draft_model",
        "model": str(tiny_models / "draft-good"),
    }
    with start_vllm("--speculative-config", json.dumps(speculation)) as server:
        yield server


class CountedProbe:
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


def added_up(run: CountedProbe) -> Counts:
    """The counts of all temperatures of a probe."""
    found = dict.fromkeys((*COUNTED, "requests"), 0)
    for one in run:
        assert one.acceptance is not None
        found["drafts"] += one.acceptance.drafts or 0
        found["draft_tokens"] += one.acceptance.draft_tokens
        found["accepted_tokens"] += one.acceptance.accepted_tokens
        found["generation_tokens"] += one.tokens
        found["requests"] += one.requests
    return found


@pytest.fixture(scope="module")
def recorded(good_server: VllmServer) -> CountedProbe:
    temperatures = ",".join(f"{each:g}" for each in SWEEP)
    many = ("--requests", "16", "--concurrency", "8", "--max-tokens", "24")
    return CountedProbe(good_server, "--temperatures", temperatures, *many)


@pytest.fixture(scope="module")
def by_counters(bare_server: VllmServer) -> CountedProbe:
    return CountedProbe(bare_server, "--temperatures", "0,1.2", *SHORT)


def test_records_add_up_to_what_the_server_counted(recorded: CountedProbe) -> None:
    assert recorded.probe.complete
    assert recorded.probe.alone is True
    assert {one.source for one in recorded} == {"records"}
    assert added_up(recorded) == recorded.server


def test_counters_add_up_to_what_the_server_counted(by_counters: CountedProbe) -> None:
    assert by_counters.probe.complete
    assert by_counters.probe.alone is True
    assert {one.source for one in by_counters} == {"counters"}
    assert added_up(by_counters) == by_counters.server


def test_one_temperature_is_what_the_server_counted_of_it(good_server: VllmServer) -> None:
    """The counts of a temperature are not mixed with those of others."""
    hot = CountedProbe(good_server, "--temperatures", "1.2", *SHORT, "--concurrency", "2")
    assert added_up(hot) == hot.server


def test_the_lower_the_temperature_the_more_is_accepted(recorded: CountedProbe) -> None:
    rates = [
        one.acceptance.rate.value
        for one in recorded
        if one.acceptance is not None and one.acceptance.rate is not None
    ]
    assert len(rates) == len(SWEEP)
    cold, cool, warm, hot = rates
    assert min(cold, cool) > warm > hot
    assert cold > cool - 0.1, "the two are close, and the requests few"


def test_figures_of_a_temperature_agree_with_one_another(recorded: CountedProbe) -> None:
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


def test_answers_with_speculation_are_those_without(
    good_server: VllmServer, plain_server: VllmServer
) -> None:
    """At temperature 0, where a draft may only change how fast they come."""
    done = CliRunner().invoke(
        group,
        [
            "probe",
            "--json",
            "--target",
            good_server.url,
            "--compare",
            plain_server.url,
            "--requests",
            "12",
            "--max-tokens",
            "32",
            "--concurrency",
            "4",
        ],
    )
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["compared"], found["outcome"]) == (12, "no_more")
    assert found["differences"]["count"] <= found["differences_again"]["count"] + 2
    assert found["at_limit"]["off"] == found["at_limit"]["again"]
