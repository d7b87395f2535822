"""The page of a target's proxy; its failures do not count as failures of the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import structlog

from specwatch.config.target import Target
from specwatch.domain.model import Series
from specwatch.errors import ScrapeError
from specwatch.runtime.tls import tls_context
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.page_client import PageClient
from specwatch.scrape.window_builder import ScrapeResult
from specwatch.status import ProxyStatus, failure_of

_PATH = "/metrics"
_LEAST_SECONDS = 0.001
_log = structlog.get_logger("specwatch.proxy_page")


class ProxyPage:
    """Fetches and reads the page, and keeps its status."""

    def __init__(self, target: Target, url: str) -> None:
        """Raises ConfigError when the target's ``ca_file`` cannot be used.

        The target's credentials are the server's: the proxy gets none.
        """
        self._target = target.name
        self._client = PageClient(
            url, timeout=target.timeout, max_size=target.max_page_size, tls=tls_context(target, url)
        )
        self._reader = PageReader(target.page_limits)
        self.status = ProxyStatus(url)

    async def read(self, now: float, seconds: float) -> Mapping[Series, float] | None:
        """Our samples of the page, within ``seconds``; None if that failed.

        ``now`` is Unix time.
        """
        try:
            page = await self._client.fetch(_PATH, timeout=max(seconds, _LEAST_SECONDS))
            return self._reader.read(page)
        except ScrapeError as error:
            self._failed(error, now)
            return None

    def note(self, observation: ScrapeResult, now: float) -> None:
        """Update the status by the observation of the page at ``now`` (Unix time)."""
        if observation.error is not None:
            return  # the page was not used
        if observation.proxy_restarted:
            _log.info("proxy_restarted", target=self._target)
            self.status = replace(self.status, restarts=self.status.restarts + 1)
        before = self.status.failure
        if observation.proxy_error is not None:
            self._failed(observation.proxy_error, now)
        elif before is not None:
            _log.info("proxy_recovered", target=self._target, after=before.reason)
            self.status = replace(self.status, failure=None)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _failed(self, error: ScrapeError, now: float) -> None:
        before = self.status
        if before.failure is None or before.failure.reason != error.reason:
            _log.warning(
                "proxy_failed", target=self._target, reason=error.reason, detail=str(error)
            )
        self.status = replace(
            before,
            failure=failure_of(before.failure, error, now),
            failures={**before.failures, error.reason: before.failures.get(error.reason, 0) + 1},
        )
