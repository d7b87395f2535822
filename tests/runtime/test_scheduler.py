"""Jobs repeat, in lanes, whatever the clock and other jobs do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobSubmissionEvent

from specwatch.runtime import scheduler
from specwatch.runtime.scheduler import Schedule
from tests.fixtures import Log, events
from tests.hostile import wait_for

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def jobs() -> Iterator[Schedule]:
    made = Schedule({"one": 1, "two": 1})
    made.start()
    yield made
    made.stop()


def test_a_job_that_raises_is_told_and_repeats(jobs: Schedule, log: Log) -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise ZeroDivisionError

    jobs.every(0.02, broken, delay=0.0, lane="one")
    wait_for(lambda: len(calls) >= 3)
    assert events(log, "job_failed")[0]["job"] == "broken"


def test_a_job_that_hangs_holds_only_its_lane(jobs: Schedule) -> None:
    leave, entered, seen = threading.Event(), threading.Event(), list[int]()

    def hang() -> None:
        entered.set()
        leave.wait(20)

    jobs.every(0.02, hang, delay=0.0, lane="one")
    assert entered.wait(10)
    jobs.every(0.02, seen.append, 1, delay=0.0, lane="two")
    wait_for(lambda: len(seen) >= 3)
    leave.set()


def test_that_a_job_is_skipped_is_said_once_a_minute(
    jobs: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    leave, skips = threading.Event(), list[JobSubmissionEvent]()
    jobs._scheduler.add_listener(skips.append, EVENT_JOB_MAX_INSTANCES)
    jobs.every(0.02, leave.wait, 60, delay=0.0, lane="one")
    wait_for(lambda: len(skips) >= 3)
    leave.set()
    skipped = [record for record in caplog.records if "skipped" in record.getMessage()]
    assert len(skipped) == 1


def test_jobs_can_be_set_anew_while_they_run(jobs: Schedule) -> None:
    old: list[int] = []
    new: list[int] = []
    for _ in range(20):
        jobs.clear()
        jobs.every(0.01, old.append, 1, delay=0.0, lane="one")
    wait_for(lambda: old)
    jobs.clear()
    jobs.every(0.01, new.append, 1, delay=0.0, lane="one")
    wait_for(lambda: len(new) >= 2)
    count = len(old)
    wait_for(lambda: len(new) >= 10)
    assert len(old) == count


def test_nothing_begins_after_stop_which_may_come_at_any_time() -> None:
    made = Schedule({"one": 1, "two": 1})
    seen: list[str] = []
    made.stop()
    made.start()
    made.every(0.02, lambda: (seen.append("job"), made.stop())[1], delay=0.0, lane="one")
    wait_for(lambda: seen)
    made.stop()
    count = len(seen)
    time.sleep(0.05)
    assert len(seen) <= count + 1


@pytest.mark.parametrize("away", [timedelta(seconds=12), timedelta(days=365 * 50)])
def test_a_clock_set_forward_is_one_run_and_not_a_list_of_all_that_was_missed(
    away: timedelta,
) -> None:
    """APScheduler walks from run to run up to now: a list of 300 million for fifty years."""
    trigger = scheduler._Interval(seconds=5, timezone=UTC)
    later = trigger.get_next_fire_time(NOW, NOW + away)
    assert later is not None
    assert NOW + away < later <= NOW + away + timedelta(seconds=5)
    assert (later - NOW) % timedelta(seconds=5) == timedelta(0)


def test_without_a_step_runs_keep_their_phase() -> None:
    trigger = scheduler._Interval(seconds=5, timezone=UTC)
    assert trigger.get_next_fire_time(NOW, NOW + timedelta(seconds=1)) == NOW + timedelta(seconds=5)
