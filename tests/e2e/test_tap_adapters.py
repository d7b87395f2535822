"""Segments by LoRA adapter in a real vLLM: exact, under mixed traffic to two adapters at once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import StartVllm
from tests.e2e.tap_asks import FLAGS
from tests.e2e.tap_exchange import KEY
from tests.e2e.tap_page import (
    SEGMENT_COUNTERS,
    Buckets,
    at_rest,
    chosen,
    difference,
    everywhere,
    grown,
    segmented,
)
from tests.e2e.tap_traffic import mixed_output, with_usage
from tests.lab.traffic import Outcome, Request, send_all
from tests.lab.vllm_server import VllmServer

CONCURRENCY = 8
MODELS = ("tiny", "one", "two")
SEGMENT_OF = {"tiny": "none", "one": "one", "two": "two"}
EACH = 16
"""Requests to each model: more than an adapter needs for series of its own."""
ACCEPTANCE = SEGMENT_COUNTERS[:3]


@pytest.fixture(scope="module")
def server(start_vllm: StartVllm, tap: tuple[str, ...], tiny_models: Path) -> Iterator[VllmServer]:
    adapters = [f"{name}={tiny_models}/adapter-{name}" for name in MODELS[1:]]
    lora = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules")
    segments = {"SPECWATCH_TAP_SEGMENTS": "adapter,output"}
    with start_vllm(
        *FLAGS, *tap, *lora, *adapters, speculation="draft-good", environment=segments
    ) as running:
        yield running


def sent(server: VllmServer, requests: list[Request]) -> tuple[list[Outcome], str, str]:
    """Send them; their outcomes, and the pages before and after."""
    before = at_rest(server.metrics)
    outcomes = send_all(server.url, requests, CONCURRENCY, key=KEY)
    after = at_rest(server.metrics)
    assert [outcome.error for outcome in outcomes if not outcome.ok] == []
    return outcomes, before, after


def counted(before: str, after: str) -> dict[str, Buckets]:
    earlier = segmented(before)
    return {
        kind: difference(earlier.get(kind, {}), found) for kind, found in segmented(after).items()
    }


def mixed() -> list[tuple[Request, str]]:
    """Tool calls, schemas, long prompts, plain text, streamed or not, to each model in turn."""
    return [
        (dataclasses.replace(request, model=MODELS[number % len(MODELS)]), output)
        for number, (request, output) in enumerate(mixed_output(EACH * len(MODELS)))
    ]


def test_adapters_add_up_to_what_the_server_counted(server: VllmServer) -> None:
    """From the first request on, when adapters have no series of their own yet."""
    forms = mixed()
    _, before, after = sent(server, [request for request, _ in forms])
    found, of_server = counted(before, after), grown(before, after)
    assert set(found) == {"adapter", "output"}
    assert set(found["adapter"]) == {"none", "one", "two", "other"}
    outputs = Counter(output for _, output in forms)
    assert {value: of["requests"] for value, of in found["output"].items()} == outputs
    for buckets in found.values():
        summed = everywhere(buckets)
        assert summed["requests"] == len(forms)
        assert all(summed[name] == of_server[name] for name in ACCEPTANCE)


def test_each_adapter_equals_the_records_of_an_independent_client(server: VllmServer) -> None:
    requests = with_usage(request for request, _ in mixed())
    outcomes, before, after = sent(server, requests)
    expected: dict[str, Counter[str]] = {value: Counter() for value in SEGMENT_OF.values()}
    for outcome in outcomes:
        counts = expected[SEGMENT_OF[outcome.request.model]]
        counts["requests"] += 1
        assert outcome.record is not None
        for name in ACCEPTANCE:
            counts[name] += getattr(outcome.record, name)
    found = counted(before, after)["adapter"]
    assert found == chosen({value: dict(of) for value, of in expected.items()}, *SEGMENT_COUNTERS)
