"""Streams and records of the simulated vLLM, field for field as vLLM 0.32 sends them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from specwatch.errors import ConfigError
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from tests.simulator.client import events, post

SETTINGS = SimulatedSettings(
    model="tiny",
    port=0,
    speculation=SimulatedSpeculation(4),
    record="summary",
    costs=SimulatedCosts().scaled(0.1),
    keep_log=True,
)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}]},
    COMPLETIONS: {"prompt": "Hello"},
}


@contextlib.contextmanager
def serving(**changes: Any) -> Iterator[SimulatedServer]:
    with SimulatedServer(dataclasses.replace(SETTINGS, **changes)) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with serving() as running:
        yield running


def ask(server: SimulatedServer, path: str, **fields: Any) -> requests.Response:
    body = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.8} | BODIES[path] | fields
    return post(server, path, body)


def stream(server: SimulatedServer, path: str, **fields: Any) -> list[dict[str, Any]]:
    return events(ask(server, path, stream=True, **fields))


def finishing(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk for chunk in chunks if any(c["finish_reason"] for c in chunk["choices"])]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("usage", [True, False])
def test_the_fingerprint_is_on_the_last_chunk_of_all(
    server: SimulatedServer, path: str, usage: bool
) -> None:
    """It moves from the finish chunks, one for each choice, to the usage chunk if there is one."""
    chunks = stream(server, path, n=3, stream_options={"include_usage": usage})
    signed = [chunk for chunk in chunks if "system_fingerprint" in chunk]
    assert len(finishing(chunks)) == 3
    assert signed == (chunks[-1:] if usage else finishing(chunks))
    assert (chunks[-1]["choices"] == []) is usage


@pytest.mark.parametrize("path", BODIES)
def test_only_the_usage_chunk_carries_the_record(server: SimulatedServer, path: str) -> None:
    assert not [chunk for chunk in stream(server, path) if "metrics" in chunk]
    chunks = stream(server, path, stream_options={"include_usage": True})
    assert [chunk for chunk in chunks if "metrics" in chunk] == chunks[-1:]
    assert list(chunks[-1]["metrics"]) == ["speculative_decoding"]
    for several in ({"n": 2}, {"prompt": ["a", "b"]} if path == COMPLETIONS else {"n": 3}):
        chunks = stream(server, path, stream_options={"include_usage": True}, **several)
        assert not [chunk for chunk in chunks if "metrics" in chunk]
        whole = ask(server, path, **several).json()
        assert whole["metrics"] is None
        assert [choice["index"] for choice in whole["choices"]] == [*range(several.get("n", 2))]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("forced", [False, True])
def test_continuous_usage_counts_each_choice_by_itself(path: str, forced: bool) -> None:
    """--enable-force-include-usage makes it continuous too, whatever the client says."""
    options = {} if forced else {"include_usage": True, "continuous_usage_stats": True}
    with serving(force_usage=forced) as server:
        chunks = stream(server, path, n=2, **({"stream_options": options} if options else {}))
        prompt_tokens = chunks[-1]["usage"]["prompt_tokens"]
    assert all("usage" in chunk for chunk in chunks)
    assert list(chunks[0])[5] == "usage"
    counts = {0: 0, 1: 0}
    for chunk in chunks[:-1]:
        index, used = chunk["choices"][0]["index"], chunk["usage"]
        assert used["prompt_tokens"] == prompt_tokens
        assert used["completion_tokens"] >= counts[index]
        counts[index] = used["completion_tokens"]
    assert counts == {0: 12, 1: 12}
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    if path == CHAT:
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks[:2]] == [0, 0]


def test_continuous_usage_counts_the_prompt_of_the_choice(server: SimulatedServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    prompts = ["x" * 4, "x" * 40]
    chunks = stream(server, COMPLETIONS, prompt=prompts, stream_options=options)
    counted = {c["choices"][0]["index"]: c["usage"]["prompt_tokens"] for c in chunks[:-1]}
    assert counted == {0: 1, 1: 10}
    assert chunks[-1]["usage"]["prompt_tokens"] == 11


@pytest.mark.parametrize("options", [{"continuous_usage_stats": True}, {}, None])
def test_without_include_usage_there_is_none(server: SimulatedServer, options: Any) -> None:
    chunks = stream(server, CHAT, stream_options=options)
    assert not [chunk for chunk in chunks if "usage" in chunk]


@pytest.mark.parametrize(
    ("options", "usage", "continuous"),
    [
        (None, False, False),
        ({}, True, False),
        ({"include_usage": False}, True, False),
        ({"continuous_usage_stats": True}, True, True),
    ],
)
def test_forcing_usage_took_stream_options_before(
    options: Any, usage: bool, continuous: bool
) -> None:
    """vLLM 0.10.2 forces usage only on clients that send stream_options at all."""
    with serving(engine_version="0.10.2", record="none", force_usage=True) as server:
        chunks = stream(server, CHAT, **({} if options is None else {"stream_options": options}))
    assert (chunks[-1]["choices"] == []) is usage
    assert all("usage" in chunk for chunk in chunks[:-1]) is continuous


@pytest.mark.parametrize("version", ["0.8.5", "0.10.2"])
def test_older_versions_sign_nothing_and_keep_no_record(version: str) -> None:
    with serving(engine_version=version, record="none") as server:
        chunks = stream(server, CHAT, stream_options={"include_usage": True})
        whole = ask(server, CHAT).json()
    assert not [chunk for chunk in chunks if {"system_fingerprint", "metrics"} & set(chunk)]
    assert whole["system_fingerprint"] is None
    assert "metrics" not in whole


@pytest.mark.parametrize("changes", [{"record": "summary"}, {"record": "none", "timings": True}])
def test_older_versions_do_not_know_the_flags(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"vLLM 0.10.2 has no --.*-metrics"):
        dataclasses.replace(SETTINGS, engine_version="0.10.2", **changes)


@pytest.mark.parametrize("speculates", [True, False])
def test_timings_are_those_of_the_request(speculates: bool) -> None:
    """TTFT from when it was scheduled, as vLLM has it: without the time in the queue."""
    changes: dict[str, Any] = {} if speculates else {"speculation": None, "record": "none"}
    with serving(timings=True, max_num_seqs=1, **changes) as server:
        whole = ask(server, CHAT).json()["metrics"]
        chunk = stream(server, CHAT, stream_options={"include_usage": True})[-1]["metrics"]
        one = ask(server, CHAT, max_tokens=1).json()["metrics"]
        log = server.engine.log
    for metrics, sequence in zip((whole, chunk, one), log, strict=True):
        assert None not in (sequence.scheduled, sequence.first_token, sequence.last_token)
        queue, first, decode = (
            sequence.scheduled - sequence.arrival,
            sequence.first_token - sequence.scheduled,
            sequence.last_token - sequence.first_token,
        )
        assert metrics["queue_time_ms"] == pytest.approx(1000 * queue)
        assert metrics["time_to_first_token_ms"] == pytest.approx(1000 * first)
        assert metrics["generation_time_ms"] == pytest.approx(1000 * decode)
    assert chunk["mean_itl_ms"] == pytest.approx(chunk["generation_time_ms"] / 11)
    assert one["mean_itl_ms"] is None
    assert ("speculative_decoding" in chunk) is speculates
    assert (whole["speculative_decoding"] is not None) is speculates


def test_beam_search_has_no_record_and_does_not_stream(server: SimulatedServer) -> None:
    answer = ask(server, COMPLETIONS, use_beam_search=True, n=2, temperature=0).json()
    assert len(answer["choices"]) == 2
    assert ask(server, COMPLETIONS, use_beam_search=True).json()["metrics"] is None
    refused = ask(server, COMPLETIONS, use_beam_search=True, stream=True)
    assert refused.status_code == 400
    assert "beam search" in refused.json()["error"]["message"]


def test_a_temperature_close_to_zero_is_raised_and_a_missing_one_is_the_default() -> None:
    with serving(default_temperature=0.6) as server:
        for asked in (0, 1e-9, 0.005, 0.01, None):
            ask(server, COMPLETIONS, temperature=asked)
        used = [sequence.request.temperature for sequence in server.engine.log]
    assert used == [0.0, 0.01, 0.01, 0.01, 0.6]
