"""The daemon: scheduling, signals, wiring."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import structlog
from msgspec import structs

from specwatch import __version__
from specwatch.actuators import actuator_of, owner
from specwatch.alerts.sender import Alertmanagers
from specwatch.config.loading import Config
from specwatch.config.service import SupervisedService
from specwatch.config.target import Target
from specwatch.daemon.daemon_server import page_address, server_of
from specwatch.daemon.discovery_service import DiscoveryService
from specwatch.daemon.experiment_service import EVERY, ExperimentService
from specwatch.daemon.guard_service import TURN_SECONDS, GuardService
from specwatch.daemon.lease_keeper import LeaseKeeper
from specwatch.daemon.recorder import Recorder
from specwatch.daemon.rule_service import RuleService
from specwatch.daemon.scraper import Scraper
from specwatch.daemon.watched_targets import WatchedTargets
from specwatch.daemon.workloads import Workloads, part_of, with_workloads
from specwatch.domain.model import HOUR, Batch, Cursor, Moment
from specwatch.errors import ConfigError, StoreError
from specwatch.report.deliveries import DeliveryMonitor
from specwatch.runtime.scheduler import Schedule, current_moment
from specwatch.runtime.sd_notify import ServiceManager
from specwatch.scrape.gpu import GpuMemoryReader
from specwatch.status import HUNG_SECONDS, DaemonStatus, TargetStatus
from specwatch.store.cursor_rows import targets_read
from specwatch.store.leases import Lease
from specwatch.store.repository import Store
from specwatch.wording import lease as lease_wording

if TYPE_CHECKING:
    from specwatch.actuators.supervisor import Supervisor

_log = structlog.get_logger("specwatch.daemon.daemon")

_LANES = {"loop": 2, "discovery": 16} | dict.fromkeys(
    ("flush", "upkeep", "check", "gpu", "guard", "experiments", "lease"), 1
)
"""Jobs at a time in each lane, so that a database or driver that hangs does not delay scrapes."""
_FLUSH_SECONDS = 5.0
_CATCH_UP_SECONDS = 5.0
_GPU_SECONDS = 5.0
_HEARTBEAT_SECONDS = 5.0
_ROLL_UP_SECONDS = 600.0
_PRUNE_SECONDS = 6 * HOUR
_NEVER_READ_SECONDS = 15.0
_FIRST_READ_SECONDS = 60.0
"""After so long one that watches has read each of its targets that answers."""
_CLOCK_STEP_SECONDS = 2.0
_LOOK_SECONDS = 0.25
"""How soon a step of the clock or a discovered target is handled."""
_MOST_NAMED = 20
"""Targets that a line of the log names."""
_WRITE_SECONDS = 3.5
"""How long the database is waited for at the end."""
_FIXED = ("daemon", "database", "listen", "shard", "store")
"""Keys of the configuration that take effect at a start only."""


class Daemon:
    """Watches the targets of a configuration until :meth:`ask_to_stop`, once it has the lease of
    its name; until then it stands by."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        reload: Callable[[], Config] | None = None,
        on_reload: Callable[[Config], None] = lambda _: None,
        now: Callable[[], Moment] = current_moment,
        seed: int | None = None,
        supervisor: Supervisor | None = None,
        schedule: Schedule | None = None,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """``reload`` reads the configuration again, ``on_reload`` gets the result; ``seed`` fixes
        the start jitter; ``supervisor`` runs vLLM as our child. ``schedule`` runs the jobs, and the
        event loop of ``new_loop`` the scrapes, by default by the system's clocks."""
        self._configured = self.config = config  # the latter with discovered targets
        self._reload = reload
        self._on_reload = on_reload
        self._now = now
        self._random = random.Random(seed)
        self._supervisor = supervisor
        self._service = ServiceManager(environ)
        self._discovery = DiscoveryService(config, now)
        self.targets = WatchedTargets(self._new_scraper, new_loop=new_loop)
        self._configuring = threading.Lock()
        self._recorder = Recorder(
            Store(config.database.connect_url(), daemon=config.daemon),
            queue_limit=config.store.queue_limit,
            now=now,
            resume=self.targets.resume,
            supersede=self.targets.supersede,
            configuring=self._configuring,
        )
        self._workloads = Workloads(self.targets, self._take, self._recorder.put)
        lease = Lease(
            self._recorder.store,
            owner.identity(),
            shard="" if config.shard is None else str(config.shard),
            address=lambda: page_address(self.config, self.http),
            is_gone=owner.is_gone,
            clock=now,
        )
        self._recorder.store.before_write = lease.check
        self._lease = LeaseKeeper(
            lease,
            now=now,
            alive=lambda: self._silent(self._now()) <= HUNG_SECONDS,
            damaged=self._recorder.check,
        )
        self._begun = False
        self._never_read: tuple[str, ...] = ()
        own = part_of(config)
        self._rule_service = RuleService(self._recorder.store, own, now=now)
        self._gpu = GpuMemoryReader()
        self._guard_service = GuardService(
            self._recorder.store,
            own,
            now=now,
            rule_service=self._rule_service,
            status=self._workloads.shown,
            healthy=self._workloads.is_healthy,
            actuator=partial(actuator_of, supervisor=supervisor),
        )
        self._experiment_service = ExperimentService(
            self._recorder.store,
            own,
            now=now,
            status=self.targets.status_of,
            guard=lambda name: self._guard_service.status_of(self._workloads.guarded_as(name)),
        )
        self._alertmanagers = Alertmanagers(config.alertmanager, config.external_url)
        self._deliveries = DeliveryMonitor()
        self._schedule = schedule or Schedule(_LANES)
        self._started = now()
        self._offset = self._started.offset
        self._looked: float | None = None
        self._stop_asked = False
        self._reload_asked = False
        self._asked: SimpleQueue[None] = SimpleQueue()  # which a signal handler may use
        self.http = server_of(lambda: self.config, self.status, self._recorder.store)

    def ask_to_stop(self) -> None:
        """End ``run`` soon; safe in a signal handler."""
        self._stop_asked = True
        self._asked.put(None)

    def ask_to_reload(self) -> None:
        """Read the configuration again soon; safe in a signal handler."""
        self._reload_asked = True
        self._asked.put(None)

    @property
    def configured(self) -> Config:
        """The configuration, as it was read last."""
        return self._configured

    def run(self) -> bool:
        """Watch until asked to stop, or until another process has taken over; returns whether that
        is so, and a new daemon should stand by.

        Raises ConfigError when it cannot listen, or a target's ``ca_file`` cannot be used.
        """
        self.start()
        try:
            self._main_loop()
            return not self._stop_asked
        finally:
            self.stop()

    def start(self) -> None:
        """Begin to watch, or to stand by, and to serve; returns at once."""
        self.http.start()
        try:
            self._lease.begin()
            if self._lease.watching:
                self._begin()
        except BaseException:
            self.http.stop(timeout=1.0)
            raise
        self._set_jobs()
        self._schedule.start()
        _log.info(
            "started",
            version=__version__,
            daemon=self.config.daemon,
            listen=self.http.url,
            database=self._recorder.store.where,
            targets=self._own_names(),
        )
        self._service.ready(self._sentence())

    def _begin(self) -> None:
        """Begin to watch."""
        cursors = self._recorder.open()
        self._discovery.resume(cursors)
        self._watch(cursors=cursors)
        self._begun = True

    def stop(self) -> None:
        """Write what is not written yet, and end; takes at most about five seconds."""
        self._stop_asked = True
        if self._lease.lost:
            _log.error(
                "lease_lost",
                remedy="another process of this name watches now, as this one did not renew its"
                " lease in time: it was stopped, or could not reach the database; it stands by",
            )
        else:
            self._service.stopping()
            _log.info("stopping")
        self._schedule.stop()
        self.targets.close()
        self._workloads.close()
        # A database that hangs must not delay the end.
        writer = threading.Thread(target=self._write_last, name="last-write", daemon=True)
        writer.start()
        self._alertmanagers.close()
        writer.join(_WRITE_SECONDS)
        if writer.is_alive():
            _log.error("store_not_closed", detail="the database did not answer in time")
        self.http.stop(timeout=1.0)
        _log.info("stopped", unwritten=self._recorder.status().queued)

    def status(self, *, current: bool = False) -> DaemonStatus:
        """The daemon now; with ``current`` the open minute of each target too."""
        now = self._now()
        store = self._recorder.status()
        lease = self._lease.status()
        # One that watches writes each minute, and knows by that.
        if lease.error is not None and store.error is None and not self._begun:
            since = store.behind_since or self._lease.failing_since
            store = replace(store, error=lease.error, behind_since=since)
        return DaemonStatus(
            daemon=self.config.daemon,
            version=__version__,
            started=self._started.wall,
            now=now.wall,
            targets=tuple(self._statuses(current=current)),
            store=store,
            judging=self._rule_service.status(),
            not_shown=self._rule_service.not_shown,
            pagers=self._alertmanagers.status(),
            deliveries=self._deliveries.status(self.config.report),
            stuck=self.targets.stuck(now),
            silent=self._silent(now),
            shard="" if self.config.shard is None else str(self.config.shard),
            lease=replace(lease, never_read=() if self._begun else self._never_read),
            external_url=self.config.external_url,
            discovery=tuple(source.status for source in self._discovery),
            ready=self._recorder.ready and self._discovery.begun and self.targets.turned
            if self._begun
            else self._lease.ready,
        )

    def _statuses(self, *, current: bool) -> Iterator[TargetStatus]:
        """Yield those of the targets and of the workloads that are guarded in place of pods."""
        scraped = {one.target.name: one.status(current=current) for one in self.targets}
        for status in (*scraped.values(), *self._workloads.statuses(scraped)):
            guarded = self._workloads.guarded_as(status.name)
            yield structs.replace(
                status,
                decision=self._rule_service.decision_of(status.name),
                guard=self._guard_service.status_of(guarded),
                experiment=self._experiment_service.status_of(status.name),
                workload="" if guarded == status.name else guarded,
            )

    def _main_loop(self) -> None:
        while not self._stop_asked and not self._lease.lost:
            self.look()
            with suppress(Empty):
                self._asked.get(timeout=_LOOK_SECONDS)

    def look(self) -> None:
        """Handle signals, the lease, what discovery has found, and steps of the clock."""
        self._looked = self._now().monotonic
        if self._lease.watching and not self._begun:
            self._begin()
            with self._configuring:
                self._set_jobs()
        if self._reload_asked and not self._stop_asked:
            self._reload_asked = False
            self._read_config()
        listed = self._discovery.listed
        if self._discovery.take_change() and not self._stop_asked:
            self._watch_discovered()
        self._workloads.listed = listed
        stepped = self._now().offset - self._offset
        if abs(stepped) > _CLOCK_STEP_SECONDS:
            _log.warning("clock_stepped", seconds=round(stepped, 3))
            self._offset += stepped
            with self._configuring:
                self._set_jobs()  # jobs are due by the wall clock

    def _new_scraper(
        self, target: Target, cursor: Cursor | None, closed: int | None, since: float | None
    ) -> Scraper:
        child = self._supervisor if isinstance(target.service, SupervisedService) else None
        gpus = target.gpu_indices
        return Scraper(
            target,
            daemon=self.config.daemon,
            clock=self._now,
            put=partial(self._take, target.name),
            keep=partial(self._keep_open, target.name),
            cursor=cursor,
            cursor_follows=not self._recorder.opened,
            closed_start=closed,
            watched_since=since,
            gpu_memory=lambda: self._gpu.read(gpus, self._now().monotonic),
            edges=lambda: self.config.temperature_buckets,
            page=partial(self._experiment_service.see, target.name),
            launched=None if child is None else child.draft_lengths,
        )

    def _take(self, target: str, batch: Batch) -> None:
        self._recorder.put(batch)
        if not self._stop_asked:  # what ends now is judged when the next start has read it
            self._rule_service.observe(target, batch)
        self._workloads.take(target, batch)

    def _keep_open(self, pod: str, batch: Batch) -> None:
        self._recorder.put(batch)
        self._workloads.keep(pod, batch)

    def _set_jobs(self) -> None:
        """Schedule every job again."""
        self._schedule.clear()
        every = self._schedule.every
        changing = self.config.discovery
        watchdog = self._service.watchdog_seconds
        beat = min(_HEARTBEAT_SECONDS, watchdog / 3) if watchdog else _HEARTBEAT_SECONDS
        every(beat, self._heartbeat, delay=0.0, lane="loop")
        every(self._lease.every, self._look_at_lease, delay=self._lease.every, lane="lease")
        if not self._begun:
            every(_NEVER_READ_SECONDS, self._look_for_never_read, delay=0.0, lane="upkeep")
            return
        for source in self._discovery:
            seconds = source.source.settings.refresh_interval
            every(seconds, source.refresh, delay=0.0, lane="discovery")
        every(TURN_SECONDS, self._guard, delay=TURN_SECONDS, lane="guard")
        if self._experiment_service.active or changing:
            every(EVERY, self._experiment_service.turn, delay=EVERY, lane="experiments")
        soon = self._random.random()
        every(_FLUSH_SECONDS, self._flush, delay=_FLUSH_SECONDS, lane="flush")
        every(_CATCH_UP_SECONDS, self._catch_up, delay=0.0, lane="upkeep")
        every(_ROLL_UP_SECONDS, self._recorder.roll_up, delay=30 + 30 * soon, lane="upkeep")
        every(_PRUNE_SECONDS, self._recorder.check_if_due, delay=0.0, lane="check")
        kept = (self.config.retention, self.config.baseline.max_age)
        every(_PRUNE_SECONDS, self._recorder.prune, *kept, delay=300 + 300 * soon, lane="upkeep")
        if changing or any(one.target.gpu_indices != () for one in self.targets):
            every(_GPU_SECONDS, self._read_gpus, delay=0.0, lane="gpu")

    def _read_gpus(self) -> None:
        if all(scraper.target.gpu_indices == () for scraper in self.targets):
            return
        before = self._gpu.absent
        self._gpu.refresh(self._now().monotonic)
        if self._gpu.absent != before:
            _log.info("gpu_memory", source="nvml", absent=self._gpu.absent)

    def _flush(self) -> None:
        self._recorder.flush()
        if self._recorder.ready:
            self._rule_service.flush()

    def _guard(self) -> None:
        if self._recorder.opened:
            self._guard_service.turn()
        self._alertmanagers.send(list(self._statuses(current=False)))

    def _look_at_lease(self) -> None:
        self._lease.turn()
        if self._lease.lost or self._lease.watching is not self._begun:
            self._asked.put(None)  # which ends the main loop's wait

    def _look_for_never_read(self) -> None:
        """See, while standing by, which of our targets the one that watches seems not to have, once
        it had the time to read them."""
        waited = self._now().monotonic - self._started.monotonic
        if self._begun or waited < _FIRST_READ_SECONDS:
            return
        store = self._recorder.store
        try:
            with store.connected() as connection:
                read = targets_read(connection, store.daemon)
        except StoreError:
            return  # the lease says so
        found = tuple(name for name in self._own_names() if name not in read)
        if found and found != self._never_read:
            _log.error(
                "targets_never_read",
                targets=list(found[:_MOST_NAMED]),
                detail=lease_wording.never_read(found),
                remedy=lease_wording.NEVER_READ_REMEDY,
            )
        self._never_read = found

    def _catch_up(self) -> None:
        if self._recorder.ready:
            if not self._rule_service.caught_up:
                self._recorder.roll_up()  # the past is read from hours
            self._rule_service.catch_up()

    def _write_last(self) -> None:
        if self._begun and not self._lease.lost:
            self._recorder.flush(force=True)
            if self._recorder.ready:
                self._rule_service.flush(final=True)
                self._experiment_service.close()
                self._guard_service.close()
            self._lease.release()
        elif self._begun:
            self._guard_service.close()
        self._recorder.close()

    def _heartbeat(self) -> None:
        """Send the service manager a sign of life, as long as our loops turn: to restart us for a
        target that is stuck would interrupt watching the others."""
        now = self._now()
        stuck, silent = self.targets.stuck(now), self._silent(now)
        if stuck:
            _log.error("targets_stuck", targets=stuck)
        if silent > HUNG_SECONDS:
            _log.error("loop_hung", seconds=round(silent))
        else:
            self._service.alive()
        self._service.status(self._sentence())

    def _silent(self, now: Moment) -> float:
        """Seconds for which one of our loops has not turned."""
        looked = self._looked
        return max(self.targets.silent, 0.0 if looked is None else now.monotonic - looked)

    def _sentence(self) -> str:
        if not self._begun:
            return f"Standing by: {self._lease.status().holder} watches"
        message, store = self.targets.sentence(self._now()), self._recorder.status()
        if store.error:
            message += f"; {store.queued} windows wait for the database: {store.error}"
        return message

    def _read_config(self) -> None:
        self._service.reloading()
        try:
            if self._reload is None:
                raise ConfigError("no configuration file was given: nothing to reload")
            self._apply(self._reload())
        except ConfigError as error:
            _log.error("reload_refused", detail=str(error))
        except Exception:
            _log.exception("reload_failed")  # a defect of ours: the old configuration stays
        self._service.ready(self._sentence())

    def _apply(self, config: Config) -> None:
        fixed = [key for key in _FIXED if getattr(config, key) != getattr(self.config, key)]
        config = config.model_copy(update={key: getattr(self.config, key) for key in fixed})
        if self._begun:
            self._watch(config)
        else:
            self._configured = self.config = config
        self._alertmanagers.configure(config.alertmanager, config.external_url)
        with self._configuring:
            self._set_jobs()
        self._on_reload(self.config)
        if fixed:
            _log.warning("restart_needed", keys=fixed)
        _log.info("reloaded", targets=self._own_names())

    def _own_names(self) -> list[str]:
        """The targets of our shard."""
        return [target.name for target in part_of(self.config).targets]

    def _watch_discovered(self) -> None:
        before = self.targets.by_name.keys()
        try:
            self._watch()
            self._discovery.refused = None
        except ConfigError as error:
            if str(error) != self._discovery.refused:
                _log.error("discovery_refused", detail=str(error))
            self._discovery.refused = str(error)
        except Exception:
            _log.exception("discovery_not_applied")  # a defect of ours: the old targets stay
        now = self.targets.by_name.keys()
        if now != before:
            joined, left = sorted(now - before), sorted(before - now)
            _log.info(
                "targets_changed",
                targets=len(now),
                joined=joined[:_MOST_NAMED],
                left=left[:_MOST_NAMED],
            )

    def _watch(
        self,
        configured: Config | None = None,
        cursors: Mapping[str, Cursor] | None = None,
    ) -> None:
        """Watch our targets of a configuration, by default the present one, and of what discovery
        has found, and no others; new ones from ``cursors``, by default the stored ones.

        Raises ConfigError, and changes nothing, if one cannot be watched.
        """
        with self._configuring:
            reload, configured = configured is not None, configured or self._configured
            sources = self._discovery.sources_of(configured)
            everything = self._discovery.all_targets(configured, sources)
            config = configured.model_copy(update={"targets": everything})
            own = part_of(config)
            if cursors is None:
                joined = {target.name for target in own.targets} - self.targets.by_name.keys()
                cursors = self._recorder.cursors(joined)
            since = self._discovery.watched_since(sources)
            self.targets.configure(own.targets, cursors, reload=reload, watched_since=since)
            self._discovery.use(sources)
            self._configured, self.config = configured, config
            workloads = self._workloads.configure(
                own.targets,
                everything,
                acting=self._guard_service.acting,
            )
            self._rule_service.configure(with_workloads(own, workloads))
            self._guard_service.configure(with_workloads(own, workloads, pods=False))
            self._experiment_service.configure(own)
            self.targets.schedule()
