"""The proxy, on real sockets, between a server and a client that both show every byte."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import itertools
import json
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from specwatch.engines.sample_names import METRICS_PATHS
from specwatch.runtime.http_server import HttpServer
from specwatch_tap import proxy as tap_proxy
from specwatch_tap.proxy import ProxyApplication, _Forward
from specwatch_tap.settings import Settings
from specwatch_tap.upstream import Upstream as Learner
from tests.fixtures import CERTIFICATE, KEY
from tests.hostile import HostileServer, Visit, deaf_port, wait_for
from tests.tap.exchanges import counts, scope, visit
from tests.tap.proxied import Client, Upstream, body_of, nothing_set, proxy, request


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Upstream, HttpServer]]:
    with Upstream() as upstream, proxy(upstream.url) as server:
        yield upstream, server


@pytest.fixture
def upstream(shared: tuple[Upstream, HttpServer]) -> Upstream:
    """The server behind the proxy; kept connections of earlier tests are gone."""
    shared[0].drop_all()
    shared[0].asked.clear()
    return shared[0]


@pytest.fixture
def server(shared: tuple[Upstream, HttpServer]) -> HttpServer:
    return shared[1]


@pytest.fixture
def by_themselves(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Upstream, HttpServer]]:
    """A server, and a proxy whose looks at it neither take one of the connections nor leave one.

    But for that of its start: it is the one idle connection of the beginning.
    """
    monkeypatch.setattr(Learner, "learning", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr("specwatch_tap.proxy._KEPT_IDLE", 300.0)
    with Upstream() as upstream, proxy(upstream.url) as server:
        yield upstream, server


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Learner]:
    """The upstreams that somebody asked to be looked at again."""
    asked: list[Learner] = []
    monkeypatch.setattr(Learner, "look_again", lambda self: asked.append(self))
    return asked


def exchanged(server: HttpServer, sent: bytes, until: bytes = b"\r\n\r\n") -> bytes:
    """What comes on a connection of its own, up to and with ``until``."""
    with Client(server.port) as client:
        client.send(sent)
        return client.until(until)


def head_of(visit: Visit) -> list[str]:
    return visit.head.partition("\r\n\r\n")[0].split("\r\n")


class Response:
    """What an independent client makes of a response."""

    def __init__(self, server: HttpServer, method: str = "GET", path: str = "/x") -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request(method, path)
        response = connection.getresponse()
        self.status = response.status
        self.headers = response.getheaders()
        self.body = response.read()
        connection.close()

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.headers if field.lower() == name]


ZIPPED = gzip.compress(b'{"choices": []}' * 50)
RESPONSES = {
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
    "chunks, one with an extension": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",
        200,
        b"hello",
    ),
    "an end by closing": (b"HTTP/1.0 200 OK\r\n\r\nhello", 200, b"hello"),
    "an empty body": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
    "not modified": (b'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n\r\n', 304, b""),
    "a redirect": (
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /y\r\nContent-Length: 0\r\n\r\n",
        307,
        b"",
    ),
    "an error": (b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno", 500, b"no"),
    "a status of its own": (b"HTTP/1.1 299 Odd\r\nContent-Length: 2\r\n\r\nno", 299, b"no"),
    "a compressed body": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
        % (len(ZIPPED), ZIPPED),
        200,
        ZIPPED,
    ),
    "a head before": (
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        200,
        b"hello",
    ),
}


def test_a_response_passes_as_it_is(upstream: Upstream, server: HttpServer) -> None:
    for number, (title, (raw, status, body)) in enumerate(RESPONSES.items(), 1):
        upstream.answers = lambda visit, raw=raw: visit.send(raw)
        received = Response(server)
        assert (received.status, received.body) == (status, body), title
        assert len(upstream.asked) == number


def test_header_fields_of_a_response_keep_their_order_and_repetition(
    upstream: Upstream, server: HttpServer
) -> None:
    upstream.answers = lambda visit: visit.answer(
        b"hi",
        headers="Date: yesterday\r\nServer: llama.cpp\r\nSet-Cookie: a=1\r\nX-B: \xe4\r\n"
        "Set-Cookie: b=2; Path=/\r\nConnection: close, x-private\r\nX-Private: 1\r\n"
        "Keep-Alive: timeout=5\r\nWWW-Authenticate: Bearer\r\n",
    )
    received = [(name.lower(), value) for name, value in Response(server).headers]
    expected = [
        ("content-length", "2"),
        ("date", "yesterday"),
        ("server", "llama.cpp"),
        ("set-cookie", "a=1"),
        ("x-b", "Ã¤"),
        ("set-cookie", "b=2; Path=/"),
        ("www-authenticate", "Bearer"),
    ]
    assert received == expected, "and no Date of our own"


def test_a_length_stays_a_length_and_chunks_stay_chunks(
    upstream: Upstream, server: HttpServer
) -> None:
    upstream.answers = lambda visit: visit.send(RESPONSES["a length"][0])
    assert Response(server).all("content-length") == ["5"]
    upstream.answers = lambda visit: visit.send(RESPONSES["chunks, one with an extension"][0])
    received = Response(server)
    assert (received.all("content-length"), received.all("transfer-encoding")) == ([], ["chunked"])


def test_head_has_the_length_and_no_body(upstream: Upstream, server: HttpServer) -> None:
    upstream.answers = lambda visit: visit.send(
        b"HTTP/1.1 200 OK\r\nContent-Length: 1234567\r\n\r\n"
    )
    with Client(server.port) as client:
        client.send(request("HEAD /x", "Connection: close"))
        head = client.rest()
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: 1234567\r\n" in head.lower()
    assert head.endswith(b"\r\n\r\n")
    assert head_of(upstream.asked[0])[0] == "HEAD /x HTTP/1.1"


TARGETS = (
    "/",
    "//double//",
    "/a/../b/./c",
    "/a%2Fb%20c%c3%a4",
    "/x?a=1&&b=%20+&c",
    "/x?u=http://y/?z",
    "/:@!$&'()*+,;=~-._",
    "/x?%",
    "/v1/models/org%2Fmodel",
    "/q?a=1?b=2",
)


def test_path_and_query_arrive_as_they_were_written(upstream: Upstream, server: HttpServer) -> None:
    upstream.answers = lambda visit: visit.answer(b"")
    for target in TARGETS:
        exchanged(server, request(f"GET {target}"))
        assert head_of(upstream.asked[-1])[0] == f"GET {target} HTTP/1.1"


NO_TARGETS = (
    "GET @127.0.0.1:{}/secret",
    "GET :{}/y",
    "GET .evil.test/",
    "GET 1/y",
    "GET x@127.0.0.1:{}",
    "OPTIONS *",
    "GET \\\\127.0.0.1:{}",
    "GET ?@127.0.0.1:{}/",
    "GET #/",
    "GET :99999999/",
    "GET ftp://127.0.0.1:{}/",
    "GET http:///x",
    "GET https:x",
    "GET http://a@/x",
)


def test_a_target_that_is_no_path_is_refused_and_reaches_no_host(
    upstream: Upstream, server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with HostileServer(nothing_set) as other:
        for line in NO_TARGETS:
            with Client(server.port) as client:
                client.send(request(line.format(other.port)) + request("GET /next"))
                received = client.rest()
            assert received.startswith(b"HTTP/1.1 400 "), line
            assert b'"invalid_request_error"' in received
            assert received.count(b"HTTP/1.1") == 1, "and the connection is closed"
        assert other.connections == 0
    assert upstream.asked == []
    assert caplog.text == ""


ABSOLUTE = {
    "http://other.example/a%2Fb?c=http://d/": "/a%2Fb?c=http://d/",
    "HTTPS://me:x@other.example//d/?e": "//d/?e",
    "http://other.example": "/",
    "http://other.example?x": "/?x",
}


def test_a_target_with_a_host_is_cut_to_its_path(upstream: Upstream, server: HttpServer) -> None:
    """As RFC 9112, section 3.2.2, wants it; its host is that of the client, and no place to go."""
    upstream.answers = lambda visit: visit.answer(b"")
    for target in ABSOLUTE:
        assert exchanged(server, request(f"GET {target}")).startswith(b"HTTP/1.1 200 ")
    assert [received.path for received in upstream.asked] == list(ABSOLUTE.values())
    for received in upstream.asked:
        assert received.headers["host"] == upstream.url.removeprefix("http://")
        assert received.headers["x-forwarded-host"] == "other.example"


def test_the_tap_reads_requests_with_an_absolute_target(upstream: Upstream) -> None:
    registry = CollectorRegistry()
    upstream.answers = lambda visit: visit.answer(b"{}")
    with proxy(upstream.url, registry=registry) as server, Client(server.port) as client:
        client.send(request("POST http://h/v1/completions", "Content-Length: 2", body=b"{}"))
        client.until(b"{}")
        client.send(request("GET http://h/metrics"))
        client.until(b"specwatch_tap_failures_total")
    assert [received.path for received in upstream.asked] == ["/v1/completions"]
    assert counts(registry)


@pytest.mark.parametrize("path", ["/x", "/v1/completions", "/metrics"])
def test_a_request_of_two_lengths_is_refused(
    upstream: Upstream, server: HttpServer, path: str
) -> None:
    """Of which we and the upstream might believe another, and find another request behind it."""
    body = b"5\r\nhello\r\n0\r\n\r\n" + request("GET /smuggled")
    with Client(server.port) as client:
        client.send(
            request(f"POST {path}", "Content-Length: 5", "Transfer-Encoding: chunked", body=body)
        )
        received = client.rest()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1") == 1, "and the connection is closed"
    assert upstream.asked == []


class Choking:
    """A client session that refuses what it is to send, as the library may."""

    def __init__(self) -> None:
        self.asked = 0

    async def request(self, *_: Any, **__: Any) -> None:
        """Choke on it."""
        self.asked += 1
        raise ValueError("Newline in sk-secret")


def test_what_cannot_be_sent_is_a_400(
    caplog: pytest.LogCaptureFixture, looks: list[Learner]
) -> None:
    session: Any = Choking()
    url = "http://127.0.0.1:1"
    app = ProxyApplication(
        url, CollectorRegistry(), settings=Settings(), metrics_paths=METRICS_PATHS
    )
    app.session = session
    of = scope("/x", method="GET", query_string=b"key=sk-secret")
    response = visit(app, itertools.repeat({"type": "http.request", "more_body": True}), of)
    assert (response.error, session.asked) == (None, 1)
    assert response.head["status"] == 400
    assert looks == [], "it says nothing of the upstream"
    assert json.loads(response.body)["error"]["message"] == "the upstream cannot be asked this"
    assert f"upstream {url} cannot be asked this: " in caplog.text
    assert "sk-secret" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("length", ["Content-Length: 300", "Transfer-Encoding: chunked"])
def test_the_upstream_has_a_say_before_a_large_request_has_come(
    upstream: Upstream, length: str
) -> None:
    """It refuses the key while the client has yet to send the rest."""

    def refuse(visit: Visit) -> None:
        part = visit.head.encode().partition(b"\r\n\r\n")[2]
        while part.count(b"x") < 120:  # a close with unread bytes would be a reset
            part += visit._sock.recv(4096)
        visit.answer(b"refused", "401 Unauthorized")

    upstream.answers = refuse
    part = b"x" * 120
    if "chunked" in length:
        part = b"78\r\n%b\r\n" % part
    with proxy(upstream.url, largest_request=100) as server, Client(server.port) as client:
        client.send(request("POST /v1/completions", length, body=part))
        assert client.until(b"refused").startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(("limit", "most"), [("_ALL_REQUESTS", 100), ("_PATIENCE", 0.05)])
def test_requests_that_do_not_come_are_not_held_for_ever(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, limit: str, most: float
) -> None:
    """Neither many bytes of them nor for long: what is there goes on, and the upstream decides."""
    monkeypatch.setattr(tap_proxy, limit, most)

    def refuse(visit: Visit) -> None:
        part = visit.head.encode().partition(b"\r\n\r\n")[2]
        while part.count(b"x") < 120:
            part += visit._sock.recv(4096)
        visit.answer(b"too slow", "408 Request Timeout")

    upstream.answers = refuse
    with proxy(upstream.url) as server, Client(server.port) as client:
        # It comes in two parts, of which the second is not the last.
        head = request("POST /v1/completions", "Content-Length: 300", body=b"x" * 60)
        client.send(head)
        time.sleep(0.02)
        client.send(b"x" * 60)
        assert client.until(b"too slow").startswith(b"HTTP/1.1 408 ")


def test_an_upstream_that_switches_protocols_unasked_is_an_error(
    upstream: Upstream, server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    more = "Upgrade: x\r\nConnection: upgrade\r\n"
    upstream.answers = lambda visit: visit.answer(b"", "101 Switching Protocols", more)
    with Client(server.port) as client:
        client.send(request("GET /x"))
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 502 ")
    assert "Traceback" not in caplog.text


def test_a_base_path_of_the_upstream_comes_first(upstream: Upstream) -> None:
    upstream.answers = lambda visit: visit.answer(b"")
    with proxy(f"{upstream.url}/base") as server, Client(server.port) as client:
        client.send(request("GET /x?y"))
        client.until(b"\r\n\r\n")
    assert "/base/x?y" in [visit.path for visit in upstream.asked]


def test_header_fields_of_a_request_pass_and_nothing_is_added_but_where_it_came_from(
    upstream: Upstream, server: HttpServer
) -> None:
    upstream.answers = lambda visit: visit.answer(b"")
    with Client(server.port) as client:
        client.send(
            request(
                "GET /x",
                "Authorization: Bearer sk-secret",
                "X-Twice: 1",
                "Accept: a",
                "X-Twice: 2",
                "Connection: keep-alive, X-Mine",
                "X-Mine: 1",
                "Keep-Alive: 5",
                "TE: trailers",
                "Upgrade: h2c",
                "X-Forwarded-For: 192.0.2.7",
                "Proxy-Authorization: Basic eA==",
                "Cookie: a=1; b=2",
            )
        )
        client.until(b"\r\n\r\n")
    assert [head_of(visit)[0] for visit in upstream.asked] == ["GET /x HTTP/1.1"]
    fields = [field.split(": ", 1) for field in head_of(upstream.asked[0])[1:]]
    assert [(name.lower(), value) for name, value in fields] == [
        ("host", upstream.url.removeprefix("http://")),
        ("authorization", "Bearer sk-secret"),
        ("x-twice", "1"),
        ("accept", "a"),
        ("x-twice", "2"),
        ("cookie", "a=1; b=2"),
        ("x-forwarded-for", "192.0.2.7, 127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "client.example"),
    ]


def test_forwarded_fields_of_an_outer_proxy_stay(upstream: Upstream, server: HttpServer) -> None:
    upstream.answers = lambda visit: visit.answer(b"")
    exchanged(server, request("GET /", "X-Forwarded-Proto: https", "X-Forwarded-Host: outer"))
    received = upstream.asked[0].headers
    assert (received["x-forwarded-proto"], received["x-forwarded-host"]) == ("https", "outer")


def test_a_body_arrives_with_its_length(upstream: Upstream, server: HttpServer) -> None:
    methods = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY")
    bodies: list[bytes] = []

    def answer(visit: Visit) -> None:
        bodies.append(body_of(visit))
        visit.answer(b"ok")

    upstream.answers = answer
    body = b"\x00a\r\n\xff"
    for method in methods:
        exchanged(server, request(f"{method} /x", "Content-Length: 5", body=body), b"ok")
    assert bodies == [body] * len(methods)
    assert not any("transfer-encoding" in received.headers for received in upstream.asked)


def test_a_post_without_a_body_says_so(upstream: Upstream, server: HttpServer) -> None:
    upstream.answers = lambda visit: visit.answer(b"ok")
    exchanged(server, request("POST /x", "Content-Length: 0"), b"ok")
    assert upstream.asked[0].headers["content-length"] == "0"


def test_each_part_of_a_response_goes_on_at_once(upstream: Upstream, server: HttpServer) -> None:
    """The server sends the next part only when the client has the one before."""
    arrived = threading.Semaphore(0)

    def answer(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(5):
            visit.send(b"9\r\ndata: %d\n\n\r\n" % number)
            assert arrived.acquire(timeout=60)
        visit.send(b"0\r\n\r\n")

    upstream.answers = answer
    with Client(server.port) as client:
        client.send(request("GET /x"))
        for number in range(5):
            client.until(b"data: %d\n\n" % number)
            arrived.release()
        client.until(b"0\r\n\r\n")


def test_each_part_of_a_request_goes_on_at_once(upstream: Upstream, server: HttpServer) -> None:
    """The client sends the next part only when the server has the one before."""
    arrived = threading.Semaphore(0)

    def answer(visit: Visit) -> None:
        received = visit.head.encode()
        for number in range(4):
            while b"part %d" % number not in received:
                received += visit._sock.recv(4096)
            arrived.release()
        visit.answer(b"ok")

    upstream.answers = answer
    with Client(server.port) as client:
        client.send(request("POST /upload", "Transfer-Encoding: chunked"))
        for number in range(4):
            client.send(b"6\r\npart %d\r\n" % number)
            assert arrived.acquire(timeout=60)
        client.send(b"0\r\n\r\n")
        client.until(b"ok")
    assert upstream.asked[0].headers["transfer-encoding"] == "chunked"


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(
    upstream: Upstream, server: HttpServer
) -> None:
    upstream.answers = lambda visit: visit.answer(body_of(visit))
    with Client(server.port) as client:
        client.send(request("POST /x", "Content-Length: 4", "Expect: 100-continue"))
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        client.send(b"body")
        assert client.until(b"body").startswith(b"HTTP/1.1 200 ")
    assert "expect" not in upstream.asked[0].headers


BEGINNINGS = {
    "before a response": (b"", b""),
    "inside a response": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"hi",
    ),
}


@pytest.mark.parametrize("path", ["/x", "/v1/chat/completions"])
@pytest.mark.parametrize(("beginning", "until"), BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_client_that_leaves_ends_the_request_upstream(
    upstream: Upstream, server: HttpServer, path: str, beginning: bytes, until: bytes
) -> None:
    gone = threading.Event()

    def answer(visit: Visit) -> None:
        visit.send(beginning)
        visit.hang()
        gone.set()

    upstream.answers = answer
    with Client(server.port) as client:
        client.send(request(f"POST {path}", "Content-Length: 2", body=b"{}"))
        wait_for(lambda: upstream.asked)
        client.until(until)
        assert not gone.is_set()
    assert gone.wait(60)


def test_a_client_that_leaves_in_its_own_request_ends_it_upstream(
    upstream: Upstream, server: HttpServer
) -> None:
    ends: list[bytes] = []

    def answer(visit: Visit) -> None:
        while data := visit._sock.recv(65536):
            ends.append(data)
        ends.append(b"")

    upstream.answers = answer
    with Client(server.port) as client:
        client.send(request("POST /x", "Content-Length: 100000", body=b"x" * 70000))
        wait_for(lambda: upstream.asked)
    wait_for(lambda: ends and ends[-1] == b"")


BROKEN = {
    "in a body with a length": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
    "between chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    "in a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_response_that_breaks_off_is_not_ended_well(
    upstream: Upstream, server: HttpServer, raw: bytes, how: str
) -> None:
    arrived = threading.Event()

    def answer(visit: Visit) -> None:
        visit.send(raw)
        assert arrived.wait(60)
        if how == "reset":
            visit.reset()

    upstream.answers = answer
    with Client(server.port) as client:
        client.send(request("GET /x"))
        client.until(b"half")
        arrived.set()
        assert b"0\r\n\r\n" not in client.rest(), "and the connection ends"


def error_of(server: HttpServer, path: str = "/v1/models") -> tuple[int, str]:
    received = Response(server, path=path)
    error = json.loads(received.body)["error"]
    assert error["code"] == received.status
    assert set(error) == {"message", "type", "param", "code"}
    return received.status, error["message"]


def test_an_upstream_that_is_not_there_is_a_502_that_names_no_host() -> None:
    with Upstream() as gone:
        url = gone.url
    with proxy(url) as server:
        assert error_of(server) == (502, "the upstream cannot be reached")


def test_an_untrusted_certificate_is_a_502_explained_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE, KEY)
    with HostileServer(nothing_set, tls=tls) as other, proxy(other.url) as server:
        assert error_of(server) == (502, "the upstream cannot be reached")
    assert "certificate verify failed" in caplog.messages[-1]


def test_an_upstream_that_takes_no_connection_is_a_504() -> None:
    with deaf_port() as port, proxy(f"http://127.0.0.1:{port}", connect_timeout=0.02) as server:
        assert error_of(server) == (504, "the upstream does not answer in time")


def test_an_upstream_that_failed_is_looked_at_again(looks: list[Learner]) -> None:
    """Another model may be loaded when it comes back."""
    with Upstream() as upstream, proxy(upstream.url) as server:
        upstream.answers = lambda visit: visit.answer(b"ok")
        assert Response(server).status == 200
        assert looks == []
        upstream.answers = lambda visit: visit.reset()
        assert error_of(server, "/x") == (502, "the upstream broke off")
        assert len(looks) == 1
    with proxy(upstream.url) as server:
        assert error_of(server)[0] == 502
    assert len(looks) == 2


ANSWERS = {
    "nothing": lambda visit: None,
    "a reset": lambda visit: visit.reset(),
    "something else": lambda visit: visit.send(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "half a head": lambda visit: visit.send(b"HTTP/1.1 200 OK\r\nContent-Le"),
}


def test_an_upstream_that_gives_no_response_is_a_502(
    upstream: Upstream, server: HttpServer
) -> None:
    for title, answer in ANSWERS.items():
        upstream.answers = answer
        assert error_of(server, "/x") == (502, "the upstream broke off"), title


def closes_kept(visit: Visit) -> None:
    """Answers on a new connection, and closes one that was kept, as it would an idle one."""
    body_of(visit)
    if sum(other._sock is visit._sock for other in visit._server.visits) == 1:
        visit.answer(b"again")


def test_a_kept_connection_that_was_closed_is_no_error(
    by_themselves: tuple[Upstream, HttpServer],
) -> None:
    upstream, server = by_themselves
    upstream.answers = closes_kept
    received = exchanged(server, request("POST /x", "Content-Length: 4", body=b"body"), b"again")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert [visit.path for visit in upstream.asked] == ["/x", "/x"]


def test_a_kept_connection_that_is_closed_while_the_body_is_sent_is_no_error(
    by_themselves: tuple[Upstream, HttpServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama-server closes one after each stream, without a word."""
    upstream, server = by_themselves
    upstream.answers = lambda visit: visit.answer(b"again")
    sent = _Forward._request
    broken: list[object] = []

    async def request_of(self: _Forward, body: Any, used: dict[str, bool]) -> Any:
        if not broken:
            broken.append(body)
            used["kept"] = True
            raise aiohttp.ClientOSError(None, "Can not write request body")
        return await sent(self, body, used)

    monkeypatch.setattr(_Forward, "_request", request_of)
    received = exchanged(server, request("POST /x", "Content-Length: 4", body=b"body"), b"again")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert (len(broken), len(upstream.asked)) == (1, 1)


def test_a_request_whose_body_has_gone_is_not_sent_twice(
    by_themselves: tuple[Upstream, HttpServer],
) -> None:
    upstream, server = by_themselves
    upstream.answers = closes_kept
    with Client(server.port) as client:
        client.send(request("POST /x", "Content-Length: 4", body=b"bo"))
        wait_for(lambda: upstream.asked)
        client.send(b"dy")
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 502 ")
    assert [visit.path for visit in upstream.asked] == ["/x"]


def test_a_request_that_kills_its_server_is_not_sent_twice(
    by_themselves: tuple[Upstream, HttpServer],
) -> None:
    upstream, server = by_themselves
    upstream.drop_all()
    upstream.answers = ANSWERS["nothing"]
    exchanged(server, request("POST /x", "Content-Length: 4", body=b"body"), b"HTTP/1.1 502 ")
    assert len(upstream.asked) == 1


def test_connections_upstream_are_kept(by_themselves: tuple[Upstream, HttpServer]) -> None:
    """Each is free again before the client has the last byte."""
    upstream, server = by_themselves

    def answer(visit: Visit) -> bool:
        body_of(visit)
        visit.answer(b"ok")
        return True  # the connection stays open

    upstream.answers = answer
    for _ in range(5):
        with Client(server.port) as client:
            client.send(request("POST /x", "Content-Length: 1", body=b"x"))
            client.until(b"ok")
    assert (len(upstream.asked), upstream.connections) == (5, 1)


def test_a_client_keeps_its_connection_and_may_ask_in_advance(
    upstream: Upstream, server: HttpServer
) -> None:
    upstream.answers = lambda visit: visit.answer(visit.path.encode())
    with Client(server.port) as client:
        client.send(request("GET /first") + request("GET /second"))
        client.until(b"/first")
        client.until(b"/second")


@pytest.mark.parametrize(
    "raw",
    [
        request("GET /v1/realtime", "Connection: Upgrade", "Upgrade: WebSocket"),
        request("CONNECT example.com:443"),
    ],
)
def test_websockets_and_tunnels_are_refused(
    upstream: Upstream, server: HttpServer, raw: bytes
) -> None:
    assert exchanged(server, raw).startswith(b"HTTP/1.1 501 ")
    assert upstream.asked == []


def test_its_own_pages_are_two_and_all_others_are_the_upstreams(
    upstream: Upstream, server: HttpServer
) -> None:
    upstream.answers = lambda visit: visit.answer(b"theirs", "503 Service Unavailable")
    assert json.loads(Response(server, path="/specwatch/healthz").body)["status"] == "ok"
    assert b"specwatch_tap_failures_total" in Response(server, path="/metrics").body
    assert Response(server, "HEAD", "/metrics").body == b""
    assert upstream.asked == []
    for path in ("/health", "/metrics/", "/specwatch", "/healthz"):
        assert Response(server, path=path).status == 503


def test_the_number_of_concurrent_requests_is_not_limited(
    upstream: Upstream, server: HttpServer
) -> None:
    """More than the 100 connections that HTTP clients like to stop at."""
    released = threading.Event()

    def answer(visit: Visit) -> None:
        assert released.wait(60)
        visit.answer(b"ok")

    upstream.answers = answer
    clients = [Client(server.port) for _ in range(130)]
    for client in clients:
        client.send(request("GET /x"))
    wait_for(lambda: len(upstream.asked) == 130)
    released.set()
    for client in clients:
        client.until(b"ok")
        client.sock.close()
