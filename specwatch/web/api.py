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
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
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

from specwatch.domain.model import Window
from specwatch.errors import ConfigError, StoreError
from specwatch.generate.alerts import runbook_sections
from specwatch.report.model import Report
from specwatch.rules.decisions import Decision
from specwatch.rules.summary import window_view
from specwatch.status import DaemonStatus
from specwatch.store.guard_records import StepRecord
from specwatch.web.daemon_view import daemon_view
from specwatch.web.middleware import (
    FOR_MONITORING,
    HostCheck,
    TokenCheck,
    json_response,
    respond,
)
from specwatch.web.query import FORMATS, decisions_query, report_query, windows_query
from specwatch.web.status_route import StatusRoute

_READERS = 2
"""Requests that read the store at once; all other threads are left to health and metrics."""
_STYLED = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
"""The Content-Security-Policy of pages without scripts."""

WindowReader = Callable[..., Iterator[Window]]
DecisionReader = Callable[..., Sequence[Decision]]
StepReader = Callable[..., Sequence[StepRecord]]
ReportReader = Callable[..., Report]
"""Takes the period and the time as ``since``, ``until`` and ``now``, and the ``targets``."""


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
    """The application.

    ``windows`` and ``verdicts`` are the store's readers of the same names, ``report`` makes the
    report of a period, and ``steps`` are read as by
    :meth:`specwatch.store.guard_records.GuardBook.history`. ``hosts`` are the names under which
    the daemon answers, beside IP addresses and loopback names, written as
    :func:`specwatch.domain.units.parse_host_name` reads them; with ``monitored`` metrics and health
    are answered under any name. ``token`` is called for each request that needs it; if it raises
    ValueError, no such request is answered.
    """
    reading = asyncio.Semaphore(_READERS)
    api = _Api(status, windows, verdicts, metrics, report, reading)
    pages = StatusRoute(status, windows, verdicts, steps, report, reading)
    routes: dict[str, Callable[[Request], Any]] = {
        "/": pages.answer,
        "/events": pages.events,
        "/metrics": api.page,
        "/runbook": api.runbook,
        "/healthz": api.healthz,
        "/readyz": api.readyz,
        "/api/v1/targets": api.targets,
        "/api/v1/windows": api.stored(api.read_windows),
        "/api/v1/decisions": api.stored(api.read_decisions),
        "/api/v1/report": api.stored(api.read_report),
    }

    def refused(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return json_response({"error": "a defect of specwatch; see its log"}, 500)
        if error.status_code == 404:
            message = f"{request.url.path[:100]} does not exist; what does: {', '.join(routes)}"
        else:
            message = f"{error.detail}: {request.method} is not answered here, only GET and HEAD"
        answer = json_response({"error": message}, error.status_code)
        answer.headers.update(error.headers or {})
        return answer

    app = Starlette(
        routes=[Route(path, answer) for path, answer in routes.items()],
        exception_handlers={HTTPException: refused, Exception: refused},
        middleware=[
            Middleware(HostCheck, hosts=hosts, exempt=FOR_MONITORING if monitored else ()),
            Middleware(TokenCheck, token=token),
        ],
    )
    app.router.redirect_slashes = False
    return app


@functools.cache
def _runbook() -> bytes:
    from specwatch.pages.runbook_html import runbook_html

    return runbook_html(runbook_sections()).encode()


@dataclass(frozen=True)
class _Api:
    """The answers to the requests; docstrings of routes are their reference page."""

    status: Callable[[], DaemonStatus]
    windows: WindowReader
    verdicts: DecisionReader
    registry: CollectorRegistry
    report: ReportReader
    reading: asyncio.Semaphore

    def stored(
        self, read: Callable[[Request], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        """``read`` in a thread, of which few read the store at once."""

        @functools.wraps(read)
        async def answer(request: Request) -> Response:
            async with self.reading:
                try:
                    return await run_in_threadpool(read, request)
                except ConfigError as error:
                    return json_response({"error": str(error)}, 400)
                except StoreError as error:
                    return json_response({"error": str(error)}, 503)

        return answer

    def page(self, request: Request) -> Response:
        """The [exported metrics](metrics.md), for Prometheus."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self.registry), media_type=content_type)

    def runbook(self, _: Request) -> Response:
        """The runbook: a section for each alert."""
        return respond(_runbook(), 200, FORMATS["html"], policy=_STYLED)

    def healthz(self, _: Request) -> Response:
        """200 while the daemon's loops turn, else 503: for a liveness probe. Targets that
        cannot be read do not change it: they have `stuck` and `failure` in `/api/v1/targets`."""
        status = self.status()
        body = {"healthy": status.alive, "silent_seconds": round(status.silent, 1)}
        return json_response(body, 200 if status.alive else 503)

    def readyz(self, _: Request) -> Response:
        """200 when `ready`, else 503; `store` is `ok` or the reason. A process that stands by
        (`standby`) is ready when it could take over."""
        now = self.status()
        body = {
            "ready": now.ready,
            "store": now.store.error or now.lease.error or "ok",
            "standby": now.lease.standby,
        }
        return json_response(body, 200 if now.ready else 503)

    def targets(self, _: Request) -> Response:
        """The state of the daemon, and of each target: the last scrape and failure, acceptance
        and latency over the last minutes (`recent`, by segment), the `decision` (speedup,
        break-even, rules, objectives), the `guard`, and models of which the engine itself ended
        speculation (`stops`). `specwatch status --json` prints it.
        """
        return json_response(daemon_view(self.status()))

    # The readers are given one row more than the limit, to see whether there are more.
    def read_windows(self, request: Request) -> Response:
        """The stored windows, the earliest first; `more` says whether `limit` left some out.

        Parameters: `since` (default: `1h`) and `until`; `target`, `model_name`, `dimension`,
        `value` and `daemon` select; `length` is `60` (default) or `3600` seconds; `limit` is at
        most 10000.
        """
        chosen = windows_query(request.query_params, self.status().now)
        limit = chosen["limit"]
        rows = self.windows(**{**chosen, "limit": limit + 1})
        # Encoded one by one: ten thousand views would take a hundred megabytes.
        encoded = [msgspec.Raw(msgspec.json.encode(window_view(window))) for window in rows]
        return json_response({"windows": encoded[:limit], "more": len(encoded) > limit})

    def read_decisions(self, request: Request) -> Response:
        """Changes of the verdicts of rules with their inputs, the newest first; `more` says whether
        `limit` left some out.

        Parameters: `since` (default: `1d`) and `until`; `target` and `rule` select; `limit` is at
        most 1000.
        """
        chosen = decisions_query(request.query_params, self.status().now)
        limit = chosen["limit"]
        rows = self.verdicts(**{**chosen, "limit": limit + 1})
        return json_response({"decisions": rows[:limit], "more": len(rows) > limit})

    def read_report(self, request: Request) -> Response:
        """The report, as `specwatch report` makes it, of at most 92 days.

        Parameters: `since` (default: `7d`) and `until`; `target`, which may be repeated; `format`
        is `json` (default; `specwatch report --schema` prints its schema), `html`, `md` or `text`.
        """
        now = self.status().now
        chosen = report_query(request.query_params, now)
        form = chosen.pop("format")
        report = self.report(now=now, **chosen)
        if form == "json":
            return json_response(report)
        if form == "html":
            from specwatch.pages.report_html import report_html

            return respond(report_html(report).encode(), 200, FORMATS[form], policy=_STYLED)
        from specwatch.report import markdown, text

        written = markdown.markdown(report) if form == "md" else text.plain(report)
        return respond(written.encode(), 200, FORMATS[form])
