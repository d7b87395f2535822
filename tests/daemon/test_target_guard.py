"""The guard of a simulated server, from a breach to its end, whatever goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from specwatch.config.guard import Guard
from specwatch.domain.model import HOUR, Mode
from specwatch.guard import state_machine
from specwatch.guard.plan import ProcessState, Service
from specwatch.guard.state import Phase
from tests.daemon.guard_stories import (
    require_restarts_though_killed,
    require_restarts_without_database,
)
from tests.daemon.stores import NewLiving
from tests.guard.living import ACT, QUICK, TURN, Living
from tests.guard.simulated_server import SimulatedServer

pytestmark = pytest.mark.usefixtures("log")  # writing it out takes longer than all else


@pytest.fixture
def living(new_living: NewLiving) -> Living:
    return new_living()


def test_a_breach_ends_with_speculation_off_by_one_restart(living: Living) -> None:
    state = living.live(400, until=Phase.DISABLED)
    assert living.phases() == [
        "suspect",
        "confirmed",
        "draining",
        "restarting",
        "verifying",
        "disabled",
    ]
    assert [mode for _, mode in living.server.starts] == [Mode.OFF]
    assert state.incident.what == "net-negative"
    assert state.rearm_at == state.since + ACT.rearm.after
    assert living.server.mode is Mode.OFF


def test_a_good_draft_is_kept_after_a_trial(living: Living) -> None:
    living.live(400, until=Phase.DISABLED)
    living.server.bad = False
    living.live(ACT.rearm.after + 100, until=Phase.TRIAL)
    state = living.live(ACT.rearm.trial + 100, until=Phase.OBSERVING)
    assert (state.phase, state.delay, state.incident) == (Phase.OBSERVING, 0.0, None)
    assert [mode for _, mode in living.server.starts] == [Mode.OFF, Mode.ON]
    assert living.server.mode is Mode.ON


def test_a_bad_draft_is_tried_again_later_each_time(living: Living) -> None:
    delays = []
    for _ in range(4):
        state = living.live(4 * ACT.rearm.after + 4000, until=Phase.DISABLED)
        assert state.rearm_at is not None
        delays.append(state.rearm_at - state.since)
        living.live(delays[-1] + 200, until=Phase.TRIAL)
    hours = [delay / 3600 for delay in delays]
    assert hours == [6, 12, 24, 24]


def test_a_guard_that_is_off_does_nothing_but_finish_what_was_begun(new_living: NewLiving) -> None:
    living = new_living(policy=Guard.model_validate({"mode": "off"}))
    assert living.live(600).phase is Phase.OBSERVING
    assert living.phases() == []
    living.guardian.policy = ACT
    living.live(400, until=Phase.VERIFYING)
    living.guardian.policy = Guard.model_validate({"mode": "off", "verify": "1m"})
    assert living.live(400).phase is Phase.DISABLED


ENDS = {
    "crash": "vLLM does not run; it runs again as before",
    "hang": "vLLM was not healthy within 15m; it runs again as before",
    "sick": "vLLM was not healthy within 15m; it runs again as before",
    "model": "it serves another instead of tiny; it runs again as before",
    "ignore": "it still speculates after the restart; it runs again as before",
    "silent": "it does not report whether it speculates after the restart; it runs again as before",
    "refuse": "nothing was done: the unit is masked",
    "timeout": "systemd did not answer in time; it runs again as before",
}


@pytest.mark.parametrize("fault", ENDS)
def test_whatever_fails_vllm_runs_as_before_and_a_person_is_wanted(
    living: Living, fault: str
) -> None:
    living.server.fault = fault
    state = living.live(3000, until=Phase.HELD)
    assert (state.phase, state.why) == (Phase.HELD, ENDS[fault])
    living.live(120)
    assert living.server.up
    assert living.server.mode is Mode.ON
    assert living.server.configured is Mode.ON
    assert len(living.server.starts) == (0 if fault == "refuse" else 2)
    assert living.live(1000).phase is Phase.HELD


def test_a_restart_that_failed_is_put_right_at_once(new_living: NewLiving) -> None:
    living = new_living(every=TURN)
    living.server.fault = "timeout"
    living.live(3000, until=Phase.HELD)
    (failed, _), (put_right, mode) = living.server.starts
    assert mode is Mode.ON
    assert put_right - failed < 10


def test_a_server_whose_manager_does_not_answer_is_left_alone(living: Living) -> None:
    living.server.fault = "no-status"
    state = living.live(600)
    assert state.phase is Phase.CONFIRMED
    assert state.waiting == "the server cannot be switched: the manager does not answer"
    assert living.server.starts == []


def test_a_trial_that_does_not_start_goes_back_to_serving_without(living: Living) -> None:
    living.live(400, until=Phase.DISABLED)
    living.server.fault, living.server.fault_with = "crash", Mode.ON
    state = living.live(ACT.rearm.after + 2000, until=Phase.HELD)
    assert state.phase is Phase.HELD
    living.live(60)
    assert (living.server.up, living.server.mode) == (True, Mode.OFF)


def test_killed_at_some_points_it_goes_on_and_restarts_no_more_than_without(
    new_living: NewLiving,
) -> None:
    """The nightly tests have every point."""
    require_restarts_though_killed(new_living, step=12)


def test_without_a_database_nothing_begins_and_what_began_is_finished(
    new_living: NewLiving,
) -> None:
    """Where it goes at some of the steps; the nightly tests have all."""
    require_restarts_without_database(new_living, step=12)


def test_a_failed_restart_is_put_right_though_the_database_is_away(new_living: NewLiving) -> None:
    living = new_living()
    living.server.fault = "crash"
    living.live(400, until=Phase.VERIFYING)
    living.book.away = True
    living.live(600)
    assert (living.server.up, living.server.mode) == (True, Mode.ON)
    assert living.state.phase is Phase.VERIFYING
    living.book.away = False
    assert living.live(60).phase is Phase.HELD
    assert living.phases()[-2:] == ["rolling_back", "held"]


@dataclass
class Crashing(SimulatedServer):
    """Ends at once at each of its next starts, in any mode, and is not started again."""

    crashes: int = 0
    ended: bool = False

    @property
    def broken(self) -> bool:
        return self.ended

    def restart(self) -> None:
        super().restart()
        self.ended = self.crashes > 0
        self.crashes -= self.ended

    def status(self) -> Service:
        life = ProcessState.DOWN if self.ended else ProcessState.UP
        return replace(super().status(), life=life)


@pytest.mark.parametrize(("crashes", "starts"), [(1, 2), (2, 3), (3, 4)])
def test_a_server_that_does_not_come_up_is_put_back_again(
    new_living: NewLiving, crashes: int, starts: int
) -> None:
    """A unit that has failed keeps the id of its last start, which is not that of the next."""
    living = new_living(server=Crashing(crashes=crashes), every=TURN)
    assert living.live(3000, until=Phase.HELD).why
    assert (living.server.up, len(living.server.starts)) == (True, starts)


def test_what_a_person_orders_is_done_before_anything_else(living: Living) -> None:
    living.server.bad = False
    living.live(60)

    def order(goal: Mode) -> None:
        living.command(
            lambda state: state_machine.order(state, goal, by="ann", now=living.server.now)
        )

    order(Mode.OFF)
    state = living.live(300, until=Phase.DISABLED)
    assert (state.phase, state.rearm_at) == (Phase.DISABLED, None)
    assert living.live(3 * 86400).phase is Phase.DISABLED
    order(Mode.ON)
    living.server.bad = True
    state = living.live(600, until=Phase.CONFIRMED)
    assert living.server.mode is Mode.ON
    assert state.phase is Phase.CONFIRMED
    assert living.live(60).waiting == "another tool switched speculation recently"


def test_what_has_no_plan_is_not_begun_for_a_rule(living: Living) -> None:
    living.server.fault = "limit"
    state = living.live(900)
    assert state.phase is Phase.CONFIRMED
    assert state.waiting.endswith("cannot be switched: the helper restarts it at most 12 times")
    assert living.server.starts == []


def test_what_has_no_plan_is_refused_to_a_person(living: Living) -> None:
    """At once, in place of a hold after the hooks have run."""
    living.server.bad, living.server.fault = False, "limit"
    living.live(60)
    living.command(
        lambda state: state_machine.order(state, Mode.OFF, by="ann", now=living.server.now)
    )
    assert living.live(60).phase is Phase.OBSERVING
    reasons = [step.reason for step in living.book.history(target="chat", limit=9)]
    assert any("refused: the helper restarts it" in reason for reason in reasons)


def test_what_somebody_else_switches_is_respected(living: Living) -> None:
    living.live(400, until=Phase.DISABLED)
    living.server.configured = Mode.ON
    living.server.restart()
    state = living.live(300, until=Phase.CONFIRMED)
    assert state.phase is Phase.CONFIRMED
    living.live(0.8 * ACT.respect)
    assert living.server.mode is Mode.ON
    assert living.state.waiting == "another tool switched speculation recently"
    living.live(ACT.respect)
    assert living.server.mode is Mode.OFF


def test_what_the_engine_itself_stopped_is_nobodys_switch(living: Living) -> None:
    """The guard ends what it had begun to think of; an operator's order starts it anew."""
    assert living.live(400, until=Phase.SUSPECT).goal is Mode.ON
    living.server.running = Mode.STOPPED
    state = living.live(3000)
    assert (state.phase, state.goal) == (Phase.OBSERVING, Mode.ON)
    assert living.server.starts == []
    living.server.bad = False
    living.command(
        lambda state: state_machine.order(state, Mode.ON, by="ann", now=living.server.now)
    )
    living.live(400)
    assert [mode for _, mode in living.server.starts] == [Mode.ON]
    assert living.server.mode is Mode.ON


def test_after_it_was_wrong_the_guard_rests_and_then_looks_again(new_living: NewLiving) -> None:
    server = SimulatedServer()
    living = new_living(server=server)
    living.live(400, until=Phase.VERIFYING)
    server.bad = False
    living.live(600, until=Phase.OBSERVING)
    server.bad = True
    state = living.live(600, until=Phase.CONFIRMED)
    living.live(60)
    assert "switching off did not help the last time" in living.state.waiting
    living.live(ACT.cooldown, until=Phase.VERIFYING)
    state = living.live(600, until=Phase.DISABLED)
    assert (state.phase, state.backoff) == (Phase.DISABLED, 0.0), (
        "it helped: nothing is held against it"
    )


def test_a_deploy_during_verification_stands(living: Living) -> None:
    living.live(400, until=Phase.VERIFYING)
    living.server.configured = Mode.ON
    living.server.restart()
    state = living.live(60, until=Phase.OBSERVING)
    assert (state.phase, state.elsewhere is not None) == (Phase.OBSERVING, True)
    assert [mode for _, mode in living.server.starts] == [Mode.OFF, Mode.ON]


@pytest.mark.parametrize("mode", ["act", "observe", "off"])
@pytest.mark.parametrize("switched", [False, True], ids=["by a restart", "by the switch"])
def test_a_disabling_for_a_time_ends_by_itself_whatever_the_guard_may_do(
    new_living: NewLiving, mode: str, switched: bool
) -> None:
    server = SimulatedServer(bad=False, switched=switched)
    policy = Guard.model_validate({"mode": mode, "drain_timeout": "2s"})
    living = new_living(policy=policy, server=server)
    living.live(60)
    until = server.now + 3600
    living.command(
        lambda state: state_machine.order(state, Mode.OFF, by="ann", now=server.now, until=until)
    )
    living.live(300, until=Phase.DISABLED)
    living.live(3000)
    assert server.mode is (Mode.STANDBY if switched else Mode.OFF)
    living.live(1200, until=Phase.OBSERVING)
    assert server.mode is Mode.ON
    assert living.state.elsewhere is None


def test_a_guard_that_is_off_restarts_nothing_that_another_tool_switched_on_already(
    living: Living,
) -> None:
    """Though the operator's disabling was for a time."""
    living.guardian.policy = Guard.model_validate({"mode": "off", "drain_timeout": "2s"})
    living.live(60)
    until = living.server.now + 3600
    living.command(
        lambda state: state_machine.order(
            state, Mode.OFF, by="ann", now=living.server.now, until=until
        )
    )
    living.live(300, until=Phase.DISABLED)
    living.server.configured = Mode.ON
    living.server.restart()
    assert living.live(5000).phase is Phase.OBSERVING
    assert len(living.server.starts) == 2


def test_after_a_trial_that_failed_a_resumed_guard_tries_again_later(living: Living) -> None:
    living.live(400, until=Phase.DISABLED)
    living.server.fault, living.server.fault_with = "crash", Mode.ON
    living.live(ACT.rearm.after + 2000, until=Phase.HELD)
    now = living.server.now
    living.server.fault = ""
    living.command(lambda state: state_machine.resume(state, by="ann", now=now))
    state = living.live(60)
    assert state.phase is Phase.DISABLED
    assert state.rearm_at == pytest.approx(now + 2 * ACT.rearm.after)


def set_clock_back(living: Living, seconds: float) -> None:
    """While no daemon runs."""
    living.server.set_clock_back(seconds)
    living.guardian = living._born()


def test_a_clock_that_was_set_back_stops_nothing(living: Living) -> None:
    living.live(400, until=Phase.VERIFYING)
    set_clock_back(living, 10_800)
    assert living.live(400, until=Phase.DISABLED).phase is Phase.DISABLED


@pytest.mark.parametrize("seconds", [3 * HOUR, 24 * HOUR])
def test_a_trial_is_not_delayed_by_a_clock_that_was_set_back(
    living: Living, seconds: float
) -> None:
    living.live(400, until=Phase.DISABLED)
    set_clock_back(living, seconds)
    assert living.live(ACT.rearm.after + 300, until=Phase.TRIAL).phase is Phase.TRIAL


def test_the_cooldown_is_not_prolonged_by_a_clock_that_was_set_back(
    new_living: NewLiving,
) -> None:
    living = new_living(policy=QUICK)
    living.live(400, until=Phase.DISABLED)
    set_clock_back(living, 5 * HOUR)
    living.live(3 * QUICK.cooldown, until=Phase.TRIAL)
    assert living.state.phase is Phase.TRIAL


def test_another_tool_is_respected_no_longer_though_the_clock_was_set_back(
    living: Living,
) -> None:
    living.live(20)
    for mode in (Mode.OFF, Mode.ON):
        living.server.configured = mode
        living.server.restart()
        living.live(60)
    set_clock_back(living, 5 * HOUR)
    living.live(ACT.respect + 300, until=Phase.DRAINING)
    assert living.state.phase is Phase.DRAINING


def test_a_change_of_the_owner_that_our_file_hides_is_told(living: Living) -> None:
    living.live(400, until=Phase.DISABLED)
    living.server.stale = True
    state = living.live(600)
    assert state.waiting.startswith("its owner changed how it starts")
