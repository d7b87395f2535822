"""The tap of one watched target: what it covers, and its problems, logged once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from specwatch.domain.model import Source, Window
from specwatch.scrape import coverage
from specwatch.scrape.coverage import Coverage
from specwatch.scrape.taps import LEAVES_OUT, Trouble
from specwatch.scrape.window_builder import WindowBuilder
from specwatch.status import ProxyStatus, TapStatus

_log = structlog.get_logger("specwatch.daemon.watched_tap")
_MOST_PROBLEMS = 10


class WatchedTap:
    """The tap in a server or in its proxy; not safe to use from several threads."""

    def __init__(self, target: str, edges: Callable[[], Sequence[float]]) -> None:
        """``edges`` are the configured temperature buckets."""
        self._target = target
        self._edges = edges
        self._trouble: Mapping[tuple[str, str], Trouble] = {}
        self._source: Source | None = None
        self._coverage: tuple[Any, Mapping[str, Coverage]] | None = None

    def status(
        self, watch: WindowBuilder, recent: tuple[Window, ...], proxy: ProxyStatus | None
    ) -> TapStatus:
        """The tap now; ``recent`` are the sums of the last minutes."""
        taps = watch.taps
        troubles = [
            replace(trouble, model_name=trouble.model_name or watch.unnamed_model)
            if trouble.kind in LEAVES_OUT
            else trouble
            for trouble in taps.trouble(self._edges())
        ]
        doubted = {trouble.model_name for trouble in troubles if trouble.kind in LEAVES_OUT}
        inputs = (recent, taps.source, doubted)
        # The sums are kept until a window comes, so that they compare at once: computed once a
        # minute.
        if self._coverage is None or self._coverage[0] != inputs:
            self._coverage = inputs, coverage.coverages(*inputs)
        seen = self._coverage[1]
        low = (coverage.trouble_of(model, covered) for model, covered in seen.items())
        return TapStatus(
            taps.source,
            (*troubles, *(trouble for trouble in low if trouble is not None)),
            taps.failures,
            seen,
            proxy,
        )

    def log(self, watch: WindowBuilder, status: Callable[[], TapStatus]) -> None:
        """Log problems once when they begin, and once when they are over."""
        target, source = self._target, watch.taps.source
        if source is not self._source:
            _log.info("tap_found" if source else "tap_gone", target=target, source=source)
            self._source = source
        elif not (source or self._trouble or watch.taps.gone):
            return
        now = {(trouble.kind, trouble.model_name): trouble for trouble in status().trouble}
        for kind, model in sorted(now.keys() - self._trouble)[:_MOST_PROBLEMS]:
            detail = now[kind, model].text
            _log.warning("tap_trouble", target=target, kind=kind, model_name=model, detail=detail)
        for kind, model in sorted(self._trouble.keys() - now)[:_MOST_PROBLEMS]:
            _log.info("tap_trouble_over", target=target, kind=kind, model_name=model)
        self._trouble = now
