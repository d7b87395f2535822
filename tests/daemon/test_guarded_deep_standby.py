"""The guard of a simulated server that can skip its drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from specwatch.config.guard import Maintenance, Windows
from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.guard import state_machine
from specwatch.guard.state import Phase
from specwatch.guard.switch_phases import DEEP_ENDS, LEASE
from tests.daemon.stores import NewLiving
from tests.daemon.test_guarded_switch import reasons
from tests.guard.living import ACT, Living, SimulatedMeasurements
from tests.guard.simulated_server import SimulatedServer

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else


@pytest.fixture
def deep(new_living: NewLiving) -> Living:
    """In standby, on a server that can skip its drafter."""
    living = new_living(server=SimulatedServer(switched=True, can_skip=True))
    living.live(600, until=Phase.VERIFYING)
    living.live(20)
    assert living.server.mode is Mode.STANDBY
    living.live(600, until=Phase.DISABLED)
    return living


def test_the_drafter_is_skipped_once_standby_was_verified(deep: Living) -> None:
    deep.live(5 * LEASE)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.DEEP)
    deep.server.restart()
    deep.live(400)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.DEEP)
    assert deep.server.ordered_by == f"specwatch guard ({deep.state.incident.id})"


def test_it_runs_again_before_a_trial(deep: Living) -> None:
    deep.server.bad = False
    deep.live(ACT.rearm.after - DEEP_ENDS - 200)
    assert deep.server.mode is Mode.DEEP
    deep.live(400)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.STANDBY)
    deep.live(ACT.rearm.after, until=Phase.TRIAL)
    assert (deep.state.phase, deep.server.mode) == (Phase.TRIAL, Mode.ON)
    assert "the switch is back to the launch" in reasons(deep)


@pytest.mark.parametrize("finish", [True, False])
def test_an_early_trial_waits_for_requests_that_were_in_it(
    deep: Living, monkeypatch: pytest.MonkeyPatch, finish: bool
) -> None:
    """Until they finish, and otherwise for a quarter of an hour."""
    deep.live(1000)
    gain = Interval(2.0, 1.9, 2.1, 20)
    monkeypatch.setattr(SimulatedMeasurements, "_predicted", lambda *_: gain)
    deep.server.bad = False
    early = deep.live(3600, until=Phase.DISABLED).early_at
    deep.server.now = max(deep.server.now, early)
    deep.server.stale_requests = 3
    deep.live(DEEP_ENDS - 200)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.STANDBY)
    assert any("requests that were in deep standby have to finish" in r for r in reasons(deep))
    if finish:
        deep.server.stale_requests = 0
    deep.live(150)
    assert (deep.state.phase is Phase.TRIAL) is finish
    deep.live(400, until=Phase.TRIAL)
    assert (deep.state.phase, deep.server.mode) == (Phase.TRIAL, Mode.ON)
    counted = any("that were in deep standby and still run: 3" in r for r in reasons(deep))
    assert counted is not finish


def test_a_person_need_not_wait_for_them(deep: Living) -> None:
    deep.live(1000)
    assert deep.server.mode is Mode.DEEP
    deep.server.stale_requests = 2
    deep.command(lambda state: state_machine.order(state, Mode.ON, by="ann", now=deep.server.now))
    deep.live(60, until=Phase.OBSERVING)
    assert deep.server.mode is Mode.ON
    assert any("that were in deep standby and still run: 2" in r for r in reasons(deep))


def test_no_restart_because_the_drafter_runs_again_before_a_trial(deep: Living) -> None:
    """The cost of plain standby is not that of the hours that a restart would save."""
    deep.server.bad, deep.server.standby_cost = False, Interval(2.1, 2.0, 2.2, 20)
    deep.server.deep_cost = Interval(1.01, 1.0, 1.02, 20)
    deep.live(ACT.rearm.after + 300, until=Phase.TRIAL)
    assert (deep.state.phase, deep.server.mode) == (Phase.TRIAL, Mode.ON)
    assert deep.server.starts == []


def test_a_restart_follows_where_deep_standby_costs_more_and_stays_deep_until_then(
    deep: Living,
) -> None:
    deep.server.deep_cost, deep.server.load = Interval(1.5, 1.4, 1.6, 20), 3.0
    deep.live(2 * ACT.cooldown, until=Phase.DRAINING)
    assert deep.state.phase is Phase.DRAINING
    deep.live(6)
    assert (deep.state.phase, deep.server.mode) == (Phase.DRAINING, Mode.DEEP)
    deep.live(300, until=Phase.DISABLED)
    assert [mode for _, mode in deep.server.starts] == [Mode.OFF]


def paused(deep: Living) -> Callable[[], None]:
    deep.command(lambda state: state_machine.pause(state, until=4e9, by="ann"))
    return lambda: deep.command(
        lambda state: state_machine.resume(state, by="ann", now=deep.server.now)
    )


def governed(changes: dict[str, Any]) -> Callable[[Living], Callable[[], None]]:
    """By another configuration, until the end of the block."""

    def begin(deep: Living) -> Callable[[], None]:
        deep.guardian.policy = ACT.model_copy(update=changes)
        return lambda: setattr(deep.guardian, "policy", ACT)

    return begin


def predicted_to_lose(deep: Living) -> Callable[[], None]:
    survey = cast(Any, deep.guardian._measurements)
    survey._predicted = lambda _: Interval(0.5, 0.4, 0.6, 20)
    return lambda: setattr(survey, "_predicted", lambda _: None)


CLOSED = Windows(forbid=(Maintenance.model_validate({"from": "00:00", "to": "00:00"}),))


@pytest.mark.parametrize(
    "block",
    [
        paused, predicted_to_lose, governed({"mode": "off"}), governed({"mode": "observe"}),
        governed({"windows": CLOSED}),
    ],
    ids=["paused", "predicted to lose", "off", "observe", "windows"],
)  # fmt: skip
def test_a_trial_that_is_blocked_does_not_end_it(
    deep: Living, block: Callable[[Living], Callable[[], None]]
) -> None:
    """It ends once nothing blocks the trial, which then waits for requests that were in it."""
    deep.server.bad = False
    end = block(deep)
    for _ in range(20):
        deep.live((ACT.rearm.after + 3 * DEEP_ENDS) / 20)
        assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.DEEP)
    end()
    deep.live(DEEP_ENDS - 200)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.STANDBY)
    assert deep.state.waiting.endswith("requests that were in deep standby have to finish first")
    deep.live(600, until=Phase.TRIAL)
    assert (deep.state.phase, deep.server.mode) == (Phase.TRIAL, Mode.ON)


def test_a_block_that_ends_shortly_before_a_trial_leaves_them_their_time(deep: Living) -> None:
    end = paused(deep)
    deep.live(ACT.rearm.after - 400)
    end()
    deep.server.bad, deep.server.stale_requests = False, 3
    deep.live(DEEP_ENDS)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.STANDBY)
    deep.live(DEEP_ENDS, until=Phase.TRIAL)
    assert (deep.state.phase, deep.server.mode) == (Phase.TRIAL, Mode.ON)


def test_a_trial_does_not_wait_for_ever_for_a_drafter_that_does_not_run(
    deep: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order to end deep standby is taken, and not carried out."""
    deep.server.bad = False
    order = deep.server.order
    monkeypatch.setattr(deep.server, "order", lambda k, **how: order(k, **{**how, "deep": k == 0}))
    deep.live(ACT.rearm.after + 2 * DEEP_ENDS, until=Phase.TRIAL)
    assert deep.state.phase is Phase.TRIAL


def test_the_time_of_a_person_ends_deep_standby_whatever_blocks_a_trial(deep: Living) -> None:
    deep.server.bad = False
    now = deep.server.now
    deep.command(
        lambda state: state_machine.order(state, Mode.OFF, by="ann", now=now, until=now + 3600)
    )
    paused(deep)
    deep.live(3600 - DEEP_ENDS - 200)
    assert deep.server.mode is Mode.DEEP
    deep.live(400)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.STANDBY)
    deep.live(DEEP_ENDS + 200, until=Phase.OBSERVING)
    assert deep.server.mode is Mode.ON


def test_a_guard_that_is_off_does_not_end_it_when_the_time_of_a_person_is_over(
    deep: Living,
) -> None:
    until = deep.server.now + 3600
    deep.command(
        lambda state: state_machine.order(
            state, Mode.OFF, by="ann", now=deep.server.now, until=until
        )
    )
    deep.live(600)
    governed({"mode": "off"})(deep)
    deep.live(2 * 3600)
    assert (deep.state.phase, deep.server.mode) == (Phase.DISABLED, Mode.DEEP)
