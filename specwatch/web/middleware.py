"""Access checks around the routes, and the headers of every answer."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specwatch.config.loading import Config
from specwatch.domain.units import is_loopback, quoted, server_address
from specwatch.wording.text import clean_json

FOR_MONITORING = ("/metrics", "/healthz", "/readyz")
"""Paths that Prometheus, load balancers and kubelets request, by any host name."""
_FOR_PROBES = ("/healthz", "/readyz")
"""Paths without a token: load balancers and kubelets have none, and the answers say little."""


def host_names(config: Config) -> tuple[str, ...]:
    """Host names that requests may use, beside addresses and loopback names."""
    own = socket.gethostname()
    external = server_address(config.external_url)[0]
    known = (config.listen.host, own, own.partition(".")[0], external)
    return (*map(str.lower, known), *config.allowed_hosts)


def json_response(body: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return respond(msgspec.json.encode(body), status)


def respond(
    body: bytes,
    status: int,
    media_type: str = "application/json",
    *,
    policy: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Response:
    """An answer that no cache keeps; ``policy`` is its Content-Security-Policy."""
    safe = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    if policy is not None:
        safe["Content-Security-Policy"] = policy
    if media_type == "application/json":
        body = clean_json(body)
    return Response(body, status, media_type=media_type, headers={**safe, **headers})


class HostCheck:
    """Refuses requests for a foreign host name: a web page whose name points here could read the
    answers through the browser of a visitor (DNS rebinding)."""

    def __init__(
        self, app: ASGIApp, *, hosts: Callable[[], Collection[str]], exempt: Collection[str]
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        app = self._app
        if scope["type"] == "http" and scope["path"] not in self._exempt:
            host = Headers(scope=scope).get("host", "")
            if not _is_known(host, self._hosts()):
                message = (
                    f"this daemon is not known under the name {quoted(host[:100])}; if it should"
                    " be, add the name without port to allowed_hosts in its configuration"
                )
                app = json_response({"error": message}, 421)
        await app(scope, receive, send)


class TokenCheck:
    """Refuses requests without the bearer token, if one is configured (RFC 6750, section 2.1)."""

    def __init__(self, app: ASGIApp, *, token: Callable[[], str | None]) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As an ASGI application."""
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _FOR_PROBES:
            given = Headers(scope=scope).get("authorization", "")
            app = self._refusal(given) or app
        await app(scope, receive, send)

    def _refusal(self, given: str) -> Response | None:
        try:
            token = self._token()
        except ValueError:
            message = (
                "the file of listen_token_file cannot be read; the daemon's user must be able to"
            )
            return json_response({"error": message}, 503)
        if token is None:
            return None
        scheme, _, credentials = given.partition(" ")
        known = hmac.compare_digest(credentials.encode("latin-1"), token.encode())
        if known and scheme.lower() == "bearer":
            return None
        message = "this daemon asks for its bearer token (listen_token_file of its configuration)"
        answer = json_response({"error": message}, 401)
        answer.headers["WWW-Authenticate"] = "Bearer"
        return answer


def _is_known(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names an address, this machine's loopback, or one of ``names``."""
    if not host:
        return True  # HTTP/1.0, which no browser speaks
    name = re.sub(r":[0-9]*$", "", host).lower().removesuffix(".")
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        return True  # only names can be made to point elsewhere
    above = {"*" + name[dot:] for dot, letter in enumerate(name) if letter == "."}
    return is_loopback(name) or not {name, "*", *above}.isdisjoint(names)
