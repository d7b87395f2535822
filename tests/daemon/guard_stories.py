"""Whole incidents of a guard, which a test may interrupt at any point."""

from __future__ import annotations

from typing import Any

from specwatch.domain.model import Mode
from specwatch.guard.state import Phase
from tests.daemon.stores import NewLiving
from tests.guard.living import QUICK, Living
from tests.guard.simulated_server import SimulatedServer


def tell(new_living: NewLiving, server: SimulatedServer | None = None, **options: Any) -> Living:
    """An incident, a trial that is lost, and speculation off again, in few turns."""
    living = new_living(server=server or SimulatedServer(), policy=QUICK, every=4.0, **options)

    def point(what: str) -> None:
        if what == "before the drop-in":
            assert living.state.phase is Phase.RESTARTING, "the claim is stored before"
        living.point(what)

    living.server.point = point
    living.live(600, until=Phase.DISABLED)
    living.live(QUICK.rearm.after + 400, until=Phase.TRIAL)
    living.live(QUICK.rearm.trial + 400, until=Phase.DISABLED)
    living.live(60)
    return living


def require_restarts(living: Living, case: str) -> None:
    """Speculation is off, after no more restarts than without a failure."""
    assert living.state.phase is Phase.DISABLED, case
    assert [mode for _, mode in living.server.starts] == [Mode.OFF, Mode.ON, Mode.OFF], case
    assert living.server.up, case
    assert living.server.configured is Mode.OFF, case


def require_restarts_though_killed(new_living: NewLiving, *, step: int = 1) -> None:
    """As :func:`require_restarts`, killed at every point, or at one of ``step``."""
    points = tell(new_living).points
    assert len(points) > 20
    for number in range(0, len(points), step):
        living = tell(new_living, kill_at=number)
        case = f"killed {living.points[number]}"
        assert living.deaths == 1, case
        require_restarts(living, case)


def require_restarts_without_database(new_living: NewLiving, *, step: int = 1) -> None:
    """Nothing begins without a database, and what began is finished."""
    storing = [n for n, what in enumerate(tell(new_living).points) if "storing" in what]
    for number in storing[::step]:
        living = tell(new_living, away_at=number, away_turns=20)
        living.live(400)
        require_restarts(living, f"away {living.points[number]}")


def require_standby_though_killed(new_living: NewLiving, *, step: int = 1) -> None:
    """A guard with a switch restarts nothing: killed at every point, or at one of ``step``."""

    def told(**options: Any) -> Living:
        server = SimulatedServer(switched=True)
        return tell(new_living, server, **options)

    points = told().points
    assert len([point for point in points if "order" in point]) >= 6
    for number in range(0, len(points), step):
        living = told(kill_at=number)
        case = f"killed {living.points[number]}"
        assert living.deaths == 1, case
        assert living.state.phase is Phase.DISABLED, case
        assert (living.server.mode, living.server.starts) == (Mode.STANDBY, []), case
        assert [k for _, k in living.server.orders] == [0, None, 0], case
