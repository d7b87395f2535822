"""Requests and responses pass the tap as they are, whatever either side does."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from specwatch_tap import Tap, exchange
from specwatch_tap.exchange import Message, Receive, RequestRoom, Send
from specwatch_tap.metrics import TapCounters
from specwatch_tap.middleware import App
from specwatch_tap.server_facts import Scope
from tests.tap.exchanges import (
    DISCONNECT,
    EVENTS,
    JSON,
    QUESTION,
    STREAMED,
    Known,
    answering,
    counts,
    echoing,
    parts,
    scope,
    tapped,
    visit,
)
from tests.tap.streams import DATA, PLAIN, USAGE, chunked, events_of

CHAT = (DATA / "chat-response.json").read_bytes()
RECORD = {
    "requests length (0,1]": 1.0,
    "generation_tokens (0,1]": 24.0,
    "tap_records record (0,1]": 1.0,
    "drafts (0,1]": 8.0,
    "draft_tokens (0,1]": 32.0,
    "accepted_tokens (0,1]": 19.0,
    "accepted_tokens_per_position 0 (0,1]": 7.0,
    "accepted_tokens_per_position 1 (0,1]": 5.0,
    "accepted_tokens_per_position 2 (0,1]": 4.0,
    "accepted_tokens_per_position 3 (0,1]": 3.0,
    "request_acceptance_ratio (0,1]": 1.0,
    "tap_request_endings usual (0,1]": 1.0,
}
TIMES = {
    "time_to_first_token_seconds (0,1]": 1.0,
    "time_per_output_token_seconds (0,1]": 1.0,
    "decode_tokens 1-256 (0,1]": 23.0,
}


def uncovered(reason: str) -> dict[str, float]:
    return {f"tap_uncovered_requests {reason} (0,1]": 1.0}


streaming = answering(*events_of(USAGE), headers=EVENTS)


def beginning(events: int | None, error: BaseException | None = None) -> App:
    """Reads the request and sends so many events, none not even the head; then it raises."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if events is not None:
            await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
            for event in events_of(USAGE)[:events]:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        if error is not None:
            raise error

    return app


def then_waits(before: App) -> App:
    """Does the same, and ends when the client is gone."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await before(scope, receive, send)
        assert (await receive()) == DISCONNECT

    return app


# Bodies.


@given(cuts=st.lists(st.integers(0, 1200), max_size=6), remove=st.booleans())
def test_a_whole_response_in_parts(cuts: list[int], remove: bool) -> None:
    registry = CollectorRegistry()
    app = answering(*chunked(CHAT, cuts), b"", headers=[*JSON, (b"content-length", b"1148")])
    response = visit(tapped(app, registry, remove_metrics=remove))
    expected = json.loads(CHAT)
    if remove:
        expected["metrics"] = None
        assert not [value for name, value in response.head["headers"] if name == b"content-length"]
    else:
        assert response.body == CHAT
        assert (b"content-length", b"1148") in response.head["headers"]
    assert json.loads(response.body) == expected
    assert counts(registry) == RECORD


@pytest.mark.parametrize("remove", [False, True])
def test_a_whole_response_in_one_piece(registry: CollectorRegistry, remove: bool) -> None:
    headers = [*JSON, (b"Content-Length", str(len(CHAT)).encode()), (b"x-request-id", b"1")]
    response = visit(tapped(answering(CHAT, headers=headers), registry, remove_metrics=remove))
    fields = {name.lower(): value for name, value in response.head["headers"]}
    assert fields[b"content-length"] == str(len(response.body)).encode()
    assert fields[b"x-request-id"] == b"1"
    assert (response.body == CHAT) is not remove
    assert counts(registry) == RECORD


@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_a_stream_loses_the_usage_that_nobody_asked_for(
    registry: CollectorRegistry, size: int
) -> None:
    chunks = chunked(USAGE, list(range(size, len(USAGE), size)))
    app = answering(*chunks, b"", headers=EVENTS)
    response = visit(tapped(app, registry), parts(STREAMED))
    left, right = events_of(response.body), events_of(PLAIN)
    assert len(left) == len(right)
    assert json.loads(left[-2][6:])["system_fingerprint"] == "vllm-0.32.0-690cf675"
    assert all(message["body"] for message in response.sent[1:-1])
    assert all(message["more_body"] for message in response.sent[1:-1])
    assert "more_body" not in response.sent[-1]
    assert counts(registry) == RECORD | TIMES


def test_a_stream_of_which_usage_was_asked_for_passes_untouched(
    registry: CollectorRegistry,
) -> None:
    body = STREAMED[:-1] + b',"stream_options":{"include_usage":true}}'
    events = events_of(USAGE)
    response = visit(tapped(answering(*events, headers=EVENTS), registry), parts(body))
    assert [m["body"] for m in response.sent[1:]] == events
    assert counts(registry) == RECORD | TIMES


def test_the_request_asks_for_usage_with_the_right_length(registry: CollectorRegistry) -> None:
    length = (b"content-length", str(len(STREAMED)).encode())
    headers = [(b"accept-encoding", b"gzip"), length, (b"host", b"x"), (b"host", b"y")]
    response = visit(tapped(echoing(), registry), parts(STREAMED), scope(headers=headers))
    echo = json.loads(response.body)
    asked = STREAMED[:-1] + b',"stream_options":{"include_usage":true}}'
    assert echo["body"].encode() == asked
    assert echo["headers"] == [["content-length", str(len(asked))], ["host", "x"], ["host", "y"]]
    assert headers[1] == length, "the server's own scope was changed"


@pytest.mark.parametrize(
    "facts", [{"forces_usage": True}, {"asks_nothing": True}], ids=["forced", "llama.cpp"]
)
def test_a_server_that_sends_usage_anyway_is_not_asked_for_it(
    registry: CollectorRegistry, facts: dict[str, Any]
) -> None:
    response = visit(tapped(echoing(), registry, Known(**facts)), parts(STREAMED))
    assert json.loads(response.body)["body"].encode() == STREAMED


@pytest.mark.parametrize("extra", [b'"n":2', b'"use_beam_search":true'])
def test_requests_that_get_no_record_are_not_asked_for_usage(
    registry: CollectorRegistry, extra: bytes
) -> None:
    body = STREAMED[:-1] + b"," + extra + b"}"
    response = visit(tapped(echoing(), registry), parts(body))
    assert json.loads(response.body)["body"].encode() == body


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=6))
def test_a_request_in_parts_reaches_the_application_in_one(bodies: list[bytes]) -> None:
    bodies = [QUESTION[:5], *bodies, b""]
    app = echoing()
    response = visit(tapped(app, CollectorRegistry()), parts(*[b.hex().encode() for b in bodies]))
    echo = json.loads(response.body)
    assert (echo["body"], echo["more"]) == (b"".join(bodies).hex(), False)


@pytest.mark.parametrize(("length", "messages"), [([], 4), ([(b"content-length", b"233")], 6)])
def test_a_request_too_large_to_read_passes_in_parts(
    registry: CollectorRegistry, length: list[tuple[bytes, bytes]], messages: int
) -> None:
    """One that says so beforehand is not even collected up to the limit."""
    received = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        more = True
        while more:
            message = await receive()
            received.append(message["body"])
            more = message["more_body"]
        await answering(CHAT, reads=False)(scope, receive, send)

    bodies = [QUESTION, *[b" " * 40] * 5]
    tap = Tap(app, server=Known(), registry=registry, room=RequestRoom(largest=100))
    response = visit(tap, parts(*bodies), scope(headers=length))
    assert b"".join(received) == b"".join(bodies)
    assert len(received) == messages
    assert response.body == CHAT
    counted = counts(registry)
    assert counted["requests length unknown"] == 1
    assert counted["tap_records record unknown"] == 1  # the response was read all the same


def test_a_message_without_a_body_is_an_empty_one(registry: CollectorRegistry) -> None:
    messages: list[Message] = [{"type": "http.request", "more_body": True}, *parts(QUESTION)]
    response = visit(tapped(echoing(), registry), messages)
    assert json.loads(response.body)["body"].encode() == QUESTION


def test_what_is_compressed_passes_and_is_not_read(registry: CollectorRegistry) -> None:
    packed = gzip.compress(CHAT)
    headers = [*JSON, (b"Content-Encoding", b"gzip")]
    response = visit(tapped(answering(packed, headers=headers), registry, remove_metrics=True))
    assert response.body == packed
    assert response.head["headers"] == headers
    assert counts(registry) == uncovered("unreadable")


def test_what_is_encoded_as_itself_is_read(registry: CollectorRegistry) -> None:
    headers = [*JSON, (b"content-encoding", b"Identity")]
    assert visit(tapped(answering(CHAT, headers=headers), registry)).body == CHAT
    assert counts(registry) == RECORD


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "refused"), (429, "refused"), (503, "failed")]
)
def test_a_refusal_passes(registry: CollectorRegistry, status: int, reason: str) -> None:
    """Also before the client goes."""
    body = b'{"object":"error","metrics":{"speculative_decoding":{"a":1}}}'
    app = then_waits(answering(body, status=status))
    response = visit(tapped(app, registry, remove_metrics=True))
    assert (response.head["status"], response.body) == (status, body)
    assert counts(registry) == uncovered(reason)


def test_time_begins_with_the_whole_request(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends slowly waits for itself."""
    now = 0.0

    def messages() -> Iterator[Message]:
        nonlocal now
        for message in parts(*([b" "] * 50), STREAMED):
            now += 1
            yield message

    async def tick(message: Message) -> None:
        nonlocal now
        now += 0.125

    monkeypatch.setattr(exchange, "_clock", lambda: now)
    visit(tapped(answering(*events_of(USAGE), headers=EVENTS), registry), messages(), send=tick)
    labels = {"model_name": "tiny", "temperature": "(0,1]"}
    ttft = registry.get_sample_value("specwatch_time_to_first_token_seconds_sum", labels)
    tpot = registry.get_sample_value("specwatch_time_per_output_token_seconds_sum", labels)
    assert ttft == 2 * 0.125  # the role, and then the first content
    assert tpot == pytest.approx((len(events_of(USAGE)) - 4) * 0.125 / 23)


def test_an_answer_before_the_request_was_read(registry: CollectorRegistry) -> None:
    response = visit(tapped(answering(b"no", status=401, reads=False), registry))
    assert response.body == b"no"
    assert counts(registry) == {"tap_uncovered_requests refused unknown": 1.0}


@given(st.binary(), st.sampled_from([JSON, EVENTS, []]), st.booleans(), st.booleans())
def test_any_response_to_any_request_passes(
    body: bytes, headers: list[tuple[bytes, bytes]], stream: bool, remove: bool
) -> None:
    registry = CollectorRegistry()
    app = answering(body, b"", headers=headers)
    response = visit(
        tapped(app, registry, remove_metrics=remove), parts(STREAMED if stream else body)
    )
    assert response.error is None
    assert response.body == body
    assert not any(name.startswith("tap_failures") for name in counts(registry))


def test_headers_from_an_iterator_arrive(registry: CollectorRegistry) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        received = list(scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": iter(received)})
        await send({"type": "http.response.body", "body": b"{}"})

    headers = [(b"a", b"1"), (b"b", b"2")]
    response = visit(tapped(app, registry), of=scope(headers=iter(headers)))
    assert list(response.head["headers"]) == headers


# Disconnects.


def test_a_client_may_leave_before_its_request_is_complete(registry: CollectorRegistry) -> None:
    received = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        received.append(await receive())

    visit(tapped(app, registry), [*parts(b"{", b"}")[:1], DISCONNECT])
    assert received == [DISCONNECT]
    assert counts(registry) == {"tap_uncovered_requests disconnected unknown": 1.0}


@pytest.mark.parametrize("events", [None, 0, 3])
def test_a_client_may_leave_during_the_response(
    registry: CollectorRegistry, events: int | None
) -> None:
    """The application ends when it hears of it, as starlette's do."""
    visit(tapped(then_waits(beginning(events)), registry), [*parts(STREAMED), DISCONNECT])
    counted = counts(registry)
    counted.pop("time_to_first_token_seconds (0,1]", None)
    assert counted == uncovered("disconnected")


def test_a_client_that_goes_after_the_response_did_not_disconnect(
    registry: CollectorRegistry,
) -> None:
    visit(tapped(then_waits(answering(CHAT)), registry))
    assert counts(registry) == RECORD


def test_a_server_that_raises_for_a_client_that_is_gone(registry: CollectorRegistry) -> None:
    async def gone(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("gone")

    app = answering(*events_of(USAGE), headers=EVENTS)
    of = scope(asgi={"version": "3.0", "spec_version": "2.4"})
    response = visit(tapped(app, registry), parts(STREAMED), of, send=gone)
    assert isinstance(response.error, OSError)
    assert counts(registry) == uncovered("disconnected")


# Failing applications.


@pytest.mark.parametrize("events", [None, 0, 3])
@pytest.mark.parametrize("error", [KeyError("x"), asyncio.CancelledError()])
def test_an_application_that_raises_raises(
    registry: CollectorRegistry, events: int | None, error: BaseException
) -> None:
    response = visit(tapped(beginning(events, error), registry), parts(STREAMED))
    assert response.error is error
    counted = counts(registry)
    counted.pop("time_to_first_token_seconds (0,1]", None)
    assert counted == uncovered("failed")


def test_an_application_that_never_answers(registry: CollectorRegistry) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return

    assert visit(tapped(app, registry)).sent == []
    assert counts(registry) == {"tap_uncovered_requests failed unknown": 1.0}


# Messages that are not ours.


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("body", [JSON, EVENTS])
def test_unknown_messages_pass_in_order(
    registry: CollectorRegistry, remove: bool, body: list[tuple[bytes, bytes]]
) -> None:
    messages: list[Message] = [
        {"type": "http.response.early_hint", "links": [b"</a>; rel=preload"]},
        {"type": "http.response.start", "status": 200, "headers": body, "trailers": True},
        {"type": "http.response.debug", "info": {"x": 1}},
        {"type": "http.response.body", "body": b": x\n\n", "more_body": True},
        {"type": "http.response.body", "body": b"", "more_body": False},
        {"type": "http.response.trailers", "headers": [(b"a", b"b")], "more_trailers": False},
    ]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        for message in messages:
            await send(dict(message))

    response = visit(tapped(app, registry, remove_metrics=remove))
    assert [message["type"] for message in response.sent] == [
        message["type"] for message in messages
    ]
    assert response.body == b": x\n\n"
    assert response.sent[0] == messages[0]
    assert response.sent[-1] == messages[-1]


@pytest.mark.parametrize("remove", [False, True])
def test_a_file_in_place_of_a_body_passes(registry: CollectorRegistry, remove: bool) -> None:
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [*JSON, (b"content-length", b"7")],
    }
    path = {"type": "http.response.pathsend", "path": "/x"}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(dict(start))
        await send(dict(path))

    assert visit(tapped(app, registry, remove_metrics=remove)).sent == [start, path]


def test_the_launch_is_on_the_page_before_the_first_request(registry: CollectorRegistry) -> None:
    """Else a restarted server would look like one of another configuration until then."""
    server = Known(launch=("schedule",))
    page = visit(tapped(answering(b"page"), registry, server), of=scope("/metrics", method="GET"))
    assert page.error is None
    assert registry.get_sample_value("specwatch_launch_total", {"setting": "schedule"}) == 0
    failing = visit(
        tapped(answering(b"page"), registry, object()), of=scope("/metrics", method="GET")
    )
    assert failing.error is None, "the page is there whatever the tap knows"


@pytest.mark.parametrize(
    "of",
    [
        {"type": "websocket", "path": "/v1/chat/completions", "headers": []},
        {"type": "lifespan"},
        scope(method="GET"),
        scope("/v1/models"),
        scope("/v1/chat/completions/more"),
        scope("/metrics"),
    ],
)
def test_other_requests_reach_the_application_directly(
    registry: CollectorRegistry, of: Scope
) -> None:
    received: list[Any] = []

    async def app(*of_app: Any) -> None:
        received.extend(of_app)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    asyncio.run(tapped(app, registry)(of, receive, send))
    assert received[0] is of
    assert received[1:] == [receive, send]
    assert counts(registry) == {}


PATHS = {
    "/v1/completions": "no_record (0,1]",
    "/v1/responses": "endpoint (0,1]",
    "/v1/messages": "endpoint (0,1]",
    "/invocations": "no_record (0,1]",
    "/inference/v1/generate": "endpoint unknown",
    "/v1/audio/transcriptions": "endpoint unknown",
}


@pytest.mark.parametrize("prefix", ["", "/below"])
def test_other_paths_that_generate(prefix: str) -> None:
    for path, counted in PATHS.items():
        registry = CollectorRegistry()
        of = scope(prefix + path, root_path=prefix)
        assert visit(tapped(answering(b"{}"), registry), of=of).body == b"{}"
        assert counts(registry)[f"tap_uncovered_requests {counted}"] == 1, path


# Several taps, and back-pressure.


def test_a_tap_that_is_loaded_twice_counts_once(registry: CollectorRegistry) -> None:
    twice = tapped(tapped(answering(CHAT), registry), registry)
    assert visit(twice).body == CHAT
    assert counts(registry) == RECORD


def test_two_taps_in_one_process_count_together(registry: CollectorRegistry) -> None:
    for app in (tapped(answering(CHAT), registry), tapped(answering(CHAT), registry)):
        visit(app)
    assert counts(registry) == {name: 2 * value for name, value in RECORD.items()}


def test_a_client_that_reads_slowly_is_waited_for(registry: CollectorRegistry) -> None:
    """No event is taken from the application before the one before it is gone."""
    order = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            order.append("in")
            await send(message)

        await beginning(len(events_of(USAGE)))(scope, receive, noting)

    async def slowly(message: Message) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        order.append("out")

    visit(tapped(app, registry), parts(STREAMED), send=slowly)
    usual = 1 + len(events_of(USAGE)) - 3
    assert order == [*["in", "out"] * usual, "in", "in", "out", "in", "out"]


# Failures of the tap itself.


def fail(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("planted")


IN_TWO = answering(USAGE[:50], USAGE[50:])
READ = "specwatch_tap.answer.read"
FAILURES: dict[str, tuple[str, App, str, bool]] = {
    "facts": ("tests.tap.exchanges.Known.facts", streaming, "request", False),
    "reading a request": ("specwatch_tap.request_options.read", streaming, "request", False),
    "writing a request": ("specwatch_tap.request_options.with_usage", streaming, "request", False),
    "beginning a stream": ("specwatch_tap.exchange.StreamReader", streaming, "response", False),
    "beginning a response": ("specwatch_tap.exchange.WholeReader", IN_TWO, "response", False),
    "a stream": ("specwatch_tap.stream.StreamReader.feed", streaming, "response", False),
    "reading an event": (READ, streaming, "response", False),
    "reading a response": (READ, IN_TWO, "response", False),
    "reading a response to change it": (READ, IN_TWO, "response", True),
}


@pytest.mark.parametrize(("place", "app", "stage", "remove"), FAILURES.values(), ids=FAILURES)
def test_requests_do_not_notice_a_failure_of_the_tap(
    registry: CollectorRegistry,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    app: App,
    stage: str,
    remove: bool,
) -> None:
    """It is counted each time and logged once."""
    monkeypatch.setattr(place, fail)
    tap = tapped(app, registry, remove_metrics=remove)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            response = visit(tap, parts(STREAMED))
            assert response.error is None
            assert response.body == USAGE
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)
    counted = counts(registry)
    assert counted[f"tap_failures {stage}"] == 3
    if stage == "response":
        assert counted["tap_uncovered_requests unreadable (0,1]"] == 3


def test_counters_that_fail(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TapCounters, "count", fail)
    body = STREAMED[:-1] + b',"stream_options":{"include_usage":true}}'
    app = tapped(streaming, registry)
    for _ in range(3):
        assert visit(app, parts(body)).body == USAGE
    assert counts(registry) == {"tap_failures count": 3.0}
    assert len(caplog.records) == 1


def test_failures_that_cannot_be_counted_either(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TapCounters, "count", fail)
    monkeypatch.setattr(TapCounters, "fail", fail)
    app = tapped(answering(CHAT), registry)
    for _ in range(3):
        response = visit(app)
        assert (response.error, response.body) == (None, CHAT)
    assert len(caplog.records) == 2


def test_a_body_that_is_not_bytes_passes_unchanged(registry: CollectorRegistry) -> None:
    """ASGI says bytes; some frameworks send what servers take as well."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": memoryview(USAGE), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    response = visit(tapped(app, registry), parts(STREAMED))
    assert (response.error, response.body) == (None, USAGE)
    assert counts(registry)["tap_failures response"] == 1


def test_a_stream_with_a_length_loses_it_with_the_usage_chunk(registry: CollectorRegistry) -> None:
    headers = [*EVENTS, (b"Content-Length", str(len(USAGE)).encode())]
    response = visit(tapped(answering(USAGE, headers=headers), registry), parts(STREAMED))
    assert response.head["headers"] == EVENTS
    assert b'"usage"' not in response.body
    assert response.body.endswith(b"data: [DONE]\n\n")


WITHOUT_USAGE = events_of(USAGE)[:-2]


@pytest.mark.parametrize("error", [None, RuntimeError("broke")])
def test_a_last_chunk_that_waits_is_sent_when_the_stream_breaks_off(
    registry: CollectorRegistry, error: Exception | None
) -> None:
    app = beginning(len(WITHOUT_USAGE), error)
    response = visit(tapped(app, registry), parts(STREAMED))
    assert response.error is error
    assert response.body == b"".join(WITHOUT_USAGE)
    assert response.sent[-1]["more_body"]
    assert counts(registry)["tap_uncovered_requests failed (0,1]"] == 1


def test_a_gone_client_does_not_hide_the_error_of_the_application(
    registry: CollectorRegistry,
) -> None:
    error = RuntimeError("broke")

    async def gone(message: Message) -> None:
        if b'"finish_reason":"length"' in message.get("body", b""):
            raise ConnectionResetError

    app = beginning(len(WITHOUT_USAGE), error)
    assert visit(tapped(app, registry), parts(STREAMED), send=gone).error is error


def test_outer_middleware_sees_what_the_application_adds_to_the_scope(
    registry: CollectorRegistry,
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = "chat"
        await answering(CHAT)(scope, receive, send)

    headers = [(b"accept-encoding", b"gzip"), (b"host", b"x")]
    of = scope(headers=headers)
    before = dict(of)
    visit(tapped(app, registry), of=of)
    assert of == {**before, "route": "chat"}
    assert of["headers"] == [(b"accept-encoding", b"gzip"), (b"host", b"x")]
