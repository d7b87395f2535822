"""The daemon answers on `listen`, `127.0.0.1:9469` by default.

With `listen_token_file` every path but `/healthz` and `/readyz` needs the header
`Authorization: Bearer TOKEN`, and is answered with 401 without it.

Every path is read-only and answers GET and HEAD. Answers of `/api/v1` are JSON. A parameter that is
unknown or has a wrong value is answered with 400, a store that cannot be read with 503, each with
the reason as `error`. `since` and `until` take a date or time of ISO 8601 (UTC without an offset),
a duration before now such as `30m`, or Unix seconds.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specwatch.domain.model import HOUR, MINUTE, Window
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError, StoreError
from specwatch.generate.alerts import runbook_sections
from specwatch.rules.decisions import Decision
from specwatch.rules.summary import window_view
from specwatch.status import DaemonStatus
from specwatch.store.guard_records import StepRecord
from specwatch.web import report_api, runbook_page
from specwatch.web.daemon_view import daemon_view
from specwatch.web.middleware import (
    FOR_MONITORING,
    HostCheck,
    TokenCheck,
    json_response,
    respond,
)
from specwatch.web.query import chosen as chosen_of
from specwatch.web.report_api import ReportReader
from specwatch.web.status_route import StatusRoute

_MOST_WINDOWS = 10_000
_MOST_DECISIONS = 1000
_READERS = 2
"""Requests that read the store at once; all other threads are left to health and metrics."""
_DIGITS = 20
"""A number in a query has no more: what is longer is none, and takes long to read."""

WindowReader = Callable[..., Iterator[Window]]
DecisionReader = Callable[..., Sequence[Decision]]
StepReader = Callable[..., Sequence[StepRecord]]


def application(
    status: Callable[[], DaemonStatus],
    windows: WindowReader,
    verdicts: DecisionReader,
    metrics: CollectorRegistry,
    report: ReportReader,
    *,
    steps: StepReader = lambda **_: (),
    hosts: Callable[[], Collection[str]] = lambda: ("*",),
    monitored: bool = True,
    token: Callable[[], str | None] = lambda: None,
) -> Starlette:
    """The application; ``windows`` and ``verdicts`` are the store's readers of the same names,
    ``report`` makes the report of a period, and ``steps`` are read as by
    :meth:`specwatch.store.guard_records.GuardBook.history`. ``hosts`` are the names under which it
    may be asked, beside IP addresses and loopback names, written as
    :func:`specwatch.domain.units.parse_host_name` reads them; with ``monitored`` metrics and health
    are told under any. ``token`` is asked for each request that needs it; ValueError of it means
    that nobody can be told anything now.
    """

    def page(request: Request) -> Response:
        """The [exported metrics](metrics.md), for Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics), media_type=content_type)

    @functools.cache
    def runbook() -> bytes:
        return runbook_page.page(runbook_sections()).encode()

    def advice(_: Request) -> Response:
        """The runbook: a section for each alert."""
        return respond(runbook(), 200, runbook_page.MEDIA_TYPE, policy=runbook_page.POLICY)

    def healthz(_: Request) -> Response:
        """200 while every target is scraped in time, else 503; `stuck` names those that are not."""
        now = status()
        body = {"healthy": not now.stuck, "stuck": now.stuck}
        return json_response(body, 503 if now.stuck else 200)

    def readyz(_: Request) -> Response:
        """200 when `ready`, else 503; `store` is `ok` or the reason."""
        now = status()
        return json_response(
            {"ready": now.ready, "store": now.store.error or "ok"}, 200 if now.ready else 503
        )

    def targets(_: Request) -> Response:
        """What the daemon knows now of itself, and of each target: the last scrape and failure,
        acceptance and latency over the last minutes (`recent`), the `decision` (speedup,
        break-even, rules, objectives) and the `guard`. `specwatch status --json` prints it.
        """
        return json_response(daemon_view(status()))

    reading = asyncio.Semaphore(_READERS)

    def stored(read: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        def guarded(request: Request) -> Response:
            try:
                return read(request)
            except ConfigError as error:
                return json_response({"error": str(error)}, 400)
            except StoreError as error:
                return json_response({"error": str(error)}, 503)

        @functools.wraps(read)
        async def answer(request: Request) -> Response:
            async with reading:
                return await run_in_threadpool(guarded, request)

        return answer

    # One more than asked for tells whether there is more.
    def read_minutes(request: Request) -> Response:
        """The stored windows, the earliest first; `more` says whether `limit` left some out.

        Parameters: `since` (default: `1h`) and `until`; `target`, `model_name`, `temperature` and
        `daemon` select; `length` is `60` (default) or `3600` seconds; `limit` is at most 10000.
        """
        chosen = selection(request.query_params, status().now)
        rows = windows(**{**chosen, "limit": chosen["limit"] + 1})
        return _windows(rows, chosen["limit"])

    def read_decisions(request: Request) -> Response:
        """Changes of the verdicts of rules with their inputs, the newest first; `more` says whether
        `limit` left some out.

        Parameters: `since` (default: `1d`) and `until`; `target` and `rule` select; `limit` is at
        most 1000.
        """
        chosen = decision_selection(request.query_params, status().now)
        rows = verdicts(**{**chosen, "limit": chosen["limit"] + 1})
        return json_response(
            {"decisions": rows[: chosen["limit"]], "more": len(rows) > chosen["limit"]}
        )

    def read_report(request: Request) -> Response:
        """The report, as `specwatch report` makes it, of at most 92 days.

        Parameters: `since` (default: `7d`) and `until`; `target`, which may be repeated; `format`
        is `json` (default; `specwatch report --schema` prints its schema), `html`, `md` or `text`.
        """
        page = report_api.page(report, request.query_params, status().now)
        return respond(page.body, 200, page.media_type, policy=page.policy)

    pages: dict[str, Callable[[Request], Any]] = {
        "/": StatusRoute(status, windows, verdicts, steps, reading).answer,
        "/metrics": page,
        "/runbook": advice,
        "/healthz": healthz,
        "/readyz": readyz,
        "/api/v1/targets": targets,
        "/api/v1/windows": stored(read_minutes),
        "/api/v1/decisions": stored(read_decisions),
        "/api/v1/report": stored(read_report),
    }

    def refused(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return json_response({"error": "a defect of specwatch; its log says which"}, 500)
        if error.status_code == 404:
            known = ", ".join(pages)
            message = f"{request.url.path[:100]} does not exist; what does: {known}"
        else:
            message = f"{error.detail}: {request.method} is not answered here, only GET and HEAD"
        answer = json_response({"error": message}, error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    app = Starlette(
        routes=[Route(path, answer) for path, answer in pages.items()],
        exception_handlers={HTTPException: refused, Exception: refused},
        middleware=[
            Middleware(HostCheck, hosts=hosts, exempt=FOR_MONITORING if monitored else ()),
            Middleware(TokenCheck, token=token),
        ],
    )
    app.router.redirect_slashes = False
    return app


def selection(query: Mapping[str, str], now: float) -> dict[str, Any]:
    """Arguments of the window reader from a query string; ConfigError for what it cannot be.

    ``since`` and ``until`` are as :func:`specwatch.domain.units.parse_moment` reads them, dates in
    UTC (default: the last hour), ``length`` is 60 or 3600 s, ``limit`` the number of windows (the
    earliest are given), and ``target``, ``model_name``, ``temperature`` and ``daemon`` select.
    """
    names = ("target", "model_name", "temperature", "daemon")
    chosen = chosen_of(query, names, ("length", "limit"), now, since="1h")
    chosen["length"] = _one_of("length", query.get("length", str(MINUTE)), (MINUTE, HOUR))
    chosen["limit"] = _limit(query.get("limit"), _MOST_WINDOWS)
    return chosen


def decision_selection(query: Mapping[str, str], now: float) -> dict[str, Any]:
    """Arguments of the reader of verdicts, as :func:`selection`; the newest are given.

    ``target`` and ``rule`` select; the default is the last day.
    """
    chosen = chosen_of(query, ("target", "rule"), ("limit",), now, since="1d")
    chosen["limit"] = _limit(query.get("limit"), _MOST_DECISIONS)
    return chosen


def _one_of(key: str, text: str, allowed: tuple[int, ...]) -> int:
    if text not in map(str, allowed):
        raise ConfigError(f"{key}: {quoted(text)} is not one of {', '.join(map(str, allowed))}")
    return int(text)


def _limit(text: str | None, most: int) -> int:
    if text is None:
        return most
    digits = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    if not digits or not 1 <= int(text) <= most:
        raise ConfigError(f"limit: {quoted(text)} is not a number from 1 to {most}")
    return int(text)


def _windows(rows: Iterable[Window], limit: int) -> Response:
    """Encoded one by one: as JSON values, ten thousand windows take a hundred megabytes."""
    encoded = [msgspec.json.encode(window_view(window)) for window in rows]
    more = b"true" if len(encoded) > limit else b"false"
    body = b'{"windows":[' + b",".join(encoded[:limit]) + b'],"more":' + more + b"}"
    return respond(body, 200)
