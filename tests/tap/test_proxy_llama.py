"""The tap as a proxy in front of llama.cpp: acceptance by temperature, from ``timings``."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry

from specwatch.runtime.http_server import HttpServer
from tests.hostile import wait_for
from tests.simulated_llama import MODEL, SimulatedLlama
from tests.tap.proxied import proxy

TEMPERATURES = (0, 0.2, 0.5, 1.0, 1.5, None)
BUCKETS = {0: "0", 0.2: "(0,0.3]", 0.5: "(0.3,0.7]", 0.8: "(0.7,1]", 1.0: "(0.7,1]", 1.5: ">1"}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
    "/completion": {"prompt": "hello"},
}
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True, "timings_per_token": True},
)


@pytest.fixture
def llama() -> Iterator[SimulatedLlama]:
    with SimulatedLlama() as server:
        yield server


@pytest.fixture
def server(llama: SimulatedLlama, registry: CollectorRegistry) -> Iterator[HttpServer]:
    with proxy(llama.url, registry=registry) as running:
        yield running


def ask(url: str, path: str, body: dict[str, Any], temperature: float | None = None) -> str:
    named = {} if temperature is None else {"temperature": temperature}
    response = requests.post(url + path, json={**body, **named}, timeout=60)
    assert response.status_code == 200
    return response.text


def counted(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """Values of a family by temperature bucket."""
    counts: dict[str, float] = defaultdict(float)
    for family in registry.collect():
        for sample in family.samples:
            if sample.name == name and "temperature" in sample.labels:
                assert sample.labels["model_name"] == MODEL
                counts[sample.labels["temperature"]] += sample.value
    return dict(counts)


def test_drafted_and_accepted_tokens_by_temperature_are_those_of_the_server(
    llama: SimulatedLlama, server: HttpServer, registry: CollectorRegistry
) -> None:
    ways = itertools.cycle(WAYS)
    for temperature in TEMPERATURES:
        for path, body in PATHS.items():
            ask(server.url, path, {**body, **next(ways), "max_tokens": 40}, temperature)
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for made in llama.generations:
        numbers = (1, made.predicted, made.drafted, made.accepted)
        bucket = sums[BUCKETS[made.temperature]]
        bucket[:] = [old + new for old, new in zip(bucket, numbers, strict=True)]
    assert len(llama.generations) == len(TEMPERATURES) * len(PATHS)
    assert set(sums) == set(BUCKETS.values())
    wait_for(lambda: sum(counted(registry, "specwatch_requests_total").values()) == 18)
    for index, name in enumerate(
        ("requests", "generation_tokens", "draft_tokens", "accepted_tokens")
    ):
        expected = {bucket: numbers[index] for bucket, numbers in sums.items()}
        assert counted(registry, f"specwatch_{name}_total") == expected
    assert counted(registry, "specwatch_tap_uncovered_requests_total") == {}


def test_the_operators_default_temperature_comes_first(
    llama: SimulatedLlama, registry: CollectorRegistry
) -> None:
    with proxy(llama.url, registry=registry, default_temperature=0.1) as server:
        ask(server.url, "/v1/completions", PATHS["/v1/completions"])
        wait_for(lambda: counted(registry, "specwatch_requests_total") == {"(0,0.3]": 1})


def test_a_server_that_does_not_draft_is_not_covered(registry: CollectorRegistry) -> None:
    with SimulatedLlama(draft_tokens=0) as llama, proxy(llama.url, registry=registry) as server:
        ask(server.url, "/v1/completions", PATHS["/v1/completions"], 0.5)
        wait_for(lambda: counted(registry, "specwatch_generation_tokens_total"))
    assert counted(registry, "specwatch_draft_tokens_total") == {}


def test_a_client_sees_what_it_would_see_without_the_proxy() -> None:
    with SimulatedLlama() as direct, SimulatedLlama() as llama, proxy(llama.url) as server:
        for path, way in itertools.product(PATHS, WAYS):
            body = {**PATHS[path], **way, "max_tokens": 20, "temperature": 0.5}
            text = ask(server.url, path, body)
            assert text == ask(direct.url, path, body)
            assert "timings" in text
