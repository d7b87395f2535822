"""The status page over HTTP: made at most every few seconds, however many viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from specwatch.domain.model import HOUR, Window
from specwatch.domain.units import quoted
from specwatch.errors import ConfigError, StoreError
from specwatch.rules.decisions import Decision
from specwatch.status import DaemonStatus
from specwatch.web.middleware import respond

if TYPE_CHECKING:
    from specwatch.pages.status_html import StatusHistory
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
_PACES = range(10, 3601)
"""Allowed seconds between refreshes, besides 0 for none."""

_Value = TypeVar("_Value")


class StatusRoute:
    """Answers ``/``, which is read-only."""

    def __init__(
        self,
        status: Callable[[], DaemonStatus],
        windows: Callable[..., Iterator[Window]],
        verdicts: Callable[..., Sequence[Decision]],
        steps: Callable[..., Sequence[StepRecord]],
        reading: asyncio.Semaphore,
    ) -> None:
        """The readers are the store's; ``reading`` limits how many requests use it at once."""
        self._status = status
        self._windows = windows
        self._verdicts = verdicts
        self._steps = steps
        self._reading = reading
        self._rendering = asyncio.Semaphore(_MOST_RENDERED)
        self._statuses = _Shared[DaemonStatus](_STATUS_SECONDS)
        self._pages = _Shared[Response](_PAGE_SECONDS)
        self._histories = _Shared["StatusHistory"](_HISTORY_SECONDS)

    async def answer(self, request: Request) -> Response:
        """The status page.

        Parameters: `target` shows one target, `refresh` is the number of seconds between refreshes
        (10 to 3600; 0 for none). 404 for a target that is not watched, 503 while too many different
        pages are asked for at once.
        """
        reading = self._statuses.get(None, partial(run_in_threadpool, self._status))
        if reading is None:
            return _busy()
        status = await asyncio.shield(reading)
        try:
            chosen, refresh = _selection(dict(request.query_params))
        except ConfigError as error:
            return await self._render(_refused, status, 400, "Not understood", str(error))
        if chosen is not None and all(target.name != chosen for target in status.targets):
            message = f"No target is called {quoted(chosen)}."
            return await self._render(_refused, status, 404, "No such target", message)
        # A page is the same for all, and being made does not depend on the request.
        page = self._pages.get((chosen, refresh), partial(self._page, status, chosen, refresh))
        return _busy() if page is None else await asyncio.shield(page)

    async def _page(self, status: DaemonStatus, chosen: str | None, refresh: int) -> Response:
        history = await self._history(status, chosen)
        return await self._render(_rendered, status, history, chosen, refresh)

    async def _render(self, make: Callable[..., Response], *values: object) -> Response:
        async with self._rendering:
            return await run_in_threadpool(make, *values)

    async def _history(self, status: DaemonStatus, chosen: str | None) -> StatusHistory:
        from specwatch.pages import status_view

        # The key is what is read: a target that is new on the page does not wait for others.
        key = (chosen, frozenset(status_view.detailed(status, chosen)))
        read = self._histories.get(key, partial(self._stored, status, chosen))
        if read is not None:
            done, _ = await asyncio.wait({read}, timeout=_PATIENCE_SECONDS)
            if done:
                return read.result()
        why = f"The store did not answer within {_PATIENCE_SECONDS:.0f} s."
        return await run_in_threadpool(_remembered, status, chosen, why)

    async def _stored(self, status: DaemonStatus, chosen: str | None) -> StatusHistory:
        async with self._reading:
            return await run_in_threadpool(self._read, status, chosen)

    def _read(self, status: DaemonStatus, chosen: str | None) -> StatusHistory:
        from specwatch.pages import status_view
        from specwatch.pages.status_html import StatusHistory
        from specwatch.rules.last_hour import last_hour

        now = status.now
        names = status_view.detailed(status, chosen)
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
        except StoreError as error:
            return _remembered(status, chosen, f"The store cannot be read: {error}.")
        return StatusHistory(hours, status_view.last_changes(verdicts, steps))


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


def _selection(query: Mapping[str, str]) -> tuple[str | None, int]:
    """The target, None for all, and the seconds between refreshes; ConfigError for nonsense."""
    from specwatch.pages.status_html import REFRESH

    for key in query:
        if key not in ("target", "refresh"):
            raise ConfigError(f"{quoted(key)}: unknown parameter; known are target, refresh")
    pace = query.get("refresh", str(REFRESH))
    known = pace.isascii() and pace.isdigit() and len(pace) <= 4
    if not known or (int(pace) and int(pace) not in _PACES):
        expected = f"a number from {_PACES.start} to {_PACES.stop - 1}, nor 0"
        raise ConfigError(f"refresh: {quoted(pace)} is not {expected}")
    return query.get("target"), int(pace)


def _remembered(status: DaemonStatus, chosen: str | None, why: str) -> StatusHistory:
    """The last minutes in memory, in place of the last hour."""
    from specwatch.pages import status_view
    from specwatch.pages.status_html import StatusHistory
    from specwatch.rules.last_hour import last_hour
    from specwatch.wording.text import LONGEST_SENTENCE, shown

    names = status_view.detailed(status, chosen)
    recent = [window for one in status.targets if one.name in names for window in one.recent]
    return StatusHistory(last_hour(recent, 0, status.now), (), shown(why, LONGEST_SENTENCE))


def _rendered(
    status: DaemonStatus, history: StatusHistory, chosen: str | None, refresh: int
) -> Response:
    from specwatch.pages.status_html import status_html

    page = status_html(status, history, chosen=chosen, refresh=refresh)
    # As a header: accessibility checkers object to the HTML element.
    return _response(page, 200, {"Refresh": str(refresh)} if refresh else {})


def _refused(status: DaemonStatus, code: int, title: str, message: str) -> Response:
    from specwatch.pages.status_html import refusal_html

    return _response(refusal_html(status, title, message), code, {})


def _busy() -> Response:
    """As plain text: there is no time to render a page."""
    message = "Too many different pages are asked for at once; ask again in a few seconds.\n"
    return respond(message.encode(), 503, "text/plain", headers={"Retry-After": "5"})


def _response(page: str, code: int, headers: Mapping[str, str]) -> Response:
    from specwatch.pages.status_html import policy

    body = page.encode("utf-8", "replace")  # lone surrogates cannot be encoded
    headers = {"Referrer-Policy": "no-referrer", **headers}
    return respond(body, code, "text/html", policy=policy(page), headers=headers)
