"""The status page over HTTP: made at most every few seconds, however many viewers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from specwatch.domain.model import HOUR, MINUTE, Window
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError, StoreError
from specwatch.report.model import Report
from specwatch.rules.decisions import Decision
from specwatch.status import DaemonStatus
from specwatch.web.middleware import json_response, respond
from specwatch.wording.text import LONGEST_SENTENCE, shown

if TYPE_CHECKING:
    from specwatch.pages.status_html import Plots, StatusHistory
    from specwatch.pages.status_table import Selection
    from specwatch.store.guard_records import StepRecord

_DAY = 86400.0
_PAGE_SECONDS = 3.0
"""How long one page is served to all requests for it."""
_HISTORY_SECONDS = 10.0
"""How long a reading of the store is used; minutes close six times less often."""
_PATIENCE_SECONDS = 3.0
"""How long the page waits for the store."""
_STATUS_SECONDS = 1.0
"""How long a status is used."""
_MOST_KEPT = 8
_MOST_MAKING = 16
"""Different pages, and readings of the store, in progress at once."""
_MOST_RENDERED = 2
"""Pages rendered at once, in threads that the other routes need too."""
_MOST_PLOTTED = 32
"""Targets whose plots are kept."""
_MOST_LISTENERS = 32
_LOOK_SECONDS = 2.0
_LOOKS = 140
"""Looks for news until a stream ends, within the time that an answer may take; the browser asks
again."""

_Value = TypeVar("_Value")


class StatusRoute:
    """Answers ``/``, which is read-only."""

    def __init__(
        self,
        status: Callable[[], DaemonStatus],
        windows: Callable[..., Iterator[Window]],
        verdicts: Callable[..., Sequence[Decision]],
        steps: Callable[..., Sequence[StepRecord]],
        report: Callable[..., Report],
        reading: asyncio.Semaphore,
    ) -> None:
        """The readers are the store's; ``report`` makes the report of a period, and ``reading``
        limits how many requests use the store at once."""
        self._status = status
        self._windows = windows
        self._verdicts = verdicts
        self._steps = steps
        self._report = report
        self._reading = reading
        self._listeners = 0
        self._rendering = asyncio.Semaphore(_MOST_RENDERED)
        self._statuses = _Shared[DaemonStatus](_STATUS_SECONDS)
        self._versions = _Shared[str](_STATUS_SECONDS)
        self._pages = _Shared[Response](_PAGE_SECONDS)
        self._histories = _Shared["StatusHistory"](_HISTORY_SECONDS)
        self._plots = lru_cache(_MOST_PLOTTED)(self._plotted)

    async def answer(self, request: Request) -> Response:
        """The status page.

        Parameters: `target` shows one target. Of the table of all, `state` (`loses`, `pays`, `off`
        and so on), `model` and `search` (words of names, groups and labels: `zone=a`) choose the
        rows, `sort` (`problem`, `speedup`, `target`, `running`, `acceptance`) and `group` (`group`,
        `model`, `state`) arrange them, and `page` shows 50 of them. `refresh` is the number of
        seconds between refreshes (10 to 3600; 0 for none). 404 for a target that is not watched,
        503 while too many different pages are asked for at once.
        """
        status = await self._present()
        try:
            asked = _selection(dict(request.query_params))
        except ConfigError as error:
            return await self._render(_refused, status, 400, "Not understood", str(error))
        chosen = asked.target
        if chosen is not None and all(target.name != chosen for target in status.targets):
            message = f"No target is called {quoted(chosen)}."
            if status.lease.standby:
                holder = shown(status.lease.holder, LONGEST_SENTENCE)
                message = f"This process stands by, and watches no target; {holder} watches."
            elif status.shard:
                message = f"No target of shard {status.shard} is called {quoted(chosen)}."
            return await self._render(_refused, status, 404, "No such target", message)
        # A page is the same for all, and being made does not depend on the request.
        page = self._pages.get(asked, partial(self._page, _only(status, chosen), asked))
        return _busy() if page is None else await asyncio.shield(page)

    async def events(self, request: Request) -> Response:
        """Server-sent events for the status page: a message with another `data` whenever it has
        something new to show. Parameters are those of the page: with `target` only what is new of
        this target counts. 503 for more than 32 listeners at once."""
        try:
            chosen = _selection(dict(request.query_params)).target
        except ConfigError as error:
            return json_response({"error": str(error)}, 400)
        if self._listeners >= _MOST_LISTENERS:
            return _busy()
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        stream = self._stream(chosen)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    async def _stream(self, chosen: str | None) -> AsyncIterator[str]:
        self._listeners += 1
        sent = ""
        try:
            for _ in range(_LOOKS):
                reading = self._versions.get(chosen, partial(self._version, chosen))
                if reading is not None:
                    version = await asyncio.shield(reading)
                    # A comment keeps proxies from closing a silent connection.
                    yield ": the same\n\n" if version == sent else f"data: {version}\n\n"
                    sent = version
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._listeners -= 1

    async def _present(self) -> DaemonStatus:
        reading = self._statuses.get(None, partial(run_in_threadpool, self._status))
        assert reading is not None  # noqa: S101 - there is only one
        return await asyncio.shield(reading)

    async def _version(self, chosen: str | None) -> str:
        from specwatch.pages.status_html import version_of

        status = await self._present()
        return await run_in_threadpool(lambda: version_of(_only(status, chosen)))

    async def _page(self, status: DaemonStatus, asked: Selection) -> Response:
        history = await self._history(status, asked.target)
        return await self._render(_rendered, status, history, asked)

    async def _render(self, make: Callable[..., Response], *values: object) -> Response:
        async with self._rendering:
            return await run_in_threadpool(make, *values)

    async def _history(self, status: DaemonStatus, chosen: str | None) -> StatusHistory:
        from specwatch.pages import status_view

        # The key is what is read: a target that is new on the page does not wait for others.
        key = (chosen, frozenset(status_view.detailed(status)))
        read = self._histories.get(key, partial(self._stored, status, chosen))
        if read is not None:
            done, _ = await asyncio.wait({read}, timeout=_PATIENCE_SECONDS)
            if done:
                return read.result()
        why = f"The store did not answer within {_PATIENCE_SECONDS:.0f} s."
        return await run_in_threadpool(_remembered, status, why)

    async def _stored(self, status: DaemonStatus, chosen: str | None) -> StatusHistory:
        async with self._reading:
            return await run_in_threadpool(self._read, status, chosen)

    def _read(self, status: DaemonStatus, chosen: str | None) -> StatusHistory:
        from specwatch.pages import status_view
        from specwatch.pages.status_html import StatusHistory
        from specwatch.rules.last_hour import last_hour

        now = status.now
        names = status_view.detailed(status)
        try:
            hours: dict[str, Any] = {}
            for detailed in (target for target in status.targets if target.name in names):
                for selection in status_view.selections(detailed):
                    windows = self._windows(since=now - HOUR, until=now, **selection)
                    for target, models in last_hour(windows, now - HOUR, now).items():
                        hours.setdefault(target, {}).update(models)
            verdicts = self._verdicts(
                since=now - _DAY, until=now + 1, target=chosen, limit=status_view.MOST_CHANGES
            )
            steps = self._steps(since=now - _DAY, target=chosen, limit=status_view.MOST_CHANGES)
            plots: Plots = {}
            if chosen is not None:
                # A minute is stored some seconds after its end, and none of a target that is down.
                ends = [hour.end for hour in hours.get(chosen, {}).values()]
                until = max([*ends, now // MINUTE * MINUTE - MINUTE])
                plots = status.attempt(chosen, partial(self._plots, chosen, until), plots)
        except StoreError as error:
            return _remembered(status, f"The store cannot be read: {error}.")
        return StatusHistory(hours, plots, status_view.last_changes(verdicts, steps))

    def _plotted(self, target: str, until: float) -> Plots:
        from specwatch.pages.status_html import PLOTTED, plots

        since = until - PLOTTED
        return plots(self._report(since=since, until=until, now=until, targets=[target]))


class _Shared(Generic[_Value]):
    """Values that are made once for all requests, and kept for some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._made: dict[object, _Made[_Value]] = {}

    def get(self, key: object, make: Callable[[], Any]) -> asyncio.Task[_Value] | None:
        """The task that makes it, or made it recently; None if too many are in progress."""
        now = monotonic()
        for made, one in list(self._made.items()):
            if one.over(now, self._seconds):
                del self._made[made]
        if key not in self._made:
            if len(self._made) >= _MOST_KEPT:
                self._made = {key: one for key, one in self._made.items() if not one.task.done()}
            if len(self._made) >= _MOST_MAKING:
                return None
            self._made[key] = _Made(asyncio.create_task(make()))
        return self._made[key].task


class _Made(Generic[_Value]):
    """A task, and when it was done."""

    def __init__(self, task: asyncio.Task[_Value]) -> None:
        self.task = task
        self._at: float | None = None
        task.add_done_callback(self._done)

    def _done(self, _: asyncio.Task[_Value]) -> None:
        self._at = monotonic()

    def over(self, now: float, seconds: float) -> bool:
        """Whether it failed, or was done more than so many seconds ago."""
        if not self.task.done():
            return False
        if self.task.cancelled() or self.task.exception() is not None:
            return True
        return self._at is not None and now - self._at > seconds


def _selection(query: Mapping[str, str]) -> Selection:
    from specwatch.pages.status_table import selection

    return selection(query)


def _only(status: DaemonStatus, chosen: str | None) -> DaemonStatus:
    """The status of the chosen target alone."""
    if chosen is None:
        return status
    return replace(status, targets=tuple(one for one in status.targets if one.name == chosen))


def _remembered(status: DaemonStatus, why: str) -> StatusHistory:
    """The last minutes in memory, in place of the last hour."""
    from specwatch.pages import status_view
    from specwatch.pages.status_html import StatusHistory
    from specwatch.rules.last_hour import last_hour

    names = status_view.detailed(status)
    recent = [window for one in status.targets if one.name in names for window in one.recent]
    hours = last_hour(recent, 0, status.now)
    return StatusHistory(hours, missing=shown(why, LONGEST_SENTENCE))


def _rendered(status: DaemonStatus, history: StatusHistory, asked: Selection) -> Response:
    from specwatch.pages.status_html import status_html

    return _response(status_html(status, history, asked), 200)


def _refused(status: DaemonStatus, code: int, title: str, message: str) -> Response:
    from specwatch.pages.status_html import refusal_html

    return _response(refusal_html(status, title, message), code)


def _busy() -> Response:
    """As plain text: there is no time to render a page."""
    message = "Too many different pages are asked for at once; ask again in a few seconds.\n"
    return respond(message.encode(), 503, "text/plain", headers={"Retry-After": "5"})


def _response(page: str, code: int) -> Response:
    from specwatch.pages.status_html import policy

    body = page.encode("utf-8", "replace")  # lone surrogates cannot be encoded
    headers = {"Referrer-Policy": "no-referrer"}
    return respond(body, code, "text/html", policy=policy(page), headers=headers)
