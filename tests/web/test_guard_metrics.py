"""The guard on the metrics page."""

from __future__ import annotations

from typing import Any

import pytest

from specwatch.guard.state import Cause, GuardState, Incident, Phase
from specwatch.guard.status import ACTIONS, ActionCount, GuardStatus, guard_view, no_actions
from specwatch.status import DaemonStatus, PagerStatus
from tests.web.exported import samples
from tests.web.statuses import NOW, daemon, target


def guarded(state: GuardState | None = None, **changes: Any) -> DaemonStatus:
    return daemon(target(guard=GuardStatus("act", state, **changes)))


def test_a_guard_that_is_not_known_shows_nothing() -> None:
    """Neither one of which this daemon has no status, nor a state that was not read yet."""
    for name in ("acts", "state", "waiting", "incident", "actions_today", "actions_limit"):
        assert samples(daemon(), f"specwatch_guard_{name}") == {}
    for name in ("state", "waiting", "incident", "actions_today", "actions_limit"):
        assert samples(guarded(), f"specwatch_guard_{name}") == {}


def test_every_action_counts_from_zero_on() -> None:
    """A counter that begins at 1 has no increase."""
    found = samples(guarded(), "specwatch_actions_total")
    assert found == {(action, result, "chat"): 0 for action, result in ACTIONS}
    one = no_actions() | {("disable", "done"): 2}
    found = samples(guarded(actions=one), "specwatch_actions_total")
    assert found[("disable", "done", "chat")] == 2
    assert sum(found.values()) == 2


def test_what_was_not_done_is_no_line_of_the_api() -> None:
    one = GuardStatus("act", actions=no_actions() | {("enable", "held"): 1})
    assert guard_view(one).actions == [ActionCount("enable", "held", 1)]


def test_actions_are_shown_beside_their_limit() -> None:
    state = GuardState("chat", actions=(NOW - 90_000, NOW - 60, NOW - 30))
    status = guarded(state, max_actions_per_day=4)
    assert samples(status, "specwatch_guard_actions_today") == {("chat",): 2}
    assert samples(status, "specwatch_guard_actions_limit") == {("chat",): 4}


@pytest.mark.parametrize(
    ("phase", "waiting", "value"),
    [
        (Phase.CONFIRMED, "cooling down for 30m", 1),
        (Phase.CONFIRMED, "", 0),
        (Phase.DISABLED, "a trial is due; paused by ann", 0),
        (Phase.OBSERVING, "", 0),
    ],
)
def test_a_guard_waits_where_a_confirmed_breach_is_not_acted_on(
    phase: Phase, waiting: str, value: int
) -> None:
    """Waiting for a trial is no trouble."""
    status = guarded(GuardState("chat", phase, waiting=waiting))
    assert samples(status, "specwatch_guard_waiting") == {("chat",): value}


@pytest.mark.parametrize("cause", [None, *Cause])
def test_one_cause_at_most_is_that_of_the_incident(cause: Cause | None) -> None:
    incident = None if cause is None else Incident("i", cause, NOW)
    status = guarded(GuardState("chat", Phase.DISABLED, incident=incident))
    assert samples(status, "specwatch_guard_incident") == {
        (str(each), "chat"): int(each is cause) for each in Cause
    }


def test_one_state_at_a_time_since_when() -> None:
    status = guarded(GuardState("chat", Phase.TRIAL, since=NOW - 60))
    assert samples(status, "specwatch_guard_state") == {
        (str(each), "chat"): int(each is Phase.TRIAL) for each in Phase
    }
    since = samples(status, "specwatch_guard_state_since_timestamp_seconds")
    assert since == {("chat",): NOW - 60}


def test_an_alertmanager_that_is_not_reached_is_down() -> None:
    one = PagerStatus("http://127.0.0.1:9093", error="refused", failures={"refused": 3})
    status = daemon(pagers=(one,))
    assert samples(status, "specwatch_alertmanager_up") == {("http://127.0.0.1:9093",): 0}
    assert samples(status, "specwatch_alertmanager_failures_total") == {
        ("refused", "http://127.0.0.1:9093"): 3
    }
