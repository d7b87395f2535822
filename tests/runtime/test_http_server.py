"""The daemon's HTTP server: where it listens, how it ends, and who can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import requests
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

from specwatch.errors import ConfigError
from specwatch.runtime.http_server import HttpServer, LoopErrors

entered, leave = threading.Event(), threading.Event()


def quick(_: Request) -> Response:
    return PlainTextResponse("quick")


def slow(_: Request) -> Response:
    entered.set()
    leave.wait(20)
    return PlainTextResponse("slow")


LARGE = b"x" * (16 << 20)
"""More than the buffers of two sockets take."""


def large(_: Request) -> Response:
    return PlainTextResponse(LARGE)


APP = Starlette(routes=[Route("/", quick), Route("/slow", slow), Route("/large", large)])


@contextlib.contextmanager
def serving(*, bounded: bool) -> Iterator[HttpServer]:
    running = HttpServer(APP, "127.0.0.1", 0, name="http", bounded=bounded)
    running.start()
    yield running
    leave.set()
    assert running.stop(timeout=10)


@pytest.fixture(autouse=True)
def slow_answers() -> Iterator[None]:
    """Those that a test asks for end with it."""
    entered.clear()
    leave.clear()
    yield
    leave.set()


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with serving(bounded=False) as running:
        yield running


def get(server: HttpServer) -> str:
    return requests.get(server.url, timeout=10).text


def test_a_port_that_is_taken_is_a_configuration_error(server: HttpServer) -> None:
    with pytest.raises(ConfigError, match=rf"port {server.port}: .*in use; choose another"):
        HttpServer(APP, "127.0.0.1", server.port, name="http").start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_is_a_configuration_error(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}"):
        HttpServer(APP, host, 0, name="http").start()


@pytest.mark.parametrize("host", ["::1", "::", "0.0.0.0", "localhost"])
def test_other_addresses_are_served_under_a_url_that_works(host: str) -> None:
    server = HttpServer(APP, host, 0, name="http")
    server.start()
    assert get(server) == "quick"
    assert server.stop(timeout=10)


def test_what_has_stopped_listens_no_more_and_frees_its_port(server: HttpServer) -> None:
    other = HttpServer(APP, "127.0.0.1", 0, name="other")
    other.start()
    assert other.stop(timeout=10)
    with pytest.raises(requests.ConnectionError):
        get(other)
    HttpServer.start(other)
    assert get(other) == "quick"
    assert other.stop(timeout=10)


def test_stopping_lets_a_stream_of_events_of_a_proxy_end(server: HttpServer) -> None:
    """Only the daemon, whose streams have no end, cuts them off: a proxy's are its clients'."""
    answers: list[str] = []

    def ask() -> None:
        headers = {"Accept": "text/event-stream"}
        answers.append(requests.get(f"{server.url}/slow", headers=headers, timeout=20).text)

    client = threading.Thread(target=ask)
    client.start()
    assert entered.wait(10)
    assert not server.stop(timeout=0.02)
    leave.set()
    client.join(10)
    assert answers == ["slow"]


def test_stopping_what_never_started_is_nothing() -> None:
    assert HttpServer(APP, "127.0.0.1", 0, name="http").stop()


def test_clients_that_send_or_read_slowly_hold_nobody_up(server: HttpServer) -> None:
    """Half requests, requests under way, and answers that nobody takes."""
    address = ("127.0.0.1", server.port)
    clients = [socket.create_connection(address, timeout=10) for _ in range(32)]
    try:
        for client in clients[:20]:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for client in clients[20:22]:
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        for client in clients[22:]:
            client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.wait(60)
        assert get(server) == "quick"
    finally:
        leave.set()
        for client in clients:
            client.close()


@pytest.fixture(scope="module")
def bounded() -> Iterator[HttpServer]:
    with serving(bounded=True) as running:
        yield running


Connect = Callable[[HttpServer], socket.socket]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects to a server; closes all at the end."""
    with contextlib.ExitStack() as held:

        def connected(server: HttpServer) -> socket.socket:
            address = ("127.0.0.1", server.port)
            return held.enter_context(socket.create_connection(address, timeout=10))

        yield connected


def closed(client: socket.socket) -> bool:
    """Whether the server ends the connection, as it does within the client's timeout."""
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionResetError:
        return True
    return True


def answer(client: socket.socket, last: bytes) -> bool:
    """Whether an answer comes that ends so."""
    data = b""
    while not data.endswith(last) and (more := client.recv(4096)):
        data += more
    return data.endswith(last)


ASK = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"


def test_of_too_many_connections_those_that_wait_longest_make_room(
    bounded: HttpServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they ask for nothing, for half of something, or do not take their answer; what is
    being answered is answered."""
    monkeypatch.setattr("specwatch.runtime.http_server.MOST_CONNECTIONS", 10)
    asking = connect(bounded)
    asking.sendall(ASK % b"/slow")
    assert entered.wait(10)
    idle = [connect(bounded) for _ in range(3)]
    halves = [connect(bounded) for _ in range(3)]
    for client in halves:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    deaf = [connect(bounded)]
    for client in deaf:
        client.sendall(ASK % b"/large")
        assert client.recv(1)
    for _ in range(20):
        late = connect(bounded)
        late.sendall(ASK % b"/")
        assert answer(late, b"quick")
    assert all(map(closed, [*idle, *halves, *deaf]))
    leave.set()
    assert answer(asking, b"slow")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_does_not_come_in_time_is_not_waited_for(
    bounded: HttpServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("specwatch.runtime.http_server.REQUEST_SECONDS", 0.02)
    client = connect(bounded)
    client.sendall(sent)
    assert closed(client)


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
def test_a_server_without_bounds_does_not_wait_for_requests_either(
    server: HttpServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """What it answers may take longer."""
    asking = connect(server)
    asking.sendall(ASK % b"/slow")
    assert entered.wait(10)
    monkeypatch.setattr("specwatch.runtime.http_server.IDLE_SECONDS", 0.02)
    monkeypatch.setattr("specwatch.runtime.http_server.REQUEST_SECONDS", 0.02)
    client = connect(server)
    client.sendall(sent)
    assert closed(client)
    leave.set()
    assert answer(asking, b"slow")


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"1"])
def test_a_connection_is_not_kept_for_ever_after_an_answer(
    bounded: HttpServer, connect: Connect, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The last of these is a body that nobody waits for, sent byte by byte."""
    monkeypatch.setattr("specwatch.runtime.http_server.IDLE_SECONDS", 0.02)
    client = connect(bounded)
    body = b"Content-Length: 1000\r\n" if sent == b"1" else b""
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + body + b"\r\n")
    assert answer(client, b"quick")
    monkeypatch.setattr("specwatch.runtime.http_server.REQUEST_SECONDS", 0.02)
    with contextlib.suppress(ConnectionError):
        client.sendall(sent)
    assert closed(client)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("path", [b"/", b"/slow", b"/large"])
def test_a_body_that_goes_wrong_is_refused_without_a_traceback(
    bounded: HttpServer,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    method: bytes,
    path: bytes,
) -> None:
    """Before the answer, while it is made or sent, and after it: a client could fill the log."""
    client = connect(bounded)
    head = b"%s %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % (method, path)
    client.sendall(head + b"zz\r\n")
    assert closed(client)
    late = connect(bounded)
    late.sendall(head)
    if path == b"/slow":
        assert entered.wait(10)
    else:
        assert late.recv(1)
    with contextlib.suppress(ConnectionError):
        late.sendall(b"zz\r\n")
    assert closed(late)
    leave.set()
    with capture_logs() as logs:
        assert get(bounded) == "quick"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert logs == []


def test_an_answer_that_nobody_takes_is_given_up(
    bounded: HttpServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specwatch.runtime.http_server.ANSWER_SECONDS", 0.02)
    client = connect(bounded)
    client.sendall(ASK % b"/slow")
    assert closed(client)
    assert entered.wait(10)


def test_a_connection_that_is_used_is_kept(bounded: HttpServer, connect: Connect) -> None:
    client = connect(bounded)
    for _ in range(3):
        client.sendall((ASK % b"/")[:20])
        client.sendall((ASK % b"/")[20:])
        assert answer(client, b"quick")


def test_without_file_descriptors_there_is_one_line_of_log_a_minute() -> None:
    times = [1000.0] * 1000 + [1061.0]
    complaints = LoopErrors(iter(times).__next__)
    loop = asyncio.new_event_loop()
    full = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Full")}
    with capture_logs() as log:
        for _ in times:
            complaints(loop, full)
    loop.close()
    entries = [entry for entry in log if entry["event"] == "cannot_accept"]
    assert [entry["times"] for entry in entries] == [1, 1000]
    assert "Full" in entries[0]["detail"]


def test_stopping_waits_for_no_slow_client(server: HttpServer) -> None:
    """It says that it is not over, and the caller goes on."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.wait(10)
        assert not server.stop(timeout=0.02)
