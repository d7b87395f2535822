"""A server under load: its metrics page, its counters, and its client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from specwatch.config.target import Target
from specwatch.domain.model import Series
from specwatch.errors import ConfigError, NoAnswer
from specwatch.lab.loadtest.calibration import Meter
from specwatch.lab.loadtest.client import LoadClient
from specwatch.lab.loadtest.engine import MeasuredModel, counted_of, engine_of
from specwatch.lab.loadtest.load_generator import LoadGenerator
from specwatch.lab.loadtest.requests import Answer, Ask, ErrorKind
from specwatch.runtime.tls import tls_context
from specwatch.scrape import engine_info
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import BlockingPageClient

_PATIENCE = 10.0
"""Timeout of the metrics page under load, in seconds."""


class Server:
    """One model of a server under load; an async context manager."""

    def __init__(self, target: Target, *, model: str | None, endpoint: str, where: str) -> None:
        """Reads model, version and mode from the server. ``where`` is the option that names it.

        Raises ScrapeError when it does not answer, ConfigError when it is not an engine.
        """
        self.where = where
        self.url = target.url
        self._page = BlockingPageClient(
            target.url,
            timeout=_PATIENCE,
            max_size=target.max_page_size,
            headers=target.request_headers,
            tls=tls_context(target),
        )
        self._page_thread = ThreadPoolExecutor(1, "metrics page")
        """All that is done with ``_page`` after this: a cancelled read still runs in it."""
        self._path = target.metrics_path
        self._reader = PageReader(target.page_limits)
        try:
            info = engine_info.ask(self._page.fetch)
            samples = self._reader.read(self._page.fetch(self._path))
        finally:
            self._page.close()
        self.engine: MeasuredModel = engine_of(
            samples,
            info.version,
            info.models,
            drafting=info.drafting,
            model=model,
            where=f"{where}: {target.url}",
        )
        self.longest = info.longest.get(self.engine.model_name)
        """Context length of the model, in tokens; None if the engine does not report it."""
        self.counted = counted_of(samples, self.engine)
        """Its counts until it was first read."""
        self.meter = Meter(self.engine)
        self.client = LoadClient(
            target.url,
            model=self.engine.model_name,
            endpoint=endpoint,
            headers=target.request_headers,
            fields=self.engine.engine.record_fields,
            keep_alive=not self.engine.engine.closes_streams,
            tls=tls_context(target),
        )
        self.load = LoadGenerator(self.client, self.read)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._page_thread, self._page.close)
        await self.client.__aexit__(None, None, None)

    async def try_out(self, ask: Ask) -> Answer:
        """Send one request. Raises ConfigError when it is refused, NoAnswer when it fails."""
        answer = await self.client.send(ask)
        if answer.error is ErrorKind.REFUSED:
            remedy = {
                401: "give its key with --bearer-token-file",
                403: "give another key with --bearer-token-file",
                404: "check that the address is that of the engine, and the model's name (--model)",
            }.get(
                answer.status or 0,
                "for a model without a chat template give --endpoint completions",
            )
            raise ConfigError(
                f"{self.where}: {self.url} refuses requests: {answer.detail}; {remedy}"
            )
        if not answer.ok:
            raise NoAnswer(f"{self.url} did not answer a request: {answer.error}, {answer.detail}")
        return answer

    async def read(self) -> Mapping[Series, float]:
        """Read the samples of its metrics page. Raises ScrapeError."""
        loop = asyncio.get_running_loop()
        page = await loop.run_in_executor(self._page_thread, self._page.fetch, self._path)
        return self._reader.read(page)
