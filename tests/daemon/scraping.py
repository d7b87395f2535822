"""A scraper in front of a server that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from concurrent.futures import CancelledError
from typing import Any

from specwatch.daemon.scraper import Scraper
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Batch, Moment, Window
from tests.daemon.stepped import MINUTE, StoppedClock, StoppedLoop
from tests.fixtures import Serve, target_of
from tests.hostile import Behaviour, HostileServer, Visit
from tests.scrape.pages import vllm

_TIME = StoppedClock()
"""By which pages come too late."""
_LOOP = StoppedLoop(_TIME)
threading.Thread(target=_LOOP.run_forever, daemon=True).start()


def take(seconds: float) -> None:
    """Let time pass while an answer is waited for."""
    _TIME.forward(seconds)
    _LOOP.call_soon_threadsafe(lambda: None)


def late(visit: Visit) -> None:
    """Takes the request and never answers in time, which passes at once."""
    take(1000)
    visit.hang()


def turn(scraper: Scraper) -> None:
    """One turn of a scraper; returns when it has ended, or was cut short."""
    with contextlib.suppress(CancelledError):
        asyncio.run_coroutine_threadsafe(scraper.turn(), _LOOP).result()


class Engine:
    """What a server says; ``page`` may be a whole behaviour."""

    def __init__(self, **answers: Any) -> None:
        self.page: bytes | Behaviour = vllm()
        self.version: Any = {"version": "0.32.0"}
        self.models: Any = {"data": [{"id": "m"}]}
        self.props: Any = None
        self.slots: Any = None
        vars(self).update(answers)

    def __call__(self, visit: Visit) -> bool | None:
        if visit.path == "/metrics":
            if callable(self.page):
                return self.page(visit)
            visit.answer(self.page)
            return True
        answers = {
            "/version": self.version,
            "/v1/models": self.models,
            "/props": self.props,
            "/slots": self.slots,
        }.get(visit.path)
        if callable(answers):
            return bool(answers(visit))
        if answers is None:
            visit.answer(b"", "404 Not Found")
        else:
            visit.answer(answers if isinstance(answers, bytes) else json.dumps(answers).encode())
        return True


class Bench:
    """A scraper with its own clock, in front of an engine, and of a proxy if one is given."""

    def __init__(
        self,
        serve: Serve,
        engine: Engine,
        proxied: Engine | None = None,
        *,
        tls: Any = None,
        **settings: Any,
    ) -> None:
        self.engine, self.proxy = engine, proxied
        self.server: HostileServer = serve(engine, tls=tls)
        self.now = Moment(MINUTE, 1000.0)
        self.batches: list[Batch] = []
        self.edges: tuple[float, ...] = (0.0, 0.3, 0.7, 1.0)
        self.settings = {"url": self.server.url, **settings}
        self.launched: DraftLengths | None = None
        if proxied is not None:
            self.proxy_server: HostileServer = serve(proxied)
            self.settings.setdefault("proxy", self.proxy_server.url)
        self.scraper = self.another()

    def another(self, **changes: Any) -> Scraper:
        return Scraper(
            target_of(**self.settings | changes),
            daemon="d",
            clock=lambda: self.now,
            put=self.batches.append,
            edges=lambda: self.edges,
            launched=self.launched,
        )

    def replace(self, **changes: Any) -> None:
        """Put another scraper in the place of the present one, as a reload does."""
        self.scraper.leave()
        before, self.scraper = self.scraper, self.another(**changes)
        self.scraper.adopt(before)

    def turn(
        self,
        page: bytes | Behaviour | None = None,
        proxy: bytes | Behaviour | None = None,
        seconds: float = 5.0,
    ) -> None:
        """One turn, after which time passes."""
        if page is not None:
            self.engine.page = page
        if proxy is not None and self.proxy is not None:
            self.proxy.page = proxy
        turn(self.scraper)
        self.now = Moment(self.now.wall + seconds, self.now.monotonic + seconds)

    @property
    def windows(self) -> list[Window]:
        return [window for batch in self.batches for window in batch]

    def end(self) -> dict[str, Window]:
        """The windows by temperature."""
        self.scraper.finish()
        return {window.series.segment.value: window for window in self.windows}
