"""The ASGI middleware."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import REGISTRY, CollectorRegistry

from specwatch_tap import settings as settings_of
from specwatch_tap.exchange import Exchange, Receive, RequestRoom, Send
from specwatch_tap.metrics import TapCounters
from specwatch_tap.orders import PATH
from specwatch_tap.request_options import ENDPOINTS
from specwatch_tap.segments import Segments
from specwatch_tap.server_facts import Endpoint, FactsSource, InsideVllm, Scope
from specwatch_tap.settings import Settings
from specwatch_tap.switch_route import SwitchRoute
from specwatch_tap.temperature import Buckets

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MARK = "specwatch_tap"
"""Key in a scope that a tap has seen, so that a tap that is loaded twice counts once."""
_METRICS = "/metrics"
_COUNTERS: weakref.WeakKeyDictionary[CollectorRegistry, TapCounters] = weakref.WeakKeyDictionary()
_ROUTES: weakref.WeakKeyDictionary[CollectorRegistry, SwitchRoute] = weakref.WeakKeyDictionary()
_log = logging.getLogger("specwatch_tap")


class Tap:
    """Reads the requests and responses of the application that it wraps.

    Both pass unchanged except for this: streams are asked for their usage, which is removed again;
    requests that generate lose ``Accept-Encoding``, since compressed responses cannot be read;
    their body reaches the application in one piece, with its ``Content-Length`` adapted.
    """

    def __init__(
        self,
        app: App,
        *,
        server: FactsSource | None = None,
        settings: Settings | None = None,
        registry: CollectorRegistry = REGISTRY,
        room: RequestRoom | None = None,
    ) -> None:
        """``server`` has the facts, by default those of the vLLM in whose process this is;
        ``settings`` come from the environment by default; ``registry`` gets the counters;
        of requests that do not fit into ``room``, only the response is read.

        Raises ValueError for invalid settings, so that vLLM does not start with them.
        """
        self._app = app
        self._server = server or InsideVllm()
        self._settings = settings or settings_of.from_environment(os.environ)
        self._buckets = Buckets(self._settings.edges)
        self._segments = Segments(self._settings.segments)
        self._counters = _COUNTERS.get(registry) or TapCounters(registry)
        _COUNTERS[registry] = self._counters
        self._room = room or RequestRoom()
        self._switch = _ROUTES.get(registry)
        if self._switch is None and (directory := self._settings.switch_directory) is not None:
            self._switch = SwitchRoute(directory, self._settings.switch_token, registry)
            _ROUTES[registry] = self._switch
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if self._switch is not None and scope["type"] == "http":
            path = _path(scope)
            if path == PATH and self._switch.serves:
                await self._switch.answer(scope, receive, send)
                return
            if path == _METRICS:
                self._switch.refresh()
        endpoint = _endpoint(scope)
        if endpoint is None or _MARK in scope:
            if scope["type"] == "http" and _path(scope) == _METRICS:
                self._show_launch(scope)
            await self._app(scope, receive, send)
            return
        try:
            exchange = Exchange(
                scope,
                endpoint,
                receive,
                send,
                facts=self._server.facts(scope, endpoint),
                remove_metrics=self._settings.remove_metrics,
                room=self._room,
                fail=self._fail,
            )
        except Exception as error:
            self._fail("request", error)
            await self._app(scope, receive, send)
            return
        # Not a copy: middleware outside sees what the application adds (its route).
        headers, scope["headers"], scope[_MARK] = scope["headers"], exchange.headers, True
        try:
            await self._app(scope, exchange.receive, exchange.sender())
            if exchange.is_streaming:
                await exchange.release()
        except Exception:
            await exchange.release()
            raise
        finally:
            scope["headers"] = headers
            scope.pop(_MARK, None)
            self._count(exchange)

    def _show_launch(self, scope: Scope) -> None:
        try:
            self._counters.show_launch(self._server.facts(scope, Endpoint.CHAT))
        except Exception as error:
            self._fail("request", error)

    def _count(self, exchange: Exchange) -> None:
        try:
            request = exchange.observed
            bucket = self._buckets.of(request.temperature)
            outcome = request.outcome()
            segments: Sequence[tuple[str, str]] = ()
            if self._settings.segments:
                segments = self._segments.of(request, outcome, exchange.headers)
            self._counters.count(request.facts, bucket, outcome, segments)
        except Exception as error:
            self._fail("count", error)

    def _fail(self, stage: str, error: Exception) -> None:
        self._log_once(f"the tap failed on a {stage}, which went on without it", error)
        try:
            self._counters.fail(stage)
        except Exception as second:  # such as a full disk under the files of multi-process mode
            self._log_once("the tap cannot count its failures", second)

    def _log_once(self, what: str, error: Exception) -> None:
        if what not in self._logged:
            self._logged.add(what)
            _log.error("%s; logged once", what, exc_info=error)


def _endpoint(scope: Scope) -> Endpoint | None:
    if scope["type"] != "http" or scope["method"] != "POST":
        return None
    return ENDPOINTS.get(scope["path"]) or ENDPOINTS.get(_path(scope))


def _path(scope: Scope) -> str:
    """The path without the prefix under which the application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path") or "")
