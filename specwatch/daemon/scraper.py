"""Scrapes one target: fetches its page, reads it, counts, and queues closed windows."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec
import structlog

from specwatch.config.target import Target
from specwatch.daemon.proxy_page import ProxyPage
from specwatch.daemon.watched_tap import WatchedTap
from specwatch.domain.draft_lengths import DraftLengths
from specwatch.domain.model import Batch, Cursor, Mode, Moment, Series
from specwatch.errors import ConfigError, ScrapeError, ScrapeReason
from specwatch.runtime.tls import tls_context
from specwatch.scrape import engine_info
from specwatch.scrape.exposition import PageReader
from specwatch.scrape.gauges import GpuMemory
from specwatch.scrape.page_client import BlockingPageClient, PageClient
from specwatch.scrape.page_layout import Glance
from specwatch.scrape.switch import FollowedSwitch, SwitchSetting
from specwatch.scrape.window_builder import ScrapeResult, WindowBuilder
from specwatch.status import Recent, TapStatus, TargetStatus, failure_of
from specwatch_tap.temperature import DEFAULT_EDGES

_log = structlog.get_logger("specwatch.daemon.scraper")
Page = Callable[[Mapping[Series, float], SwitchSetting | None, float | None], None]
_QUERY_AGAIN = 60.0
"""Seconds until an engine that did not report its version is queried again."""
_KEEP_SECONDS = 10.0
"""How often the open minute of a pod is stored; it takes up to 5 s until it is."""
_LARGEST_ANSWER = 1 << 20
_MOST_PROBLEMS = 10
_LARGE = 1 << 20
"""Bytes of a page that is read in another thread."""
_SHARE = 0.1
"""Of a processor, that reading the large pages of one target may take."""
_Client = TypeVar("_Client", PageClient, BlockingPageClient)


class Scraper:
    """Watches one target; ``turn`` does one scrape, and raises nothing whatever the server does.

    All turns are in one event loop. Only one runs at a time; one that is due meanwhile is skipped
    and counted.
    """

    def __init__(
        self,
        target: Target,
        *,
        daemon: str,
        clock: Callable[[], Moment],
        put: Callable[[Batch], None],
        keep: Callable[[Batch], None] = lambda batch: None,
        cursor: Cursor | None = None,
        cursor_follows: bool = False,
        closed_start: int | None = None,
        watched_since: float | None = None,
        gpu_memory: Callable[[], GpuMemory | None] = lambda: None,
        client: PageClient | None = None,
        edges: Callable[[], Sequence[float]] = lambda: DEFAULT_EDGES,
        page: Page = lambda *_: None,
        launched: DraftLengths | None = None,
    ) -> None:
        """``put`` takes closed windows, ``keep`` the open ones of a pod, to be stored while they
        are; ``cursor_follows`` says that :meth:`resume` will be called;
        ``watched_since`` as of :class:`WindowBuilder`;
        ``page`` gets each good page, with the switch and the load that it shows;
        ``client`` fetches pages, by default over HTTP; ``gpu_memory`` reads
        the memory of the target's GPUs, ``edges`` the configured temperature buckets. ``launched``
        is why drafts vary in length by the engine's command line, if that is known.

        Raises ConfigError when the target's ``ca_file`` cannot be used.
        """
        self.target = target
        self._clock = clock
        self._put, self._page, self._begins = put, page, cursor is None and not cursor_follows
        self._keep = keep
        self._kept_at = -math.inf
        self._gpu_memory, self._launched = gpu_memory, launched
        self._proxy = None if target.proxy is None else ProxyPage(target, target.proxy)
        self._tap = WatchedTap(target.name, edges)
        self._tls = tls_context(target)
        self._client = client or self._http_client(PageClient)
        self._reader = PageReader(target.page_limits)
        self._watch = WindowBuilder(
            daemon,
            target.name,
            max_gap=3 * target.interval,
            cursor=cursor,
            cursor_follows=cursor_follows,
            closed_start=closed_start,
            watched_since=watched_since,
        )
        self._followed = FollowedSwitch()
        self._recent = Recent()
        self._failures: Counter[str] = Counter()
        self._skipped = 0
        self._problems: frozenset[str] = frozenset()
        self._watching = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turning: asyncio.Task[Any] | None = None
        """The task of the turn that is under way."""
        self._finished = self._learnt = False
        self._query_at: float | None = 0.0
        self._begun, self._superseded_at = clock().monotonic, -math.inf
        """The latter: when another process's cursor was taken over, on the monotonic clock."""
        self._ended: float | None = None
        self._rests_until = -math.inf
        """Until when no page is read, because the last one took so long."""
        self._status = TargetStatus(
            target.name, target.url, target.interval, target.group, target.labels
        )
        self._loads: deque[float | None] = deque(maxlen=2)

    async def turn(self) -> None:
        """Scrape once and queue the windows that this closed."""
        now = self._clock().monotonic
        if self._finished:
            return
        if self._turning is not None:
            self.skip()
            return
        if now < self._rests_until:
            self._ended = now
            return
        self._loop, self._turning = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await self._turn()
        finally:
            self._turning = None
            if self._finished:
                self._end()

    def healthy(self) -> bool:
        """Whether the engine's health check succeeds now; waits for the answer."""
        with contextlib.closing(self._http_client(BlockingPageClient)) as client:
            try:
                client.fetch("/health", max_size=_LARGEST_ANSWER)
            except (ScrapeError, ConfigError) as error:
                _log.debug("engine_not_healthy", target=self.target.name, detail=str(error))
                return False
        return True

    def skip(self) -> None:
        """Count a turn that was due and could not be taken."""
        self._skipped += 1
        # That a failing target is slow does not need a warning.
        log = _log.debug if self.failing else _log.warning
        log("scrape_skipped", target=self.target.name, skipped=self._skipped)

    @property
    def turned(self) -> bool:
        """Whether a turn has ended."""
        return self._ended is not None

    @property
    def failing(self) -> bool:
        """Whether the last scrape failed."""
        return self._status.failure is not None

    def stuck(self, now: Moment) -> bool:
        """Whether no turn ended within the last three intervals."""
        last = self._begun if self._ended is None else self._ended
        return now.monotonic - last > 3 * self.target.interval

    @property
    def shown(self) -> TargetStatus:
        """The target as its last page shows it: without minutes, tap and counts of failures."""
        return self._status

    def status(self, *, current: bool = False) -> TargetStatus:
        """The target now; with ``current`` the open minute too."""
        with self._watching:
            opened = self._watch.peek() if current else ()
            recent, tap = self._recent.merged(), self._tap_status()
        return msgspec.structs.replace(
            self._status,
            skipped=self._skipped,
            failures=dict(self._failures),
            recent=recent,
            last_window=self._recent.end,
            current=opened,
            tap=tap,
        )

    def leave(self) -> None:
        """End: no more turns; one that is under way is cut short, and counts nothing."""
        if self._finished:
            return
        self._finished = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, with all connections
                self._loop.call_soon_threadsafe(self._end)

    def finish(self) -> int | None:
        """Leave, close the open window and queue it; returns where it began. Waits for nobody."""
        self.leave()
        with self._watching:
            self._take(self._watch.close())
            return self._watch.closed_start

    def resume(self, cursor: Cursor | None) -> None:
        """Go on from a cursor that was read late; see :meth:`WindowBuilder.resume`.

        What was counted before our first page is in the open minute then, and is stored with the
        minutes that wait: their cursors are later.
        """
        with self._watching:
            self._watch.resume(cursor, self._clock())
            so_far = self._watch.so_far()
            if so_far is not None:
                self._keep(so_far)

    def supersede(self, cursor: Cursor) -> None:
        """Go on from another process's cursor; see :meth:`WindowBuilder.supersede`."""
        with self._watching:
            self._superseded_at = self._clock().monotonic
            self._watch.supersede(cursor)

    def adopt(self, predecessor: Scraper) -> None:
        """Go on where another scraper of this target, which has left, stopped: its open minute,
        counters and status are ours from now on."""
        with predecessor._watching:
            self._watch = predecessor._watch
        self._watch.times.max_gap, self._begins = 3 * self.target.interval, False
        before, own = predecessor.target, self.target
        if before.url == own.url and before.pod == own.pod:
            self._recent = predecessor._recent
        else:
            last = self._watch.times.wall
            self._watch.start_over()
            self._watch.watched_since = last
        if before.proxy != own.proxy:
            self._watch.change_proxy()
        elif self._proxy is not None and predecessor._proxy is not None:
            self._proxy.status = predecessor._proxy.status
        self._tap = predecessor._tap
        self._failures, self._skipped = predecessor._failures, predecessor._skipped
        self._status = msgspec.structs.replace(
            predecessor._status,
            url=own.url,
            interval=own.interval,
            configured_group=own.group,
            labels=own.labels,
        )

    def _http_client(self, kind: type[_Client]) -> _Client:
        return kind(
            self.target.url,
            timeout=self.target.timeout,
            max_size=self.target.max_page_size,
            headers=self.target.request_headers,
            tls=self._tls,
        )

    async def _turn(self) -> None:
        started = self._clock().monotonic
        page, error = await self._fetch()
        glance = None if page is None else self._glanced(page)
        now = None if glance is None else self._take_glance(glance, started)
        if now is None:
            now, error = await self._observe(page, glance, error, started)
        if now is None:
            return
        self._ended = self._clock().monotonic
        if error is None and self.target.pod is not None:
            self._keep_open(now)
        if error is None and self._query_at is not None and now.monotonic >= self._query_at:
            await self._query_engine(now)

    def _keep_open(self, now: Moment) -> None:
        """Have the open minute of a pod stored: its page may be gone before the minute ends, and we
        may be killed."""
        if now.monotonic - self._kept_at < _KEEP_SECONDS:
            return
        self._kept_at = now.monotonic
        with self._watching:
            batch = None if self._finished else self._watch.so_far()
            if batch is not None:
                self._keep(batch)

    async def _fetch(self) -> tuple[bytes | None, ScrapeError | None]:
        try:
            return await self._client.fetch(self.target.metrics_path), None
        except ScrapeError as failed:
            return None, failed
        except ConfigError as failed:  # a secret's file has gone
            return None, ScrapeError(ScrapeReason.CREDENTIALS, str(failed))

    def _glanced(self, page: bytes) -> Glance | None:
        """Not where an experiment or the proxy's page needs the samples of each page."""
        if self._proxy is not None or self.target.experiments is not None:
            return None
        return self._reader.glance(page)

    def _take_glance(self, glance: Glance, started: float) -> Moment | None:
        """Take a page without reading all of it; returns when, None if it has to be observed."""
        memory = self._gpu_memory()
        with self._watching:
            if self._is_over(started):
                return None
            now = self._clock()
            self._watch.gpu_memory = memory
            observation = self._watch.glance(glance, now)
            if observation is None:
                return None
            self._note(now, now.monotonic - started, observation, None)
            return now

    async def _observe(
        self, page: bytes | None, glance: Glance | None, error: ScrapeError | None, started: float
    ) -> tuple[Moment | None, ScrapeError | None]:
        """Count a page, which is read in full without a glance, or note a failure; returns the
        moment, None if it is too late, and the error."""
        samples: Mapping[Series, float] = {} if glance is None else glance.samples()
        if page is not None and glance is None:
            try:
                # A large one takes long to read, and other targets do not wait for it.
                large = len(page) > _LARGE
                samples = await self._read_large(page) if large else self._reader.read(page)
            except ScrapeError as failed:
                error = failed
        proxy = None
        if error is None and self._proxy is not None and not self._finished:
            left = started + self.target.timeout - self._clock().monotonic
            proxy = await self._proxy.read(self._clock().wall, left)
        memory = self._gpu_memory() if error is None else None
        with self._watching:
            if self._is_over(started):
                return None, error
            now = self._clock()
            if error is not None:
                observation = self._watch.fail(now, error.reason)
            else:
                self._watch.gpu_memory = memory
                observation = self._watch.observe(samples, now, proxy)
                self._followed.see(samples, self._watch.switch)
                if observation.error is None:
                    cursor = self._watch.begin() if self._begins else None
                    if cursor is not None:
                        # A successor begins here, however soon we end.
                        self._put(Batch((), cursor))
                    self._begins = False
                    self._page(samples, self._watch.switch, self._watch.times.load)
                    if page is not None:
                        self._begin_glances(page, glance, ended=observation.batch is not None)
                error = observation.error
                if self._proxy is not None and proxy is not None:
                    self._proxy.note(observation, now.wall)
            before = self._status.models
            self._note(now, now.monotonic - started, observation, error)
            self._take(observation)
            restarted = observation.restarted or observation.another
            self._recent.forget(self._changed(before, restarted=restarted))
            if error is None:
                self._tap.log(self._watch, self._tap_status)
        return now, error

    async def _read_large(self, page: bytes) -> Mapping[Series, float]:
        """Read it in another thread; the next one is read later, the longer this one takes."""
        seconds = 0.0

        def read() -> Mapping[Series, float]:
            nonlocal seconds
            begun = time.thread_time()
            try:
                return self._reader.read(page)
            finally:
                seconds = time.thread_time() - begun

        try:
            return await asyncio.to_thread(read)
        finally:
            every = seconds / _SHARE
            if every > self.target.interval:
                if self._rests_until == -math.inf:
                    _log.warning(
                        "page_expensive",
                        target=self.target.name,
                        bytes=len(page),
                        seconds=round(seconds, 2),
                        every=round(every, 1),
                    )
                self._rests_until = self._clock().monotonic + every
                self._watch.times.max_gap = 3 * every

    def _is_over(self, started: float) -> bool:
        """Whether a turn was cut short by us, or its page is perhaps older than another process's
        cursor."""
        return self._finished or started <= self._superseded_at

    def _begin_glances(self, page: bytes, glance: Glance | None, *, ended: bool) -> None:
        """A page was counted. How it looks is learnt once a minute at most: on some servers each
        page looks otherwise."""
        if glance is None and (ended or not self._learnt):
            self._learnt = True
            glance = self._reader.learn(page)
        self._watch.begin_glances(glance)

    def _take(self, observation: ScrapeResult) -> None:
        if observation.batch is not None:
            self._recent.add(observation.batch.windows)
            self._put(observation.batch)
            problems = frozenset(observation.problems)
            for problem in sorted(problems - self._problems)[:_MOST_PROBLEMS]:
                _log.warning("counts_left_out", target=self.target.name, problem=problem[:200])
            self._problems = problems

    def _tap_status(self) -> TapStatus:
        proxy = None if self._proxy is None else self._proxy.status
        return self._tap.status(self._watch, self._recent.merged(), proxy)

    def _note(
        self, now: Moment, seconds: float, observation: ScrapeResult, error: ScrapeError | None
    ) -> None:
        before, setting = self._status, self._watch.switch
        self._loads.append(None if error else self._watch.times.load)
        loads = [load for load in self._loads if load is not None]
        self._status = msgspec.structs.replace(
            before,
            last_scrape=now.wall,
            last_success=before.last_success if error else now.wall,
            scrape_seconds=seconds,
            scrapes=before.scrapes + 1,
            failure=failure_of(before.failure, error, now.wall),
            restarts=before.restarts + observation.restarted,
            from_files=self._watch.from_files,
            alternated_at=self._watch.processes.alternated_at,
            models=self._models(),
            stops={
                name or self._watch.unnamed_model: stop
                for name, stop in self._watch.draft_watch.stops.items()
                if self._watch.models.get(name) is Mode.STOPPED
            },
            switch=setting and replace(setting, followed=self._followed.followed),
            load=max(loads) if len(loads) == 2 else None,
        )
        if error is not None:
            self._failures[error.reason] += 1
        self._log_status(before, error, observation.restarted)

    def _changed(self, before: Mapping[str, Mode], *, restarted: bool) -> set[str]:
        """Models that another process serves than at the page before, or in another mode."""
        now = self._status.models
        return {
            model
            for model in {*before, *now}
            if restarted or before.get(model) is not now.get(model)
        }

    def _models(self) -> dict[str, Mode]:
        return {name or self._watch.unnamed_model: m for name, m in self._watch.models.items()}

    def _log_status(self, before: TargetStatus, error: ScrapeError | None, restarted: bool) -> None:
        target = self.target.name
        if error is not None and (before.failure is None or before.failure.reason != error.reason):
            _log.warning("scrape_failed", target=target, reason=error.reason, detail=str(error))
        elif error is None and before.failure is not None:
            _log.info("scrape_recovered", target=target, after=before.failure.reason)
            self._query_at = 0.0  # another engine may have been started meanwhile
        if before.alternated_at is None and self._status.alternated_at is not None:
            _log.warning("several_servers_answer", target=target, url=self.target.url)
        if restarted:
            _log.info("engine_restarted", target=target, models=self._mode_names())
            self._query_at = 0.0
        elif error is None and before.models != self._status.models:
            _log.info("models_changed", target=target, models=self._mode_names())

    def _mode_names(self) -> dict[str, str]:
        return {model: str(mode) for model, mode in self._status.models.items()}

    async def _query_engine(self, now: Moment) -> None:
        """Query the version and models of the engine, within the time of one scrape."""
        fetch = partial(self._client.fetch, max_size=_LARGEST_ANSWER)
        try:
            async with asyncio.timeout(self.target.timeout):
                info = await engine_info.ask_in_loop(fetch)
        except (TimeoutError, ScrapeError, ConfigError) as error:
            self._query_at = now.monotonic + _QUERY_AGAIN
            _log.debug("engine_did_not_say", target=self.target.name, detail=str(error))
            return
        with self._watching:
            if self._finished:
                return
            self._watch.begin_glances(None)  # the next page shows it
            self._watch.drafting = info.drafting
            self._watch.draft_lengths = info.draft_lengths or self._launched
            self._watch.prefills = info.prefills
            undecided = info.drafting is None and Mode.UNKNOWN in self._watch.models.values()
            complete = info.version and not undecided
            self._query_at = None if complete else now.monotonic + _QUERY_AGAIN
            known = (self._watch.environment.engine_version, self._watch.unnamed_model)
            self._watch.environment = msgspec.structs.replace(
                self._watch.environment, engine_version=info.version
            )
            if info.models:
                self._watch.unnamed_model = info.models[0]
            self._status = msgspec.structs.replace(
                self._status, engine_version=info.version, models=self._models()
            )
            current = (info.version, self._watch.unnamed_model)
        if current != known:
            _log.info(
                "engine_found", target=self.target.name, version=info.version, models=info.models
            )

    def _end(self) -> None:
        """Cut the turn short that is under way, which comes here again; then disconnect."""
        if self._turning is not None:
            self._turning.cancel()
            return
        self._client.close()
        if self._proxy is not None:
            self._proxy.close()
