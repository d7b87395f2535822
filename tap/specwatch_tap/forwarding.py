"""The path and the header fields with which a request goes upstream."""

from __future__ import annotations

import re
from urllib.parse import unquote

from multidict import CIMultiDict
from yarl import URL

from specwatch_tap.server_facts import Scope

Headers = list[tuple[bytes, bytes]]

_ONE_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_ABSOLUTE = re.compile(rb"https?://(?:[^/]*@)?([^/@]+)(/.*)?", re.IGNORECASE)


def checked(scope: Scope) -> Scope:
    """The request with a path as its target. Raises ValueError for one that cannot be forwarded.

    A target that does not begin with a slash would extend the host name of the upstream.
    """
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        raise ValueError("a request may have Content-Length or Transfer-Encoding, not both")
    raw = _raw_path(scope)
    if raw.startswith(b"/") or scope["method"] == "CONNECT":
        return scope
    absolute = _ABSOLUTE.fullmatch(raw)
    if absolute is None:
        raise ValueError("the target of a request must begin with a slash")
    path = absolute[2] or b"/"
    others = [field for field in scope["headers"] if field[0] != b"host"]
    headers = [(b"host", absolute[1]), *others]
    return {**scope, "path": unquote(path.decode("ascii")), "raw_path": path, "headers": headers}


def _raw_path(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw


def end_to_end(headers: Headers) -> Headers:
    """Header fields, named in lower case, without those that are for one connection only."""
    dropped = set(_ONE_CONNECTION)
    for name, value in headers:
        if name == b"connection":
            dropped |= {option.strip().lower() for option in value.split(b",")}
    dropped -= {b"content-length", b"host"}
    return [(name, value) for name, value in headers if name not in dropped]


def forwarded(scope: Scope, *, has_body: bool) -> CIMultiDict[str]:
    """The header fields that the upstream gets."""
    headers = CIMultiDict[str]()
    came_for: list[str] = []
    host = ""
    for name, value in end_to_end(scope["headers"]):
        text = _text(value)
        if name == b"x-forwarded-for":
            came_for.append(text)
        elif name == b"host":
            host = text
        elif name != b"expect" and (has_body or name != b"content-length"):
            headers.add(name.decode("ascii"), text)
    client = scope.get("client")
    headers["x-forwarded-for"] = ", ".join([*came_for, *([client[0]] if client else [])])
    headers.setdefault("x-forwarded-proto", scope.get("scheme", "http"))
    if host:
        headers.setdefault("x-forwarded-host", host)
    return headers


def _text(value: bytes) -> str:
    """The value of a field for the client library, which writes it as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def target(base: str, scope: Scope) -> URL:
    """The URL upstream, with path and query of a checked request as the client wrote them."""
    raw = _raw_path(scope)
    if query := scope["query_string"]:
        raw = b"%b?%b" % (raw, query)
    plain = "".join(chr(byte) if 0x20 < byte < 0x7F else f"%{byte:02X}" for byte in raw)
    return URL(base + plain.replace("#", "%23"), encoded=True)


def asks_for_websocket(headers: Headers) -> bool:
    """Whether a request wants to go on as a WebSocket."""
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)
