"""Fetching one server's pages over a connection that is kept alive.

Each fetch is bounded in time and size, whatever the server does, and waits in an event loop, so
that one thread fetches the pages of many servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import socket
import ssl
import zlib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from specwatch import __version__
from specwatch.domain.units import is_loopback
from specwatch.engines import tensorrtllm
from specwatch.errors import PageError, ScrapeError, ScrapeReason
from specwatch.runtime.http_connection import BadAnswer, HttpConnection
from specwatch.runtime.resolver import Resolver

_HEADERS = {
    "Accept": "text/plain;version=0.0.4, application/json;q=0.5",
    "User-Agent": f"specwatch/{__version__}",
}
_SENDABLE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_SENT_AS_IT_IS = "/%:@!$&'()*+,;=~"
_NAME, _CONNECTION, _ANSWER, _PAGE = "name", "connection", "answer", "page"
"""Stages of a fetch, in order."""
_LATE = {
    _NAME: "the name of {url} was not looked up within {seconds:g} s; check this host's DNS",
    _CONNECTION: "no connection to {url} within {seconds:g} s; check that the host is up and no"
    " firewall is in between",
    _ANSWER: "{url} did not answer within {seconds:g} s; is it hung or overloaded? If it is always"
    " slow, raise timeout and interval",
    _PAGE: "the page of {url} did not end within {seconds:g} s; is it hung or overloaded? If it is"
    " always slow, raise timeout and interval",
}
_STATUS_HINTS = {
    400: "; llama-server in router mode needs metrics_path: /metrics?model=NAME",
    401: "; give credentials: bearer_token_file or basic_auth",
    403: "; give other credentials: these may not read the page",
    404: "; is this the address of the engine, and metrics_path right?",
    501: "; start llama-server with --metrics",
    503: "; is it starting or overloaded?",
}
_REDIRECTS = (301, 302, 303, 307, 308)
_ZIPPED_AT_ONCE = 8192
"""Bytes that are decompressed at a time: what follows a member is copied at its end, and a page may
have very many members."""


class PageClient:
    """Fetches pages of one server, one at a time, in one event loop."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        max_size: int,
        headers: Callable[[], Mapping[str, str]] = dict,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``timeout`` bounds a whole fetch in seconds, ``max_size`` the page in bytes.

        ``headers`` is called for each fetch, so that a rotated token is picked up.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._host = parts.hostname or ""
        default_port = http.client.HTTPS_PORT if secure else http.client.HTTP_PORT
        port = parts.port or default_port
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._url = url
        self._timeout = timeout
        self._max_size = max_size
        self._headers = headers
        # Compressing a page costs the engine more than sending it to its own machine.
        encoding = "identity" if is_loopback(self._host) else "gzip"
        self._port = "" if port == default_port else f":{port}"
        self._own_headers = {"Accept-Encoding": encoding, **_HEADERS}
        self._bare = ("", b"")
        """The last path that was asked for without headers of the target, and the request."""
        self._resolver = Resolver(self._host, port)
        self._connection: HttpConnection | None = None
        self._stage = _NAME

    async def fetch(
        self, path: str, *, timeout: float | None = None, max_size: int | None = None
    ) -> bytes:
        """The body of a page, decompressed; ``timeout`` and ``max_size`` override the client's.

        Raises ScrapeError with the reason, and what ``headers`` raises.
        """
        seconds = self._timeout if timeout is None else timeout
        page = _Page(self._url, path, max_size or self._max_size)
        try:
            request = self._request(path)
            async with asyncio.timeout(seconds):
                reused = self._connection is not None and self._connection.usable
                try:
                    return await self._exchange(request, page, seconds)
                except ConnectionError:
                    if not reused or self._stage != _ANSWER or page.begun:
                        raise
                # The server closed it while the request was sent.
                return await self._exchange(request, page, seconds)
        except (OSError, BadAnswer, UnicodeError, zlib.error) as error:
            self.close()
            raise self._failure(error, seconds, page) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next fetch opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _exchange(self, request: bytes, page: _Page, seconds: float) -> bytes:
        connection = self._connection
        if connection is None or not connection.usable:
            connection = self._connection = await self._connected(seconds)
        self._stage = _ANSWER
        await connection.request(request, page)
        return page.body()

    async def _connected(self, seconds: float) -> HttpConnection:
        """Connect to the first address that answers; each gets its share of the time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._stage = _NAME
        addresses = await self._resolver.addresses()
        self._stage = _CONNECTION
        failed: OSError = OSError("the name has no address")
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            with contextlib.ExitStack() as opened:
                sock = opened.enter_context(
                    socket.socket(address.family, address.kind, address.protocol)
                )
                sock.setblocking(False)
                try:
                    async with asyncio.timeout((deadline - loop.time()) / left):
                        await loop.sock_connect(sock, address.place)
                except OSError as error:
                    failed = error
                    continue
                opened.pop_all()
            name = self._host if self._tls else None
            _, connection = await loop.create_connection(
                HttpConnection, sock=sock, ssl=self._tls, server_hostname=name
            )
            return connection
        raise failed

    def _request(self, path: str) -> bytes:
        given = self._headers()
        if given:
            return self._written(path, given)
        if path != self._bare[0]:
            self._bare = path, self._written(path, given)
        return self._bare[1]

    def _written(self, path: str, given: Mapping[str, str]) -> bytes:
        # As an address of the domain name system; an IPv6 address has brackets.
        host = self._host if self._host.isascii() else self._host.encode("idna").decode("ascii")
        host = f"[{host}]" if ":" in host else host
        headers = {"Host": host + self._port, **self._own_headers, **given}
        for name, value in headers.items():
            if not _SENDABLE.fullmatch(value):
                raise ScrapeError(
                    ScrapeReason.CREDENTIALS,
                    f"the {name} for {self._url} has characters that a header cannot have;"
                    " check that its file holds the right secret",
                )
        target = quote(self._prefix + path, safe=_SENT_AS_IT_IS)
        lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _failure(self, error: Exception, seconds: float, page: _Page) -> ScrapeError:
        url, stage = self._url, _PAGE if page.begun else self._stage
        if isinstance(error, TimeoutError):
            return ScrapeError(ScrapeReason.TIMEOUT, _LATE[stage].format(url=url, seconds=seconds))
        if isinstance(error, ConnectionRefusedError):
            return ScrapeError(
                ScrapeReason.REFUSED,
                f"nothing listens at {url}; is the engine up, and on this port?",
            )
        if isinstance(error, ssl.SSLError):
            return ScrapeError(ScrapeReason.TLS, _about_tls(url, error))
        if isinstance(error, zlib.error):
            return PageError(ScrapeReason.MALFORMED, f"the page of {url} is not gzip: {error}")
        if isinstance(error, ConnectionError | BadAnswer) and page.begun:
            return page.broke_off(_excerpt(str(error)))
        if isinstance(error, ConnectionError) and stage == _ANSWER:
            return ScrapeError(
                ScrapeReason.UNREACHABLE,
                f"{url} closed the connection without an answer; look at the server's log",
            )
        if isinstance(error, BadAnswer):
            return PageError(
                ScrapeReason.NOT_METRICS,
                f"{url} does not speak HTTP ({_excerpt(str(error))}); is the port right, or is it"
                " https?",
            )
        return ScrapeError(
            ScrapeReason.UNREACHABLE,
            f"cannot reach {url}: {_excerpt(str(error))}; check its host name and the network",
        )


class BlockingPageClient:
    """A client for callers without an event loop; for one thread at a time."""

    def __init__(self, url: str, **options: Any) -> None:
        """``options`` as of :class:`PageClient`."""
        self._client = PageClient(url, **options)
        self._runner: asyncio.Runner | None = None

    def fetch(self, path: str, **limits: Any) -> bytes:
        """As of :class:`PageClient`."""
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(self._fetch(path, **limits))

    def close(self) -> None:
        """Close the connection; the next fetch opens another."""
        if self._runner is not None:
            self._client.close()
            self._runner.close()
            self._runner = None

    async def _fetch(self, path: str, **limits: Any) -> bytes:
        await asyncio.sleep(0)  # what the connection got meanwhile
        return await self._client.fetch(path, **limits)


class _Page:
    """The answer to one request, as a receiver of :class:`HttpConnection`."""

    def __init__(self, url: str, path: str, max_size: int) -> None:
        self._url = url
        self._path = path
        self._max_size = max_size
        self._parts: list[bytes] = []
        self._received = self._size = 0
        self._unzip: _Unzip | None = None
        self.begun = False

    def begin(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        """Raises ScrapeError for an answer without a page, or with one that is too large."""
        self.begun = True
        if status != http.client.OK:
            message = self._status(status, reason, headers.get("location", "nowhere"))
            raise ScrapeError(ScrapeReason.HTTP_STATUS, message, status)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise PageError(
                ScrapeReason.NOT_METRICS,
                f"{self._url} answered in encoding {_excerpt(encoding)}, which was not asked for;"
                " make the proxy in between pass pages on unchanged",
            )
        self._unzip = _Unzip() if encoding == "gzip" else None
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_size:
            raise self._too_large()

    def feed(self, data: bytes) -> None:
        """Raises ScrapeError for a page that is too large, zlib.error for one that is not gzip."""
        self._received += len(data)
        if self._unzip is not None:
            data = self._unzip.feed(data, self._max_size + 1 - self._size)
        self._size += len(data)
        if max(self._received, self._size) > self._max_size:
            raise self._too_large()
        self._parts.append(data)

    def body(self) -> bytes:
        """The page. Raises PageError where its end is missing."""
        if self._unzip is not None and not self._unzip.complete:
            raise self.broke_off(f"{self._received} packed bytes")
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def broke_off(self, where: str) -> PageError:
        """Why the page is not used."""
        return PageError(
            ScrapeReason.TRUNCATED,
            f"the page of {self._url} broke off ({where}); did the server stop meanwhile?",
        )

    def _too_large(self) -> PageError:
        return PageError(
            ScrapeReason.TOO_LARGE,
            f"the page of {self._url} is longer than {self._max_size} bytes; if it should be, raise"
            " max_page_size",
        )

    def _status(self, status: int, reason: str, location: str) -> str:
        hint = _STATUS_HINTS.get(status, "; look at the server's log")
        if (status, self._path) == (404, tensorrtllm.PATH):
            hint = "; start trtllm-serve with `return_perf_metrics: true` in its configuration"
        if status in _REDIRECTS:
            hint = (
                f"; a redirect (to {_excerpt(location)}) is not followed, use the address that it"
                " names"
            )
        return f"{self._url} answered {status} {_excerpt(reason)}{hint}"


class _Unzip:
    """Decompresses gzip of one or more members, up to a limit."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    @property
    def complete(self) -> bool:
        """Whether the data fed so far is complete."""
        return self._member.eof

    def feed(self, data: bytes, most: int) -> bytes:
        """Decompress up to ``most`` bytes, at least 1. Raises zlib.error for other data."""
        unpacked = bytearray()
        for start in range(0, len(data), _ZIPPED_AT_ONCE):
            piece = data[start : start + _ZIPPED_AT_ONCE]
            while piece and len(unpacked) < most:
                if self._member.eof:
                    self._member = zlib.decompressobj(wbits=31)
                unpacked += self._member.decompress(piece, most - len(unpacked))
                piece = self._member.unused_data
        return bytes(unpacked)


def _about_tls(url: str, error: ssl.SSLError) -> str:
    remedy = "is it http?"
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "name the authority in ca_file, or the host as its certificate does"
    return f"no secure connection to {url}: {_excerpt(str(error))}; {remedy}"


def _excerpt(text: str) -> str:
    """Text of a server, short and on one line."""
    plain = "".join(char if char.isprintable() else "?" for char in text[:121])
    return plain if len(plain) <= 120 else plain[:117] + "..."
