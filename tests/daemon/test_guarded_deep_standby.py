"""The guard of a simulated server that can skip its drafter."""

from __future__ import annotations

from pathlib import Path

import pytest

from specwatch.domain.interval import Interval
from specwatch.domain.model import Mode
from specwatch.guard import state_machine
from specwatch.guard.state import Phase
from specwatch.guard.switch_phases import DEEP_ENDS, LEASE
from tests.daemon.test_guarded_switch import reasons
from tests.guard.living import ACT, Living, SimulatedMeasurements
from tests.guard.simulated_server import SimulatedServer


@pytest.fixture
def deep(tmp_path: Path) -> Living:
    """In standby, on a server that can skip its drafter."""
    living = Living(tmp_path / "s.db", server=SimulatedServer(switched=True, can_skip=True))
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
