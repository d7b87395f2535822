"""The daemon is killed at every point of the guard's work, or loses its database there.

Whichever daemon goes on, the server ends as ordered, after one restart.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specwatch.domain.model import Mode
from specwatch.guard.state import Phase
from tests.e2e.guard_killing import KillLab
from tests.e2e.waiting import eventually
from tests.postgres import PostgresServer

ONCE = ["begin off", "end off"]
INSIDE = "inside the command"
AT_ONCE = 12
"""Labs that run side by side."""

Lab = Callable[..., KillLab]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """Makes labs: ``lab(name, database)``, with its own SQLite where none is named."""
    made: list[KillLab] = []

    def make(name: str, database: str = "") -> KillLab:
        url = database or f"sqlite:///{tmp_path}/{name}.db"
        made.append(KillLab(tmp_path / name, url))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_killed_anywhere_the_order_is_carried_out_with_one_restart(lab: Lab) -> None:
    """At points that are counted in a life that nobody ends."""
    points = whole_life(lab("whole"))
    assert len(points) >= 11
    for first in range(0, len(points), AT_ONCE):
        batch = points[first : first + AT_ONCE]
        labs = {point: lab(point.replace(" ", "-")) for point in batch}
        killed = {point: each.daemon(end_at=point) for point, each in labs.items()}
        for each in labs.values():
            each.order()
        for point, each in labs.items():
            each.wait_dead(killed[point])
            assert each.points()[-1] == point or INSIDE in (point, each.points()[-1])
            each.expire()
            each.daemon()
        for point, each in labs.items():
            each.wait_disabled()
            ended_well(each, point)
            each.close()


def whole_life(lab: KillLab) -> list[str]:
    """The points of it."""
    lab.daemon()
    lab.order()
    lab.wait_disabled()
    ended_well(lab, "nobody")
    lab.close()
    return list(dict.fromkeys(lab.points()))


def ended_well(lab: KillLab, point: str) -> None:
    """As ordered, after as few restarts as possible, with all steps in the history."""
    context = f"killed {point}: {lab.runs()}"
    state = lab.state()
    assert (state.phase, state.goal, state.order) == (Phase.DISABLED, Mode.OFF, None), context
    assert lab.is_healthy(), context
    assert not lab.speculates(), context
    # The command under way has lost its parent: a second one may run beside it.
    assert lab.runs() == ONCE or (point == INSIDE and lab.runs().count("end off") == 2), context
    history = lab.history()
    assert [each.version for each in history] == list(range(1, len(history) + 1)), context
    for before, after in itertools.pairwise(history):
        assert after.phase_before == before.phase, context
    phases = [each.phase for each in history if each.phase != each.phase_before]
    assert phases == ["draining", "restarting", "verifying", "disabled"], context


def test_the_other_daemon_goes_on_when_the_lease_ends(lab: Lab, postgres: PostgresServer) -> None:
    """On one Postgres, and by its clock: before the restart, and after it."""
    points = ("after storing restarting", "after the command")
    labs = {point: lab(point.replace(" ", "-"), postgres.new_url()) for point in points}
    killed = {point: each.daemon("one", end_at=point) for point, each in labs.items()}
    for each in labs.values():
        each.order()
    for point, each in labs.items():
        each.daemon("two")
        each.wait_dead(killed[point])
    for point, each in labs.items():
        each.wait_disabled()
        ended_well(each, point)
        assert [step.daemon for step in each.history()][-1] == "two"


def test_without_its_database_a_daemon_only_finishes_what_it_has_claimed(
    lab: Lab, postgres: PostgresServer
) -> None:
    rests = {"unclaimed": "before storing restarting", "claimed": "after storing restarting"}
    labs = {name: lab(name, postgres.new_url()) for name in rests}
    for name, each in labs.items():
        each.daemon(rest_at=rests[name])
        each.order()
    for name, each in labs.items():
        each.wait_point(rests[name])
    postgres.stop(signal.SIGQUIT)
    try:
        for each in labs.values():
            each.go()
        claimed = labs["claimed"]
        eventually(
            lambda: claimed.is_healthy() and not claimed.speculates(),
            what="what was claimed is done", within=300,
        )  # fmt: skip
        assert claimed.runs() == ONCE
        assert labs["unclaimed"].runs() == []
        assert labs["unclaimed"].speculates()
    finally:
        postgres.start()
    for name, each in labs.items():
        each.wait_disabled()
        ended_well(each, name)
