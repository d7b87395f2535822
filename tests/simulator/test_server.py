"""The simulated vLLM answers clients as vLLM does, and counts what it answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, Counter
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from specwatch.cli import group, simulate
from specwatch.errors import ConfigError
from specwatch.lab.simulator.costs import SimulatedCosts
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.lab.simulator.settings import SimulatedSettings, SimulatedSpeculation
from specwatch.runtime.http_server import HttpServer
from tests.hostile import wait_for
from tests.simulator.client import events, page, post, total

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data"
FAST = SimulatedSettings(
    model="Org/Model",
    served_model_names=("tiny", "other"),
    port=0,
    speculation=SimulatedSpeculation(4),
    record="summary",
    costs=SimulatedCosts().scaled(0.1),
    keep_log=True,
)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hello there"}]}
REGISTRY = CollectorRegistry()
SEEN = Counter("specwatch_seen", "Requests that passed.", registry=REGISTRY)


class CountingMiddleware:
    """What ``--middleware`` loads in a test."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            SEEN.inc()
        await self._app(scope, receive, send)


async def tagging(request: Any, call_next: Any) -> Any:
    """A function for ``--middleware``."""
    response = await call_next(request)
    response.headers["x-tagged"] = "yes"
    return response


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with SimulatedServer(FAST) as running:
        yield running


def shape(value: Any) -> Any:
    """Keys at every level, in order, without values; a list by its first entry."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [shape(value[0])]
    return None


def counter(server: SimulatedServer, name: str) -> float:
    return total(server, f"vllm:{name}")


def test_health_version_and_models(server: SimulatedServer) -> None:
    health = requests.get(f"{server.url}/health", timeout=10)
    assert (health.status_code, health.content) == (200, b"")
    assert requests.get(f"{server.url}/version", timeout=10).json() == {"version": "0.32.0"}
    models = requests.get(f"{server.url}/v1/models", timeout=10).json()
    assert [(model["id"], model["root"]) for model in models["data"]] == [
        ("tiny", "Org/Model"),
        ("other", "Org/Model"),
    ]


@pytest.mark.parametrize(
    ("path", "capture", "body"),
    [
        ("/v1/chat/completions", "chat-response.json", CHAT | {"max_tokens": 24}),
        ("/v1/completions", "completion-response.json", {"prompt": "Hello", "max_tokens": 16}),
    ],
)
def test_a_whole_answer_has_the_shape_of_the_capture(
    server: SimulatedServer, path: str, capture: str, body: dict[str, Any]
) -> None:
    answer = post(server, path, body | {"ignore_eos": True, "temperature": 0.5}).json()
    assert shape(answer) == shape(json.loads((DATA / capture).read_text(encoding="utf-8")))
    assert answer["usage"]["completion_tokens"] == body["max_tokens"]
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_has_the_chunks_of_the_capture(server: SimulatedServer, usage: bool) -> None:
    """First the role, then a chunk for each step, then usage with the record if asked for."""
    body: dict[str, Any] = CHAT | {
        "stream": True,
        "max_tokens": 24,
        "ignore_eos": True,
        "temperature": 0.0,
    }
    if usage:
        body["stream_options"] = {"include_usage": True}
    response = post(server, "/v1/chat/completions", body)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    capture = (DATA / f"chat-stream-{'usage' if usage else 'no-usage'}.sse").read_text("utf-8")
    real = [json.loads(line[6:]) for line in capture.split("\n\n") if line.startswith("data: {")]
    tail = 2 if usage else 1
    assert [shape(chunk) for chunk in (*chunks[:2], *chunks[-tail:])] == [
        shape(chunk) for chunk in (*real[:2], *real[-tail:])
    ]
    assert {json.dumps(shape(chunk)) for chunk in chunks[1:-tail]} == {json.dumps(shape(real[1]))}
    if usage:
        record = chunks[-1]["metrics"]["speculative_decoding"]
        assert record["num_spec_steps"] == sum(record["acceptance_histogram"])
        assert len(chunks) - 3 == record["num_spec_steps"]
        assert chunks[-1]["usage"]["completion_tokens"] == 24


def test_greedy_answers_repeat_and_streams_carry_the_same_text(server: SimulatedServer) -> None:
    body = {"prompt": "Say it", "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    texts = [post(server, "/v1/completions", body).json()["choices"][0]["text"] for _ in range(2)]
    chunks = events(post(server, "/v1/completions", body | {"stream": True}))
    assert texts[0] == texts[1] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    warm = [
        post(server, "/v1/completions", body | {"temperature": 1}).json()["choices"][0]["text"]
        for _ in range(2)
    ]
    assert warm[0] != warm[1]


def test_answers_are_counted_as_they_were_given(server: SimulatedServer) -> None:
    names = (
        "generation_tokens_total",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
    )
    before = [counter(server, name) for name in names]
    tokens = drafts = drafted = accepted = 0
    for temperature in (0.0, 0.7, 1.0):
        body = CHAT | {"max_tokens": 40, "temperature": temperature}
        answer = post(server, "/v1/chat/completions", body).json()
        record = answer["metrics"]["speculative_decoding"]
        tokens += answer["usage"]["completion_tokens"]
        drafts += record["num_spec_steps"]
        drafted += record["num_draft_tokens"]
        accepted += record["num_accepted_draft_tokens"]
    after = [counter(server, name) for name in names]
    grown = [late - early for early, late in zip(before, after, strict=True)]
    assert grown == [tokens, drafts, drafted, accepted]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/completions", {"prompt": "x", "temperature": -1}, 400, "non-negative"),
        ("/v1/completions", {"prompt": "x", "temperature": "hot"}, 400, "expected a number"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "at least 1"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 9999}, 400, "maximum context length"),
        ("/v1/completions", {"prompt": "x" * 99999}, 400, "maximum context length"),
        ("/v1/completions", {"prompt": "x", "n": 0}, 400, "n must be at least 1"),
        ("/v1/completions", {"prompt": "x", "n": 2, "temperature": 0}, 400, "greedy"),
        ("/v1/completions", {"prompt": "x", "n": 1.5}, 400, "whole number"),
        ("/v1/completions", {"prompt": "x", "stream_options": {"a": 1}}, 400, "stream=True"),
        ("/v1/completions", {"prompt": "x", "n": 16385}, 400, "n must be at most 16384, got"),
        ("/v1/completions", {"prompt": "x", "n": 10**9}, 400, "n must be at most 16384, got"),
        ("/v1/completions", {"prompt": "x", "n": 10**400}, 400, "expected a number"),
        ("/v1/completions", {"prompt": ["x"] * 1025}, 400, "prompt list length 1025 exceeds"),
        ("/v1/completions", {"prompt": ["x"] * 9, "n": 9999}, 400, "at most 1048576 tokens"),
        ("/v1/chat/completions", CHAT | {"n": 999}, 400, "at most 1048576 tokens"),
        ("/v1/completions", {"prompt": "x", "logprobs": 21}, 400, "greater than max allowed: 20"),
        ("/v1/completions", {"prompt": "x", "prompt_logprobs": 21}, 400, "prompt logprobs of 21"),
        ("/v1/chat/completions", CHAT | {"top_logprobs": 21}, 400, "sample logprobs of 21"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 10**300}, 400, "maximum context length"),
        ("/v1/completions", {"prompt": 5}, 400, "prompt"),
        ("/v1/completions", {}, 400, "prompt"),
        ("/v1/completions", [], 400, "JSON object"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "role"),
        ("/v1/chat/completions", CHAT | {"model": "absent"}, 404, "does not exist"),
    ],
)
def test_invalid_requests_are_refused_in_the_shape_of_vllm(
    server: SimulatedServer, path: str, body: Any, status: int, message: str
) -> None:
    response = post(server, path, body)
    error = response.json()["error"]
    assert response.status_code == error["code"] == status
    assert list(error) == ["message", "type", "param", "code"]
    assert message in error["message"]


@pytest.mark.parametrize("body", [b"{", b"[" * 500_000])
def test_a_body_that_is_not_json_is_refused(server: SimulatedServer, body: bytes) -> None:
    response = requests.post(f"{server.url}/v1/completions", data=body, timeout=10)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_body_above_the_limit_is_refused(server: SimulatedServer, path: str) -> None:
    body = b'{"prompt": "' + b"x" * (16 << 20) + b'"}'
    response = requests.post(f"{server.url}{path}", data=body, timeout=60)
    assert response.status_code == response.json()["error"]["code"] == 413
    assert f"The body has {len(body)} bytes" in response.json()["error"]["message"]


def test_unused_parameters_and_prompts_take_no_memory() -> None:
    """What is not drawn from, such as best_of, and the prompt beside each of many answers."""
    body = {
        "prompt": "x" * 16000,
        "n": 100,
        "best_of": 10**9,
        "logprobs": 20,
        "max_tokens": 1,
    }
    with SimulatedServer(dataclasses.replace(FAST, time_scale=100.0)) as server:
        tracemalloc.start()
        answer = post(server, "/v1/completions", body).json()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(answer["choices"]) == 100
    assert peak < 1_000_000


def test_a_server_with_more_logprobs_takes_more() -> None:
    with SimulatedServer(dataclasses.replace(FAST, max_logprobs=-1)) as server:
        body = {"prompt": "x", "logprobs": 99, "max_tokens": 1}
        assert post(server, "/v1/completions", body).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_the_engine(server: SimulatedServer, stream: bool) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": stream}
    if stream:
        url = f"{server.url}/v1/completions"
        with requests.post(url, json=body, stream=True, timeout=10) as response:
            # Kept: requests closes the connection with the last reference to the lines.
            lines = response.iter_lines()
            assert next(lines).startswith(b"data: ")
            assert server.engine.running + server.engine.waiting == 1
    else:
        with pytest.raises(requests.ReadTimeout):
            requests.post(f"{server.url}/v1/completions", json=body, timeout=0.03)
    wait_for(lambda: not server.engine.running + server.engine.waiting)
    with server.synced() as engine:
        last = engine.log[-1]
    assert (last.finished_reason, last.blocks) == ("abort", 0)
    assert 0 <= last.generation_tokens < 4000


def test_http_requests_are_counted_by_handler(server: SimulatedServer) -> None:
    key = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'
    before = page(server).get(key, 0.0)
    post(server, "/v1/completions", {"prompt": "x", "max_tokens": 1})
    after = page(server)
    assert after[key] == before + 1
    assert not [name for name in after if "/metrics" in name or "/health" in name]


def test_restart_comes_back_on_the_same_port_with_new_counters() -> None:
    with SimulatedServer(FAST) as server:
        port = server.port
        post(server, "/v1/completions", {"prompt": "x", "max_tokens": 5})
        before = page(server)
        server.restart(speculation=False)
        after = page(server)
        assert server.port == port
        assert after["process_start_time_seconds"] > before["process_start_time_seconds"]
        assert counter(server, "generation_tokens_total") == 0
        assert not [name for name in after if "spec_decode" in name]
        answer = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 5}).json()
        assert answer["metrics"] is None
        server.restart(speculation=True)
        answer = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 5}).json()
        assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


def test_a_connection_that_is_made_as_it_stops_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not among those that are told to close."""
    monkeypatch.setattr(H11Protocol, "shutdown", lambda _: None)
    running = HttpServer(Starlette(), "127.0.0.1", 0, name="stops", grace=0.01)
    running.start()
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = b""
        while not answer.endswith(b"Not Found"):
            answer += client.recv(4096)
        assert running.stop()
        client.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(4096) == b""


def test_acceptance_can_be_changed_while_it_runs(server: SimulatedServer) -> None:
    body = {"prompt": "x", "max_tokens": 50, "ignore_eos": True, "temperature": 0.7}
    rates = []
    for scale in (0.0, 10.0, 1.0):
        server.set_acceptance_scale(scale)
        record = post(server, "/v1/completions", body).json()["metrics"]["speculative_decoding"]
        rates.append(record["draft_acceptance_rate"])
    assert rates[:2] == [0.0, 1.0]
    assert 0.0 < rates[2] < 1.0


def test_built_in_traffic_runs_with_the_clock_times_its_scale() -> None:
    traffic = dataclasses.replace(FAST.traffic, rate=1.0)
    settings = dataclasses.replace(FAST, traffic=traffic, time_scale=50.0)
    with SimulatedServer(settings) as server:
        began = server.engine.now
        wait_for(lambda: counter(server, "generation_tokens_total") >= 100)
        assert server.engine.now > began


def test_middleware_is_loaded_from_its_path_and_its_metrics_are_on_the_page() -> None:
    paths = (f"{__name__}.CountingMiddleware", f"{__name__}.tagging")
    with SimulatedServer(dataclasses.replace(FAST, middleware=paths), REGISTRY) as server:
        before = page(server)["specwatch_seen_total"]
        response = post(server, "/v1/completions", {"prompt": "x", "max_tokens": 2})
        assert response.headers["x-tagged"] == "yes"
        assert page(server)["specwatch_seen_total"] == before + 2


@pytest.mark.parametrize("path", ["absent.module.X", "json.absent", "json.dumps", "nodots"])
def test_middleware_that_cannot_be_loaded_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="--middleware"):
        SimulatedServer(dataclasses.replace(FAST, middleware=(path,))).start()


def test_the_key_guards_the_api_and_nothing_else() -> None:
    with SimulatedServer(dataclasses.replace(FAST, api_keys=("secret",))) as server:
        url = f"{server.url}/v1/models"
        assert requests.get(url, timeout=10).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert requests.get(url, headers=headers, timeout=10).status_code == 200
        assert requests.get(f"{server.url}/health", timeout=10).status_code == 200
        assert requests.get(f"{server.url}/metrics", timeout=10).status_code == 200


def test_a_port_that_is_taken_is_refused_with_the_remedy(server: SimulatedServer) -> None:
    with pytest.raises(ConfigError, match="choose another"):
        SimulatedServer(dataclasses.replace(FAST, port=server.port)).start()


def test_the_command_serves_until_sigterm_and_leaves_with_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages: list[str] = []

    class Signalled(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pages.append(requests.get(f"{servers[0].url}/metrics", timeout=10).text)
            signal.raise_signal(signal.SIGTERM)
            return self.is_set()

    def started(settings: SimulatedSettings) -> SimulatedServer:
        servers.append(SimulatedServer(settings))
        return servers[0]

    servers: list[SimulatedServer] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    monkeypatch.setattr(simulate, "SimulatedServer", started)
    monkeypatch.setattr(simulate, "threading", SimpleNamespace(Event=Signalled))
    arguments = [
        "simulate",
        "M",
        "--port",
        "0",
        "--spec-method",
        "ngram",
        "--spec-tokens",
        "3",
        "--dtype",
        "x",
    ]
    done = CliRunner().invoke(group, arguments)
    for number, handler in before.items():
        signal.signal(number, handler)
    assert done.exit_code == 0, done.output
    assert f"simulated vLLM at {servers[0].url}\n" in done.output
    assert 'position="2"' in pages[0]
    assert 'position="3"' not in pages[0]
    assert not servers[0]._http.running
