"""The streaming client: what it measures of good answers, and what it calls the bad ones."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from specwatch.lab.loadtest.client import LoadClient
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from specwatch.lab.simulator.server import SimulatedServer
from specwatch.runtime.http_server import HttpServer
from specwatch_tap.acceptance import Acceptance
from tests import simulated_load
from tests.hostile import HostileServer, Visit

ASK = Ask("hello", 12, 0.4)
Answering = Callable[[Request], Any]
Serve = Callable[[Answering], str]


@pytest.fixture(scope="module")
def vllm() -> Iterator[SimulatedServer]:
    with simulated_load.server(speculates=True, api_keys=("secret",)) as server:
        yield server


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    """Has a server answer in one way from now on; returns its URL."""
    current: list[Answering] = []

    async def answer(request: Request) -> Response:
        response = current[-1](request)
        return await response if inspect.isawaitable(response) else response

    paths = ("/v1/chat/completions", "/tokenize")
    app = Starlette(routes=[Route(path, answer, methods=["POST"]) for path in paths])
    server = HttpServer(app, "127.0.0.1", 0, name="web")
    server.start()

    def start(answering: Answering) -> str:
        current.append(answering)
        return server.url

    yield start
    assert server.stop()


def send(url: str, ask: Ask = ASK, **settings: Any) -> Answer:
    async def one() -> Answer:
        async with LoadClient(url, model="tiny", **settings) as client:
            return await client.send(ask)

    return asyncio.run(one())


def streamed(*events: object, done: bool = True) -> Callable[[Request], Response]:
    async def body() -> AsyncIterator[str]:
        for event in events:
            yield f"data: {json.dumps(event)}\n\n"
        if done:
            yield "data: [DONE]\n\n"

    return lambda _: StreamingResponse(body(), media_type="text/event-stream")


def piece(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


RECORD = {"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 3}
TIMINGS = {"predicted_n": 20, "draft_n": 28, "draft_n_accepted": 12}
DETAILS = {
    "spec_accept_rate": 0.29,
    "spec_verify_ct": 43,
    "spec_num_proposed_drafts": 215,
    "spec_num_correct_drafts": 63,
    "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
}
SGLANG = Acceptance("record", 43, 215, 63, (32, 18, 7, 3, 3))
USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}
EMPTY = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 0}}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_an_answer_is_timed_and_counted_and_has_its_record(
    vllm: SimulatedServer, endpoint: str
) -> None:
    before = len(vllm.engine.log)
    answer = send(vllm.url, endpoint=endpoint, headers=lambda: {"Authorization": "Bearer secret"})
    assert (answer.ok, answer.status, answer.error, answer.detail) == (True, 200, None, "")
    assert (answer.tokens, answer.finish_reason) == (12, "length")
    assert answer.sent < answer.first < answer.last <= answer.ended
    assert answer.ttft == answer.first - answer.sent
    assert answer.tpot == (answer.last - answer.first) / 11
    with vllm.synced() as engine:
        (request,) = engine.log[before:]
    assert request.request.temperature == 0.4
    record = answer.acceptance
    assert record.draft_tokens == 4 * record.drafts
    assert sum(record.accepted_lengths) == record.drafts
    assert sum(kept * n for kept, n in enumerate(record.accepted_lengths)) == record.accepted_tokens


def test_a_server_that_wants_a_key_refuses_without_it(vllm: SimulatedServer) -> None:
    answer = send(vllm.url)
    assert (answer.status, answer.error) == (401, ErrorKind.REFUSED)
    assert (answer.ok, answer.tpot, answer.ttft) == (False, None, None)


def test_times_are_those_of_the_first_and_last_content(serve: Serve) -> None:
    """A role without content, usage and the end of the stream are not tokens."""
    url = serve(streamed(piece(""), piece("a"), piece("b"), piece("c", "length"), USAGE))
    ticks = count()
    firsts: list[int] = []

    async def one() -> Answer:
        async with LoadClient(url, model="tiny", clock=lambda: float(next(ticks))) as client:
            return await client.send(ASK, lambda: firsts.append(1))

    answer = asyncio.run(one())
    # The clock ticks when it is read: at the start, at each line of data, at the end.
    assert answer.last == answer.first + 2
    assert answer.tpot == 2 / 4
    assert answer.chunks == 3
    assert (answer.prompt_tokens, answer.tokens, answer.finish_reason) == (3, 5, "length")
    assert firsts == [1]


def test_the_request_has_the_prompt_and_asks_for_exactly_its_tokens(serve: Serve) -> None:
    bodies: list[Any] = []

    async def keep(request: Request) -> Response:
        bodies.append(await request.json())
        return streamed(piece("a"), USAGE)(request)

    assert send(serve(keep)).ok
    assert bodies == [
        {
            "model": "tiny",
            "max_tokens": 12,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.4,
        }
    ]


DEEP = f'data: {{"error": {"[" * 9999}\n'
ERROR = {"error": {"message": "no chat template", "code": 400}}


@pytest.mark.parametrize(
    ("answering", "kind", "detail"),
    [
        (lambda _: JSONResponse(ERROR, 400), ErrorKind.REFUSED, "400 no chat template"),
        (lambda _: PlainTextResponse("out of\nmemory", 503), ErrorKind.FAILED, "503 out of memory"),
        (streamed(piece("a"), ERROR), ErrorKind.FAILED, "no chat template"),
        (streamed(piece("a"), done=False), ErrorKind.BROKE_OFF, "ended without"),
        (streamed({"choices": 7}), ErrorKind.UNREADABLE, "$.choices"),
        (streamed(["a"]), ErrorKind.UNREADABLE, "Expected `object`, got `array`"),
        (streamed(piece("a")), ErrorKind.UNREADABLE, "no token count"),
        (streamed(EMPTY), ErrorKind.UNREADABLE, "no token count"),
        (streamed(piece(""), USAGE), ErrorKind.UNREADABLE, "5 tokens but no content"),
        (lambda _: PlainTextResponse("[" * 4096, 500), ErrorKind.FAILED, "500 [[["),
        (lambda _: PlainTextResponse(DEEP), ErrorKind.UNREADABLE, "RecursionError"),
    ],
    ids=[
        "refused",
        "failed",
        "failed late",
        "broke off",
        "no completion",
        "a list",
        "no usage",
        "no tokens",
        "no content",
        "a deep error",
        "a deep event",
    ],
)
def test_each_failure_has_a_kind_and_a_detail(
    serve: Serve, answering: Answering, kind: ErrorKind, detail: str
) -> None:
    answer = send(serve(answering))
    assert (answer.ok, answer.error) == (False, kind)
    assert detail in answer.detail


def test_a_server_that_closes_each_connection_after_a_stream_answers_every_request() -> None:
    """As llama-server does, whose answers announce a kept connection."""

    def answer(visit: Visit) -> None:
        visit.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            b"Keep-Alive: timeout=5, max=100\r\n\r\n"
        )
        for event in (piece("hi", "length"), {"usage": {"completion_tokens": 1}}, "[DONE]"):
            data = event if isinstance(event, str) else json.dumps(event)
            chunk = f"data: {data}\n\n".encode()
            visit.send(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        visit.send(b"0\r\n\r\n")

    async def several(url: str) -> list[Answer]:
        async with LoadClient(url, model="tiny", keep_alive=False) as client:
            return [await client.send(ASK) for _ in range(6)]

    with HostileServer(answer) as server:
        answers = asyncio.run(several(server.url))
    assert [found.error for found in answers] == [None] * 6
    assert server.connections == 6


def test_a_server_that_is_not_there_has_no_status() -> None:
    answer = send("http://127.0.0.1:1")
    assert (answer.error, answer.status) == (ErrorKind.CONNECT, None)


def test_an_answer_that_takes_too_long_is_given_up(serve: Serve) -> None:
    async def hang(_: Request) -> Response:
        async def body() -> AsyncIterator[str]:
            yield f"data: {json.dumps(piece('a'))}\n\n"
            await asyncio.sleep(600)

        return StreamingResponse(body())

    answer = send(serve(hang), timeout=0.2)
    assert answer.error is ErrorKind.TIMEOUT
    assert answer.detail == "no end within 0.2 s"
    assert answer.first is not None


@pytest.mark.parametrize(
    ("members", "acceptance"),
    [
        ({"metrics": {"speculative_decoding": RECORD}}, Acceptance("record", 2, 8, 3)),
        ({"timings": TIMINGS}, Acceptance("timings", 7, 28, 12)),
        ({"sglext": {"spec_tokens_details": DETAILS, "cached_tokens_details": None}}, SGLANG),
        ({"timings": {"draft_n": 4}}, None),
        ({"error": None}, None),
    ],
    ids=["vLLM", "llama.cpp", "SGLang", "too little", "none"],
)
def test_the_record_of_any_server_is_taken(
    serve: Serve, members: dict[str, Any], acceptance: Acceptance | None
) -> None:
    """Of 20 tokens of llama.cpp the first is the prompt's, and 12 were accepted: 7 steps."""
    answer = send(serve(streamed(piece("a"), {**USAGE, **members})))
    assert (answer.ok, answer.tokens, answer.acceptance) == (True, 5, acceptance)


def test_what_a_server_wants_for_a_record_is_in_each_request(serve: Serve) -> None:
    bodies = []

    async def answer(request: Request) -> Response:
        bodies.append(await request.json())
        return streamed(piece("a"), USAGE)(request)

    assert send(serve(answer), fields={"return_spec_tokens_details": True}).ok
    assert send(serve(answer)).ok
    assert [body.get("return_spec_tokens_details") for body in bodies] == [True, None]


@pytest.mark.parametrize(
    "last",
    [
        {"usage": [5]},
        {"usage": {"completion_tokens": "5"}},
        {"usage": {"completion_tokens": -5}},
        {"usage": {"completion_tokens": 5, "prompt_tokens": 2.5}},
        {**USAGE, "metrics": {"speculative_decoding": {**RECORD, "num_draft_tokens": "8"}}},
        {**USAGE, "metrics": {"speculative_decoding": {**RECORD, "acceptance_histogram": [None]}}},
        {**USAGE, "timings": {**TIMINGS, "draft_n": "28"}},
        {**USAGE, "timings": [28]},
        {**USAGE, "sglext": {"spec_tokens_details": {**DETAILS, "spec_verify_ct": "43"}}},
        {"choices": [{"delta": {}, "finish_reason": {}}]},
    ],
)
def test_an_invalid_count_makes_an_answer_unreadable(serve: Serve, last: object) -> None:
    """Its times and what came before are kept; nothing raises."""
    answer = send(serve(streamed(piece("a"), last)))
    assert answer.error is ErrorKind.UNREADABLE
    assert "$." in answer.detail
    assert answer.first is not None
    assert answer.acceptance is None


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"content": None, "reasoning": "a"},
        {"content": None, "reasoning_content": "a"},
        {"content": "", "tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_reasoning_and_tool_calls_are_content(serve: Serve, delta: dict[str, Any]) -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": "", "tool_calls": []}}]}
    answer = send(serve(streamed(role, *[{"choices": [{"delta": delta}]}] * 2, USAGE)))
    assert answer.ok
    assert answer.chunks == 2
    assert answer.ttft is not None
    assert answer.tpot is not None


def counted(url: str, prompt: str, **settings: Any) -> int | None:
    async def one() -> int | None:
        async with LoadClient(url, model="tiny", **settings) as client:
            return await client.count_tokens(prompt)

    return asyncio.run(one())


def test_the_tokenizer_endpoint_counts_a_prompt(vllm: SimulatedServer) -> None:
    """With what a chat template adds to it."""
    assert counted(vllm.url, "sixteen letters.", endpoint="completions") == 4
    assert counted(vllm.url, "sixteen letters.") == 8


@pytest.mark.parametrize(
    "answer",
    [
        JSONResponse({"error": "no"}, 404),
        JSONResponse({"tokens": []}),
        JSONResponse({"count": "7"}),
        JSONResponse({"count": 0}),
        JSONResponse([7]),
        PlainTextResponse("seven"),
    ],
    ids=["missing", "llama.cpp", "text", "nothing", "list", "no JSON"],
)
def test_a_server_without_a_tokenizer_counts_nothing(serve: Serve, answer: Response) -> None:
    assert counted(serve(lambda _: answer), "hello") is None


def test_a_server_that_does_not_answer_counts_nothing() -> None:
    assert counted("http://127.0.0.1:1", "hello") is None


def test_an_answer_that_is_to_be_read_ends_by_itself_and_is_kept(serve: Serve) -> None:
    bodies: list[Any] = []

    async def keep(request: Request) -> Response:
        bodies.append(await request.json())
        thought = {"choices": [{"delta": {"reasoning_content": "So "}}]}
        return streamed(thought, piece("a b"), piece(" c", "stop"), USAGE)(request)

    url = serve(keep)
    read = send(url, Ask("hello", 12, 0.0, read_text=True))
    assert (read.text, read.finish_reason, read.ok) == ("So a b c", "stop", True)
    assert (send(url).text, [body.get("ignore_eos") for body in bodies]) == ("", [None, True])


def test_an_answer_that_is_to_be_read_may_be_empty(serve: Serve) -> None:
    read = send(serve(streamed(piece("", "stop"), USAGE)), Ask("hello", 12, 0.0, read_text=True))
    assert (read.text, read.ok) == ("", True)
