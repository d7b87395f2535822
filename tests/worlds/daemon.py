"""The product itself in virtual time: the real cycle, recorder, judging and guarding."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from specwatch.actuators.base import Claim
from specwatch.config.loading import Config, from_targets
from specwatch.daemon.guard_service import GuardService
from specwatch.daemon.recorder import Recorder
from specwatch.daemon.rule_service import RuleService
from specwatch.daemon.scraper import Scraper
from specwatch.domain.baseline import BaselineKey
from specwatch.domain.model import HOUR, MINUTE, Batch, Mode, Moment
from specwatch.domain.sample import samples_of
from specwatch.errors import PageError, ScrapeError, ScrapeReason
from specwatch.guard.plan import Plan, ProcessState, Service
from specwatch.guard.state import Phase
from specwatch.lab.loadtest import calibration, calibration_shape
from specwatch.lab.loadtest.calibration import Block, Look, Meter, Stage
from specwatch.lab.loadtest.engine import engine_of
from specwatch.scrape.exposition import PageReader
from specwatch.store.repository import Store
from tests.worlds.life import Server
from tests.worlds.world import START, World

CALIBRATE_AFTER = 1.0 * HOUR
"""Seconds of traffic that are watched before it is calibrated: by its own shape."""
CALIBRATE_SECONDS = 180.0
"""Of each load and length of prompts."""


class _Now(Executor):
    """Runs what it is given at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _Pages:
    """A client that has the page of now."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def fetch(
        self, path: str, *, timeout: float | None = None, max_size: int | None = None
    ) -> bytes:
        if self._server.page is None:
            raise ScrapeError(ScrapeReason.REFUSED, "nothing listens")
        if path == "/version":
            return b'{"version": "0.32.0"}'
        if path not in ("/metrics", "/health"):
            raise PageError(ScrapeReason.HTTP_STATUS, "404")
        return self._server.page.encode(errors="surrogateescape")

    def close(self) -> None:
        """There is no connection."""


class _Switch:
    """An actuator that restarts the world."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._goal = Mode.ON

    handover = 0.0

    def plan(self) -> Plan:
        return Plan((), (), (), ("restart the world",))

    def status(self) -> Service:
        speculating = self._server.speculating
        mode = self._goal if speculating is None else Mode.ON if speculating else Mode.OFF
        return Service(ProcessState.UP, mode, str(self._server.restarts))

    def disable(self, claim: Claim) -> None:
        self._goal = Mode.OFF
        self._server.restart(speculation=False)

    def enable(self, claim: Claim) -> None:
        self._goal = Mode.ON
        self._server.restart(speculation=True)

    def close(self) -> None:
        """Nothing to let go of."""


class Specwatch:
    """The daemon's services, wired as the daemon does, with a clock of ours."""

    def __init__(self, server_of: World, name: str = "specwatch", **guard: Any) -> None:
        """``guard`` are settings of the section of that name."""
        self.name = name
        self._world = server_of
        self._now = Moment(START, 0.0)
        self._folder = tempfile.TemporaryDirectory(prefix="worlds-")
        database = Path(self._folder.name, "worlds.db")
        self.config: Config = from_targets(
            ["http://127.0.0.1:8000"],
            environ={},
            hostname="worlds",
            settings={
                "database": f"sqlite:///{database}",
                "guard": {"mode": "act", **guard},
            },
        )
        target = self.config.targets[0]
        self._target = target.model_copy(update={"interval": server_of.interval})
        self.config = self.config.model_copy(update={"targets": (self._target,)})
        self._store = Store(self.config.database.connect_url(), daemon="worlds")
        self._recorder = Recorder(
            self._store,
            queue_limit=100_000,
            now=self._clock,
            resume=lambda cursors: None,
            supersede=lambda cursors: None,
            configuring=threading.Lock(),
        )
        self._recorder.open()
        self.judging = RuleService(self._store, self.config, now=self._clock)
        self._cycle: Scraper | None = None
        self._runner = asyncio.Runner()
        self.guarding: GuardService | None = None
        self._minute = 0
        self._calibrated = False
        self.log: list[str] = []
        self.breached: dict[str, float] = {}
        """Rules that were in breach, and the Unix time since when at first."""
        self._phase = ""

    def step(self, server: Server) -> None:
        """One scrape, and a turn of the guard."""
        if self._cycle is None or self.guarding is None:
            self._start(server)
        assert self._cycle is not None
        assert self.guarding is not None
        self._now = Moment(server.now, server.now - START)
        self._runner.run(self._cycle.turn())
        minute = int(server.now // MINUTE)
        if minute != self._minute:
            self._minute = minute
            self._each_minute()
        self.guarding.turn()
        status = self.guarding.status_of(self._target.name)
        if status is None or status.state is None or status.state.phase is not Phase.OBSERVING:
            self.guarding.turn()
            self.guarding.turn()
        self._tell(server)
        if not self._calibrated and server.now - START >= CALIBRATE_AFTER:
            self._calibrated = True
            self._calibrate()

    def end(self) -> dict[str, Any]:
        """What the guard came to."""
        status = self.guarding.status_of(self._target.name) if self.guarding else None
        state = status.state if status else None
        phase = state.phase if state else Phase.OBSERVING
        if self.guarding is not None:
            self.guarding.close()
        self._runner.close()
        self._recorder.close()
        self._folder.cleanup()
        return {"held": phase is Phase.HELD, "final_state": str(phase), "log": self.log}

    def _clock(self) -> Moment:
        return self._now

    def _start(self, server: Server) -> None:
        self._cycle = Scraper(
            self._target,
            daemon="worlds",
            clock=self._clock,
            put=self._take,
            client=_Pages(server),
        )
        cycle = self._cycle
        self.guarding = GuardService(
            self._store,
            self.config,
            now=self._clock,
            rule_service=self.judging,
            status=lambda target: cycle.status(current=False),
            healthy=lambda target: server.page is not None,
            actuator=lambda target: _Switch(server),
            pool=_Now(),
        )

    def _take(self, batch: Batch) -> None:
        self._recorder.put(batch)
        self.judging.observe(self._target.name, batch)

    def _each_minute(self) -> None:
        self._recorder.flush(force=True)
        self.judging.catch_up()
        for finding in self.judging.decision_of(self._target.name).findings:
            if finding.in_breach and finding.rule.name not in self.breached:
                self.breached[finding.rule.name] = finding.since
                hours = (finding.since - START) / HOUR
                self.log.append(f"{hours:8.2f} h: the rule {finding.rule.name} is in breach")
        self.judging.flush()
        if self._minute % 60 == 0:
            self._recorder.roll_up()
        if self._minute % 360 == 0:
            self._recorder.prune(self.config.retention, self.config.baseline.max_age)

    def _tell(self, server: Server) -> None:
        assert self.guarding is not None
        status = self.guarding.status_of(self._target.name)
        state = status.state if status else None
        if state is None:
            return
        line = f"{state.phase} {state.waiting or state.why}".strip()
        if line != self._phase:
            self._phase = line
            hours = (server.now - START) / HOUR
            truth = self._world.truth(server.now)
            decision = self.judging.decision_of(self._target.name)
            speedups = [
                f"{one.assessment.speedup.value:.2f}" if one.assessment.speedup else "?"
                for one in decision.models.values()
            ]
            self.log.append(
                f"{hours:8.2f} h, S {truth:.2f}, estimated {','.join(speedups)}: {line}"
            )

    def _calibrate(self) -> None:
        """As ``specwatch calibrate`` does beside the server: the shape and loads of the traffic."""
        until = self._now.wall
        windows = list(
            self._store.windows(
                target=self._target.name, since=until - CALIBRATE_AFTER, until=until, length=MINUTE
            )
        )
        shape = calibration_shape.shape_of(samples_of(windows))
        if shape is None:
            self._calibrated = False
            return
        reader = PageReader()
        stages: list[Stage] = []
        for load in shape.loads:
            for factor in calibration_shape.LENGTHS:
                pages = self._world.calibrate(
                    load,
                    round(shape.prompt_tokens * factor),
                    shape.output_tokens,
                    CALIBRATE_SECONDS,
                )
                first = reader.read(pages[0].encode())
                engine = engine_of(first, "0.32.0", ())
                looks = tuple(
                    Look(
                        reader.read(page.encode()),
                        until,
                        n * self._world.interval,
                        load * n * self._world.interval,
                    )
                    for n, page in enumerate(pages)
                )
                stage = Stage(engine, load)
                stage.add(Block((looks[0], *looks[3:], looks[-1]), ()), Meter(engine))
                stages.append(stage)
        engine = stages[0].engine
        environment = engine.environment
        key = BaselineKey(
            self._target.name,
            engine.model_name,
            environment.engine_version,
            environment.configuration,
        )
        measurements = calibration.measurements(key, stages)
        self._store.write_measurements(measurements, until)
        self.log.append(
            f"calibrated at loads {shape.loads}, prompts of {shape.prompt_tokens},"
            f" outputs of {shape.output_tokens}: {len(measurements)} bins"
        )
