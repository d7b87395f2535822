"""``specwatch calibrate`` on real servers: without speculation, with a good draft, with a bad one.

The servers share two cores, so that nothing is sure but orders and ratios, and those within their
intervals. What calibration counts is the servers' own; what it is held against is what its clients
saw on their own clock.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from specwatch.domain.baseline import Origin
from tests.e2e.clients import request_seconds
from tests.e2e.processes import measurements_of, specwatch
from tests.lab.vllm_server import VllmServer

COLD, HOT = 0.0, 1.2
BUCKETS = {COLD: "0", HOT: ">1"}
SHORT = (
    "--warm-up",
    "500ms",
    "--max-tokens",
    "16",
    "--temperature",
    f"{COLD:g},{HOT:g}",
    "--unsteady",
)
RESAMPLES = 2000
NEARLY = 1.3


@dataclass(frozen=True)
class Servers:
    off: VllmServer
    good: VllmServer
    bad: VllmServer


@pytest.fixture(scope="module")
def servers(plain_server: VllmServer, good_server: VllmServer, bad_server: VllmServer) -> Servers:
    """All at once: each is idle while another is loaded."""
    return Servers(plain_server, good_server, bad_server)


def duration(off: VllmServer, on: VllmServer) -> str:
    """Of a stage: on any machine long enough for ten requests of each temperature."""
    slowest = request_seconds((off.url, on.url), [COLD, HOT], 16)
    return f"{max(4800, round(40_000 * slowest))}ms"


def calibrated(off: VllmServer, on: VllmServer, *more: str) -> dict[str, Any]:
    ran = specwatch(
        "calibrate", "--off", off.url, "--on", on.url, "--json", *SHORT, *more, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert isinstance(report, dict)
    for stage in report["stages"]:
        assert (stage["errors"], stage["foreign_requests"], stage["shared"]) == ({}, 0, False)
    return report


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('calibrate')}/specwatch.db"


@pytest.fixture(scope="module")
def good(servers: Servers, database: str) -> dict[str, Any]:
    stage = duration(servers.off, servers.good)
    return calibrated(
        servers.off,
        servers.good,
        "--concurrency",
        "1,2,4",
        "--duration",
        stage,
        "--target",
        "tiny",
        "--database",
        database,
    )


@pytest.fixture(scope="module")
def bad(servers: Servers) -> dict[str, Any]:
    stage = duration(servers.off, servers.bad)
    return calibrated(
        servers.off, servers.bad, "--concurrency", "2", "--duration", stage, "--dry-run"
    )


def tpots(report: dict[str, Any], concurrency: int, mode: str, temperature: float) -> list[float]:
    """TPOT of each request on the clients' clock, in seconds."""
    (found,) = (
        clients["tpot"]
        for stage in report["stages"]
        for clients in stage["clients"]
        if (stage["concurrency"], stage["mode"], clients["temperature"])
        == (concurrency, mode, temperature)
    )
    assert len(found) >= 6
    return list(found)


def direct(off: Sequence[float], on: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of mean TPOT off over mean TPOT on."""
    generator = np.random.default_rng(0)
    means = [
        generator.choice(np.array(each), size=(RESAMPLES, len(each))).mean(axis=1)
        for each in (off, on)
    ]
    low, high = np.quantile(means[0] / means[1], [0.025, 0.975])
    return float(low), float(high)


def at(comparison: dict[str, Any], concurrency: int) -> dict[str, Any]:
    (found,) = (e for e in comparison["concurrencies"] if e["concurrency"] == concurrency)
    assert isinstance(found, dict)
    return found


def of_bucket(assessment: dict[str, Any], temperature: float) -> dict[str, Any]:
    (found,) = (e for e in assessment["buckets"] if e["temperature"] == BUCKETS[temperature])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("temperature", [COLD, HOT])
@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_the_speedup_of_a_bucket_is_what_the_clients_saw(
    good: dict[str, Any], concurrency: int, temperature: float
) -> None:
    """Counted by the servers, and timed by the clients: the intervals overlap, nearly.

    What the clients saw is not at the same conditions: the slower server has fewer prompts to read.
    """
    low, high = direct(
        tpots(good, concurrency, "off", temperature), tpots(good, concurrency, "on", temperature)
    )
    found = of_bucket(at(good["comparison"], concurrency), temperature)["speedup"]
    assert found["lower"] <= NEARLY * high
    assert found["upper"] >= low / NEARLY


def test_what_the_clients_saw_of_the_bad_draft_is_another_speedup(
    good: dict[str, Any], bad: dict[str, Any]
) -> None:
    """So that the agreement above says something: the wrong server would not agree."""
    low, high = direct(tpots(bad, 2, "off", COLD), tpots(bad, 2, "on", COLD))
    assert high < of_bucket(good["comparison"], COLD)["speedup"]["value"]
    own = of_bucket(at(bad["comparison"], 2), COLD)["speedup"]
    assert own["lower"] <= NEARLY * high
    assert own["upper"] >= low / NEARLY


def test_the_bad_draft_loses_and_the_good_one_is_better(
    good: dict[str, Any], bad: dict[str, Any]
) -> None:
    assert bad["comparison"]["verdict"] == "loses"
    assert bad["comparison"]["best_k"]["k"] == 0
    worse, better = bad["comparison"]["speedup"], at(good["comparison"], 2)["speedup"]
    assert worse["upper"] < better["value"]
    assert 1.5 * worse["value"] < better["value"]


def test_the_good_draft_is_better_at_a_low_temperature(good: dict[str, Any]) -> None:
    cold, hot = (of_bucket(good["comparison"], temperature) for temperature in (COLD, HOT))
    assert cold["acceptance_rate"] > hot["acceptance_rate"] + 0.2
    assert cold["speedup"]["value"] > hot["speedup"]["value"]


def test_the_baseline_is_in_the_store(good: dict[str, Any], database: str) -> None:
    """By load, and for the very configuration and version that a daemon would see."""
    found = measurements_of(database)
    assert {each.key.target for each in found} == {"tiny"}
    assert [each.load_bin for each in found] == [0, 1, 2]
    # The servers differ in nothing but speculation; on a busy machine rounds may differ, too.
    (doubt,) = (doubt for doubt in good["doubts"] if " longer in one round " not in doubt)
    assert "the lengths of production traffic are unknown" in doubt
    for one in found:
        assert one.origin is Origin.CALIBRATION
        assert one.key.engine_version == good["engine_version"]
        assert one.key.configuration == good["configuration"]
        assert one.enough
        assert one.tpot is not None
        assert one.tpot.count > 10
