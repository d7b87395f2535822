"""Fetching one server's pages over a connection that is kept alive.

On http.client rather than requests: a request through requests costs more than fetching, reading
and counting a page together. Each fetch is bounded in time and size, whatever the server does.
"""

from __future__ import annotations

import http.client
import ssl
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import quote, urlsplit

from specwatch import __version__
from specwatch.domain.units import is_loopback
from specwatch.engines import tensorrtllm
from specwatch.errors import PageError, ScrapeError, ScrapeReason
from specwatch.runtime.bounded_socket import BoundedSocket
from specwatch.runtime.resolver import Resolver

_CHUNK = 64 * 1024
_HEADERS = {
    "Accept": "text/plain;version=0.0.4, application/json;q=0.5",
    "User-Agent": f"specwatch/{__version__}",
}
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
    401: "; give credentials: bearer_token_file or basic_auth",
    403: "; give other credentials: these may not read the page",
    404: "; is this the address of the engine, and metrics_path right?",
    501: "; start llama-server with --metrics",
    503: "; is it starting or overloaded?",
}
_REDIRECTS = (301, 302, 303, 307, 308)


class PageClient:
    """Fetches pages of one server, one at a time."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        max_size: int,
        headers: Callable[[], Mapping[str, str]] = dict,
        tls: ssl.SSLContext | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``timeout`` bounds a whole fetch in seconds, ``max_size`` the page in bytes.

        ``headers`` is called for each fetch, so that a rotated token is picked up.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._host = parts.hostname or ""
        self._default_port = http.client.HTTPS_PORT if secure else http.client.HTTP_PORT
        self._port = parts.port or self._default_port
        self._tls = (tls or ssl.create_default_context()) if secure else None
        self._url = url
        self._timeout = timeout
        self._max_size = max_size
        self._headers = headers
        self._monotonic = monotonic
        # Compressing a page costs the engine more than sending it to its own machine.
        encoding = "identity" if is_loopback(self._host) else "gzip"
        self._encoding = {"Accept-Encoding": encoding}
        self._resolver = Resolver(self._host, self._port)
        self._connection: http.client.HTTPConnection | None = None
        self._socket: BoundedSocket | None = None
        self._stage = _NAME
        self._aborted = False

    def fetch(
        self, path: str, *, timeout: float | None = None, max_size: int | None = None
    ) -> bytes:
        """The body of a page, decompressed; ``timeout`` and ``max_size`` override the client's.

        Raises ScrapeError with the reason, and what ``headers`` raises.
        """
        headers = self._checked_headers()
        seconds = self._timeout if timeout is None else timeout
        deadline = self._monotonic() + seconds
        try:
            if self._socket is not None and not self._socket.is_idle():
                self.close()  # the server closed the idle connection: not a failure
            reused = self._socket is not None
            try:
                return self._fetch(path, headers, deadline, max_size or self._max_size)
            except ConnectionError:
                if not reused or self._stage != _ANSWER:
                    raise
                self.close()  # the server closed it while the request was sent
                return self._fetch(path, headers, deadline, max_size or self._max_size)
        except (OSError, http.client.HTTPException, UnicodeError, zlib.error) as error:
            self.close()
            raise self._failure(error, seconds) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next fetch opens another."""
        connection, sock = self._connection, self._socket
        self._connection = self._socket = None
        if connection is not None:
            connection.close()
        if sock is not None:
            sock.end()

    def abort(self) -> None:
        """Make a running fetch in another thread fail soon, and all later ones."""
        self._aborted = True
        self._resolver.abort()
        sock = self._socket
        if sock is not None:
            sock.abort()

    def _fetch(
        self, path: str, headers: Mapping[str, str], deadline: float, max_size: int
    ) -> bytes:
        connection = self._connected(deadline)
        self._stage = _ANSWER
        target = quote(self._prefix + path, safe=_SENT_AS_IT_IS)
        connection.request("GET", target, headers={**_HEADERS, **self._encoding, **headers})
        response = connection.getresponse()
        self._stage = _PAGE
        if response.status != http.client.OK:
            message, status = self._status(response, path), response.status
            raise ScrapeError(ScrapeReason.HTTP_STATUS, message, status)
        body = self._read(response, max_size)
        if self._aborted:  # looks like the end of a page without a length
            raise ConnectionAbortedError("given up")
        response.close()  # otherwise the connection stays busy
        if response.will_close:
            self.close()
        return body

    def _connected(self, deadline: float) -> http.client.HTTPConnection:
        if self._connection is not None and self._socket is not None:
            self._socket.deadline = deadline
            return self._connection
        self._stage = _NAME
        addresses = self._resolver.addresses(max(deadline - self._monotonic(), 0.0))
        self._stage = _CONNECTION
        self._socket = sock = BoundedSocket(self._monotonic)
        if self._aborted:
            sock.abort()
        sock.deadline = deadline
        sock.connect(addresses, self._tls, self._host)
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.default_port = self._default_port
        connection.auto_open = 0
        connection.sock = sock  # of a socket's methods it uses those that there are
        self._connection = connection
        return connection

    def _checked_headers(self) -> Mapping[str, str]:
        headers = self._headers()
        for name, value in headers.items():
            try:
                value.encode("latin-1")
            except UnicodeEncodeError:
                raise ScrapeError(
                    ScrapeReason.CREDENTIALS,
                    f"the {name} for {self._url} has characters that a header cannot have;"
                    " check that its file holds the right secret",
                ) from None
        return headers

    def _read(self, response: http.client.HTTPResponse, max_size: int) -> bytes:
        encoding = (response.getheader("Content-Encoding") or "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise PageError(
                ScrapeReason.NOT_METRICS,
                f"{self._url} answered in encoding {_excerpt(encoding)}, which was not asked for;"
                " make the proxy in between pass pages on unchanged",
            )
        too_large = PageError(
            ScrapeReason.TOO_LARGE,
            f"the page of {self._url} is longer than {max_size} bytes; if it should be, raise"
            " max_page_size",
        )
        if (response.length or 0) > max_size:
            raise too_large
        parts: list[bytes] = []
        received = size = 0
        unzip = _Unzip() if encoding == "gzip" else None
        for piece in _pieces(response):
            received += len(piece)
            data = unzip.feed(piece, max_size + 1 - size) if unzip else piece
            size += len(data)
            if max(received, size) > max_size:
                raise too_large
            parts.append(data)
        if unzip is not None and not unzip.complete:
            raise PageError(ScrapeReason.TRUNCATED, self._broke_off(f"{received} packed bytes"))
        return b"".join(parts)

    def _status(self, response: http.client.HTTPResponse, path: str) -> str:
        hint = _STATUS_HINTS.get(response.status, "; look at the server's log")
        if (response.status, path) == (404, tensorrtllm.PATH):
            hint = "; start trtllm-serve with `return_perf_metrics: true` in its configuration"
        if response.status in _REDIRECTS:
            location = _excerpt(response.getheader("Location") or "nowhere")
            hint = f"; a redirect (to {location}) is not followed, use the address that it names"
        return f"{self._url} answered {response.status} {_excerpt(response.reason)}{hint}"

    def _failure(self, error: Exception, seconds: float) -> ScrapeError:
        url = self._url
        if isinstance(error, TimeoutError):
            return ScrapeError(
                ScrapeReason.TIMEOUT, _LATE[self._stage].format(url=url, seconds=seconds)
            )
        if isinstance(error, ConnectionRefusedError):
            return ScrapeError(
                ScrapeReason.REFUSED,
                f"nothing listens at {url}; is the engine up, and on this port?",
            )
        if isinstance(error, ssl.SSLError):
            return ScrapeError(ScrapeReason.TLS, _about_tls(url, error))
        if isinstance(error, zlib.error):
            return PageError(ScrapeReason.MALFORMED, f"the page of {url} is not gzip: {error}")
        broke_off = isinstance(error, ConnectionError) and self._stage == _PAGE
        if broke_off or isinstance(error, http.client.IncompleteRead):
            return PageError(ScrapeReason.TRUNCATED, self._broke_off(_excerpt(str(error))))
        if isinstance(error, http.client.RemoteDisconnected):
            return ScrapeError(
                ScrapeReason.UNREACHABLE,
                f"{url} closed the connection without an answer; look at the server's log",
            )
        if isinstance(error, http.client.HTTPException):
            return PageError(
                ScrapeReason.NOT_METRICS,
                f"{url} does not speak HTTP ({_excerpt(repr(error))}); is the port right, or is it"
                " https?",
            )
        return ScrapeError(
            ScrapeReason.UNREACHABLE,
            f"cannot reach {url}: {_excerpt(str(error))}; check its host name and the network",
        )

    def _broke_off(self, where: str) -> str:
        return f"the page of {self._url} broke off ({where}); did the server stop meanwhile?"


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
        unpacked = b""
        while data and len(unpacked) < most:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            unpacked += self._member.decompress(data, most - len(unpacked))
            data = self._member.unused_data
        return unpacked


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body as it arrives. Raises IncompleteRead if it ends early."""
    if response.chunked:
        while piece := response.read1(_CHUNK):
            yield piece
        return
    left = response.length
    while left is None or left > 0:
        piece = response.fp.read1(_CHUNK if left is None else min(_CHUNK, left))
        if not piece:
            if left:
                raise http.client.IncompleteRead(b"", left)
            return
        if left is not None:
            left -= len(piece)
        yield piece


def _about_tls(url: str, error: ssl.SSLError) -> str:
    remedy = "is it http?"
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "name the authority in ca_file, or the host as its certificate does"
    return f"no secure connection to {url}: {_excerpt(str(error))}; {remedy}"


def _excerpt(text: str) -> str:
    """Text of a server, short and on one line."""
    plain = "".join(char if char.isprintable() else "?" for char in text[:121])
    return plain if len(plain) <= 120 else plain[:117] + "..."
