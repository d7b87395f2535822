"""Fetching a page is bounded in time and memory, and each failure has its reason and a remedy."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import socket
import ssl
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specwatch.config.target import Target
from specwatch.errors import ConfigError, ScrapeError, ScrapeReason
from specwatch.runtime import resolver
from specwatch.scrape.page_client import BlockingPageClient, PageClient
from tests.fixtures import CERTIFICATE, Serve
from tests.hostile import Behaviour, HostileServer, Visit, deaf_port, hanging, page, wait_for

PAGE = b"# HELP a b\n" + b"a 1\n" * 5000
MEGABYTE = 1 << 20


@pytest.fixture
def client_of() -> Iterator[Callable[..., BlockingPageClient]]:
    """Makes clients, which are closed afterwards."""
    made: list[BlockingPageClient] = []

    def client(
        url: str, timeout: float = 60.0, max_size: int = MEGABYTE, **rest: Any
    ) -> BlockingPageClient:
        made.append(BlockingPageClient(url, timeout=timeout, max_size=max_size, **rest))
        return made[-1]

    yield client
    for created in made:
        created.close()


ClientOf = Callable[..., BlockingPageClient]
Connect = Callable[..., tuple[HostileServer, BlockingPageClient]]


@pytest.fixture
def connect(serve: Serve, client_of: ClientOf) -> Connect:
    """Starts a server, and makes a client of it."""

    def connected(behaviour: Behaviour, **options: Any) -> tuple[HostileServer, BlockingPageClient]:
        server = serve(behaviour)
        return server, client_of(server.url, **options)

    return connected


def failure(client: BlockingPageClient, path: str = "/metrics") -> ScrapeError:
    with pytest.raises(ScrapeError) as caught:
        client.fetch(path)
    return caught.value


def raw(data: bytes, keep: bool = False) -> Behaviour:
    """Answers with these bytes, whatever they are, and leaves."""

    def behave(visit: Visit) -> bool:
        visit.send(data)
        return keep

    return behave


def body(data: bytes, headers: str = "") -> Behaviour:
    def behave(visit: Visit) -> bool:
        visit.answer(data, headers=headers)
        return True

    return behave


def resolve_by(look_up: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are looked up by that function of a port."""

    def getaddrinfo(host: str, port: int, **rest: Any) -> list[Any]:
        if rest.get("flags"):
            raise socket.gaierror("not a number")
        return look_up(port)

    monkeypatch.setattr(resolver.socket, "getaddrinfo", getaddrinfo)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n", headers: bytes = b"") -> bytes:
    parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + headers + b"\r\n"
    return head + b"".join(parts) + end


GZIP = "Content-Encoding: gzip\r\n"


def test_one_connection_serves_many_fetches(connect: Connect) -> None:
    server, client = connect(page(PAGE))
    assert [client.fetch("/metrics") for _ in range(20)] == [PAGE] * 20
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        chunked(PAGE[:100], PAGE[100:]),
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE,
        chunked(gzip.compress(PAGE, mtime=0), headers=GZIP.encode()),
    ],
    ids=["chunked", "length", "chunked gzip"],
)
def test_every_framing_leaves_the_connection_usable(connect: Connect, answer: bytes) -> None:
    server, client = connect(raw(answer, keep=True))
    assert [client.fetch("/metrics") for _ in range(3)] == [PAGE] * 3
    assert server.connections == 1


def test_an_idle_connection_that_the_server_closed_is_no_failure(connect: Connect) -> None:
    server, client = connect(page(PAGE))
    for _ in range(3):
        assert client.fetch("/metrics") == PAGE
        server.drop_all()
    assert server.connections == 3


def test_a_connection_that_is_closed_while_we_ask_is_tried_once_more(connect: Connect) -> None:
    def behave(visit: Visit) -> bool:
        if len(server.visits) == 2:
            return False
        visit.answer(PAGE)
        return True

    server, client = connect(behave)
    assert [client.fetch("/metrics") for _ in range(2)] == [PAGE] * 2
    assert (len(server.visits), server.connections) == (3, 2)


def test_a_page_that_breaks_off_is_not_asked_for_again(connect: Connect) -> None:
    def behave(visit: Visit) -> bool:
        whole = len(server.visits) == 1
        visit.answer(PAGE, length=len(PAGE) + (0 if whole else 5))
        return whole

    server, client = connect(behave)
    client.fetch("/metrics")
    assert failure(client).reason == ScrapeReason.TRUNCATED
    assert len(server.visits) == 2


@pytest.mark.parametrize("keep_alive", ["", "Connection: close\r\n"])
def test_a_page_without_length_ends_with_the_connection(connect: Connect, keep_alive: str) -> None:
    server, client = connect(raw(f"HTTP/1.1 200 OK\r\n{keep_alive}\r\n".encode() + PAGE))
    assert [client.fetch("/metrics") for _ in range(3)] == [PAGE] * 3
    assert server.connections == 3


def test_gzip_is_asked_for_only_across_a_network(
    serve: Serve, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one machine compressing costs the engine more than the bytes do."""
    server = serve(page(PAGE))
    client_of(server.url).fetch("/metrics")
    monkeypatch.setattr("specwatch.scrape.page_client.is_loopback", lambda host: False)
    client_of(server.url).fetch("/metrics")
    assert [v.headers["accept-encoding"] for v in server.visits] == ["identity", "gzip"]


@pytest.mark.parametrize(
    "answer",
    [
        raw(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(PAGE) + PAGE),
        body(gzip.compress(PAGE, mtime=0), GZIP),
        body(gzip.compress(PAGE[:99], mtime=0) + gzip.compress(PAGE[99:], mtime=0), GZIP),
    ],
    ids=["HTTP/1.0", "gzip of one member", "gzip of two members"],
)
def test_every_form_of_a_page_is_read(connect: Connect, answer: Behaviour) -> None:
    assert connect(answer)[1].fetch("/metrics") == PAGE


def status(line: str, headers: str = "") -> Behaviour:
    """Answers without a body in that status."""
    return lambda visit: visit.answer(b"", line, headers)


ZIPPED = gzip.compress(PAGE, mtime=0)
HEAD = b"HTTP/1.1 200 OK\r\n"
BAD_ANSWERS = {
    "closes at once": (raw(b""), "unreachable", "server's log"),
    "less than its length": (
        lambda visit: visit.answer(PAGE, length=len(PAGE) + 5),
        "truncated",
        "broke off",
    ),
    "chunks without an end": (raw(chunked(PAGE, end=b"")), "truncated", "broke off"),
    "a chunk that is none": (
        raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"),
        "truncated",
        "broke off",
    ),
    "half a gzip": (body(ZIPPED[:-20], GZIP), "truncated", "broke off"),
    "gzip that is none": (body(b"a 1\n", GZIP), "malformed", "not gzip"),
    "gzip and more data": (body(ZIPPED + b"a 1\n", GZIP), "malformed", "not gzip"),
    "broken gzip": (body(ZIPPED[:10] + b"\xff" * 40, GZIP), "malformed", "not gzip"),
    "another encoding": (
        body(zlib.compress(PAGE), "Content-Encoding: deflate\r\n"),
        "not_metrics",
        "pass pages",
    ),
    "no HTTP": (raw(b"\x15\x03\x01\x00\x02"), "not_metrics", "https"),
    "ssh": (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "not_metrics", "is the port right"),
    "many headers": (raw(HEAD + b"X: y\r\n" * 200 + b"\r\n"), "not_metrics", "100 headers"),
    "long header": (raw(HEAD + b"X: " + b"y" * 70_000), "not_metrics", "line"),
    "404": (status("404 Not Found"), "http_status", "metrics_path"),
    "401": (status("401 No"), "http_status", "bearer_token_file"),
    "403": (status("403 No"), "http_status", "other credentials"),
    "501": (status("501 Not Implemented"), "http_status", "llama-server with --metrics"),
    "503": (status("503 Busy"), "http_status", "starting or overloaded"),
    "500": (status("500 \x1b[2J" + "x" * 5000), "http_status", "server's log"),
    "204": (status("204 No"), "http_status", "204"),
    "301": (
        status("301 Moved", "Location: https://there/\r\n"),
        "http_status",
        "redirect (to https://there/)",
    ),
    "302": (status("302 Found"), "http_status", "use the address that it names"),
}


@pytest.mark.parametrize(
    ("answer", "reason", "words"), BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys()
)
def test_each_bad_answer_has_its_reason_and_a_remedy(
    connect: Connect, answer: Behaviour, reason: str, words: str
) -> None:
    server, client = connect(answer)
    error = failure(client)
    assert error.reason == reason
    assert words in str(error)
    assert server.url in str(error)
    assert len(str(error)) < 400
    assert str(error).isprintable()
    assert len(server.visits) == 1, "it is asked again only where it had been asked before"


def test_tensorrt_llm_without_the_page_is_told_how_to_have_it(connect: Connect) -> None:
    _, client = connect(status("404 Not Found"))
    with pytest.raises(ScrapeError, match="with `return_perf_metrics: true`"):
        client.fetch("/prometheus/metrics")


def trickling(head: bytes, pieces: Callable[[], Iterator[bytes]], pause: float) -> Behaviour:
    def behave(visit: Visit) -> None:
        visit.send(head)
        visit.trickle(pieces(), pause)

    return behave


forever = itertools.repeat


class MovableLoop(asyncio.SelectorEventLoop):
    """Its clock can be put forward, by any thread."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def forward(self, seconds: float) -> None:
        def move() -> None:
            self.ahead += seconds

        self.call_soon_threadsafe(move)


@pytest.fixture
def loop() -> Iterator[MovableLoop]:
    with contextlib.closing(MovableLoop()) as made:
        yield made


def error_of(loop: MovableLoop, client: PageClient) -> ScrapeError:
    with pytest.raises(ScrapeError) as caught:
        loop.run_until_complete(client.fetch("/metrics"))
    return caught.value


def test_a_reset_in_the_middle_of_a_page_is_a_truncated_page(
    serve: Serve, loop: MovableLoop
) -> None:
    """A reset discards what has not been read."""

    async def read() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    def behave(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\nhalf")
        asyncio.run_coroutine_threadsafe(read(), loop).result(10)
        visit.reset()

    client = PageClient(serve(behave).url, timeout=60.0, max_size=MEGABYTE)
    assert error_of(loop, client).reason == ScrapeReason.TRUNCATED


LATE: dict[str, tuple[bytes, bytes, bool, str]] = {
    "silent": (b"", b"", False, "did not answer within 60 s"),
    "status": (b"HTTP/1.1 200 O", b"K", False, "did not answer"),
    "headers": (HEAD, b"X: y\r\n", False, "did not answer"),
    "body": (HEAD + b"Content-Length: 999\r\n\r\n", b"a", False, "did not end"),
    "chunks": (chunked(end=b""), b"1\r\na\r\n", False, "did not end"),
    "endless trailers": (chunked(b"a 1\n", end=b"0\r\n"), b"T: 1\r\n", True, "did not end"),
    "endless 100": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", True, "did not answer"),
}


@pytest.mark.parametrize(("head", "piece", "endless", "words"), LATE.values(), ids=LATE.keys())
def test_a_fetch_ends_by_its_deadline(
    serve: Serve, loop: MovableLoop, head: bytes, piece: bytes, endless: bool, words: str
) -> None:
    """Though a piece comes every 25 s, and without end."""

    def behave(visit: Visit) -> None:
        visit.send(head)
        for _ in range(3):
            visit.send(piece)
            loop.forward(25.0)
        if endless:
            visit.trickle(forever(piece), 0)
        visit.hang()

    error = error_of(loop, PageClient(serve(behave).url, timeout=60.0, max_size=MEGABYTE))
    assert error.reason == ScrapeReason.TIMEOUT
    assert words in str(error)
    assert "raise timeout" in str(error)


def test_a_deadline_covers_both_tries_of_a_connection_that_was_closed(
    serve: Serve, loop: MovableLoop
) -> None:
    def behave(visit: Visit) -> bool | None:
        if len(server.visits) == 1:
            visit.answer(PAGE)
            return True
        loop.forward(35.0)
        return len(server.visits) == 3 and hanging(visit)

    server = serve(behave)
    client = PageClient(server.url, timeout=60.0, max_size=MEGABYTE)
    loop.run_until_complete(client.fetch("/metrics"))
    assert error_of(loop, client).reason == ScrapeReason.TIMEOUT
    assert len(server.visits) == 3


def test_connecting_ends_by_the_deadline(client_of: ClientOf) -> None:
    with deaf_port() as port:
        error = failure(client_of(f"http://127.0.0.1:{port}", timeout=0.02))
    assert error.reason == ScrapeReason.TIMEOUT
    assert "no connection" in str(error)


def test_a_tls_handshake_ends_by_the_deadline(serve: Serve, client_of: ClientOf) -> None:
    url = serve(hanging).url.replace("http:", "https:")
    assert failure(client_of(url, timeout=0.02)).reason == ScrapeReason.TIMEOUT


def test_a_name_server_that_hangs_is_one_thread_and_a_timeout(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's resolver has no time limit, and a scrape must have one."""
    asked: list[int] = []
    answering = threading.Event()

    def look_up(port: int) -> list[Any]:
        asked.append(port)
        assert answering.wait(20)
        raise socket.gaierror(-2, "Name or service not known")

    resolve_by(look_up, monkeypatch)
    client = client_of("http://name.invalid:8000", timeout=0.01)
    errors = [failure(client) for _ in range(3)]
    wait_for(lambda: asked)
    answering.set()
    assert {error.reason for error in errors} == {ScrapeReason.TIMEOUT}
    assert "DNS" in str(errors[0])
    assert len(asked) == 1
    wait_for(lambda: failure(client).reason == ScrapeReason.UNREACHABLE)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70 + ".invalid"])
def test_a_host_that_is_not_known_is_unreachable(client_of: ClientOf, host: str) -> None:
    error = failure(client_of(f"http://{host}:8000"))
    assert error.reason == ScrapeReason.UNREACHABLE
    assert "check its host name" in str(error)


def test_nothing_that_listens_is_refused(client_of: ClientOf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    error = failure(client_of(f"http://127.0.0.1:{port}"))
    assert error.reason == ScrapeReason.REFUSED
    assert "is the engine up" in str(error)


LARGE = {
    "no length": trickling(HEAD + b"\r\n", lambda: forever(b"a 1\n" * 16384), 0),
    "chunked": trickling(
        chunked(end=b""), lambda: forever(b"10000\r\n" + b"a 1\n" * 16384 + b"\r\n"), 0
    ),
    "announced": raw(HEAD + b"Content-Length: 104857600\r\n\r\n", keep=True),
    "gzip bomb": body(gzip.compress(b"a 1\n" * (3 * MEGABYTE), 1), GZIP),
    "endless empty gzip": trickling(
        HEAD + GZIP.encode() + b"\r\n" + gzip.compress(b"a 1\n"),
        lambda: forever(gzip.compress(b"") * 300),
        0,
    ),
}


@pytest.mark.parametrize("behaviour", LARGE.values(), ids=LARGE.keys())
def test_a_page_that_is_too_large_is_given_up_in_bounded_memory(
    connect: Connect, behaviour: Behaviour
) -> None:
    _, client = connect(behaviour, max_size=MEGABYTE // 4)
    tracemalloc.start()
    try:
        error = failure(client)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.reason == ScrapeReason.TOO_LARGE
    assert "max_page_size" in str(error)
    assert peak < MEGABYTE


def test_a_page_of_exactly_the_largest_size_is_taken(serve: Serve, client_of: ClientOf) -> None:
    server = serve(page(PAGE))
    assert client_of(server.url, max_size=len(PAGE)).fetch("/metrics") == PAGE
    error = failure(client_of(server.url, max_size=len(PAGE) - 1))
    assert error.reason == ScrapeReason.TOO_LARGE


def test_an_answer_longer_than_its_length_does_not_spoil_the_next(connect: Connect) -> None:
    def behave(visit: Visit) -> bool:
        visit.answer(PAGE + b"rest", length=len(PAGE))
        return True

    server, client = connect(behave)
    assert client.fetch("/metrics") == PAGE
    with contextlib.suppress(OSError):  # closed as more came than was asked for
        server.visits[0].send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nevil\n")
    assert client.fetch("/metrics") == PAGE


def test_ipv6_and_a_path_prefix(serve: Serve, client_of: ClientOf) -> None:
    server = serve(page(PAGE), host="::1")
    client = client_of(f"{server.url}/a b/é/")
    assert client.fetch("/metrics") == PAGE
    assert server.paths == ["/a%20b/%C3%A9/metrics"]
    assert server.visits[0].headers["host"] == f"[::1]:{server.port}"


def test_a_host_with_two_addresses_is_reached_by_the_one_that_answers(
    serve: Serve, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """localhost is ::1 first on many hosts, where vLLM listens on 127.0.0.1 only."""
    server = serve(page(PAGE))

    def look_up(port: int) -> list[Any]:
        kind, protocol = socket.SOCK_STREAM, socket.IPPROTO_TCP
        return [
            (socket.AF_INET6, kind, protocol, "", ("::1", port, 0, 0)),
            (socket.AF_INET, kind, protocol, "", ("127.0.0.1", port)),
        ]

    resolve_by(look_up, monkeypatch)
    assert client_of(f"http://two.example:{server.port}").fetch("/metrics") == PAGE
    assert server.visits[0].headers["host"] == f"two.example:{server.port}"


def test_a_name_with_other_letters_is_asked_for_as_its_server_knows_it(
    serve: Serve, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(page(PAGE))
    kind, protocol = socket.SOCK_STREAM, socket.IPPROTO_TCP
    resolve_by(
        lambda port: [(socket.AF_INET, kind, protocol, "", ("127.0.0.1", port))], monkeypatch
    )
    assert client_of(f"http://bücher.example:{server.port}").fetch("/metrics") == PAGE
    assert server.visits[0].headers["host"] == f"xn--bcher-kva.example:{server.port}"


@pytest.mark.parametrize(
    ("value", "sent"),
    [("a\tb", True), ("café", True), ("a\nb", False), ("a\rX: y", False), ("日本", False)],
)
def test_a_header_has_no_line_ends_or_letters_beyond_latin(
    serve: Serve, client_of: ClientOf, value: str, sent: bool
) -> None:
    server = serve(page(PAGE))
    client = client_of(server.url, headers=lambda: {"X-Key": value})
    if sent:
        assert client.fetch("/metrics") == PAGE
        assert f"X-Key: {value}".encode("latin-1") in server.visits[0].head.encode("latin-1")
    else:
        assert failure(client).reason == ScrapeReason.CREDENTIALS
        assert not server.visits


def test_a_self_signed_certificate_is_refused_unless_it_is_known(
    serve: Serve, client_of: ClientOf, server_tls: ssl.SSLContext
) -> None:
    server = serve(page(PAGE), tls=server_tls)
    error = failure(client_of(server.url))
    assert error.reason == ScrapeReason.TLS
    assert "ca_file" in str(error)
    known = ssl.create_default_context(cafile=CERTIFICATE)
    client = client_of(server.url, tls=known)
    assert [client.fetch("/metrics") for _ in range(5)] == [PAGE] * 5
    assert server.connections == 2


def test_the_wrong_host_in_a_certificate_is_refused(
    serve: Serve, client_of: ClientOf, server_tls: ssl.SSLContext
) -> None:
    server = serve(page(PAGE), tls=server_tls, host="127.0.0.2")
    known = ssl.create_default_context(cafile=CERTIFICATE)
    error = failure(client_of(server.url, tls=known))
    assert error.reason == ScrapeReason.TLS
    assert "as its certificate does" in str(error)


def test_https_asked_of_a_server_of_http_is_a_matter_of_tls(
    serve: Serve, client_of: ClientOf
) -> None:
    server = serve(raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        error = failure(client_of(f"https://127.0.0.1:{listening.getsockname()[1]}"))
    assert error.reason == ScrapeReason.TLS
    assert "is it http?" in str(error)
    assert not server.visits


def test_a_rotated_token_is_sent_with_the_next_fetch(
    serve: Serve, client_of: ClientOf, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    server = serve(page(PAGE))
    target = Target(url=server.url, name="one", bearer_token_file=token)
    client = client_of(server.url, headers=target.request_headers)
    client.fetch("/metrics")
    token.write_text("second\n")
    client.fetch("/metrics")
    sent = [visit.headers["authorization"] for visit in server.visits]
    assert sent == ["Bearer first", "Bearer second"]
    assert server.connections == 1
    token.unlink()
    with pytest.raises(ConfigError, match="create it"):
        client.fetch("/metrics")
    token.write_text("日本")
    error = failure(client)
    assert error.reason == ScrapeReason.CREDENTIALS
    assert "日本" not in str(error)
    token.write_text("third")
    assert client.fetch("/metrics") == PAGE


def cancelled(url: str, under_way: Callable[[], object], **options: Any) -> None:
    """A fetch that has a minute is over soon after it is cancelled, and its connection closed."""

    async def run() -> None:
        client = PageClient(url, timeout=60.0, max_size=MEGABYTE, **options)
        fetching = asyncio.ensure_future(client.fetch("/metrics"))
        while not under_way():
            await asyncio.sleep(0.001)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(fetching, 10)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("behaviour", "tls"),
    [
        (hanging, False),
        (trickling(HEAD + b"\r\n", lambda: forever(b"a"), 0.01), False),
        (hanging, True),
    ],
    ids=["without an answer", "in the page", "in a TLS session"],
)
def test_a_fetch_can_be_cancelled(
    serve: Serve, server_tls: ssl.SSLContext, behaviour: Behaviour, tls: bool
) -> None:
    ended = threading.Event()

    def behave(visit: Visit) -> bool | None:
        try:
            return behaviour(visit)
        finally:
            ended.set()

    server = serve(behave, tls=server_tls if tls else None)
    known = ssl.create_default_context(cafile=CERTIFICATE)
    cancelled(server.url, lambda: server.visits, tls=known)
    assert ended.wait(10)


def test_connecting_can_be_cancelled() -> None:
    begun = itertools.count()
    with deaf_port() as port:
        cancelled(f"http://127.0.0.1:{port}", lambda: next(begun) > 5)


def test_looking_a_name_up_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()

    def look_up(port: int) -> list[Any]:
        entered.set()
        assert leave.wait(20)
        return []

    resolve_by(look_up, monkeypatch)
    cancelled("http://name.invalid", entered.is_set)
    leave.set()


def test_the_limits_of_one_fetch_can_be_its_own(connect: Connect) -> None:
    _, client = connect(lambda v: hanging(v) if v.path == "/hangs" else page(PAGE)(v), timeout=60)
    with pytest.raises(ScrapeError, match=r"within 0\.02 s"):
        client.fetch("/hangs", timeout=0.02)
    with pytest.raises(ScrapeError, match="longer than 100 bytes"):
        client.fetch("/metrics", max_size=100)
    assert client.fetch("/metrics") == PAGE


def test_sockets_are_closed(serve: Serve) -> None:
    """After a failure, at the end, and after an error status."""
    ended = threading.Semaphore(0)

    def behave(visit: Visit) -> bool | None:
        visit.answer(PAGE, "500 No" if visit.path == "/bad" else "200 OK")
        visit.hang()
        ended.release()
        return False

    server: HostileServer = serve(behave)
    client = BlockingPageClient(server.url, timeout=5, max_size=MEGABYTE)
    failure(client, "/bad")
    assert ended.acquire(timeout=10)
    client.fetch("/metrics")
    client.close()
    assert ended.acquire(timeout=10)
