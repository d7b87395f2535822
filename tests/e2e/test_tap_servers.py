"""The tap in servers of other shapes: several processes, other defaults, loaded twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import SEGMENTS, StartVllm
from tests.e2e.tap_exchange import Ask, ask
from tests.e2e.tap_page import (
    ACCEPTANCE,
    BUCKETS,
    SEGMENT_COUNTERS,
    Buckets,
    at_rest,
    bucket_of,
    chosen,
    difference,
    everywhere,
    grown,
    of_records,
    of_server,
    segmented,
    tapped,
)
from tests.e2e.tap_traffic import covered, refused, several, with_usage
from tests.lab.traffic import Outcome, Request, send_all
from tests.lab.vllm_server import VllmServer

REQUESTS = 112
CONCURRENCY = 8


def ask_all(server: VllmServer, requests: list[Request]) -> list[Outcome]:
    outcomes = send_all(server.url, requests, CONCURRENCY)
    assert [outcome.error for outcome in outcomes if not outcome.ok] == []
    return outcomes


@pytest.mark.parametrize(
    "flags",
    [["--api-server-count", "2"], ["--data-parallel-size", "2"]],
    ids=["two API servers", "data parallel"],
)
def test_counts_are_exact_over_all_processes(
    start_vllm: StartVllm, tap: tuple[str, ...], flags: list[str]
) -> None:
    """Whichever process a request meets and whichever it asks for the page.

    A seed gives the same answer again, so that the records of streams that did not ask for usage
    are those of the same requests that did.
    """
    unasked = [r for r in covered(REQUESTS, first=224) if r.stream]
    with start_vllm(*flags, *tap, speculation="draft-good", k=4, environment=SEGMENTS) as server:
        outcomes = ask_all(server, with_usage(covered(REQUESTS, first=224)))
        ask_all(server, unasked)
        send_all(server.url, several(14) + refused(14), CONCURRENCY)
        page = at_rest(server.metrics)
    twice = outcomes + [outcome for outcome in outcomes if outcome.request.stream]
    found = tapped(page)
    assert "process_start_time_seconds" not in page, "this is not the multi-process mode"
    assert chosen(found, *ACCEPTANCE) == of_records(twice)
    assert everywhere(chosen(found, "records", "uncovered", "failures")) == {
        "records record": len(twice),
        "uncovered several": 14,
        "uncovered refused": 14,
    }
    assert of_server(page)["drafts"] > everywhere(found)["drafts"]
    of_kinds = segmented(page)
    assert set(of_kinds) == {"prompt_length", "output"}
    for values in of_kinds.values():
        assert chosen({"": everywhere(values)}, *SEGMENT_COUNTERS[:3]) == chosen(
            {"": everywhere(found)}, *SEGMENT_COUNTERS[:3]
        )


@pytest.fixture(scope="module")
def models_of_another_temperature(
    tiny_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tiny checkpoints, whose own default temperature is 0.6."""
    folder = tmp_path_factory.mktemp("models") / "copy"
    shutil.copytree(tiny_models, folder)
    config = folder / "target" / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"temperature": 0.6}))
    return folder


DEFAULTS = {
    "of the model": (0.6, []),
    "of the operator": (0.25, ["--override-generation-config", '{"temperature": 0.25}']),
}
SILENT = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ("/v1/completions", {"prompt": "hello"}),
    ("/v1/responses", {"input": "hello"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}]}),
)
"""Endpoints, and how each is asked."""


@pytest.fixture(scope="module")
def by_default(
    start_vllm: StartVllm, tap: tuple[str, ...], models_of_another_temperature: Path
) -> Iterator[dict[str, VllmServer]]:
    """A server for each of the defaults, all with the tap loaded twice."""
    servers = {}
    for name, (_, flags) in DEFAULTS.items():
        servers[name] = start_vllm(
            *flags,
            *tap,
            *tap,
            speculation="draft-good",
            wait=False,
            models=models_of_another_temperature,
        )
    for server in servers.values():
        server.wait_healthy()
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture(scope="module", params=DEFAULTS)
def default(
    request: pytest.FixtureRequest, by_default: dict[str, VllmServer]
) -> tuple[float, VllmServer]:
    """A server and the temperature of its requests that name none."""
    return DEFAULTS[request.param][0], by_default[request.param]


def test_a_request_without_temperature_is_of_the_servers_default(
    default: tuple[float, VllmServer],
) -> None:
    """Unnamed or null, streamed or not, at every endpoint; a temperature that is named counts."""
    temperature, server = default
    before = tapped(at_rest(server.metrics))
    requests = covered(112)
    outcomes = ask_all(server, with_usage(requests))
    unnamed = [o for o in outcomes if o.request.temperature is None]
    assert len(unnamed) == len(requests) / 7
    for path, asked in SILENT:
        for more in ({}, {"temperature": None}, {"temperature": None, "stream": True}):
            tokens = {"max_output_tokens" if path.endswith("responses") else "max_tokens": 4}
            status = ask(server.url, Ask(path, {"model": "tiny", **tokens, **asked, **more})).status
            assert status == 200, path
    found = difference(before, tapped(at_rest(server.metrics)))
    expected = of_records(outcomes, temperature)
    silent = bucket_of(None, temperature)
    for bucket in BUCKETS:
        mine = {n: c for n, c in found[bucket].items() if n.startswith(ACCEPTANCE)}
        asked_for = [o for o in outcomes if bucket_of(o.request.temperature, temperature) == bucket]
        if bucket == silent:
            assert mine["drafts"] >= expected[bucket]["drafts"]
        else:
            assert mine == expected[bucket]
        extra = 3 * len(SILENT) if bucket == silent else 0
        answered = sum(c for n, c in found[bucket].items() if n.startswith("requests "))
        assert answered == len(asked_for) + extra
    assert "unknown" not in found


def test_a_tap_that_is_loaded_twice_counts_once(by_default: dict[str, VllmServer]) -> None:
    """To the last draft, against the server's own counters: nothing else has been asked."""
    (temperature, _), server = DEFAULTS["of the model"], by_default["of the model"]
    before = at_rest(server.metrics)
    outcomes = ask_all(server, with_usage(covered(112, first=112)))
    after = at_rest(server.metrics)
    found: Buckets = chosen(difference(tapped(before), tapped(after)), *ACCEPTANCE)
    assert found == of_records(outcomes, temperature)
    assert everywhere(found) == grown(before, after)
