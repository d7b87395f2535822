"""Repeating jobs by APScheduler, in lanes that cannot delay one another; and the clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger

from specwatch.domain.model import Moment

_log = structlog.get_logger("specwatch.schedule")
_SELDOM_SECONDS = 60.0


def current_moment() -> Moment:
    """This moment on the wall clock and on the monotonic clock, in seconds."""
    return Moment(time.time(), time.monotonic())


class _Seldom(logging.Filter):
    """Passes what APScheduler says of a job that is skipped once a minute: one that hangs is
    skipped at each of its times."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._said: dict[tuple[object, ...], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it was not said within the last minute."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        # The text of a job has its next time, which is another one each time.
        said = (record.msg, *(getattr(one, "id", one) for one in arguments))
        now = self._monotonic()
        if now - self._said.get(said, float("-inf")) < _SELDOM_SECONDS:
            return False
        self._said[said] = now
        return True


_SELDOM = _Seldom()


class Schedule:
    """Runs jobs at intervals of the wall clock; one job never runs twice at a time.

    When the clock is set, jobs are due at the wrong time until :meth:`clear` and :meth:`every`
    have set them again.
    """

    def __init__(self, lanes: Mapping[str, int]) -> None:
        """``lanes`` names the lanes, and how many jobs of each may run at a time."""
        logging.getLogger("apscheduler.scheduler").addFilter(_SELDOM)
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={lane: ThreadPoolExecutor(threads) for lane, threads in lanes.items()},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def start(self) -> None:
        """Begin to run jobs."""
        self._scheduler.start()

    def clear(self) -> None:
        """Forget all jobs; those that run go on."""
        self._scheduler.remove_all_jobs()

    def every(
        self, seconds: float, job: Callable[..., None], *args: Any, delay: float, lane: str
    ) -> Callable[[], None]:
        """Run a job in a lane, first after ``delay`` seconds. What it raises is logged.

        Returns what forgets the job.
        """
        added = self._scheduler.add_job(
            _run,
            _Interval(seconds=seconds, timezone=UTC),
            (job, *args),
            executor=lane,
            next_run_time=datetime.now(UTC) + timedelta(seconds=delay),
        )
        forget: Callable[[], None] = added.remove
        return forget

    def stop(self) -> None:
        """Begin no job any more. Jobs that run are not waited for."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


class _Interval(IntervalTrigger):  # type: ignore[misc]
    """Skips what was missed: APScheduler lists every run that a clock set forward has missed."""

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        following: datetime | None = super().get_next_fire_time(previous, now)
        if previous is None or following is None or following > now:
            return following
        missed: int = (now - previous) // self.interval
        later: datetime = previous + (missed + 1) * self.interval
        return later


def _run(job: Callable[..., None], *args: Any) -> None:
    try:
        job(*args)
    except Exception:
        # A defect in one job must not stop the others, and must be logged.
        _log.exception("job_failed", job=getattr(job, "__name__", repr(job)))
